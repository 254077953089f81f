"""A session that is taken from its worker waits until that one has stopped.

What was taken before this may be claimed at once, as before.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds whose claim was taken last, and until when its work may go on."""
    op.execute(
        """
        alter table patch_sessions
            add column stopping_generation bigint,
            add column stopping_until timestamptz,
            add constraint session_stops_until_then check
                ((stopping_generation is null) = (stopping_until is null)),
            add constraint session_stops_an_older_claim check
                (stopping_generation < claim_generation)
        """
    )
