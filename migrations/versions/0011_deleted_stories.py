"""Sessions are looked after in turn, since a story that was deleted is in no search."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

STATEMENTS = ("alter table reconciliations add looked_up_to bigint not null default 0",)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
