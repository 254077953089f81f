"""What people look at: lists, pages and counts. Reads only."""

from dataclasses import dataclass
from typing import Any

from app.db.connect import Connection

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much there is of everything."""

    events: int
    pending_events: int
    sessions: int
    drafted: int
    failed: int
    owned: int
    drafts: int
    double_drafts: int
    owed: int


async def sessions(conn: Connection, *, status: str | None, limit: int) -> list[Row]:
    """Sessions, the last moved first."""
    rows = await conn.fetch(
        """
        select id, workspace, sc_id, title, status, claim_generation, claimed_by, attempts, crashes,
               revision, last_error, next_attempt_at, updated_at
          from patch_sessions
         where $1::text is null or status = $1
         order by updated_at desc, id desc
         limit $2
        """,
        status,
        limit,
    )
    return [dict(row) for row in rows]


async def session(conn: Connection, sc_id: int, *, workspace: str | None) -> list[Row]:
    """The sessions about a story; more than one only where workspaces share its number."""
    rows = await conn.fetch(
        """
        select id, workspace, sc_id, title, app_url, status, prior_status, claim_generation,
               claimed_by, claimed_at, claim_expires_at, progressed_at, attempts, crashes,
               interruptions, next_attempt_at, last_error, revision, cost_usd::float8 as cost_usd,
               decided_at, created_at, updated_at
          from patch_sessions
         where sc_id = $1 and ($2::text is null or workspace = $2)
         order by id
        """,
        sc_id,
        workspace,
    )
    return [dict(row) for row in rows]


async def timeline(conn: Connection, session_id: int) -> list[Row]:
    """All that happened to a session, oldest first."""
    rows = await conn.fetch(
        """
        select at, move, status, generation, actor, event_id, reason
          from timeline where session_id = $1 order by id
        """,
        session_id,
    )
    return [dict(row) for row in rows]


async def drafts(conn: Connection, session_id: int) -> list[Row]:
    """A session's drafts, oldest first."""
    rows = await conn.fetch(
        """
        select revision, generation, summary, patch, cost_usd::float8 as cost_usd, created_at
          from drafts where session_id = $1 order by revision
        """,
        session_id,
    )
    return [dict(row) for row in rows]


async def late_results(conn: Connection, session_id: int) -> list[Row]:
    """What workers made after they had lost their claims."""
    rows = await conn.fetch(
        """
        select generation, summary, patch, cost_usd::float8 as cost_usd, created_at, adopted_at
          from late_results where session_id = $1 order by generation
        """,
        session_id,
    )
    return [dict(row) for row in rows]


async def events(conn: Connection, *, status: str | None, limit: int) -> list[Row]:
    """Events, the newest first."""
    rows = await conn.fetch(
        """
        select id, source, kind, event_id, status, reason, attempts, occurred_at, received_at,
               (select string_agg(distinct sc_id::text, ' ') from facts
                 where facts.event_id = events.id) as sc_ids
          from events
         where $1::text is null or status = $1
         order by id desc
         limit $2
        """,
        status,
        limit,
    )
    return [dict(row) for row in rows]


async def event(conn: Connection, event_id: int) -> Row | None:
    """One event with its exact bytes."""
    row = await conn.fetchrow(
        """
        select id, source, kind, event_id, dedupe_key, status, reason, attempts, next_attempt_at,
               occurred_at, received_at, headers, body
          from events where id = $1
        """,
        event_id,
    )
    return None if row is None else dict(row)


async def outbox(conn: Connection, *, status: str | None, limit: int) -> list[Row]:
    """Comments that are or were owed, the newest first."""
    rows = await conn.fetch(
        """
        select outbox.id, workspace, sc_id, kind, outbox.status, outbox.attempts,
               outbox.next_attempt_at, outbox.last_error, comment_id, outbox.created_at, sent_at
          from outbox join patch_sessions as session on session.id = session_id
         where $1::text is null or outbox.status = $1
         order by outbox.id desc
         limit $2
        """,
        status,
        limit,
    )
    return [dict(row) for row in rows]


async def highest_number(conn: Connection) -> int:
    """The highest number of a story or a comment that was ever told of; 0 without any."""
    number: int = await conn.fetchval(
        "select greatest(max(sc_id), max(comment_id), 0) from facts",
    )
    return number


async def counts(conn: Connection) -> Counts:
    """Counts over everything, in one snapshot."""
    row = await conn.fetchrow(
        """
        select (select count(*) from events) as events,
               (select count(*) from events where status = 'pending') as pending_events,
               (select count(*) from patch_sessions) as sessions,
               (select count(*) from patch_sessions where status = 'drafted') as drafted,
               (select count(*) from patch_sessions where status = 'failed') as failed,
               (select count(*) from patch_sessions where claim_token is not null) as owned,
               (select count(*) from drafts) as drafts,
               (select count(*) from (select from drafts group by session_id
                                      having count(*) > 1) as doubled) as double_drafts,
               (select count(*) from outbox where status in ('pending', 'sending')) as owed
        """
    )
    assert row is not None
    return Counts(**row)
