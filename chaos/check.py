"""Holds a history against what is promised; each rule gives the violations it finds. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from chaos.history import Draft, Entry, History, Kill, Owed, Run, Said, Session

T = TypeVar("T")

#: What a worker that holds the claim writes, under its own generation, to end it.
ENDINGS = frozenset({"complete", "question", "release"})
AT_REST = frozenset({"drafted", "clarifying", "failed", "closed"})
#: An opening this soon after an archiving may meet a worker that had read the story before.
READ_AGO_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def check(history: History) -> list[Violation]:
    """All violations; none where everything was as promised."""
    rules = (
        _acknowledgements,
        _events,
        _timelines,
        _drafts,
        _runs,
        _overlaps,
        _comments,
        _owed,
        _told_drafts,
        _ends,
        _processes,
        _restarts_in_peace,
    )
    return [Violation(*found) for rule in rules for found in rule(history)]


Found = Iterator[tuple[str, str]]


def _acknowledgements(history: History) -> Found:
    recorded = {event.key for event in history.events}
    for told in history.told:
        if told.acknowledged and told.key not in recorded:
            yield "acknowledged, but not recorded", told.key
        if not told.acknowledged:
            yield "never acknowledged", told.key
    for status, times in history.answers.items():
        if status not in (200, 503):
            yield "an answer that no delivery deserves", f"{status}, {times} times"


def _events(history: History) -> Found:
    sent = {told.key for told in history.told}
    for key, times in Counter(event.key for event in history.events).items():
        if times > 1:
            yield "recorded more than once", f"{key}, {times} times"
        if key not in sent:
            yield "recorded, but never sent", key
    for event in history.events:
        if event.status not in ("applied", "ignored"):
            yield "an event has no end", f"{event.key} is {event.status}"


def _timelines(history: History) -> Found:
    entries = _by_session(history.timeline)
    for session in history.sessions:
        told = [e for e in entries[session.id] if e.move != "stopped"]
        yield from _generations(told)
        yield from _claims(told)
        if told and told[-1].status != session.status:
            last = f"{told[-1].move} to {told[-1].status}"
            yield "row and timeline differ", f"session {session.id} is {session.status}, not {last}"


def _generations(told: Sequence[Entry]) -> Found:
    """Whatever is written has the newest generation, and a claim has a new one."""
    highest = -1
    for entry in told:
        if entry.generation < highest:
            yield "a write under an old generation", _line(entry)
        if entry.move in ("claim", "ask") and entry.generation <= highest:
            yield "a claim without a new generation", _line(entry)
        highest = max(highest, entry.generation)
    completed = Counter(entry.generation for entry in told if entry.move == "complete")
    for generation, times in completed.items():
        if times > 1:
            yield "completed more than once", f"session {told[0].session}, generation {generation}"


def _claims(told: Sequence[Entry]) -> Found:
    """A claim is ended once, by whoever holds it, before there is another one."""
    held: int | None = None
    for entry in told:
        if entry.move in ("claim", "ask"):
            if held is not None:
                yield "claimed while it was held", _line(entry)
            held = entry.generation
            continue
        if not _is_allowed(entry, held):
            yield "a move that the claim does not allow", f"{_line(entry)}, held: {held}"
        held = None
    if held is not None:
        yield "a claim has no end", f"session {told[0].session}, generation {held}"


def _is_allowed(entry: Entry, held: int | None) -> bool:
    """Whether this move can be made while this claim is held, or while none is."""
    if entry.move in ENDINGS or (entry.move == "clear" and entry.actor is not None):
        return entry.generation == held
    if entry.move == "expire":
        return held is not None and entry.generation > held
    if entry.move == "fail":
        return held is not None and entry.generation >= held
    # A story that is withdrawn, or an order that is given, takes the claim away.
    return held is None or (entry.move in ("close", "clear") and entry.generation > held)


def _drafts(history: History) -> Found:
    drafts, timeline = _by_session(history.drafts), _by_session(history.timeline)
    for session in history.sessions:
        kept = sorted(drafts[session.id], key=lambda draft: draft.revision)
        yield from _revisions(session, kept)
        completed = [e.generation for e in timeline[session.id] if e.move == "complete"]
        if [draft.generation for draft in kept] != completed:
            generations = [draft.generation for draft in kept]
            detail = f"session {session.id}: drafts {generations}, completed {completed}"
            yield "drafts and completions differ", detail
    accepted = {(draft.session, draft.generation) for draft in history.drafts}
    for pair in accepted.intersection(history.late_results):
        yield "a result was both accepted and refused", str(pair)


def _revisions(session: Session, kept: Sequence[Draft]) -> Found:
    revisions = [draft.revision for draft in kept]
    if revisions != list(range(1, session.revision + 1)):
        detail = f"session {session.id} is at {session.revision}, its drafts are {revisions}"
        yield "not one draft for each revision", detail
    for draft in kept:
        if draft.summary != f"session {draft.session} generation {draft.generation}":
            detail = f"session {draft.session} generation {draft.generation}: {draft.summary}"
            yield "a draft of another run", detail


def _runs(history: History) -> Found:
    runs = Counter((run.session, run.generation) for run in history.runs)
    made = {(run.session, run.generation) for run in history.runs if run.outcome == "made"}
    for (session, generation), times in runs.items():
        if times > 1:
            yield "run more than once", f"session {session}, generation {generation}: {times} times"
    for entry in history.timeline:
        if entry.move == "complete" and (entry.session, entry.generation) not in made:
            yield "completed, but never made", _line(entry)


def _overlaps(history: History) -> Found:
    """Of two runs at a time, the older one's worker stood still, which nothing can help."""
    for older, newer in overlaps(history):
        if not _was_frozen(history, older):
            seconds = (older.ended_at or 0) - newer.started_at
            detail = f"session {older.session}: generation {older.generation} ran {seconds:.3f} s"
            yield "two runs at a time", f"{detail} into generation {newer.generation}"


def overlaps(history: History) -> list[tuple[Run, Run]]:
    """The runs that were still running when the next one of their session began, with that."""
    return [
        (older, newer)
        for runs in _by_session(history.runs).values()
        for older, newer in pairwise(sorted(runs, key=lambda run: run.generation))
        if older.ended_at is not None and older.ended_at > newer.started_at
    ]


def _was_frozen(history: History, run: Run) -> bool:
    """A worker that stood still could not end its run, but did soon after it woke."""
    patience = history.timing.allowance
    return any(
        frozen.worker == run.worker
        and frozen.since <= (run.ended_at or 0)
        and frozen.until >= run.started_at
        and (run.ended_at or 0) <= frozen.until + patience
        for frozen in history.frozen
    )


def _comments(history: History) -> Found:
    owed = {row.key for row in history.outbox}
    for marker, times in Counter(comment.marker for comment in history.comments).items():
        if times > 1:
            yield "commented more than once", f"{marker}, {times} times"
        if marker not in owed:
            yield "a comment that nobody owed", marker


def _owed(history: History) -> Found:
    made = {comment.marker: comment.id for comment in history.comments}
    for row in history.outbox:
        if row.status != "sent" and not row.explained:
            yield "a comment is owed for ever", f"{row.key} is {row.status}"
        if row.status == "sent" and (row.comment is None or made.get(row.key) != row.comment):
            yield "sent, but not on the story", row.key


def _told_drafts(history: History) -> Found:
    told = Counter((row.session, _generation(row.key)) for row in history.outbox if _is_draft(row))
    for draft in history.drafts:
        times = told[draft.session, draft.generation]
        if times != 1:
            detail = f"session {draft.session}, generation {draft.generation}: {times}"
            yield "not one comment for each draft", detail


def _is_draft(row: Owed) -> bool:
    return row.kind == "draft"


def _generation(key: str) -> int:
    return int(key.rpartition(":g")[2])


def _ends(history: History) -> Found:
    sessions = {session.story: session for session in history.sessions}
    said = _said(history)
    for story, facts in said.items():
        wanted = any(what is Said.OPEN for _, what in facts)
        if wanted != (story in sessions):
            yield "a session that is not as told", f"story {story}: {'none' if wanted else 'one'}"
    for session in history.sessions:
        opened_without_text = session.status == "opened" and not session.has_text
        if session.status not in AT_REST and not opened_without_text:
            yield "stranded", f"session {session.id} is {session.status}"
        expected = expected_end(said.get(session.story, []))
        if expected is not None and expected != (session.status == "closed"):
            should = "closed" if expected else "open"
            detail = f"story {session.story}, session {session.id}: {session.status}, not {should}"
            yield "another end than the deliveries tell", detail


def _said(history: History) -> dict[int, list[tuple[float, Said]]]:
    said: dict[int, list[tuple[float, Said]]] = defaultdict(list)
    for told in history.told:
        if told.acknowledged:
            for at, story, what in told.said:
                said[story].append((at, what))
    return {story: sorted(facts, key=lambda fact: fact[0]) for story, facts in said.items()}


def expected_end(facts: Sequence[tuple[float, Said]]) -> bool | None:
    """Whether a session about which this was said, in this order, must end closed.

    None where that hangs on when it was heard.
    """
    decisive = [fact for fact in facts if fact[1] is not Said.OTHER]
    if not any(what is Said.OPEN for _, what in decisive):
        return None
    at, last = decisive[-1]
    if last in (Said.CLOSE, Said.ARCHIVE):
        return True
    if last is Said.STOP:
        return True if facts[-1][1] is Said.STOP else None
    read = any(what is Said.ARCHIVE and at - then < READ_AGO_SECONDS for then, what in decisive)
    return False if last is Said.OPEN and not read else None


def _processes(history: History) -> Found:
    for death in history.deaths:
        yield "a process ended by itself, or not when told", death
    for line in history.tracebacks:
        yield "a traceback in a log", line
    for process in history.left_over:
        yield "a drafter was left over", process


# --- how long it takes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """From the death of a worker with a running drafter to the next start for that session.

    Attributes:
        bound: lease, poll and the backoff of that crash.
    """

    session: int
    generation: int
    seconds: float
    bound: float
    quiet: bool


def restarts(history: History) -> list[Restart]:
    """One for each run that died with its worker and that was begun anew."""
    runs, entries = _by_session(history.runs), _by_session(history.timeline)
    found = []
    for kill in history.kills:
        for run in history.runs:
            if not _died(run, kill):
                continue
            after = [r for r in runs[run.session] if r.generation > run.generation]
            crashes = _crashes(entries[run.session], run.generation)
            if crashes and after:
                begun = min(after, key=lambda r: r.generation)
                found.append(_restart(history, kill, run, begun, crashes))
    return found


def _restart(history: History, kill: Kill, run: Run, begun: Run, crashes: int) -> Restart:
    timing = history.timing
    return Restart(
        session=run.session,
        generation=run.generation,
        seconds=begun.started_at - kill.at,
        bound=timing.lease + timing.poll + timing.retry_base * 2 ** (crashes - 1),
        quiet=kill.quiet,
    )


def _died(run: Run, kill: Kill) -> bool:
    if run.worker != kill.worker or run.started_at > kill.at:
        return False
    return run.ended_at is None or (run.ended_at >= kill.at and run.outcome == "stopped")


def _crashes(told: Sequence[Entry], generation: int) -> int:
    """Which crash in a row the end of this claim was; 0: it was none, or the story moved on."""
    crashes = 0
    for index, entry in enumerate(told):
        if entry.move == "expire":
            crashes += 1
            if entry.generation == generation + 1:
                following = told[index + 1].move if index + 1 < len(told) else None
                return crashes if following == "claim" else 0
        elif entry.move not in ("claim", "release", "stopped"):
            crashes = 0
    return 0


def _restarts_in_peace(history: History) -> Found:
    for it in restarts(history):
        if it.quiet and it.seconds > it.bound + history.timing.restart_allowance:
            detail = f"session {it.session}, generation {it.generation}"
            yield "begun anew too late", f"{detail}: {it.seconds:.1f} s, bound {it.bound:.1f} s"


# --- small things --------------------------------------------------------------------------------


def _by_session(rows: Iterable[T]) -> Mapping[int, list[T]]:
    grouped: dict[int, list[T]] = defaultdict(list)
    for row in rows:
        grouped[row.session].append(row)  # type: ignore[attr-defined]
    return grouped


def _line(entry: Entry) -> str:
    return f"session {entry.session}, {entry.move} under generation {entry.generation}"
