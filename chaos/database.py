"""Reads the database, past the proxy."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg

from app.db.connect import Connection
from chaos.history import Draft, Entry, Event, Owed, Session

T = TypeVar("T")
TIMEOUT_SECONDS = 30.0


async def ask(dsn: str, question: Callable[[Connection], Awaitable[T]]) -> T:
    """Opens a connection, asks, and closes it: the server may be restarted at any moment."""
    conn = await asyncpg.connect(dsn, timeout=5, command_timeout=TIMEOUT_SECONDS)
    try:
        return await question(conn)
    finally:
        conn.terminate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrest:
    """What is still to be done."""

    pending_events: int
    ready: int
    owned: int
    owed: int
    sending: int

    def __str__(self) -> str:
        return (
            f"{self.pending_events} events pending, {self.ready} sessions ready, "
            f"{self.owned} owned, {self.owed} comments owed, {self.sending} being sent"
        )

    @property
    def is_rest(self) -> bool:
        """Nothing is left to do, nor in the hands of a sender that died."""
        return self.pending_events + self.ready + self.owned + self.owed + self.sending == 0


async def unrest(conn: Connection) -> Unrest:
    row = await conn.fetchrow(
        """
        select (select count(*) from events where status = 'pending') as pending_events,
               (select count(*) from patch_sessions where status in ('opened', 'clarified'))
                   as ready,
               (select count(*) from patch_sessions where claim_token is not null) as owned,
               (select count(*) from outbox where status = 'pending')
                   + (select count(*) from patch_sessions
                       where status is distinct from told_status) as owed,
               (select count(*) from outbox where status = 'sending') as sending
        """
    )
    assert row is not None
    return Unrest(**row)


async def load(conn: Connection) -> dict[str, Any]:
    """What a history takes from the database, by the names that it has there."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        return {
            "events": [Event(**row) for row in await conn.fetch(_EVENTS)],
            "sessions": [Session(**row) for row in await conn.fetch(_SESSIONS)],
            "timeline": [Entry(**row) for row in await conn.fetch(_TIMELINE)],
            "drafts": [Draft(**row) for row in await conn.fetch(_DRAFTS)],
            "late_results": [tuple(row) for row in await conn.fetch(_LATE_RESULTS)],
            "outbox": [Owed(**row) for row in await conn.fetch(_OUTBOX)],
        }


_EVENTS = "select event_id as key, status from events"
_SESSIONS = """
    select id, sc_id as story, status, claim_generation as generation, revision,
           coalesce(title, '') <> '' or coalesce(description, '') <> '' as has_text
      from patch_sessions
"""
_TIMELINE = """
    select id, session_id as session, extract(epoch from at)::float8 as at, move, status,
           generation, actor
      from timeline order by id
"""
_DRAFTS = "select session_id as session, revision, generation, summary from drafts"
_LATE_RESULTS = "select session_id, generation from late_results"
_OUTBOX = """
    select session_id as session, key, kind, status, comment_id as comment,
           status = 'sending' or (status = 'pending' and attempts > 0) as explained
      from outbox
"""
