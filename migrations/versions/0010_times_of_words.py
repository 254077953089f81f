"""A story's title and description are from the newest fact about each, however late it comes."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

STATEMENTS = (
    # Null: not known, or read by a worker; then the time of what was heard last counts.
    """
    alter table patch_sessions
        add title_at timestamptz,
        add description_at timestamptz
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
