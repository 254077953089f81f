"""A story that was written to too often is written to no more until an operator says so."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STATEMENTS = (
    # Since when, and from when on the comments on it count.
    """
    alter table patch_sessions
        add muted_at timestamptz,
        add counted_from timestamptz not null default '-infinity'
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
