"""Events: recorded once, interpreted once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.db.connect import Connection
from app.model import Delivery, EventStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEvent:
    """A recorded event that has not been interpreted yet."""

    id: int
    source: str
    dedupe_key: UUID
    kind: str
    body: bytes
    occurred_at: datetime | None
    received_at: datetime
    attempts: int


class Replay(StrEnum):
    """What a request to replay an event came to."""

    REPLAYED = "replayed"
    #: The same request, known by its nonce, was carried out before.
    REPEATED = "repeated"
    PENDING = "pending"


#: The unique constraint decides; the look-up before it keeps duplicates from writing anything at
#: all, since an insert that conflicts still takes a number from the sequence.
RECORD = """
    insert into events
        (source, dedupe_key, event_id, kind, occurred_at, received_at, headers, body, status,
         reason)
    select source, dedupe_key, event_id, kind, occurred_at, least(received_at, app_now()), headers,
           body, case when defect is null then 'pending' else 'quarantined' end, defect
      from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[], $6::bytea[],
                  $7::text[], $8::text[], $9::timestamptz[])
        as delivery (source, dedupe_key, event_id, kind, occurred_at, body, headers, defect,
                     received_at)
     where not exists (select from events as e
                        where e.source = delivery.source and e.dedupe_key = delivery.dedupe_key)
     order by source, dedupe_key
    on conflict (source, dedupe_key) do nothing
    returning source, dedupe_key
"""


_NO_DELIVERIES: list[Sequence[Any]] = [()] * len(Delivery._fields)


async def record(conn: Connection, batch: Sequence[Delivery]) -> set[tuple[str, bytes]]:
    """Records what is new in the batch, and says what was: (source, dedupe key).

    In the order of the keys, so that two batches with the same deliveries can't wait for each
    other; the statement says so, since a join gives rows in an order of its own.
    """
    columns: Iterable[Sequence[Any]] = zip(*batch, strict=True) if batch else _NO_DELIVERIES
    source, keys, event_id, kind, occurred_at, body, headers, defect, received_at = columns
    rows = await conn.fetch(
        RECORD,
        source,
        [key.hex() for key in keys],
        event_id,
        kind,
        occurred_at,
        body,
        headers,
        if_any(defect),
        if_any(received_at),
    )
    return {(source, key.bytes) for source, key in rows}


def if_any(column: Sequence[object]) -> Sequence[object] | None:
    """None in place of nothing but None: what `unnest` lacks it makes null, at no cost."""
    return column if any(value is not None for value in column) else None


async def take(conn: Connection, *, limit: int, without: Sequence[str] = ()) -> list[PendingEvent]:
    """Locks the next events to apply until the transaction ends; others skip them.

    `without` names sources whose events have to wait.
    """
    rows = await conn.fetch(
        """
        select id, source, dedupe_key, kind, body, occurred_at, received_at, attempts
          from events
         where status = 'pending' and not to_read and next_attempt_at <= app_now()
           and source <> all ($2::text[])
         order by next_attempt_at, id
         limit $1
           for update skip locked
        """,
        limit,
        without,
    )
    return [PendingEvent(**row) for row in rows]


async def set_aside(conn: Connection, event_ids: Sequence[int]) -> None:
    """What these events refer to must be read before they can be applied."""
    await conn.execute(
        "update events set to_read = true where id = any($1::bigint[]) and status = 'pending'",
        event_ids,
    )


async def take_to_read(conn: Connection, *, lease: timedelta) -> PendingEvent | None:
    """The next event that must be read for; nobody else is given it before the lease ends."""
    row = await conn.fetchrow(
        """
        with next as materialized (
            select id from events
             where status = 'pending' and to_read and next_attempt_at <= app_now()
             order by next_attempt_at, id
             limit 1
               for update skip locked
        )
        update events as e
           set next_attempt_at = app_clock() + $1
          from next
         where e.id = next.id
        returning e.id, source, dedupe_key, kind, body, occurred_at, received_at, attempts
        """,
        lease,
    )
    return None if row is None else PendingEvent(**row)


async def retake(conn: Connection, event_id: int) -> bool:
    """Locks one event until the transaction ends; False if it is not pending any more."""
    found = await conn.fetchval(
        "select id from events where id = $1 and status = 'pending' for update", event_id
    )
    return found is not None


async def finish(conn: Connection, outcomes: Sequence[tuple[int, EventStatus, str]]) -> None:
    """pending -> applied, ignored or failed, each with a reason for people."""
    await conn.execute(
        """
        update events as e
           set status = outcome.status, reason = outcome.reason
          from unnest($1::bigint[], $2::text[], $3::text[]) as outcome (id, status, reason)
         where e.id = outcome.id and e.status = 'pending'
        """,
        [event_id for event_id, _, _ in outcomes],
        [status for _, status, _ in outcomes],
        [reason for _, _, reason in outcomes],
    )


async def defer(conn: Connection, event_id: int, *, delay: timedelta, reason: str) -> None:
    """Leaves the event pending until the delay is over, and counts a try."""
    await conn.execute(
        """
        update events
           set next_attempt_at = app_clock() + $2, reason = $3, attempts = attempts + 1
         where id = $1 and status = 'pending'
        """,
        event_id,
        delay,
        reason,
    )


async def read_anew(conn: Connection, event_id: int, delivery: Delivery) -> None:
    """Gives a quarantined event what this version reads in its body; its key stays what it was."""
    await conn.execute(
        """
        update events set kind = $2, event_id = $3, occurred_at = $4
         where id = $1 and status = 'quarantined'
        """,
        event_id,
        delivery.kind,
        delivery.event_id,
        delivery.occurred_at,
    )


async def replay(conn: Connection, event_id: int, *, nonce: str, actor: str) -> Replay | None:
    """Any finished event -> pending, to be interpreted again by this version of the code.

    Told in the timelines of the sessions that it is about, unless they are being deleted. None:
    there is no such event.
    """
    found: str | None = await conn.fetchval(
        """
        with noted as (
            insert into replays (event_id, nonce, actor)
            select id, $2, $3 from events where id = $1 and status <> 'pending'
            on conflict (event_id, nonce) do nothing
            returning event_id
        ), replayed as (
            update events
               set status = 'pending', reason = null, attempts = 0, to_read = false,
                   next_attempt_at = app_clock()
              from noted
             where id = noted.event_id and status <> 'pending'
            returning id
        ), told as (
            insert into timeline (session_id, move, status, generation, actor, event_id)
            select session.id, 'replay', session.status, session.claim_generation, $3, $1
              from patch_sessions as session
             where exists (select from replayed)
               and (workspace, sc_id) in (select workspace, sc_id from facts where event_id = $1)
             order by session.id
               for key share
        )
        select case when exists (select from replayed) then 'replayed'
                    when exists (select from replays where event_id = $1 and nonce = $2)
                    then 'repeated'
                    else 'pending' end
          from events where id = $1
        """,
        event_id,
        nonce,
        actor,
    )
    return None if found is None else Replay(found)
