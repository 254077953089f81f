"""The outbox: comments that are owed, claimed by a sender the way sessions are by a worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from app.db.connect import Connection
from app.machine import Status
from app.model import Owed


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What a story is told when its session has come to a status, in place of what it was told.

    Attributes:
        first: whether it is told where nothing of its kind was told before.
    """

    kind: str
    status: Status
    text: str
    first: bool = True


async def claim(conn: Connection, *, sender: str, lease: timedelta) -> Owed | None:
    """pending -> sending for the next row that is due; one that is being claimed is passed by."""
    row = await conn.fetchrow(
        """
        with next as materialized (
            select id from outbox
             where status = 'pending' and next_attempt_at <= app_now()
               and (kind = 'muted' or (select muted_at from patch_sessions as session
                                        where session.id = session_id) is null)
             order by next_attempt_at, id
             limit 1
               for update skip locked
        ), claimed as (
            update outbox
               set status = 'sending', claim_generation = claim_generation + 1, claimed_by = $1,
                   claim_expires_at = app_clock() + $2, attempts = attempts + 1
              from next
             where outbox.id = next.id
            returning outbox.*
        )
        select claimed.id, claimed.claim_generation as generation, key, kind, workspace, sc_id,
               text, edition, comment_id, claimed.attempts - 1 as attempts
          from claimed join patch_sessions as session on session.id = claimed.session_id
        """,
        sender,
        lease,
    )
    return None if row is None else Owed(**row)


async def answer(
    conn: Connection, session_id: int, kind: str, text: str, *, event_id: int, comment: int | None
) -> None:
    """Owes the answer to a comment, or to an event; once, however often it is decided about."""
    await conn.execute(
        """
        insert into outbox (session_id, key, kind, text)
        select $1, concat_ws(':', 'draftgate', $2::text, $1::bigint,
                             coalesce('c' || $5::bigint, dedupe_key::text)), $2, $3
          from events
         where id = $4
        on conflict (key) do nothing
        """,
        session_id,
        kind,
        text,
        event_id,
        comment,
    )


async def take_back(conn: Connection, session_ids: Sequence[int]) -> None:
    """Forgets answers that are about to be decided anew, unless sending them was tried."""
    await conn.execute(
        """
        delete from outbox
         where session_id = any($1::bigint[]) and kind in ('status', 'refused', 'stopped')
           and status = 'pending' and attempts = 0
        """,
        session_ids,
    )


async def tell(
    conn: Connection,
    tellings: Sequence[Telling],
    *,
    workspaces: Sequence[str],
    quiet: timedelta,
    limit: int = 100,
) -> int:
    """Owes the stories of sessions that stand still since they moved what is told of their status.

    One row per session and kind, rewritten: what was not sent yet is never sent. One that is being
    sent stays so, and its sender will see that it has sent an older edition. Gives how many
    sessions there were.
    """
    count: int = await conn.fetchval(
        """
        with moved as materialized (
            select id, status from patch_sessions
             where status is distinct from told_status and updated_at <= app_now() - $1::interval
               and workspace = any($7::text[])
             order by updated_at, id
             limit $2
               for update skip locked
        ), told as (
            update patch_sessions as session set told_status = moved.status
              from moved
             where session.id = moved.id
        ), owed as (
            insert into outbox as old (session_id, key, kind, text)
            select moved.id, concat_ws(':', 'draftgate', kind, gen_random_uuid()), kind, text
              from moved
              join unnest($3::text[], $4::text[], $5::text[], $6::boolean[])
                   as telling (kind, status, text, first) using (status)
             where first or (select true from outbox
                              where session_id = moved.id and outbox.kind = telling.kind)
            on conflict (session_id, kind) where kind in ('standing', 'marks') do update
               set text = excluded.text, edition = old.edition + 1, sent_at = null,
                   status = case old.status when 'sending' then 'sending' else 'pending' end,
                   attempts = case when old.status in ('sent', 'failed')
                                   then least(old.attempts, 1) else old.attempts end,
                   next_attempt_at = case when old.status in ('sent', 'failed')
                                          then app_clock() else old.next_attempt_at end
             where old.text <> excluded.text or old.status = 'failed'
        )
        select count(*) from moved
        """,
        quiet,
        limit,
        [it.kind for it in tellings],
        [it.status for it in tellings],
        [it.text for it in tellings],
        [it.first for it in tellings],
        workspaces,
    )
    return count


async def sent(
    conn: Connection, owed: Owed, *, comment_id: int | None, note: str | None = None
) -> bool:
    """sending -> sent, or pending where it was rewritten since; False if another has taken it."""
    return (
        await conn.fetchval(
            """
            update outbox
               set status = case when edition = $3 then 'sent' else 'pending' end,
                   sent_at = case when edition = $3 then app_clock() end,
                   attempts = case when edition = $3 then attempts else 0 end,
                   claimed_by = null, claim_expires_at = null, comment_id = $4, last_error = $5
             where id = $1 and claim_generation = $2 and status = 'sending'
            returning id
            """,
            owed.id,
            owed.generation,
            owed.edition,
            comment_id,
            note,
        )
        is not None
    )


async def postpone(
    conn: Connection, owed: Owed, *, error: str, delay: timedelta, tried: bool = True
) -> bool:
    """sending -> pending, due after the delay; False if another sender has taken it since.

    Not `tried`: nothing was sent, so the try is not counted.
    """
    return (
        await conn.fetchval(
            """
            update outbox
               set status = 'pending', claimed_by = null, claim_expires_at = null,
                   last_error = $3, next_attempt_at = app_clock() + $4,
                   attempts = case when $5 then attempts else attempts - 1 end
             where id = $1 and claim_generation = $2 and status = 'sending'
            returning id
            """,
            owed.id,
            owed.generation,
            error,
            delay,
            tried,
        )
        is not None
    )


async def give_up(conn: Connection, owed: Owed, *, error: str) -> bool:
    """sending -> failed, for an operator; False if another sender has taken it since."""
    return (
        await conn.fetchval(
            """
            update outbox
               set status = 'failed', claimed_by = null, claim_expires_at = null, last_error = $3
             where id = $1 and claim_generation = $2 and status = 'sending'
            returning id
            """,
            owed.id,
            owed.generation,
            error,
        )
        is not None
    )


async def expire(conn: Connection, *, limit: int) -> int:
    """sending -> pending where the sender's claim has run out: it may or may not have sent."""
    count: int = await conn.fetchval(
        """
        with lapsed as materialized (
            select id from outbox
             where status = 'sending' and claim_expires_at <= app_now()
             order by id
             limit $1
               for update skip locked
        ), expired as (
            update outbox
               set status = 'pending', claimed_by = null, claim_expires_at = null,
                   claim_generation = claim_generation + 1, next_attempt_at = app_clock()
              from lapsed
             where outbox.id = lapsed.id
            returning outbox.id
        )
        select count(*) from expired
        """,
        limit,
    )
    return count


async def retry(conn: Connection, numbers: Sequence[int], *, actor: str) -> list[int]:
    """failed -> pending, now, with fresh tries; the numbers of those that were failed.

    One try stays counted, so that our own marker is looked for before anything is posted.
    """
    rows = await conn.fetch(
        """
        with retried as (
            update outbox
               set status = 'pending', claim_generation = claim_generation + 1, attempts = 1,
                   next_attempt_at = app_clock()
             where id = any($1::bigint[]) and status = 'failed'
            returning id, session_id, kind
        ), told as (
            insert into timeline (session_id, move, status, generation, actor, reason)
            select session.id, 'resend', session.status, session.claim_generation, $2,
                   'comment ' || retried.id || ', ' || kind
              from retried join patch_sessions as session on session.id = session_id
             order by retried.id
        )
        select id from retried order by id
        """,
        numbers,
        actor,
    )
    return [row["id"] for row in rows]
