"""Work under a claim: clarify and draft. Outside any transaction; each ends in one statement."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import asyncpg
import structlog

from app import clarify, words
from app.db import gate, sessions
from app.db.connect import DATABASE_ERRORS, Connection, Pool, reason, take
from app.db.gate import Bid, Comment
from app.errors import DrafterError, DraftgateError, ShortcutError, ShortcutRefused
from app.machine import Phase
from app.model import Asked, Claim, Draft, Remark, Story
from app.wake import Bell
from app.worker.claims import End, Heart, Held, acquire, backoff
from app.worker.workspaces import Workspaces

#: The statement that ends a claim; False when the claim was lost before.
Ending = Callable[[Connection], Awaitable[bool]]


class Won(NamedTuple):
    """A claim, and when it was asked for, by the monotonic clock: its lease is no older."""

    claim: Claim
    asked_at: float


#: Beyond the drafter's own limit: for reading the story, the first fetch of a repository (which
#: git is given ten minutes for), and cleaning up.
PHASE_SLACK = timedelta(minutes=12)
END_PAUSE_SECONDS = 0.5

log = structlog.get_logger(__name__)


class Drafter(Protocol):
    """Whatever makes a draft. Raises DrafterError; cleans up when it is cancelled.

    It calls `progress` whenever it sees a sign of life.
    """

    async def draft(
        self,
        claim: Claim,
        story: Story,
        *,
        conversation: Sequence[Remark],
        asked: Sequence[Asked],
        previous_patch: str | None,
        progress: Callable[[], None],
    ) -> Draft: ...


class _StoryGone(DraftgateError):
    """The story is archived, completed or deleted: there is nothing to draft for."""


class _NoText(DraftgateError):
    """The story has no text yet, which is nobody's failure: it is looked at again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clarifying:
    """What is asked before a story is drafted.

    Attributes:
        command: asked where the rules have no question.
        rounds: after so many the story is drafted all the same.
    """

    rules: tuple[clarify.Rule, ...] = ()
    command: Drafter | None = None
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """What was said and made about a story so far."""

    conversation: Sequence[Remark]
    asked: Sequence[Asked]
    previous_patch: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, and how often they may go wrong."""

    lease: timedelta
    drafter_timeout: timedelta
    max_attempts: int
    max_crashes: int
    retry_base: timedelta
    retry_longest: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Claims sessions and does their work, one at a time for each caller of its ticks.

    Attributes:
        endings: a pool that only the ends of claims use, so that they never wait for work.
        cut_off: set when the process must go and running work is to be given back.
        held: the claims that this process holds, by session and generation.
    """

    worker: str
    pool: Pool
    endings: Pool
    heart: Heart
    drafter: Drafter
    clarifying: Clarifying = Clarifying()
    workspaces: Workspaces
    bell: Bell
    limits: Limits
    cut_off: asyncio.Event
    held: dict[tuple[int, int], Held] = field(default_factory=dict)

    async def clarify_tick(self) -> bool:
        """opened -> asking -> clarified or clarifying for the next session; True if any was."""
        return await self.tick(Phase.CLARIFY)

    async def watch_tick(self) -> bool:
        """Ends work whose claim is gone, sooner than its next beat would find out."""
        keys = list(self.held)
        if keys:
            async with take(self.endings) as conn:
                lost = await gate.lost(conn, keys)
            for position in lost:
                if keys[position] in self.held:
                    self.held[keys[position]].lose()
        return False

    async def expire_tick(self) -> bool:
        """Takes claims back that have run out; True if there were any."""
        limits = self.limits
        async with take(self.endings) as conn:
            expired = await gate.expire(
                conn,
                limit=100,
                max_crashes=limits.max_crashes,
                delay=limits.retry_base,
                error="the worker stopped responding",
                text=words.crash(limits.max_crashes),
            )
        for row in expired:
            log.warning("claim.expired", session=row["id"], story=row["sc_id"], to=row["status"])
        if expired:
            self.bell.ring()
        return bool(expired)

    async def tick(self, phase: Phase) -> bool:
        """Claims the next session that is ready and does its work; True if there was one."""
        won = await self.claim(phase)
        if won is not None:
            await self.work(won)
        return won is not None

    async def claim(self, phase: Phase) -> Won | None:
        """Claims the next session that is ready for this phase, if there is one."""
        asked_at = time.monotonic()
        claim = await acquire(self.pool, phase, self._bid())
        return None if claim is None else Won(claim, asked_at)

    async def work(self, won: Won) -> None:
        """Does the work of a claim and ends it; the lease is counted from when it was asked for."""
        claim, asked_at = won
        with structlog.contextvars.bound_contextvars(
            session=claim.session_id, generation=claim.generation, story=claim.sc_id
        ):
            log.info("claim.won", phase=claim.phase, attempt=claim.attempt)
            async with self.heart.hold(
                claim,
                asked_at=asked_at,
                cut_off=self.cut_off,
                phase_limit=self._phase_limit(),
            ) as held:
                ending = await self._work_registered(held, claim)
                await self._end(claim, ending, asked_at)
        self.bell.ring()

    def _bid(self) -> Bid:
        return Bid(
            token=uuid4(),
            worker=self.worker,
            lease=self.limits.lease,
            phase_limit=self._phase_limit(),
        )

    def _phase_limit(self) -> timedelta:
        return self.limits.drafter_timeout + PHASE_SLACK

    async def _work_registered(self, held: Held, claim: Claim) -> Ending:
        key = (claim.session_id, claim.generation)
        self.held[key] = held
        try:
            return await self._work(held, claim)
        finally:
            del self.held[key]

    async def _work(self, held: Held, claim: Claim) -> Ending:
        """Runs the work and gives the statement that ends the claim, however that went."""
        try:
            result = await held.run(self._made(claim))
        except _StoryGone as gone:
            return partial(gate.abandon, claim=claim, reason=str(gone))
        except _NoText as none:
            delay = self.limits.retry_longest
            return partial(gate.release, claim=claim, error=str(none), delay=delay, failed=False)
        except ShortcutError as error:
            return self._release(claim, words.problem(error), failed=False)
        except DrafterError as error:
            log.warning("drafter.failed", reason=reason(error), attempt=claim.attempt)
            return self._failed(claim, words.problem(error))
        except DATABASE_ERRORS as error:
            return self._release(claim, f"the database: {type(error).__name__}", failed=False)
        except Exception as error:
            log.exception("work.broke")
            return self._failed(claim, f"an error of ours: {type(error).__name__}")
        return self._stopped(claim, result) if isinstance(result, End) else result

    def _stopped(self, claim: Claim, how: End) -> Ending:
        match how:
            case End.LOST:
                # It may be ours still: then nobody has to wait for the lease, or count a crash.
                return self._release(
                    claim, "the database could not be reached in time", failed=False
                )
            case End.OVER:
                return self._failed(claim, "it took longer than a phase may")
            case End.CUT_OFF:
                return self._release(claim, "interrupted by a shutdown", failed=False)

    async def _end(self, claim: Claim, ending: Ending, asked_at: float) -> None:
        """Carries out the ending, again while the database doesn't answer: it is idempotent.

        The claim can live as long as its phase, and is tried to be ended for as long.
        """
        phase_ends = asked_at + self._phase_limit().total_seconds()
        give_up_at = max(phase_ends, time.monotonic() + self.limits.lease.total_seconds())
        refused = False
        while True:
            try:
                async with take(self.endings) as conn:
                    done = await ending(conn)
                    if not done:
                        await gate.confirm_stopped(conn, claim)
                log.info("claim.ended" if done else "claim.lost_at_the_end")
                return
            except DATABASE_ERRORS as error:
                log.warning("claim.end_unanswered", error=type(error).__name__)
                if time.monotonic() > give_up_at:
                    return  # The lease runs out, and another worker takes over.
            except asyncpg.PostgresError as error:
                # What the database will never take must not keep the session owned.
                log.exception("claim.end_refused")
                if refused:
                    return
                refused = True
                ending = self._failed(claim, f"an error of ours: {type(error).__name__}")
            await asyncio.sleep(END_PAUSE_SECONDS)

    def _failed(self, claim: Claim, error: str) -> Ending:
        if claim.attempt < self.limits.max_attempts:
            return self._release(claim, error, failed=True)
        text = words.failure(claim.phase, claim.attempt, error)
        comment = Comment(key=_key("failure", claim), kind="failure", text=text)
        return partial(gate.fail, claim=claim, error=error, comment=comment)

    def _release(self, claim: Claim, error: str, *, failed: bool) -> Ending:
        delay = timedelta(0)
        if not self.cut_off.is_set():
            limits = self.limits
            delay = backoff(claim.attempt, base=limits.retry_base, longest=limits.retry_longest)
        return partial(gate.release, claim=claim, error=error, delay=delay, failed=failed)

    def _made(self, claim: Claim) -> Coroutine[Any, Any, Ending]:
        return self._draft(claim) if claim.phase is Phase.DRAFT else self._clarify(claim)

    async def _clarify(self, claim: Claim) -> Ending:
        story = await self._story(claim)
        if not story.title.strip() and not story.description.strip():
            raise _NoText("the story has no text yet")
        asked = await self._ask(claim, story)
        if asked is not None and asked.questions:
            return partial(_hand_back, claim=claim, draft=asked)
        cost_usd = asked.cost_usd if asked is not None else 0.0
        return partial(gate.clear, claim=claim, story=story, cost_usd=cost_usd)

    async def _ask(self, claim: Claim, story: Story) -> Draft | None:
        """What must be known first, by the rules, of which each asks once, or by the command."""
        if claim.rounds >= self.clarifying.rounds:
            return None
        heard = await self._heard(claim)
        answers = [remark.text for remark in heard.conversation if remark.text is not None]
        before = {question for asked in heard.asked for question in asked.questions}
        lacking = clarify.lacking(story, answers, self.clarifying.rules)
        questions = tuple(q for q in map(words.QUESTIONS.__getitem__, lacking) if q not in before)
        if questions:
            return Draft(summary="", patch="", questions=questions)
        command = self.clarifying.command
        return None if command is None else await self._run(command, claim, story, heard)

    async def _draft(self, claim: Claim) -> Ending:
        story = await self._story(claim)
        draft = await self._run(self.drafter, claim, story, await self._heard(claim))
        return partial(_hand_back, claim=claim, draft=draft)

    async def _run(self, drafter: Drafter, claim: Claim, story: Story, heard: _Heard) -> Draft:
        return await drafter.draft(
            claim,
            story,
            conversation=heard.conversation,
            asked=heard.asked,
            previous_patch=heard.previous_patch,
            progress=self.held[claim.session_id, claim.generation].progress,
        )

    async def _heard(self, claim: Claim) -> _Heard:
        async with take(self.pool) as conn:
            of, rounds = claim.session_id, claim.rounds
            said = await sessions.conversation(conn, of)
            asked = await sessions.asked(conn, of, rounds=rounds) if rounds else ()
            patch = await sessions.latest_patch(conn, of) if claim.revision else None
        return _Heard(conversation=said, asked=asked, previous_patch=patch)

    async def _story(self, claim: Claim) -> Story:
        """The story as it is now; as the deliveries told it where there is no API token."""
        api = self.workspaces.api(claim.workspace)
        if api is None:
            title, description = claim.title or "", claim.description or ""
            return Story(
                sc_id=claim.sc_id, title=title, description=description, app_url=claim.app_url
            )
        try:
            story = await api.story(claim.sc_id)
        except ShortcutRefused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                raise _StoryGone("the story no longer exists") from None
            raise
        if story.archived or story.completed:
            raise _StoryGone("the story is archived" if story.archived else "the story is done")
        return story


async def _hand_back(conn: Connection, claim: Claim, draft: Draft) -> bool:
    if draft.questions:
        text = words.questions(draft.questions)
        comment = Comment(key=_key("questions", claim), kind="questions", text=text)
        return await gate.question(conn, claim, draft, comment=comment)
    comment = Comment(
        key=_key("draft", claim), kind="draft", text=words.draft(claim.revision + 1, draft)
    )
    completed = await gate.complete(conn, claim, draft, comment=comment)
    if not completed:
        await gate.keep_late_result(conn, claim, draft)
    return completed


def _key(kind: str, claim: Claim) -> str:
    """The marker of what a claim owes: no other claim, anywhere, has the same."""
    return f"draftgate:{kind}:{claim.token}:g{claim.generation}"
