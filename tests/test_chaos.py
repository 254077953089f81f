"""The chaos run: its checker finds what is planted, and a short run of it finds nothing."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from app.db.connect import DATABASE_ERRORS, Database
from chaos.check import check, expected_end, restarts
from chaos.history import (
    Comment,
    Draft,
    Entry,
    Event,
    Frozen,
    History,
    Kill,
    Owed,
    Run,
    Said,
    Session,
    Timing,
    Told,
)
from chaos.plan import DECK, Kind, faults
from chaos.proxy import Proxy

ROOT = Path(__file__).parent.parent
SHORT_RUN_SECONDS, PATIENCE_SECONDS = 45, 400
TIMING = Timing(lease=3, heartbeat=1, poll=0.5, retry_base=0.5, allowance=2)
WORKER, OTHER_WORKER = 501, 502
KEY = "draftgate:draft:one:g1"


def entry(number: int, move: str, status: str, generation: int, *, actor: str | None = "w"):
    """A line of the one session's timeline, so many seconds after the beginning."""
    values = {"move": move, "status": status, "generation": generation, "actor": actor}
    return Entry(id=number, session=1, at=float(number), **values)


def run(generation: int, start: float, end: float | None, outcome: str | None, **more: int) -> Run:
    """A run of the one session's drafter."""
    times = {"started_at": start, "ended_at": end, "outcome": outcome}
    return Run(session=1, generation=generation, **{"worker": WORKER, **times, **more})


OPENED = (
    entry(1, "open", "opened", 0, actor=None),
    entry(2, "clear", "clarified", 0, actor=None),
)
#: One story was labelled, drafted at once, and told so.
GOOD = History(
    timing=TIMING,
    told=(Told(key="a", said=((1.0, 41, Said.OTHER), (1.0, 41, Said.OPEN))),),
    events=(Event(key="a", status="applied"),),
    sessions=(Session(id=1, story=41, status="drafted", generation=1, revision=1),),
    timeline=(*OPENED, entry(3, "claim", "drafting", 1), entry(5, "complete", "drafted", 1)),
    drafts=(Draft(session=1, revision=1, generation=1, summary="session 1 generation 1"),),
    runs=(run(1, 3.1, 4.9, "made"),),
    outbox=(Owed(session=1, key=KEY, kind="draft", status="sent", comment=9),),
    comments=(Comment(id=9, story=41, marker=KEY),),
    answers={200: 3, 503: 1},
)
#: Its first worker was killed, and another one did it.
CRASHED = replace(
    GOOD,
    sessions=(Session(id=1, story=41, status="drafted", generation=3, revision=1),),
    timeline=(
        *OPENED,
        entry(3, "claim", "drafting", 1),
        entry(7, "expire", "clarified", 2),
        entry(8, "claim", "drafting", 3),
        entry(10, "complete", "drafted", 3),
    ),
    runs=(run(1, 3.1, 4.1, "stopped"), run(3, 8.1, 9.9, "made", worker=OTHER_WORKER)),
    kills=(Kill(worker=WORKER, at=4.0, quiet=True),),
    drafts=(Draft(session=1, revision=1, generation=3, summary="session 1 generation 3"),),
    outbox=(Owed(session=1, key="draftgate:draft:two:g3", kind="draft", status="sent", comment=9),),
    comments=(Comment(id=9, story=41, marker="draftgate:draft:two:g3"),),
)


def rules(history: History) -> set[str]:
    """The rules that the history breaks."""
    return {violation.rule for violation in check(history)}


def with_timeline(*entries: Entry, base: History = GOOD) -> History:
    return replace(base, timeline=(*OPENED, *entries))


def with_owed(**changes: object) -> History:
    return replace(GOOD, outbox=(replace(GOOD.outbox[0], **changes),))


def with_session(**changes: object) -> History:
    return replace(GOOD, sessions=(replace(GOOD.sessions[0], **changes),))


def with_said(*more: tuple[float, Said]) -> History:
    said = tuple((at, 41, what) for at, what in more)
    return replace(GOOD, told=(replace(GOOD.told[0], said=GOOD.told[0].said + said),))


@pytest.mark.parametrize("history", [GOOD, CRASHED], ids=["drafted", "crashed"])
def test_a_history_as_promised_has_no_violations(history):
    """The checker finds nothing where there is nothing."""
    assert check(history) == []


PLANTED: dict[str, tuple[str, Callable[[], History]]] = {
    "a lost acknowledgement": (
        "acknowledged, but not recorded",
        lambda: replace(GOOD, events=()),
    ),
    "a delivery that nobody takes": (
        "never acknowledged",
        lambda: replace(GOOD, told=(*GOOD.told, Told(key="b", acknowledged=False))),
    ),
    "an event recorded twice": (
        "recorded more than once",
        lambda: replace(GOOD, events=GOOD.events * 2),
    ),
    "an event from nowhere": (
        "recorded, but never sent",
        lambda: replace(GOOD, events=(*GOOD.events, Event(key="x", status="ignored"))),
    ),
    "a pending event": (
        "an event has no end",
        lambda: replace(GOOD, events=(Event(key="a", status="pending"),)),
    ),
    "an answer 500": (
        "an answer that no delivery deserves",
        lambda: replace(GOOD, answers={200: 3, 500: 1}),
    ),
    "a stale completion": (
        "a write under an old generation",
        lambda: with_timeline(
            entry(3, "claim", "drafting", 1),
            entry(4, "expire", "clarified", 2),
            entry(5, "claim", "drafting", 3),
            entry(6, "complete", "drafted", 1),
        ),
    ),
    "a claim under the old number": (
        "a claim without a new generation",
        lambda: with_timeline(
            entry(3, "claim", "drafting", 1),
            entry(4, "release", "clarified", 1),
            entry(5, "claim", "drafting", 1),
            entry(6, "complete", "drafted", 1),
        ),
    ),
    "two completions of one claim": (
        "completed more than once",
        lambda: with_timeline(
            entry(3, "claim", "drafting", 1),
            entry(4, "complete", "drafted", 1),
            entry(5, "complete", "drafted", 1),
        ),
    ),
    "a second claim beside the first": (
        "claimed while it was held",
        lambda: with_timeline(
            entry(3, "claim", "drafting", 1),
            entry(4, "claim", "drafting", 2),
            entry(5, "complete", "drafted", 2),
        ),
    ),
    "a release after the end": (
        "a move that the claim does not allow",
        lambda: with_timeline(
            *GOOD.timeline[2:],
            entry(6, "release", "clarified", 1),
        ),
    ),
    "a withdrawal that leaves the claim": (
        "a move that the claim does not allow",
        lambda: with_timeline(entry(3, "claim", "drafting", 1), entry(4, "close", "closed", 1)),
    ),
    "a claim without an end": (
        "a claim has no end",
        lambda: with_timeline(*GOOD.timeline[2:], entry(6, "claim", "drafting", 2)),
    ),
    "a row that moved without its timeline": (
        "row and timeline differ",
        lambda: with_session(status="failed"),
    ),
    "a completion without a draft": (
        "drafts and completions differ",
        lambda: replace(GOOD, drafts=()),
    ),
    "two drafts of one revision": (
        "not one draft for each revision",
        lambda: replace(GOOD, drafts=GOOD.drafts * 2),
    ),
    "a draft of another run": (
        "a draft of another run",
        lambda: replace(GOOD, drafts=(replace(GOOD.drafts[0], summary="session 1 generation 0"),)),
    ),
    "a result kept twice": (
        "a result was both accepted and refused",
        lambda: replace(GOOD, late_results=((1, 1),)),
    ),
    "a claim that was run twice": (
        "run more than once",
        lambda: replace(GOOD, runs=(*GOOD.runs, run(1, 3.5, 4.0, "stopped"))),
    ),
    "a completion that nobody made": (
        "completed, but never made",
        lambda: replace(GOOD, runs=(run(1, 3.1, 4.9, "failed"),)),
    ),
    "two runs at a time": (
        "two runs at a time",
        lambda: replace(CRASHED, runs=(run(1, 3.1, 8.3, "stopped"), CRASHED.runs[1])),
    ),
    "a worker that woke and let its drafter run on": (
        "two runs at a time",
        lambda: replace(
            CRASHED,
            runs=(run(1, 3.1, 12.0, "stopped"), CRASHED.runs[1]),
            frozen=(Frozen(worker=WORKER, since=4.0, until=9.0),),
        ),
    ),
    "a session that was reopened before its drafter had ended": (
        "two runs at a time",
        lambda: replace(
            CRASHED,
            timeline=(
                *CRASHED.timeline[:3],
                entry(4, "close", "closed", 2, actor=None),
                entry(5, "open", "opened", 2, actor=None),
                entry(6, "clear", "clarified", 2, actor=None),
                *CRASHED.timeline[4:],
            ),
            runs=(run(1, 3.1, 7.0, "stopped"), run(3, 6.5, 9.9, "made", worker=OTHER_WORKER)),
            kills=(),
        ),
    ),
    "a double comment": (
        "commented more than once",
        lambda: replace(GOOD, comments=(*GOOD.comments, Comment(id=10, story=41, marker=KEY))),
    ),
    "a comment from nowhere": (
        "a comment that nobody owed",
        lambda: replace(GOOD, comments=(*GOOD.comments, Comment(id=10, story=41, marker="?"))),
    ),
    "a comment that is never sent": (
        "a comment is owed for ever",
        lambda: with_owed(status="pending", comment=None),
    ),
    "a comment that was only said to be sent": (
        "sent, but not on the story",
        lambda: replace(GOOD, comments=()),
    ),
    "a draft that nobody hears of": (
        "not one comment for each draft",
        lambda: replace(GOOD, outbox=(), comments=()),
    ),
    "a label without a session": (
        "a session that is not as told",
        lambda: replace(GOOD, sessions=(), timeline=(), drafts=(), outbox=(), comments=()),
    ),
    "a stranded session": (
        "stranded",
        lambda: with_session(status="clarified"),
    ),
    "an archived story that is drafted": (
        "another end than the deliveries tell",
        lambda: with_said((2.0, Said.ARCHIVE)),
    ),
    "a process that broke": (
        "a process ended by itself, or not when told",
        lambda: replace(GOOD, deaths=("worker 501 ended by itself with 1",)),
    ),
    "a traceback": (
        "a traceback in a log",
        lambda: replace(GOOD, tracebacks=("worker.log: Traceback",)),
    ),
    "a drafter that lives on": (
        "a drafter was left over",
        lambda: replace(GOOD, left_over=("777: python drafter.py",)),
    ),
    "a start after the bound": (
        "begun anew too late",
        lambda: replace(CRASHED, runs=(CRASHED.runs[0], run(3, 10.1, 11.0, "made"))),
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_violation_is_found(planted):
    """Every rule of the checker can be broken, and says so."""
    rule, history = PLANTED[planted]

    assert rule in rules(history())


def test_an_overlap_behind_a_frozen_worker_is_explained():
    """A worker that stands still can't end its drafter; soon after it wakes it does."""
    history = replace(
        CRASHED,
        runs=(run(1, 3.1, 9.5, "stopped"), CRASHED.runs[1]),
        frozen=(Frozen(worker=WORKER, since=4.0, until=9.0),),
    )

    assert check(history) == []


def test_a_comment_that_waits_for_a_dead_senders_lease_is_explained():
    """What is still leased to a sender that died is not lost."""
    assert rules(with_owed(status="sending", comment=None, explained=True)) == set()


@pytest.mark.parametrize(
    ("facts", "closed"),
    [
        ([Said.OPEN], False),
        ([Said.OPEN, Said.CLOSE], True),
        ([Said.OPEN, Said.ARCHIVE, Said.OTHER], True),
        ([Said.OPEN, Said.STOP], True),
        ([Said.OPEN, Said.CLOSE, Said.OPEN, Said.OTHER], False),
        # These hang on what had arrived when they did.
        ([Said.OPEN, Said.STOP, Said.OTHER], None),
        ([Said.OPEN, Said.CLOSE, Said.COMMAND], None),
        ([Said.OPEN, Said.ARCHIVE, Said.OPEN], None),
        # No session at all.
        ([Said.ARCHIVE], None),
    ],
)
def test_the_end_that_the_deliveries_tell(facts, closed):
    """The newest fact that decides says how a session ends, where no arrival could change it."""
    assert expected_end(list(enumerate(facts, start=1))) is closed


def test_a_restart_is_measured_from_the_kill():
    """From SIGKILL to the next run; the bound is lease, poll and this crash's backoff."""
    [it] = restarts(CRASHED)

    assert (it.seconds, it.bound, it.quiet) == (pytest.approx(4.1), 4.0, True)


def test_a_seed_is_a_schedule():
    """The same seed gives the same faults, another seed others, and a deck has every kind."""
    first, again, other = (
        list(islice(faults(seed, every_seconds=1), len(DECK))) for seed in (7, 7, 8)
    )

    assert first == again != other
    assert {fault.kind for fault in first} == set(Kind)


def test_the_tests_that_the_page_names_are_there():
    """docs/reliability.md refers to tests by name; each of them exists."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text()))
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))

    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []
    assert named


@pytest.mark.skipif(
    "DRAFTGATE_TEST_DATABASE_URL" in os.environ, reason="the proxy stands before a Unix socket"
)
async def test_a_dropped_reply_is_carried_out(dsn, tmp_path, conn):
    """The proxy loses answers, not statements: what was asked is done, and nobody is told."""
    host = dsn.partition("host=")[2].replace("%2F", "/")
    proxy = Proxy(Path(host) / ".s.PGSQL.5432", seed=1)
    await proxy.listen(tmp_path / ".s.PGSQL.5432")
    proxied = f"{dsn.partition('host=')[0]}host={tmp_path}"
    through = await Database(dsn=proxied, listen_dsn=proxied).connect("test")
    proxy.drops = 1

    with pytest.raises(DATABASE_ERRORS):
        await through.execute("create table told as select 1 as one")

    assert proxy.counts["replies dropped"] == 1
    assert await conn.fetchval("select one from told") == 1
    proxy.close()


@pytest.mark.skipif(
    "DRAFTGATE_TEST_DATABASE_URL" in os.environ, reason="it brings a server of its own"
)
async def test_a_short_run_keeps_every_promise():
    """Real processes under every kind of fault, for less than a minute: no violation."""
    command = (sys.executable, "-m", "chaos", "--json", "--seed", "7")
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, "--seconds", str(SHORT_RUN_SECONDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-8000:]
    figures = json.loads(done.stdout)
    assert figures["violations"] == 0
    assert figures["acknowledged"] == figures["deliveries"] > figures["events"] > 100
    assert figures["faults"] >= len(DECK) * 0.6
    assert figures["drafts"] > 0
