"""One comment per story that says where it stands, and the changes of a story that are owed."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STATEMENTS = (
    # What the story was told last. What moved before this version is left untold.
    "alter table patch_sessions add told_status text",
    "update patch_sessions set told_status = status",
    """
    create index sessions_to_tell on patch_sessions (updated_at, id)
        where status is distinct from told_status
    """,
    # Grows whenever the text changes, so that a sender knows whether it has sent the newest.
    "alter table outbox add edition bigint not null default 1",
    # These are rewritten in place; all others are said once.
    """
    create unique index rewritten_once on outbox (session_id, kind)
        where kind in ('standing', 'marks')
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
