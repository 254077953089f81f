"""A timeline goes with its session by one statement, and is written without a look at it.

Whoever tells of a move holds the session's row: a foreign key locked and read it once more for
each. Claiming and completing took a tenth more of PostgreSQL's time.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

STATEMENTS = (
    "alter table timeline drop constraint timeline_session_id_fkey",
    """
    create function forget_timelines() returns trigger language plpgsql as $$
    begin
        if tg_op = 'TRUNCATE' then
            truncate timeline;
        else
            delete from timeline using gone where session_id = gone.id;
        end if;
        return null;
    end
    $$
    """,
    """
    create trigger sessions_take_their_timelines_along after delete on patch_sessions
        referencing old table as gone
        for each statement execute function forget_timelines()
    """,
    """
    create trigger sessions_take_all_timelines_along after truncate on patch_sessions
        for each statement execute function forget_timelines()
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
