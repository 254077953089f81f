"""Sessions can be found by words of their titles."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# No title is longer, but a row may hold anything, and a megabyte of words is an error. Each is
# put in at once, so that no search has a list beside the index to read.
INDEX = """
    create index sessions_by_words on patch_sessions
     using gin (to_tsvector('simple', left(title, 1000))) with (fastupdate = off)
"""


def upgrade() -> None:
    op.execute(INDEX)
