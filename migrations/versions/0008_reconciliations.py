"""Up to when each workspace has been compared with what Shortcut says."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    create table reconciliations (
        workspace text primary key,
        through timestamptz not null,
        read_up_to timestamptz,
        next_run_at timestamptz not null
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
