"""What every process saw, and what is in the database afterwards. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Said(StrEnum):
    """What a change of the workspace tells about a story, as far as its end depends on it."""

    OPEN = "the label was added"
    CLOSE = "the label was removed"
    ARCHIVE = "the story was archived or completed"
    STOP = "/stop"
    COMMAND = "another command, or a reply"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One delivery, as its sender knows it.

    Attributes:
        said: (time, story, what) for each story that it speaks of; the times are the sender's.
        acknowledged: whether any copy of it was answered with success.
    """

    key: str
    said: Sequence[tuple[float, int, Said]] = ()
    acknowledged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the drafter, as it wrote it down itself.

    Attributes:
        worker: the process id of the worker.
        ended_at: None where it was killed before it could say so.
        outcome: made, asked, failed, crashed or stopped; None likewise.
    """

    session: int
    generation: int
    worker: int
    started_at: float
    ended_at: float | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment that the simulated workspace has, with its author's marker."""

    id: int
    story: int
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    key: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    id: int
    story: int
    status: str
    generation: int
    revision: int
    has_text: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a session's timeline."""

    id: int
    session: int
    at: float
    move: str
    status: str
    generation: int
    actor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    session: int
    revision: int
    generation: int
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A comment that is owed.

    Attributes:
        explained: it is not sent, but a sender that died or lost its answer has had it, and the
            run was too short to wait for the end of that lease.
    """

    session: int
    key: str
    kind: str
    status: str
    comment: int | None = None
    explained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A worker that was killed.

    Attributes:
        quiet: nothing else was done to the service until long after.
    """

    worker: int
    at: float
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A worker that stood still, from SIGSTOP to SIGCONT or SIGKILL."""

    worker: int
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the service was told to keep to, in seconds.

    Attributes:
        allowance: for what a busy machine takes to start processes and to answer.
        restart_allowance: the same for what follows a kill that is followed by quiet.
    """

    lease: float
    heartbeat: float
    poll: float
    retry_base: float
    allowance: float
    restart_allowance: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that the checker looks at.

    Attributes:
        deaths: processes that ended without being told to, and how.
        tracebacks: what the processes logged of errors that are nobody's but ours.
        answers: how many answers of each HTTP status the sender got.
        left_over: drafters that still ran when everything had been stopped.
    """

    timing: Timing
    told: Sequence[Told] = ()
    runs: Sequence[Run] = ()
    comments: Sequence[Comment] = ()
    kills: Sequence[Kill] = ()
    frozen: Sequence[Frozen] = ()
    events: Sequence[Event] = ()
    sessions: Sequence[Session] = ()
    timeline: Sequence[Entry] = ()
    drafts: Sequence[Draft] = ()
    late_results: Sequence[tuple[int, int]] = ()
    outbox: Sequence[Owed] = ()
    deaths: Sequence[str] = ()
    tracebacks: Sequence[str] = ()
    answers: Mapping[int, int] = field(default_factory=dict)
    left_over: Sequence[str] = ()
