"""The gate: who owns a session, decided by conditional UPDATEs and by nothing else.

Every statement here commits by itself: it is checked, done, and told in the timeline at once, and
a claim is visible to others before any work begins. No row back is an answer, not an error:
somebody else has it, or it isn't ready, or the claim is lost. An exception is no answer: the
statement may have been carried out, which is why a claim can be asked for again by its token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg

from app.db.connect import Connection
from app.machine import Phase
from app.model import Claim, Draft, Story


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What a worker asks for, and how it will be known if the answer is lost.

    Attributes:
        token: made by the worker before it asks, one for each claim.
        phase_limit: the claim can't be prolonged past this, however well it beats.
    """

    token: UUID
    worker: str
    lease: timedelta
    phase_limit: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment that a move owes to its story."""

    key: str
    kind: str
    text: str


_CLAIM = """
    session.id, workspace, sc_id, status, claim_token, claim_generation, claimed_by, title, app_url,
    description, revision, rounds, attempts
"""

# The lock is waited for first, so that the lease is stamped when it was won. Then the expected
# state in the WHERE decides. A session that was taken from its worker waits until that one has
# said that its drafter has ended, or must have ended it.
CLAIM_KNOWN = """
    with known as materialized (
        select id from patch_sessions where workspace = $1 and sc_id = $2 for update
    ), claimed as (
        update patch_sessions as session
           set status = 'drafting', prior_status = status, claim_token = $3,
               claim_generation = claim_generation + 1, claimed_by = $4, claimed_at = app_clock(),
               claim_expires_at = app_clock() + $5, phase_ends_at = app_clock() + $6,
               progressed_at = app_clock(), updated_at = app_clock()
          from known
         where session.id = known.id
           and status = 'clarified' and next_attempt_at <= app_now()
           and (stopping_until is null or stopping_until <= app_now())
        returning <claim>
    ), told as (
        insert into timeline (session_id, move, status, generation, actor)
        select id, 'claim', status, claim_generation, claimed_by from claimed
    )
    select * from claimed
"""

# MATERIALIZED, or a nested-loop plan may run the LIMIT once per row and claim them all.
CLAIM_NEXT = """
    with next as materialized (
        select id from patch_sessions
         where status = 'clarified' and next_attempt_at <= app_now()
           and (stopping_until is null or stopping_until <= app_now())
         order by next_attempt_at, id
         limit 1
           for update skip locked
    ), claimed as (
        update patch_sessions as session
           set status = 'drafting', prior_status = status, claim_token = $1,
               claim_generation = claim_generation + 1, claimed_by = $2, claimed_at = app_clock(),
               claim_expires_at = app_clock() + $3, phase_ends_at = app_clock() + $4,
               progressed_at = app_clock(), updated_at = app_clock()
          from next
         where session.id = next.id
        returning <claim>
    ), told as (
        insert into timeline (session_id, move, status, generation, actor)
        select id, 'claim', status, claim_generation, claimed_by from claimed
    )
    select * from claimed
"""


def _both_phases(statement: str) -> dict[Phase, str]:
    """The gate as it is written, and the same for the clarify phase: opened -> asking."""
    drafts = statement.replace("<claim>", _CLAIM)
    clarifies = (
        drafts.replace("'clarified'", "'opened'")
        .replace("'drafting'", "'asking'")
        .replace("'claim'", "'ask'")
    )
    return {Phase.DRAFT: drafts, Phase.CLARIFY: clarifies}


_KNOWN = _both_phases(CLAIM_KNOWN)
_NEXT = _both_phases(CLAIM_NEXT)
_HELD = "select <claim> from patch_sessions as session where claim_token = $1".replace(
    "<claim>", _CLAIM
)


async def claim(
    conn: Connection, phase: Phase, bid: Bid, *, workspace: str, sc_id: int
) -> Claim | None:
    """clarified -> drafting (opened -> asking) for this story, if it is ready and nobody's."""
    row = await conn.fetchrow(
        _KNOWN[phase], workspace, sc_id, bid.token, bid.worker, bid.lease, bid.phase_limit
    )
    return _claim(row)


async def claim_next(conn: Connection, phase: Phase, bid: Bid) -> Claim | None:
    """The same for the next session that is ready; one that is being claimed is passed by."""
    row = await conn.fetchrow(_NEXT[phase], bid.token, bid.worker, bid.lease, bid.phase_limit)
    return _claim(row)


async def held(conn: Connection, token: UUID) -> Claim | None:
    """The claim that was made with this token, if it was made and is still held."""
    return _claim(await conn.fetchrow(_HELD, token))


async def beat(
    conn: Connection, claim: Claim, *, lease: timedelta, progressed: bool = False
) -> bool:
    """Prolongs the claim to a lease from now, never past its phase's end.

    False: the claim is lost, or its phase is over.

    `progressed`: the work has shown a sign of life since the last beat.
    """
    return (
        await conn.fetchval(
            """
            update patch_sessions
               set claim_expires_at = least(app_clock() + $3, phase_ends_at),
                   progressed_at = case when $4 then app_clock() else progressed_at end
             where id = $1 and claim_generation = $2 and status in ('asking', 'drafting')
               and phase_ends_at > app_clock()
            returning id
            """,
            claim.session_id,
            claim.generation,
            lease,
            progressed,
        )
        is not None
    )


# Every end of a claim is this one statement: the fence, the move, the timeline, what is owed.
# Carried out again after a lost answer it finds what it owed, and knows that it had succeeded.
_END = """
    with ended as (
        update patch_sessions
           set prior_status = null, claim_token = null, claimed_by = null, claimed_at = null,
               claim_expires_at = null, phase_ends_at = null, progressed_at = null,
               updated_at = app_clock(), <changes>
         where id = $1 and claim_generation = $2 and status in (<owned>)
        returning id, status, claim_generation, revision
    ), told as (
        insert into timeline (session_id, move, status, generation, actor, reason)
        select id, '<move>', status, claim_generation, $3, $4 from ended
    ), owed as (
        insert into outbox (session_id, key, kind, text)
        select id, $5, $6, $7 from ended where $5::text is not null
    )<kept>
    select true from ended union all select true from outbox where key = $5
"""


def _end(move: str, *, owned: str, changes: str, kept: str = "") -> str:
    return (
        _END.replace("<move>", move)
        .replace("<owned>", owned)
        .replace("<changes>", changes)
        .replace("<kept>", kept)
    )


CLEAR = _end(
    "clear",
    owned="'asking'",
    changes="""
        status = 'clarified', attempts = 0, crashes = 0, last_error = null,
        next_attempt_at = app_clock(), title = $8, description = $9,
        title_at = heard_at, description_at = heard_at,
        app_url = coalesce($10, app_url), cost_usd = cost_usd + $11
    """,
)
COMPLETE = _end(
    "complete",
    owned="'drafting'",
    changes="""
        status = 'drafted', attempts = 0, crashes = 0, last_error = null,
        revision = revision + 1, cost_usd = cost_usd + $10
    """,
    kept=""", kept as (
        insert into drafts (session_id, revision, generation, summary, patch, cost_usd, meta)
        select id, revision, claim_generation, $8, $9, $10, $11 from ended
    )""",
)
QUESTION = _end(
    "question",
    owned="'asking', 'drafting'",
    changes="""
        status = 'clarifying', attempts = 0, crashes = 0, last_error = null,
        rounds = rounds + 1, cost_usd = cost_usd + $8
    """,
    kept=""", kept as (
        insert into questions (session_id, generation, questions)
        select id, claim_generation, $9 from ended
    )""",
)
RELEASE = _end(
    "release",
    owned="'asking', 'drafting'",
    changes="""
        status = prior_status, last_error = $4, next_attempt_at = app_clock() + $8,
        attempts = attempts + $9::int, interruptions = interruptions + 1 - $9::int
    """,
)
FAIL = _end(
    "fail",
    owned="'asking', 'drafting'",
    changes="status = 'failed', attempts = attempts + 1, last_error = $4",
)
ABANDON = _end(
    "close",
    owned="'asking', 'drafting'",
    changes="status = 'closed', claim_generation = claim_generation + 1",
)


async def _ended(
    conn: Connection,
    statement: str,
    claim: Claim,
    *more: object,
    reason: str | None = None,
    comment: Comment | None = None,
) -> bool:
    owed = (comment.key, comment.kind, comment.text) if comment else (None, None, None)
    shown = (claim.session_id, claim.generation, claim.worker)
    return await conn.fetchval(statement, *shown, reason, *owed, *more) is not None


async def clear(conn: Connection, claim: Claim, story: Story, *, cost_usd: float = 0.0) -> bool:
    """asking -> clarified, with the story's text as it was read; False: the claim is lost."""
    texts = (story.title, story.description, story.app_url)
    return await _ended(conn, CLEAR, claim, *texts, cost_usd)


async def complete(conn: Connection, claim: Claim, draft: Draft, *, comment: Comment) -> bool:
    """drafting -> drafted with the draft and its comment; False: the claim is lost.

    A claim that has run out but that nobody has taken since is still good: late is not lost.
    """
    result = (draft.summary, draft.patch, draft.cost_usd, json.dumps(draft.meta))
    return await _ended(conn, COMPLETE, claim, *result, comment=comment)


async def question(conn: Connection, claim: Claim, draft: Draft, *, comment: Comment) -> bool:
    """asking, drafting -> clarifying with the questions as a comment; False: the claim is lost."""
    return await _ended(
        conn, QUESTION, claim, draft.cost_usd, list(draft.questions), comment=comment
    )


async def release(
    conn: Connection, claim: Claim, *, error: str, delay: timedelta, failed: bool
) -> bool:
    """asking, drafting -> the prior status, to be tried again after the delay; False: lost.

    `failed` counts an attempt; otherwise it is an interruption, which costs the session nothing.
    """
    return await _ended(conn, RELEASE, claim, delay, int(failed), reason=error)


async def fail(conn: Connection, claim: Claim, *, error: str, comment: Comment) -> bool:
    """asking, drafting -> failed, and the story is told; False: the claim is lost."""
    return await _ended(conn, FAIL, claim, reason=error, comment=comment)


async def abandon(conn: Connection, claim: Claim, *, reason: str) -> bool:
    """asking, drafting -> closed by its worker: the story is no longer there to work on."""
    return await _ended(conn, ABANDON, claim, reason=reason)


async def expire(
    conn: Connection, *, limit: int, max_crashes: int, delay: timedelta, error: str, text: str
) -> list[asyncpg.Record]:
    """asking, drafting -> the prior status where the claim has run out; failed after too many.

    The generation grows, so whatever the old worker still does counts for nothing. `delay` is
    the backoff after a first crash and doubles with each of the next ten.
    Rows: (id, workspace, sc_id, status).
    """
    return await conn.fetch(
        """
        with lapsed as materialized (
            select id, claimed_by, claim_token as token, crashes + 1 >= $2 as spent
              from patch_sessions
             where status in ('asking', 'drafting') and claim_expires_at <= app_now()
             order by id
             limit $1
               for update skip locked
        ), expired as (
            update patch_sessions as session
               set status = case when spent then 'failed' else prior_status end,
                   prior_status = null, claim_token = null, claimed_by = null, claimed_at = null,
                   claim_expires_at = null, phase_ends_at = null, progressed_at = null,
                   stopping_generation = claim_generation, stopping_until = claim_expires_at,
                   claim_generation = claim_generation + 1, crashes = crashes + 1,
                   next_attempt_at = app_clock() + $3::interval * power(2, least(crashes, 10)),
                   last_error = $4, updated_at = app_clock()
              from lapsed
             where session.id = lapsed.id
            returning session.id, workspace, sc_id, status, claim_generation,
                      lapsed.claimed_by as worker, lapsed.token
        ), told as (
            insert into timeline (session_id, move, status, generation, actor, reason)
            select id, case status when 'failed' then 'fail' else 'expire' end, status,
                   claim_generation, worker, $4
              from expired
        ), owed as (
            insert into outbox (session_id, key, kind, text)
            select id, 'draftgate:failure:' || token || ':g' || claim_generation, 'failure', $5
              from expired
             where status = 'failed'
        )
        select id, workspace, sc_id, status from expired
        """,
        limit,
        max_crashes,
        delay,
        error,
        text,
    )


async def keep_late_result(conn: Connection, claim: Claim, draft: Draft) -> None:
    """Keeps what a worker made after it had lost its claim; not what was completed after all.

    A completion that was asked for twice at once is refused the second time.
    """
    await conn.execute(
        """
        insert into late_results (session_id, generation, summary, patch, cost_usd, meta)
        select $1, $2, $3, $4, $5, $6
         where not exists (select from drafts where session_id = $1 and generation = $2)
        on conflict (session_id, generation) do nothing
        """,
        claim.session_id,
        claim.generation,
        draft.summary,
        draft.patch,
        draft.cost_usd,
        json.dumps(draft.meta),
    )


async def adopt(
    conn: Connection, session_id: int, generation: int, *, actor: str, comment: Comment
) -> bool:
    """clarified, failed, drafted -> drafted, with what a worker made after it lost its claim.

    False: there is no such result, it was adopted before, or a worker owns the session.
    """
    adopted = await conn.fetchval(
        """
        with result as materialized (
            select session_id, generation, summary, patch, cost_usd, meta
              from late_results
             where session_id = $1 and generation = $2 and adopted_at is null
               for update
        ), adopted as (
            update patch_sessions as session
               set status = 'drafted', claim_generation = claim_generation + 1,
                   revision = revision + 1, attempts = 0, crashes = 0, last_error = null,
                   updated_at = app_clock()
              from result
             where session.id = result.session_id
               and session.status in ('clarified', 'failed', 'drafted')
            returning id, status, claim_generation, session.revision
        ), marked as (
            update late_results set adopted_at = app_clock()
             where session_id = $1 and generation = $2 and exists (select from adopted)
        ), told as (
            insert into timeline (session_id, move, status, generation, actor)
            select id, 'adopt', status, claim_generation, $3 from adopted
        ), kept as (
            insert into drafts (session_id, revision, generation, summary, patch, cost_usd, meta)
            select adopted.id, adopted.revision, result.generation, result.summary, result.patch,
                   result.cost_usd, result.meta
              from adopted, result
        ), owed as (
            insert into outbox (session_id, key, kind, text) select id, $4, $5, $6 from adopted
        )
        select id from adopted
        """,
        session_id,
        generation,
        actor,
        comment.key,
        comment.kind,
        comment.text,
    )
    return adopted is not None


async def lost(conn: Connection, held: Sequence[tuple[int, int]]) -> list[int]:
    """Of these claims, as (session, generation), the positions of those that are no longer held."""
    rows = await conn.fetch(
        """
        select claim.position from unnest($1::bigint[], $2::bigint[]) with ordinality
            as claim (session_id, generation, position)
         where not exists (
            select from patch_sessions
             where id = claim.session_id and claim_generation = claim.generation
               and status in ('asking', 'drafting'))
        """,
        [session_id for session_id, _ in held],
        [generation for _, generation in held],
    )
    return [row["position"] - 1 for row in rows]


async def confirm_stopped(conn: Connection, claim: Claim) -> None:
    """Says that the work under a claim that was taken away has ended: the next may begin.

    Says it once, and nothing of a claim that its worker has ended by itself.
    """
    await conn.execute(
        """
        with stopped as (
            update patch_sessions
               set stopping_generation = null, stopping_until = null
             where id = $1 and stopping_generation = $2
            returning id, status
        )
        insert into timeline (session_id, move, status, generation, actor, reason)
        select id, 'stopped', status, $2, $3, 'its claim was taken away, and its work has ended'
          from stopped
        """,
        claim.session_id,
        claim.generation,
        claim.worker,
    )


def _claim(row: asyncpg.Record | None) -> Claim | None:
    if row is None:
        return None
    return Claim(
        session_id=row["id"],
        generation=row["claim_generation"],
        token=row["claim_token"],
        phase=Phase.CLARIFY if row["status"] == "asking" else Phase.DRAFT,
        worker=row["claimed_by"],
        workspace=row["workspace"],
        sc_id=row["sc_id"],
        title=row["title"],
        app_url=row["app_url"],
        description=row["description"],
        revision=row["revision"],
        rounds=row["rounds"],
        attempt=row["attempts"] + 1,
    )
