"""What is deleted for good, in small batches: never what is pending, owed, or not at rest."""

from dataclasses import dataclass
from datetime import timedelta

from app.db.connect import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """One batch of events that was looked through.

    Attributes:
        last: the last id of it, where the next one begins; None behind the last event.
        gone: how many of them were deleted.
        more: it held old ones, so that the next one may too.
    """

    last: int | None
    gone: int
    more: bool


async def forget_sessions(conn: Connection, *, older_than: timedelta, limit: int) -> int:
    """Deletes closed sessions that have not moved for so long and owe nothing; how many."""
    count: int = await conn.fetchval(
        """
        with old as materialized (
            select id from patch_sessions as session
             where status = 'closed' and updated_at < app_now() - $1::interval
               and not exists (select from outbox
                                where session_id = session.id and status in ('pending', 'sending'))
             order by updated_at, id
             limit $2
               for update skip locked
        ), gone as (
            delete from patch_sessions using old where patch_sessions.id = old.id
            returning old.id
        )
        select count(*) from gone
        """,
        older_than,
        limit,
    )
    return count


async def forget_events(
    conn: Connection, *, after: int, older_than: timedelta, limit: int
) -> Swept:
    """Deletes finished events among the next ones by id, if they came in so long ago.

    Those about a story that has a session stay with it: what is decided about it later may hang
    on all that was ever said.
    """
    row = await conn.fetchrow(
        """
        with batch as materialized (
            select id, received_at from events where id > $1 order by id limit $3
        ), old as materialized (
            select events.id from events join batch using (id)
             where batch.received_at < app_now() - $2::interval and status <> 'pending'
               and not exists (select from facts join patch_sessions using (workspace, sc_id)
                                where facts.event_id = events.id)
             order by events.id
               for update of events skip locked
        ), gone as (
            delete from events using old where events.id = old.id returning old.id
        )
        select max(id) as last, (select count(*) from gone) as gone,
               coalesce(bool_or(received_at < app_now() - $2::interval), false) as more
          from batch
        """,
        after,
        older_than,
        limit,
    )
    assert row is not None
    return Swept(**row)


async def ids(conn: Connection) -> tuple[int, int]:
    """The lowest and the highest id of an event; 0 and 0 where there is none."""
    row = await conn.fetchrow(
        "select coalesce(min(id), 0) as low, coalesce(max(id), 0) as high from events"
    )
    assert row is not None
    return row["low"], row["high"]
