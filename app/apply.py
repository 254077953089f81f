"""Applies recorded events: reads what is missing, interprets, decides, commits it at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from app.claims import backoff
from app.db import events, facts, sessions
from app.db.connect import DATABASE_ERRORS, Connection, Pool, transaction
from app.db.events import PendingEvent
from app.decide import Rules, decide, hangs_on_the_past
from app.errors import ShortcutError, ShortcutRefused
from app.interpret import interpret
from app.machine import OWNED
from app.model import (
    Decision,
    EventStatus,
    Fact,
    Interpretation,
    Known,
    Need,
    NeedKind,
    Session,
)
from app.shortcut.client import ShortcutClient
from app.wake import Bell

BATCH_EVENTS = 100
#: How long one process has for reading what an event refers to before another may try.
READ_LEASE = timedelta(seconds=60)
#: Waits between tries; how many tries make a day; how many an error of ours gets.
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=1), timedelta(minutes=5)
READ_TRIES = 290
OWN_TRIES = 20

log = structlog.get_logger(__name__)

Read = tuple[PendingEvent, Interpretation]


@dataclass(frozen=True, slots=True)
class Applier:
    """Turns pending events into moves."""

    pool: Pool
    rules: Rules
    workspace: str
    shortcut: ShortcutClient | None
    bell: Bell

    async def tick(self) -> bool:
        """Applies the next events; True if there were any."""
        try:
            taken, needing = await self._apply_next(BATCH_EVENTS)
        except DATABASE_ERRORS:
            raise
        except Exception:
            # One event that breaks us must not hold up the others: find it alone.
            log.exception("apply.batch_failed")
            return await self._apply_one_by_one()
        for event in needing:
            await self._read_and_apply_alone(event)
        return taken > 0

    async def _apply_next(self, limit: int) -> tuple[int, list[PendingEvent]]:
        async with transaction(self.pool) as conn:
            taken = await events.take(conn, limit=limit)
            read = [(event, self._interpret(event, {})) for event in taken]
            needing = [event for event, said in read if said.needs]
            for event in needing:
                await events.defer(conn, event.id, delay=READ_LEASE, reason=None, attempt=False)
            moved = await self._apply(conn, [(e, said) for e, said in read if not said.needs])
        if moved:
            self.bell.ring()
        return len(taken), needing

    async def _apply_one_by_one(self) -> bool:
        for _ in range(BATCH_EVENTS):
            try:
                taken, needing = await self._apply_next(1)
            except DATABASE_ERRORS:
                raise
            except Exception as error:
                log.exception("apply.event_failed")
                await self._blame_next(f"an error of ours: {type(error).__name__}")
                continue
            for event in needing:
                await self._read_and_apply_alone(event)
            if not taken:
                return False
        return True

    async def _blame_next(self, reason: str) -> None:
        async with transaction(self.pool) as conn:
            for event in await events.take(conn, limit=1):
                await _put_off(conn, event, reason, tries=OWN_TRIES)

    def _interpret(self, event: PendingEvent, known: dict[Need, str | None]) -> Interpretation:
        """What the event says; names that no rule asks for are left unknown, not read."""
        while True:
            said = self._interpret_with(event, known)
            unasked = [need for need in said.needs if not self._is_worth_reading(need)]
            if not unasked:
                return said
            known.update(dict.fromkeys(unasked))

    def _is_worth_reading(self, need: Need) -> bool:
        match need.kind:
            case NeedKind.LABEL:
                return self.shortcut is not None and self.rules.label is not None
            case NeedKind.STATE:
                return self.shortcut is not None and self.rules.state is not None
            case NeedKind.COMMENT:
                return True

    def _interpret_with(self, event: PendingEvent, known: Known) -> Interpretation:
        return interpret(
            event.kind,
            event.body,
            workspace=self.workspace,
            received_at=event.received_at,
            occurred_at=event.occurred_at,
            known=known,
        )

    async def _read_and_apply_alone(self, event: PendingEvent) -> None:
        """The same for one event; what breaks us there is put off, and holds nobody up."""
        try:
            await self._read_and_apply(event)
        except DATABASE_ERRORS:
            raise
        except Exception as error:
            log.exception("apply.event_failed", event_id=event.id)
            reason = f"an error of ours: {type(error).__name__}"
            async with transaction(self.pool) as conn:
                await _put_off(conn, event, reason, tries=OWN_TRIES)

    async def _read_and_apply(self, event: PendingEvent) -> None:
        """Reads what the event refers to, outside any transaction, and then applies it."""
        known: dict[Need, str | None] = {}
        try:
            while (said := self._interpret(event, known)).needs:
                known.update({need: await self._read(need) for need in said.needs})
        except ShortcutError as error:
            async with transaction(self.pool) as conn:
                await _put_off(conn, event, f"waits for the API: {error}", tries=READ_TRIES)
            return
        async with transaction(self.pool) as conn:
            still = await events.retake(conn, event.id)
            moved = still is not None and await self._apply(conn, [(still, said)])
        if moved:
            self.bell.ring()

    async def _read(self, need: Need) -> str | None:
        if self.shortcut is None:
            raise ShortcutRefused("DRAFTGATE_SHORTCUT_API_TOKEN is not set", status=401)
        match need.kind:
            case NeedKind.LABEL:
                return await self.shortcut.label_name(need.id)
            case NeedKind.STATE:
                return await self.shortcut.state_name(need.id)
            case NeedKind.COMMENT:
                return await self.shortcut.comment_text(need.sc_id, need.id)

    async def _apply(self, conn: Connection, read: Sequence[Read]) -> bool:
        """Writes facts, decisions and outcomes; True if any session moved."""
        told = [
            (event.id, event.dedupe_key, position, fact)
            for event, said in read
            for position, fact in enumerate(said.facts)
        ]
        stories = {(fact.workspace, fact.sc_id) for *_, fact in told}
        current = await sessions.lock(conn, stories) if stories else {}
        await facts.add(conn, told)
        outcomes, moved = [], False
        for event, said in read:
            decisions = [
                await self._decide(conn, current, event, story, about)
                for story, about in _by_story(said.facts).items()
            ]
            moved = moved or any(decision.moves for decision in decisions)
            outcomes.append((event.id, *_outcome(said, decisions)))
        await events.finish(conn, outcomes)
        return moved

    async def _decide(
        self,
        conn: Connection,
        current: dict[tuple[str, int], Session],
        event: PendingEvent,
        story: tuple[str, int],
        told: Sequence[Fact],
    ) -> Decision:
        """Decides and saves what an event says of one story."""
        before = current.get(story)
        decision = decide(before, told, self.rules)
        anew = hangs_on_the_past(before, decision, told)
        if anew:
            history = await facts.of_story(conn, *story)
            decision = decide(None, history, self.rules, about=told)
            decision = _only_what_is_new(decision, before)
        if decision.session is not None and (
            anew or decision.remarks or decision.session != before
        ):
            session_id = await self._save(conn, before, decision)
            if anew:
                await sessions.forget_conversation(conn, session_id)
            await sessions.remark(conn, session_id, decision.remarks)
            await self._tell(conn, session_id, event, decision)
            current[story] = decision.session
        return decision

    async def _save(self, conn: Connection, before: Session | None, decision: Decision) -> int:
        session = decision.session
        assert session is not None
        if before is None:
            return await sessions.add(conn, session)
        if before.status in OWNED.values() and decision.moves:
            await sessions.evict(conn, session.workspace, session.sc_id)
        return await sessions.save(conn, session)

    async def _tell(
        self, conn: Connection, session_id: int, event: PendingEvent, decision: Decision
    ) -> None:
        if decision.moves:
            await sessions.tell(
                conn,
                session_id,
                decision.moves,
                actor=None,
                event_id=event.id,
                reason=decision.reason,
            )


def _by_story(told: Sequence[Fact]) -> dict[tuple[str, int], list[Fact]]:
    stories: dict[tuple[str, int], list[Fact]] = {}
    for fact in told:
        stories.setdefault((fact.workspace, fact.sc_id), []).append(fact)
    return stories


def _only_what_is_new(decision: Decision, before: Session | None) -> Decision:
    """Of moves that were decided anew, the one that changes where the session stands."""
    if before is None:
        return decision
    session = decision.session
    changed = session is not None and session.status != before.status
    return replace(decision, moves=decision.moves[-1:] if changed else ())


def _outcome(said: Interpretation, decisions: Sequence[Decision]) -> tuple[EventStatus, str]:
    if not decisions:
        return EventStatus.IGNORED, said.nothing or "nothing about a story"
    reasons = dict.fromkeys(decision.reason for decision in decisions)
    applied = any(decision.applied for decision in decisions)
    return EventStatus.APPLIED if applied else EventStatus.IGNORED, "; ".join(reasons)[:1000]


async def _put_off(conn: Connection, event: PendingEvent, reason: str, *, tries: int) -> None:
    """Leaves the event pending with a backoff, or fails it after so many tries."""
    if event.attempts + 1 >= tries:
        await events.finish(conn, [(event.id, EventStatus.FAILED, reason)])
        return
    delay = backoff(event.attempts + 1, base=FIRST_WAIT, longest=LONGEST_WAIT)
    await events.defer(conn, event.id, delay=delay, reason=reason, attempt=True)
