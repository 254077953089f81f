"""Applies recorded events: reads what is missing, interprets, decides, commits it at once."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from app import words
from app.db import events, facts, installations, outbox, sessions
from app.db.connect import DATABASE_ERRORS, Connection, Pool, redoable, take
from app.db.events import PendingEvent
from app.decide import Rules, decide, hangs_on_the_past
from app.errors import ShortcutError, ShortcutRefused, ShortcutUnavailable
from app.machine import OWNED, Move
from app.model import (
    Decision,
    EventStatus,
    Fact,
    Interpretation,
    Known,
    Need,
    NeedKind,
    Remark,
    Session,
)
from app.wake import Bell, Ring
from app.worker.claims import backoff
from app.worker.interpret import interpret, workspace_of
from app.worker.workspaces import Workspaces

BATCH_EVENTS = 100
#: How long one process has for reading what an event refers to before another may try.
READ_LEASE = timedelta(seconds=60)
#: Waits between tries; how many tries make a day; how many an error of ours gets.
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=1), timedelta(minutes=5)
READ_TRIES = 290
OWN_TRIES = 20

#: After these a session is worked on, and there is nothing else to do.
_MAKES_READY = frozenset([Move.OPEN, Move.CLEAR, Move.ANSWER, Move.REVISE])

log = structlog.get_logger(__name__)

Read = tuple[PendingEvent, Interpretation]
Story = tuple[str, int]
#: A fact, or what it did, with the id of the event that told it.
Told = tuple[int, Fact]
Step = tuple[int, Decision]


@dataclass(frozen=True, slots=True)
class Applier:
    """Turns pending events into moves."""

    pool: Pool
    rules: Rules
    workspaces: Workspaces
    bell: Bell

    async def tick(self) -> bool:
        """Applies the next events, and sets aside those that need the API; True: there are more.

        What is recorded meanwhile rings.
        """
        taken: list[PendingEvent] = []
        try:
            async with redoable(self.pool) as conn:
                refused = self.workspaces.refused
                taken = await events.take(conn, limit=BATCH_EVENTS, without=list(refused))
                if not taken:
                    return False
                if len(taken) == BATCH_EVENTS:
                    self.bell.ring(Ring.BACKLOG)
                news = await self._apply(conn, [(it, self._interpret(it, {})) for it in taken])
        except DATABASE_ERRORS:
            raise
        except Exception:
            if not taken:
                raise
            # One event that breaks us must not hold up the others: each by itself, then.
            log.exception("apply.batch_failed")
            for event in taken:
                await self._apply_alone(event, {})
        else:
            self._ring_if(news)
        return len(taken) == BATCH_EVENTS

    async def read_tick(self) -> bool:
        """Reads what the next event refers to, and applies it; True if one was waiting.

        Raises ShortcutUnavailable if the others had better wait, too.
        """
        async with take(self.pool) as conn:
            event = await events.take_to_read(conn, lease=READ_LEASE)
        if event is None:
            return False
        known: dict[Need, str | None] = {}
        try:
            async with self._blaming(event):
                await self._read_all(event, known)
                await self._apply_alone(event, known)
        except ShortcutError as error:
            await self._put_off(event, f"waits for the API: {error}", tries=READ_TRIES)
            if isinstance(error, ShortcutUnavailable):
                raise
        return True

    async def _apply_alone(self, event: PendingEvent, known: dict[Need, str | None]) -> None:
        news = None
        async with self._blaming(event), redoable(self.pool) as conn:
            if await events.retake(conn, event.id):
                news = await self._apply(conn, [(event, self._interpret(event, known))])
        self._ring_if(news)

    @asynccontextmanager
    async def _blaming(self, event: PendingEvent) -> AsyncIterator[None]:
        """An error of ours puts the event off, and holds nobody up."""
        try:
            yield
        except (*DATABASE_ERRORS, ShortcutError):
            raise
        except Exception as error:
            log.exception("apply.event_failed", event_id=event.id)
            reason = f"an error of ours: {type(error).__name__}"
            await self._put_off(event, reason, tries=OWN_TRIES)

    async def _put_off(self, event: PendingEvent, reason: str, *, tries: int) -> None:
        """Leaves the event pending with a backoff, or fails it after so many tries."""
        async with take(self.pool) as conn:
            if event.attempts + 1 >= tries:
                await events.finish(conn, [(event.id, EventStatus.FAILED, reason)])
            else:
                delay = backoff(event.attempts + 1, base=FIRST_WAIT, longest=LONGEST_WAIT)
                await events.defer(conn, event.id, delay=delay, reason=reason)

    def _ring_if(self, news: Ring | None) -> None:
        if news is not None:
            self.bell.ring(news)

    def _interpret(self, event: PendingEvent, known: dict[Need, str | None]) -> Interpretation:
        """What the event says; names that no rule asks for are left unknown, not read."""
        while True:
            said = self._interpret_with(event, known)
            unasked = [need for need in said.needs if not self._is_worth_reading(need)]
            if not unasked:
                return replace(said, needs=said.needs or self._teams(said.facts))
            known.update(dict.fromkeys(unasked))

    def _teams(self, facts: Sequence[Fact]) -> tuple[Need, ...]:
        """The teams, if they must be read before these facts are decided about."""
        if not facts:
            return ()
        workspace = facts[0].workspace
        answers = self.workspaces.has_api(workspace) or self.workspaces.asking
        heard = any(fact.comment_id is not None for fact in facts)
        due = self.workspaces.teams.must_be_read(workspace, for_comments=heard)
        return (Need(NeedKind.TEAMS),) if answers and due else ()

    def _is_worth_reading(self, need: Need) -> bool:
        match need.kind:
            case NeedKind.LABEL:
                return bool(self.workspaces.known) and self.rules.label is not None
            case NeedKind.STATE:
                return bool(self.workspaces.known) and self.rules.state is not None
            case NeedKind.COMMENT | NeedKind.TEAMS:
                return True

    def _interpret_with(self, event: PendingEvent, known: Known) -> Interpretation:
        return interpret(
            event.kind,
            event.body,
            workspace=self.workspaces.home(event.source),
            received_at=event.received_at,
            occurred_at=event.occurred_at,
            known=known,
        )

    async def _read_all(self, event: PendingEvent, known: dict[Need, str | None]) -> None:
        """Reads what the event refers to, outside any transaction."""
        workspace = workspace_of(event.kind, event.body, self.workspaces.home(event.source))
        while needs := self._interpret(event, known).needs:
            for need in needs:
                known[need] = await self._read(workspace, need)

    async def _read(self, workspace: str, need: Need) -> str | None:
        api = self.workspaces.api(workspace)
        if api is None:
            if need.kind is not NeedKind.COMMENT:
                return None
            raise ShortcutRefused("there is no token for its workspace", status=401)
        match need.kind:
            case NeedKind.LABEL:
                return await api.label_name(need.id)
            case NeedKind.STATE:
                return await api.state_name(need.id)
            case NeedKind.COMMENT:
                return await api.comment_text(need.sc_id, need.id)
            case NeedKind.TEAMS:
                await self.workspaces.teams.read(workspace, api)
                return None

    async def _apply(self, conn: Connection, read: Sequence[Read]) -> Ring | None:
        """Writes facts, decisions and outcomes; gives what there is to do now, if anything."""
        needing = [event.id for event, said in read if said.needs]
        whole = [(event, said) for event, said in read if not said.needs]
        if needing:
            await events.set_aside(conn, needing)
        if self.workspaces.installs is not None:
            # Whoever installed us a moment ago may have had us write already.
            self.workspaces.bots.update(await installations.members(conn))
        steps = await self._decide_all(conn, whole)
        outcomes = [(event.id, *_outcome(said, steps[event.id])) for event, said in whole]
        await events.finish(conn, outcomes)
        return Ring.WORK if needing else _news([it for did in steps.values() for it in did])

    async def _decide_all(
        self, conn: Connection, read: Sequence[Read]
    ) -> Mapping[int, list[Decision]]:
        """What each event did, by its id. Every story is decided about once, however many tell."""
        told = [
            (event.id, event.dedupe_key, position, fact)
            for event, said in read
            for position, fact in enumerate(said.facts)
        ]
        # As `facts.of_stories` has them.
        told.sort(key=lambda it: (it[3].occurred_at, it[1], it[2]))
        stories: dict[Story, list[Told]] = {}
        for event_id, _, _, fact in told:
            stories.setdefault((fact.workspace, fact.sc_id), []).append((event_id, fact))
        await facts.replace(conn, [event.id for event, _ in read], told)
        current = await sessions.lock(conn, stories) if stories else {}
        changes = [
            await self._decide(conn, story, current.get(story), about)
            for story, about in stories.items()
        ]
        await self._decide_anew(conn, [change for change in changes if change.anew])
        if weighty := [change for change in changes if change.matters]:
            await _save_all(conn, weighty)
        steps: defaultdict[int, list[Decision]] = defaultdict(list)
        for change in changes:
            for event_id, step in change.steps:
                steps[event_id].append(step)
        return steps

    async def _decide(
        self, conn: Connection, story: Story, before: Session | None, told: Sequence[Told]
    ) -> "_Change":
        """Decides what is told of one story: each fact's event, and what it did."""
        comments = [fact.comment_id for _, fact in told if fact.comment_id is not None]
        spoken = await sessions.spoken(conn, *story, comments) if before and comments else ()
        said = [fact for _, fact in told]
        rules = self._rules(story[0])
        decisions = decide(before, said, rules, spoken=spoken)
        anew = hangs_on_the_past(before, said, decisions)
        change = _Change(story=story, before=before, anew=anew)
        change.decided(told, decisions)
        return change

    async def _decide_anew(self, conn: Connection, changes: Sequence["_Change"]) -> None:
        """Decides about these stories from all that is known of them."""
        if not changes:
            return
        known = await facts.of_stories(conn, [change.story for change in changes])
        for change in changes:
            told = known[change.story]
            rules = self._rules(change.story[0])
            change.decided(told, decide(None, [fact for _, fact in told], rules))

    def _rules(self, workspace: str) -> Rules:
        """As they are for stories of this workspace: where nothing can be asked, nothing is."""
        clarify = self.rules.clarify and self.workspaces.has_api(workspace)
        bots, commanders = self.rules.bots | self.workspaces.bots, self.rules.commanders
        if commanders is not None:
            commanders |= self.workspaces.teams.members(workspace)
        return replace(self.rules, clarify=clarify, bots=bots, commanders=commanders)


@dataclass(slots=True, kw_only=True)
class _Change:
    """What was decided about one story.

    Attributes:
        anew: from all that is known, and in place of what was decided before.
    """

    story: Story
    before: Session | None
    anew: bool
    session: Session | None = None
    steps: Sequence[Step] = ()

    def decided(self, told: Sequence[Told], decisions: Sequence[Decision]) -> None:
        """Takes what each fact did."""
        self.session = decisions[-1].session
        self.steps = [(event_id, it) for (event_id, _), it in zip(told, decisions, strict=True)]

    @property
    def remarks(self) -> list[Remark]:
        return [remark for _, step in self.steps for remark in step.remarks]

    @property
    def matters(self) -> bool:
        """Whether there is anything to write."""
        changed = self.session != self.before or self.anew or bool(self.remarks)
        return self.session is not None and changed

    @property
    def moves(self) -> list[Step]:
        """The steps that stand in the timeline."""
        moves = [(event_id, step) for event_id, step in self.steps if step.moves]
        if not self.anew or self.before is None or self.session is None:
            return moves
        # Of moves that were decided anew, the one that changes where the session stands.
        if self.session.status == self.before.status:
            return []
        return [(event_id, replace(step, moves=step.moves[-1:])) for event_id, step in moves[-1:]]


async def _save_all(conn: Connection, changes: Sequence[_Change]) -> None:
    """Writes what was decided; what is new, and what is told, by one statement for all."""
    opened = [it.session for it in changes if it.before is None and it.session is not None]
    ids = await sessions.add(conn, opened) if opened else {}
    saved = [(await _saved(conn, change, ids), change) for change in changes]
    if again := [of for of, it in saved if it.anew and it.before is not None]:
        await sessions.forget_conversations(conn, again)
        await outbox.take_back(conn, again)
    if remarks := [(of, remark) for of, it in saved for remark in it.remarks]:
        await sessions.remark(conn, remarks)
    told = [
        sessions.Told(of, move, status, event_id, step.reason)
        for of, it in saved
        for event_id, step in it.moves
        for move, status in step.moves
    ]
    if told:
        await sessions.tell(conn, told)
    for session_id, change in saved:
        await _answer(conn, session_id, change.steps)


async def _saved(conn: Connection, change: _Change, opened: Mapping[Story, int]) -> int:
    """Writes a session that there was before; gives the id of either."""
    session = change.session
    assert session is not None
    story = (session.workspace, session.sc_id)
    session_id = opened.get(story)
    if session_id is None:
        assert change.before is not None
        moves = change.moves
        if moves and change.before.status in OWNED.values():
            await sessions.evict(conn, *story)
        made = {move for _, step in moves for move, _ in step.moves}
        session_id = await sessions.save(conn, session, moves=made)
    return session_id


async def _answer(conn: Connection, session_id: int, steps: Sequence[Step]) -> None:
    """Owes the story what it is told at once."""
    for event_id, step in steps:
        if step.answer is not None and step.session is not None:
            await outbox.answer(
                conn,
                session_id,
                step.answer,
                words.answer(step.answer, step.session.status, step.reason),
                event_id=event_id,
                comment=step.remarks[0].comment_id if step.remarks else None,
            )


def _news(steps: Sequence[Decision]) -> Ring | None:
    """What there is to do once this is decided, if anything."""
    moves = {move for step in steps for move, _ in step.moves}
    if any(step.answer for step in steps) or moves - _MAKES_READY:
        return Ring.WORK
    return Ring.SESSION if moves else None


def _outcome(said: Interpretation, steps: Sequence[Decision]) -> tuple[EventStatus, str]:
    if not steps:
        return EventStatus.IGNORED, said.nothing or "nothing about a story"
    reasons = dict.fromkeys(step.reason for step in steps)
    applied = any(step.applied for step in steps)
    return EventStatus.APPLIED if applied else EventStatus.IGNORED, "; ".join(reasons)[:1000]
