"""What a run comes to, in figures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.check import Restart, Violation, overlaps, restarts
from chaos.run import TIMING, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one run; `restart` ones are in seconds, from SIGKILL to the next start."""

    seed: int
    seconds: float
    deliveries: int
    acknowledged: int
    unanswered: int
    refused_503: int
    events: int
    duplicates: int
    stories: int
    sessions: int
    drafted: int
    failed: int
    closed: int
    drafts: int
    comments: int
    faults: int
    faults_by_kind: dict[str, int]
    proxied: dict[str, int]
    failed_starts: int
    claims: int
    drafter_runs: int
    expiries: int
    late_results: int
    stopped: int
    overlapping_runs: int
    comments_left_to_a_lease: int
    restart_bound: float
    restarts: int
    restart_p50: float | None
    restart_max: float | None
    quiet_restarts: int
    quiet_restart_p50: float | None
    quiet_restart_max: float | None
    violations: int


def figures(outcome: Outcome, violations: Sequence[Violation], *, seed: int) -> Figures:
    history = outcome.history
    moves = Counter(entry.move for entry in history.timeline)
    statuses = Counter(session.status for session in history.sessions)
    again = restarts(history)
    quiet = [it for it in again if it.quiet]
    return Figures(
        seed=seed,
        seconds=round(outcome.seconds, 1),
        deliveries=outcome.copies,
        acknowledged=outcome.acknowledged,
        unanswered=sum(outcome.errors.values()),
        refused_503=history.answers.get(503, 0),
        events=len(history.events),
        duplicates=outcome.duplicates,
        stories=len({story for told in history.told for _, story, _ in told.said}),
        sessions=len(history.sessions),
        drafted=statuses["drafted"],
        failed=statuses["failed"],
        closed=statuses["closed"],
        drafts=len(history.drafts),
        comments=len(history.comments),
        faults=sum(outcome.faults.values()),
        faults_by_kind=dict(sorted(outcome.faults.items())),
        proxied=dict(sorted(outcome.proxied.items())),
        failed_starts=outcome.failed_starts,
        claims=moves["claim"],
        drafter_runs=len(history.runs),
        expiries=moves["expire"],
        late_results=len(history.late_results),
        stopped=moves["stopped"],
        overlapping_runs=len(overlaps(history)),
        comments_left_to_a_lease=sum(row.explained for row in history.outbox),
        restart_bound=TIMING.lease + TIMING.poll + TIMING.retry_base,
        restarts=len(again),
        restart_p50=_median(again),
        restart_max=_most(again),
        quiet_restarts=len(quiet),
        quiet_restart_p50=_median(quiet),
        quiet_restart_max=_most(quiet),
        violations=len(violations),
    )


def _median(found: Sequence[Restart]) -> float | None:
    ordered = sorted(it.seconds for it in found)
    return round(ordered[(len(ordered) - 1) // 2], 2) if ordered else None


def _most(found: Sequence[Restart]) -> float | None:
    return round(max(it.seconds for it in found), 2) if found else None
