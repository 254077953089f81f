"""What people look at: lists, pages and counts. Reads only.

A list is read by an index from where its page begins, whatever it is filtered by, so that the last
page costs what the first one does.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from app.db.connect import Connection
from app.machine import Status
from app.model import EventStatus, OwedStatus

Row = dict[str, Any]

#: The most entries of one kind about a session that are shown; the newest ones.
LONGEST_HISTORY = 500
#: How many events of each kind that is not interpreted are searched for a story's number.
SEARCHED_EVENTS = 300
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = re.compile(r"(?:([0-9]{1,18})-)?([0-9]{1,18})", re.ASCII)


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


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: the next page begins behind it.

    Attributes:
        at: None for lists that are in the order of their ids alone.
    """

    id: int
    at: datetime | None = None

    @classmethod
    def read(cls, text: str) -> "Cursor":
        """Reads what `str` made; raises ValueError for anything else."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError("not a cursor that a list has given")
        micros, number = found.groups()
        try:
            at = None if micros is None else _EPOCH + timedelta(microseconds=int(micros))
        except OverflowError:
            raise ValueError("not a cursor that a list has given") from None
        return cls(int(number), at)

    def __str__(self) -> str:
        if self.at is None:
            return str(self.id)
        return f"{(self.at - _EPOCH) // timedelta(microseconds=1)}-{self.id}"


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, and where the next part begins; None where there is no more."""

    rows: list[Row]
    next: Cursor | None


async def sessions(
    conn: Connection,
    *,
    status: Status | None = None,
    sc_id: int | None = None,
    workspace: str | None = None,
    words: str | None = None,
    after: Cursor | None = None,
    limit: int = 50,
) -> Page:
    """Sessions, the last moved first; those whose titles have all these words, or their beginnings.

    Without a letter or a digit among the words there are none.
    """
    given = (after.at if after else None, after.id if after else None, limit + 1)
    wanted = {"status": status, "sc_id": sc_id, "workspace": workspace}
    if words is None:
        statement, values = _filtered(_SESSIONS, wanted, given)
    else:
        statement, values = _filtered(_SESSIONS_BY_WORDS, wanted, (*given, words))
    return _page(await conn.fetch(statement, *values), limit, at="updated_at")


_SESSIONS = """
    select id, workspace, sc_id, title, app_url, status, claim_generation, claimed_by, claimed_at,
           attempts, crashes, revision, last_error, next_attempt_at, created_at, updated_at
      from patch_sessions
     where (updated_at, id)
           < (coalesce($1::timestamptz, 'infinity'), coalesce($2, 9223372036854775807))
           <filters>
     order by updated_at desc, id desc
     limit $3
"""
# `offset 0` keeps it apart: the index of words finds, however many there are. Walking along the
# last moves until enough have the words would read all sessions where few have them.
_SESSIONS_BY_WORDS = _SESSIONS.replace(
    "from patch_sessions\n",
    """from (select * from patch_sessions
             where to_tsvector('simple', left(title, 1000))
                   @@ (select regexp_replace(plainto_tsquery('simple', $4)::text,
                                             '''(?= |$)', ''':*', 'g')::tsquery)
            offset 0) as patch_sessions
""",
)


async def session(conn: Connection, sc_id: int, *, workspace: str | None) -> list[Row]:
    """The sessions about a story; more than one only where workspaces share its number."""
    statement, values = _filtered(_SESSION, {"sc_id": sc_id, "workspace": workspace})
    return [dict(row) for row in await conn.fetch(statement, *values)]


async def session_by_id(conn: Connection, session_id: int) -> Row | None:
    """One session."""
    statement, values = _filtered(_SESSION, {"id": session_id})
    row = await conn.fetchrow(statement, *values)
    return None if row is None else dict(row)


_SESSION = """
    select id, workspace, sc_id, title, app_url, description, status, prior_status,
           claim_generation, claimed_by, claimed_at, claim_expires_at, progressed_at,
           case when stopping_until > app_now() then stopping_until end as stopping_until,
           muted_at, attempts, crashes, interruptions, next_attempt_at, last_error, revision,
           cost_usd::float8 as cost_usd, decided_at, created_at, updated_at
      from patch_sessions
     where true <filters>
     order by id
     limit 100
"""


async def timeline(conn: Connection, session_id: int, *, limit: int = LONGEST_HISTORY) -> list[Row]:
    """What happened to a session, oldest first."""
    return await _newest(
        conn,
        """
        select id, at, move, status, generation, actor, event_id, reason
          from timeline where session_id = $1 order by id desc limit $2
        """,
        session_id,
        limit,
    )


async def conversation(
    conn: Connection, session_id: int, *, limit: int = LONGEST_HISTORY
) -> list[Row]:
    """What was said about a session, oldest first; the text of a deleted comment is None."""
    return await _newest(
        conn,
        """
        select comment_id, author, text, said_at
          from conversation where session_id = $1
         order by said_at desc, comment_id desc limit $2
        """,
        session_id,
        limit,
    )


async def claims(conn: Connection, session_id: int, *, limit: int = LONGEST_HISTORY) -> list[Row]:
    """Who has owned a session, oldest first, and what ended it; no end while it is owned."""
    return await _newest(
        conn,
        """
        select generation, actor as worker, at as claimed_at, ended_at, ended_by, move, reason
          from (select id, generation, actor, at, move,
                       lead(at) over later as ended_at, lead(move) over later as ended_by,
                       lead(reason) over later as reason
                  from timeline
                 where session_id = $1 and move not in ('stopped', 'replay', 'resend')
                window later as (order by id)) as told
         where move in ('claim', 'ask') order by id desc limit $2
        """,
        session_id,
        limit,
    )


async def drafts(conn: Connection, session_id: int) -> list[Row]:
    """A session's drafts, oldest first."""
    return await _newest(
        conn,
        """
        select revision, generation, summary, patch, cost_usd::float8 as cost_usd, created_at
          from drafts where session_id = $1 order by revision desc limit $2
        """,
        session_id,
    )


async def revisions(conn: Connection, session_id: int) -> list[Row]:
    """A session's drafts without their patches, oldest first."""
    return await _newest(
        conn,
        """
        select revision, generation, summary, cost_usd::float8 as cost_usd, created_at
          from drafts where session_id = $1 order by revision desc limit $2
        """,
        session_id,
    )


async def draft(conn: Connection, session_id: int, revision: int) -> Row | None:
    """One draft with its patch."""
    row = await conn.fetchrow(
        """
        select revision, generation, summary, patch, cost_usd::float8 as cost_usd, created_at
          from drafts where session_id = $1 and revision = $2
        """,
        session_id,
        revision,
    )
    return None if row is None else dict(row)


async def late_results(conn: Connection, session_id: int) -> list[Row]:
    """What workers made after they had lost their claims."""
    return await _newest(
        conn,
        """
        select generation, summary, patch, cost_usd::float8 as cost_usd, created_at, adopted_at
          from late_results where session_id = $1 order by generation desc limit $2
        """,
        session_id,
    )


async def owed(conn: Connection, session_id: int, *, limit: int = LONGEST_HISTORY) -> list[Row]:
    """What a session owes or has sent to its story, oldest first."""
    return await _newest(
        conn,
        """
        select id, kind, status, attempts, next_attempt_at, last_error, comment_id, created_at,
               sent_at
          from outbox where session_id = $1 order by id desc limit $2
        """,
        session_id,
        limit,
    )


async def _newest(
    conn: Connection, statement: str, session_id: int, limit: int = LONGEST_HISTORY
) -> list[Row]:
    rows = await conn.fetch(statement, session_id, limit)
    return [dict(row) for row in reversed(rows)]


async def events(
    conn: Connection,
    *,
    status: EventStatus | None = None,
    kind: str | None = None,
    sc_id: int | None = None,
    workspace: str | None = None,
    after: Cursor | None = None,
    limit: int = 50,
) -> Page:
    """Events, the newest first; `workspace` counts only together with a story's number."""
    before = after.id if after else None
    wanted = {"status": status, "kind": kind}
    if sc_id is None:
        statement, values = _filtered(_EVENTS, wanted, (before, limit + 1))
    else:
        given = (before, limit + 1, sc_id, workspace)
        statement, values = _filtered(_EVENTS_OF_A_STORY, wanted, given)
    return _page(await conn.fetch(statement, *values), limit)


_EVENTS = """
    select id, source, kind, event_id, status, reason, attempts, next_attempt_at, occurred_at,
           received_at,
           array(select distinct sc_id from facts
                  where facts.event_id = events.id order by sc_id) as sc_ids
      from events
     where id < coalesce($1, 9223372036854775807) <filters>
     order by id desc
     limit $2
"""
_EVENTS_OF_A_STORY = _EVENTS.replace(
    "      from events\n",
    """
      from (select distinct event_id as about from facts
             where sc_id = $3 and ($4::text is null or workspace = $4)
               and event_id < coalesce($1, 9223372036854775807)
             order by event_id desc) as told
      join events on events.id = told.about
""",
)


async def event(conn: Connection, event_id: int) -> Row | None:
    """One event with its exact bytes."""
    row = await conn.fetchrow(
        """
        select id, source, kind, event_id, dedupe_key, status, reason, attempts, next_attempt_at,
               occurred_at, received_at, headers, body,
               array(select distinct sc_id from facts
                      where facts.event_id = events.id order by sc_id) as sc_ids
          from events where id = $1
        """,
        event_id,
    )
    return None if row is None else dict(row)


async def sessions_of_event(conn: Connection, event_id: int) -> list[Row]:
    """The sessions of the stories that an event is about."""
    rows = await conn.fetch(
        """
        select distinct session.id, session.workspace, session.sc_id, session.status
          from facts join patch_sessions as session using (workspace, sc_id)
         where facts.event_id = $1
         order by session.id
         limit 100
        """,
        event_id,
    )
    return [dict(row) for row in rows]


async def replays(conn: Connection, event_id: int) -> list[Row]:
    """Who had an event interpreted again, oldest first."""
    rows = await conn.fetch(
        "select at, actor from replays where event_id = $1 order by at desc limit 100", event_id
    )
    return [dict(row) for row in reversed(rows)]


async def mentions(conn: Connection, sc_id: int) -> list[Row]:
    """Events that nobody has read yet, or could, and whose bodies hold this number.

    Looks at the next pending ones and at the newest failed and quarantined ones.
    """
    rows = await conn.fetch(
        """
        with unread as materialized (
            (select * from events where status = 'pending'
              order by to_read, next_attempt_at, id limit $2)
            union all
            (select * from events where status = 'failed' order by id desc limit $2)
            union all
            (select * from events where status = 'quarantined' order by id desc limit $2)
        )
        select id, source, kind, event_id, status, reason, attempts, next_attempt_at, occurred_at,
               received_at, array[]::bigint[] as sc_ids, body
          from unread
         where position(convert_to($1, 'UTF8') in body) > 0
           and not exists (select from facts where facts.event_id = unread.id)
         order by id desc
        """,
        str(sc_id),
        SEARCHED_EVENTS,
    )
    whole = re.compile(rb"(?<![0-9])%d(?![0-9])" % sc_id)
    found = [dict(row) for row in rows if whole.search(row["body"])]
    return [{name: row[name] for name in row if name != "body"} for row in found]


async def last_received_at(conn: Connection) -> datetime | None:
    """When the newest event came in; None where there is none."""
    at: datetime | None = await conn.fetchval(
        "select received_at from events order by id desc limit 1"
    )
    return at


async def outbox(
    conn: Connection,
    *,
    status: OwedStatus | None = None,
    after: Cursor | None = None,
    limit: int = 50,
) -> Page:
    """Comments that are or were owed, the newest first."""
    statement, values = _filtered(
        _OUTBOX, {"outbox.status": status}, (after.id if after else None, limit + 1)
    )
    return _page(await conn.fetch(statement, *values), limit)


async def outbox_entry(conn: Connection, outbox_id: int) -> Row | None:
    """One owed comment with its text."""
    statement = _OUTBOX.replace("outbox.id <", "outbox.id =").replace("kind,", "kind, text, key,")
    row = await conn.fetchrow(statement.replace("<filters>", ""), outbox_id, 1)
    return None if row is None else dict(row)


_OUTBOX = """
    select outbox.id, session_id, workspace, sc_id, kind, outbox.status, outbox.attempts,
           outbox.next_attempt_at, outbox.last_error, comment_id, outbox.created_at, sent_at
      from outbox join patch_sessions as session on session.id = outbox.session_id
     where outbox.id < coalesce($1, 9223372036854775807) <filters>
     order by outbox.id desc
     limit $2
"""


def _filtered(
    statement: str, wanted: Mapping[str, object], given: Sequence[object] = ()
) -> tuple[str, tuple[object, ...]]:
    """The statement with a condition for each column that must have a value, and its values.

    What can't be in it is not asked for: a condition on a parameter that may be null would keep
    a prepared statement from its index. A status is written out, since partial indexes need it.
    """
    values = list(given)
    filters = []
    for column, value in wanted.items():
        if isinstance(value, Status | EventStatus | OwedStatus):
            filters.append(f"and {column} = '{value}'")
        elif value is not None:
            values.append(value)
            filters.append(f"and {column} = ${len(values)}")
    return statement.replace("<filters>", " ".join(filters)), tuple(values)


def _page(rows: Sequence[asyncpg.Record], limit: int, *, at: str | None = None) -> Page:
    """One row more than the page holds was asked for, to know whether there are more."""
    shown = [dict(row) for row in rows[:limit]]
    if len(rows) <= limit:
        return Page(shown, None)
    return Page(shown, Cursor(shown[-1]["id"], None if at is None else shown[-1][at]))


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
