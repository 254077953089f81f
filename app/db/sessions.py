"""Patch sessions: decided about under a row lock, in a short transaction; and looked at."""

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass

from app.db.connect import Connection
from app.machine import Move, Status
from app.model import Asked, Remark, Session


@dataclass(frozen=True, slots=True)
class Told:
    """A move as it stands in the timeline, with the event that led to it."""

    session_id: int
    move: Move
    status: Status
    event_id: int
    reason: str


async def lock(
    conn: Connection, stories: Collection[tuple[str, int]]
) -> dict[tuple[str, int], Session]:
    """Locks these stories, one at least, and their sessions until the transaction ends.

    The advisory lock serves stories that have no row yet; the row lock keeps the gate out. Both
    are taken in one order by everybody, so that two transactions can't wait for each other.
    """
    workspaces, sc_ids = zip(*stories, strict=True)
    await conn.execute(
        """
        select pg_advisory_xact_lock(key)
          from (select hashtextextended(workspace || ' ' || sc_id, 0) as key
                  from unnest($1::text[], $2::bigint[]) as story (workspace, sc_id)
                 order by key) as keys
        """,
        workspaces,
        sc_ids,
    )
    rows = await conn.fetch(
        """
        select workspace, sc_id, status, decided_at, heard_at, title, app_url, description,
               title_at, description_at,
               claim_generation > 0 as worked, muted_at is not null as muted
          from patch_sessions
         where (workspace, sc_id) in (select * from unnest($1::text[], $2::bigint[]))
         order by id
           for update
        """,
        workspaces,
        sc_ids,
    )
    return {
        (row["workspace"], row["sc_id"]): Session(**{**row, "status": Status(row["status"])})
        for row in rows
    }


async def add(conn: Connection, opened: Sequence[Session]) -> dict[tuple[str, int], int]:
    """Opens sessions for locked stories that have none, and gives their ids."""
    rows = await conn.fetch(
        """
        insert into patch_sessions
            (workspace, sc_id, status, decided_at, heard_at, title, app_url, description,
             title_at, description_at)
        select * from unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[],
                             $5::timestamptz[], $6::text[], $7::text[], $8::text[],
                             $9::timestamptz[], $10::timestamptz[])
        returning workspace, sc_id, id
        """,
        *zip(*map(_values, opened), strict=True),
    )
    return {(row["workspace"], row["sc_id"]): row["id"] for row in rows}


async def save(conn: Connection, session: Session, *, moves: Collection[Move]) -> int:
    """Writes what was decided about a locked session, and gives its id.

    One that moved has fresh budgets, and is due at once; one that was opened may be asked anew.
    """
    session_id: int = await conn.fetchval(
        """
        update patch_sessions
           set status = $3, decided_at = $4, heard_at = $5, title = $6, app_url = $7,
               description = $8, title_at = $9, description_at = $10, updated_at = app_clock(),
               attempts = case when $11 then 0 else attempts end,
               crashes = case when $11 then 0 else crashes end,
               rounds = case when $12 then 0 else rounds end,
               next_attempt_at = case when $11 then app_clock() else next_attempt_at end
         where workspace = $1 and sc_id = $2
        returning id
        """,
        *_values(session),
        bool(moves),
        Move.OPEN in moves,
    )
    return session_id


def _values(session: Session) -> tuple[object, ...]:
    return (
        session.workspace,
        session.sc_id,
        session.status,
        session.decided_at,
        session.heard_at,
        session.title,
        session.app_url,
        session.description,
        session.title_at,
        session.description_at,
    )


async def evict(conn: Connection, workspace: str, sc_id: int) -> None:
    """asking, drafting -> closed: the claim is taken from its worker, whose next beat says so.

    As whenever a claim is taken: until its worker has said that the work has ended, or its lease is
    over, nobody else may begin.
    """
    await conn.execute(
        """
        update patch_sessions
           set status = 'closed', prior_status = null, claim_token = null, claimed_by = null,
               claimed_at = null, claim_expires_at = null, phase_ends_at = null,
               progressed_at = null, claim_generation = claim_generation + 1,
               stopping_generation = claim_generation, stopping_until = claim_expires_at,
               updated_at = app_clock()
         where workspace = $1 and sc_id = $2 and status in ('asking', 'drafting')
        """,
        workspace,
        sc_id,
    )


async def tell(conn: Connection, told: Sequence[Told]) -> None:
    """Adds moves to the timelines, in this order."""
    await conn.execute(
        """
        insert into timeline (session_id, move, status, generation, event_id, reason)
        select session.id, told.move, told.status, session.claim_generation, told.event_id,
               told.reason
          from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[])
               with ordinality as told (session_id, move, status, event_id, reason, position)
          join patch_sessions as session on session.id = told.session_id
         order by position
        """,
        [it.session_id for it in told],
        [it.move for it in told],
        [it.status for it in told],
        [it.event_id for it in told],
        [it.reason for it in told],
    )


async def remark(conn: Connection, remarks: Sequence[tuple[int, Remark]]) -> None:
    """Adds to conversations; of two versions of one comment, the newer one's text stays."""
    await conn.executemany(
        """
        insert into conversation as said
            (session_id, comment_id, author, text, said_at, as_of, spoken)
        values ($1, $2, $3, $4, $5, $6, $7)
        on conflict (session_id, comment_id) do update
           set text = case when excluded.as_of >= said.as_of then excluded.text else said.text end,
               author = case when excluded.said_at < said.said_at
                             then excluded.author else said.author end,
               as_of = greatest(said.as_of, excluded.as_of),
               said_at = least(said.said_at, excluded.said_at),
               spoken = said.spoken or excluded.spoken
        """,
        [(session_id, *astuple(remark)) for session_id, remark in remarks],
    )


async def spoken(
    conn: Connection, workspace: str, sc_id: int, comment_ids: Sequence[int]
) -> set[int]:
    """Which of these comments have told the story's session their words already."""
    rows = await conn.fetch(
        """
        select said.comment_id
          from patch_sessions as session
          join conversation as said on said.session_id = session.id
         where session.workspace = $1 and session.sc_id = $2
           and said.comment_id = any($3::bigint[]) and said.spoken
        """,
        workspace,
        sc_id,
        comment_ids,
    )
    return {row["comment_id"] for row in rows}


async def forget_conversations(conn: Connection, session_ids: Sequence[int]) -> None:
    """Empties the conversations, which are about to be decided anew."""
    await conn.execute("delete from conversation where session_id = any($1::bigint[])", session_ids)


async def conversation(conn: Connection, session_id: int) -> list[Remark]:
    """What was said, oldest first, without what was deleted."""
    rows = await conn.fetch(
        """
        select comment_id, author, text, said_at, as_of, spoken from conversation
         where session_id = $1 and text is not null
         order by said_at, comment_id
        """,
        session_id,
    )
    return [Remark(**row) for row in rows]


async def asked(conn: Connection, session_id: int, *, rounds: int) -> list[Asked]:
    """The questions of the last rounds, oldest first."""
    rows = await conn.fetch(
        """
        select questions, asked_at from questions
         where session_id = $1 order by id desc limit $2
        """,
        session_id,
        rounds,
    )
    return [Asked(questions=tuple(r["questions"]), asked_at=r["asked_at"]) for r in reversed(rows)]


async def latest_patch(conn: Connection, session_id: int) -> str | None:
    """The patch of the newest draft, for a drafter that revises it."""
    patch: str | None = await conn.fetchval(
        "select patch from drafts where session_id = $1 order by revision desc limit 1",
        session_id,
    )
    return patch


async def retry(conn: Connection, session_id: int, *, actor: str) -> bool:
    """failed -> clarified with fresh budgets, now; the generation only ever grows."""
    return (
        await conn.fetchval(
            """
            with retried as (
                update patch_sessions
                   set status = 'clarified', attempts = 0, crashes = 0,
                       claim_generation = claim_generation + 1, next_attempt_at = app_clock(),
                       updated_at = app_clock()
                 where id = $1 and status = 'failed'
                returning *
            ), told as (
                insert into timeline (session_id, move, status, generation, actor)
                select id, 'retry', status, claim_generation, $2 from retried
            )
            select id from retried
            """,
            session_id,
            actor,
        )
        is not None
    )


async def mute(conn: Connection, outbox_id: int, *, most: int, text: str) -> bool:
    """Mutes the story of a comment if so many were sent within an hour, and owes it that news.

    What it is told in place of something else is not counted.
    """
    return (
        await conn.fetchval(
            """
            with muted as (
                update patch_sessions as session
                   set muted_at = app_clock(), updated_at = app_clock()
                 where id = (select session_id from outbox where id = $1) and muted_at is null
                   and $2 <= (select count(*) from outbox
                               where session_id = session.id and kind not in ('standing', 'marks')
                                 and sent_at > greatest(app_now() - interval '1 hour',
                                                        session.counted_from))
                returning *
            ), told as (
                insert into timeline (session_id, move, status, generation, reason)
                select id, 'mute', status, claim_generation, $2 || ' comments within an hour'
                  from muted
            ), owed as (
                insert into outbox (session_id, key, kind, text)
                select id, 'draftgate:muted:' || gen_random_uuid(), 'muted', $3 from muted
            )
            select id from muted
            """,
            outbox_id,
            most,
            text,
        )
        is not None
    )


async def unmute(conn: Connection, session_id: int, *, actor: str) -> bool:
    """Lets a muted story go on, by an operator; what was sent before counts no more."""
    return (
        await conn.fetchval(
            """
            with unmuted as (
                update patch_sessions
                   set muted_at = null, counted_from = app_clock(), updated_at = app_clock()
                 where id = $1 and muted_at is not null
                returning *
            ), told as (
                insert into timeline (session_id, move, status, generation, actor)
                select id, 'unmute', status, claim_generation, $2 from unmuted
            )
            select id from unmuted
            """,
            session_id,
            actor,
        )
        is not None
    )


async def take_away(conn: Connection, session_id: int, *, actor: str) -> bool:
    """asking, drafting -> the prior status, by an operator; its worker has lost the claim."""
    return (
        await conn.fetchval(
            """
            with released as (
                update patch_sessions
                   set status = prior_status, prior_status = null, claim_token = null,
                       claimed_by = null, claimed_at = null, claim_expires_at = null,
                       phase_ends_at = null, progressed_at = null,
                       claim_generation = claim_generation + 1,
                       stopping_generation = claim_generation, stopping_until = claim_expires_at,
                       next_attempt_at = app_clock(), updated_at = app_clock()
                 where id = $1 and status in ('asking', 'drafting')
                returning *
            ), told as (
                insert into timeline (session_id, move, status, generation, actor)
                select id, 'release', status, claim_generation, $2 from released
            )
            select id from released
            """,
            session_id,
            actor,
        )
        is not None
    )


async def close(conn: Connection, session_id: int, *, actor: str) -> bool:
    """Anything -> closed, by an operator; a worker that owns it has lost the claim.

    What came before counts as decided, so that nothing older opens it again.
    """
    return (
        await conn.fetchval(
            """
            with closed as (
                update patch_sessions
                   set status = 'closed', prior_status = null, claim_token = null,
                       claimed_by = null, claimed_at = null, claim_expires_at = null,
                       phase_ends_at = null, progressed_at = null,
                       claim_generation = claim_generation + 1,
                       stopping_generation = case when status in ('asking', 'drafting')
                           then claim_generation else stopping_generation end,
                       stopping_until = coalesce(claim_expires_at, stopping_until),
                       decided_at = greatest(decided_at, app_clock()), updated_at = app_clock()
                 where id = $1 and status <> 'closed'
                returning *
            ), told as (
                insert into timeline (session_id, move, status, generation, actor)
                select id, 'close', status, claim_generation, $2 from closed
            )
            select id from closed
            """,
            session_id,
            actor,
        )
        is not None
    )


async def reopen(conn: Connection, session_id: int, *, actor: str) -> bool:
    """closed -> opened, and on to clarified where the story's text is known; budgets are fresh.

    What came before counts as decided, so that nothing older closes it again.
    """
    return (
        await conn.fetchval(
            """
            with reopened as (
                update patch_sessions
                   set status = case when coalesce(title, '') || coalesce(description, '') = ''
                                     then 'opened' else 'clarified' end,
                       attempts = 0, crashes = 0, last_error = null,
                       claim_generation = claim_generation + 1, next_attempt_at = app_clock(),
                       decided_at = greatest(decided_at, app_clock()), updated_at = app_clock()
                 where id = $1 and status = 'closed'
                returning *
            ), told as (
                insert into timeline (session_id, move, status, generation, actor)
                select reopened.id, move, led.status, claim_generation, $2
                  from reopened, (values (1, 'open', 'opened'), (2, 'clear', 'clarified'))
                       as led (position, move, status)
                 where position = 1 or reopened.status = 'clarified'
                 order by position
            )
            select id from reopened
            """,
            session_id,
            actor,
        )
        is not None
    )
