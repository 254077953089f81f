"""How many requests each API token has left, for all processes that use it."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

STATEMENTS = (
    # A bucket that fills up by the clock; unlogged, since an empty one is right after a crash.
    """
    create unlogged table request_budgets (
        name text primary key,
        remaining double precision not null,
        as_of timestamptz not null,
        closed_until timestamptz not null default '-infinity'
    ) with (fillfactor = 50)
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
