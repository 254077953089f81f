"""Figures about the whole: what waits at each stage, and what came in over time. Reads only."""

from dataclasses import dataclass, fields
from datetime import datetime, timedelta

from app.db.connect import Connection

#: Counting ends here, so that a long queue costs no more to look at than a short one.
COUNTED = 10_000
#: Sessions that marks name at most.
MOST_MOVED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits at one stage.

    Attributes:
        waiting: how many rows, counted up to `COUNTED`.
        due_at: since when the longest-waiting one could have been taken; in the future where all
            wait for their next try; None where nothing waits.
    """

    stage: str
    waiting: int
    due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Events that came in from `start` on, for as long as a bucket is, by outcome."""

    start: datetime
    pending: int
    applied: int
    ignored: int
    quarantined: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliveries:
    """Events over time, oldest bucket first.

    Attributes:
        every: 1 where all were counted. Where there are more than `COUNTED`, one of so many was,
            and stands for all of them; what failed or is in quarantine is counted all the same.
    """

    buckets: list[Bucket]
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """By what one sees that something has changed.

    Attributes:
        moved: the highest number in the timeline.
        sessions: those that moved since the marks before, `MOST_MOVED` at most.
        events: the highest number of an event, and how many are pending.
        outbox: the same of owed comments.
    """

    moved: int
    sessions: list[int]
    events: list[int]
    outbox: list[int]

    def changed_since(self, before: "Marks") -> set[str]:
        """The topics that have changed, as `app.live` names them."""
        topics = {f"session-{number}" for number in self.sessions}
        if self.moved != before.moved:
            topics.add("sessions")
        if self.events != before.events:
            topics.add("events")
        if self.outbox != before.outbox:
            topics.add("outbox")
        return topics


async def backlog(conn: Connection) -> list[Backlog]:
    """What waits: events to be applied, sessions for each phase, comments to be sent."""
    rows = await conn.fetch(
        """
        select 'apply' as stage,
               least((select min(next_attempt_at) from events
                       where status = 'pending' and not to_read),
                     (select min(next_attempt_at) from events
                       where status = 'pending' and to_read)) as due_at,
               (select count(*) from (select from events where status = 'pending'
                                       limit $1) as few) as waiting
        union all
        select 'clarify', (select min(next_attempt_at) from patch_sessions
                            where status = 'opened'),
               (select count(*) from (select from patch_sessions where status = 'opened'
                                       limit $1) as few)
        union all
        select 'draft', (select min(next_attempt_at) from patch_sessions
                          where status = 'clarified'),
               (select count(*) from (select from patch_sessions where status = 'clarified'
                                       limit $1) as few)
        union all
        select 'send', (select min(next_attempt_at) from outbox where status = 'pending'),
               (select count(*) from (select from outbox where status = 'pending'
                                       limit $1) as few)
        """,
        COUNTED,
    )
    return [Backlog(**row) for row in rows]


async def sessions_by_status(conn: Connection, statuses: list[str]) -> dict[str, int]:
    """How many sessions stand where, each counted up to `COUNTED`."""
    rows = await conn.fetch(
        """
        select status, (select count(*) from (select from patch_sessions as session
                                               where session.status = known.status
                                               limit $2) as few) as count
          from unnest($1::text[]) as known (status)
        """,
        statuses,
        COUNTED,
    )
    return {row["status"]: row["count"] for row in rows}


async def deliveries(conn: Connection, *, bucket: timedelta, buckets: int) -> Deliveries:
    """New events over time, the last bucket being the present one; duplicates leave no row.

    Numbers grow with the time of receipt, but for what has waited in a spool: an hour is allowed.
    """
    rows = await conn.fetch(_DELIVERIES, bucket, buckets, COUNTED)
    return Deliveries(
        buckets=[Bucket(**{name: row[name] for name in _BUCKET}) for row in rows],
        every=max(row["every"] for row in rows),
    )


_BUCKET = tuple(field.name for field in fields(Bucket))
# `sought` halves the numbers until it has the first one of that time. `looked_at` takes one of each
# `every` numbers, another one each time, lest it only meets those of one kind.
_DELIVERIES = """
    with recursive seen as materialized (
        select date_bin($1, app_now(), 'epoch') - $1 * ($2 - 1) as since
    ), sought as (
        select coalesce(min(id), 0) as low, coalesce(max(id), 0) as high from events
        union all
        select case when is_before then found.id + 1 else low end,
               case when is_before then high else middle end
          from sought
         cross join lateral (select (low + high) / 2 as middle) as half
         cross join lateral (
             select id, received_at < (select since - interval '1 hour' from seen) as is_before
               from events where id >= middle order by id limit 1) as found
         where low < high
    ), range as materialized (
        select first, last, (last - first) / $3 + 1 as every
          from (select max(low) as first, (select max(id) from events) as last from sought) as ends
    ), looked_at as (
        select received_at, status, every
          from range
         cross join generate_series(first / every, last / every) as n
         cross join lateral (select received_at, status from events
                              where id = n * every + n * 7919 % every limit 1) as one
         where status not in ('failed', 'quarantined')
        union all
        (select received_at, status, 1 from events
          where status = 'failed' and id >= (select first from range)
          order by id desc limit $3)
        union all
        (select received_at, status, 1 from events
          where status = 'quarantined' and id >= (select first from range)
          order by id desc limit $3)
    ), counted as (
        select date_bin($1, received_at, 'epoch') as start, status, sum(every) as count
          from looked_at
         group by 1, 2
    )
    select start, coalesce((select every from range), 1) as every,
           coalesce(sum(count) filter (where status = 'pending'), 0)::bigint as pending,
           coalesce(sum(count) filter (where status = 'applied'), 0)::bigint as applied,
           coalesce(sum(count) filter (where status = 'ignored'), 0)::bigint as ignored,
           coalesce(sum(count) filter (where status = 'quarantined'), 0)::bigint as quarantined,
           coalesce(sum(count) filter (where status = 'failed'), 0)::bigint as failed
      from seen
     cross join generate_series(since, since + $1 * ($2 - 1), $1) as start
      left join counted using (start)
     group by start
     order by start
"""


async def marks(conn: Connection, *, since: int | None) -> Marks:
    """The marks of now; `since` is `moved` of the marks before.

    What commits late, with a number below one that was seen, is not among `sessions`.
    """
    row = await conn.fetchrow(
        """
        select coalesce((select max(id) from timeline), 0) as moved,
               array(select distinct session_id
                       from (select session_id from timeline where id > $1
                              order by id desc limit $3) as last) as sessions,
               array[coalesce((select max(id) from events), 0),
                     (select count(*) from (select from events where status = 'pending'
                                             limit $2) as few)] as events,
               array[coalesce((select max(id) from outbox), 0),
                     (select count(*) from (select from outbox where status = 'pending'
                                             limit $2) as few),
                     (select count(*) from (select from outbox where status = 'sending'
                                             limit $2) as few)] as outbox
        """,
        since,
        COUNTED,
        MOST_MOVED,
    )
    assert row is not None
    return Marks(**row)


async def failures(conn: Connection) -> dict[str, int]:
    """How much of each kind was given up, counted up to `COUNTED`."""
    row = await conn.fetchrow(
        """
        select (select count(*) from (select from events where status = 'failed'
                                       limit $1) as few) as events,
               (select count(*) from (select from events where status = 'quarantined'
                                       limit $1) as few) as quarantined,
               (select count(*) from (select from outbox where status = 'failed'
                                       limit $1) as few) as comments
        """,
        COUNTED,
    )
    assert row is not None
    return dict(row)


async def connections(conn: Connection) -> dict[tuple[str, str], int]:
    """How many connections of this service's there are to the database, by purpose and state.

    A pooler's have the purpose of whoever used them last.
    """
    rows = await conn.fetch(
        """
        select substring(application_name from length('draftgate ') + 1) as purpose,
               coalesce(state, 'unknown') as state, count(*) as number
          from pg_stat_activity
         where datname = current_database() and application_name like 'draftgate %'
         group by 1, 2
        """
    )
    return {(row["purpose"], row["state"]): row["number"] for row in rows}
