"""Work under a claim, with drafters that are real commands: whatever goes wrong, one draft."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from app.db import gate, sessions
from app.db.connect import Database
from app.drafters.command import CommandDrafter
from app.machine import Phase
from app.main import LAST_SECONDS
from app.model import Remark
from app.wake import Bell
from app.worker.claims import Heart
from app.worker.draft import END_PAUSE_SECONDS, Limits, Won, Workshop
from app.worker.engine import Engine
from tests import shapes
from tests.ladder import bid, here
from tests.locks import blocked, until
from tests.service import receiver

PATCH = """\
diff --git a/note.md b/note.md
new file mode 100644
--- /dev/null
+++ b/note.md
@@ -0,0 +1 @@
+one
"""
GOOD = f"import json; print(json.dumps({{'summary': 'Adds a note.', 'patch': {PATCH!r}}}))"
ASKS = "import json; print(json.dumps({'questions': ['Which format?']}))"
IN_EUROS = Remark(
    comment_id=7,
    author=None,
    text="In euros.",
    said_at=shapes.START,
    as_of=shapes.START,
    spoken=True,
)
LEASE, LONGEST = timedelta(seconds=30), timedelta(seconds=60)
LIMITS = Limits(
    lease=LEASE,
    drafter_timeout=timedelta(seconds=20),
    max_attempts=3,
    max_crashes=3,
    retry_base=timedelta(seconds=10),
    retry_longest=LONGEST,
)


def command(source: str, tmp_path: Path, *, timeout_seconds: float = 20) -> CommandDrafter:
    """A drafter that is this piece of Python."""
    return CommandDrafter(
        command=[sys.executable, "-c", source],
        state_dir=tmp_path,
        timeout_seconds=timeout_seconds,
        environment={"PATH": "/usr/bin:/bin"},
        git_environment={"PATH": "/usr/bin:/bin"},
        grace_seconds=0.5,
    )


@pytest.fixture
async def workshop(database: Database, pool, tmp_path) -> AsyncIterator[Callable[..., Workshop]]:
    """Makes workers, each with its own heart."""
    hearts: list[Heart] = []

    def make(drafter, *, name="worker", limits=LIMITS) -> Workshop:
        if isinstance(drafter, str):
            drafter = command(drafter, tmp_path)
        heart = Heart(database, lease=limits.lease, interval=limits.lease / 3)
        heart.start()
        hearts.append(heart)
        return Workshop(
            worker=name,
            pool=pool,
            endings=pool,
            heart=heart,
            drafter=drafter,
            workspaces=here(),
            bell=Bell(database),
            limits=limits,
            cut_off=asyncio.Event(),
        )

    yield make
    for heart in hearts:
        heart.stop()


class Breaks:
    """A drafter with a fault of its own."""

    async def draft(self, claim, story, **more):
        raise ZeroDivisionError


@asynccontextmanager
async def drafting(workshop: Workshop, ladder):
    """A worker in the middle of a draft."""
    task = asyncio.create_task(workshop.tick(Phase.DRAFT))
    owned = "select exists (select from patch_sessions where status = 'drafting')"
    await until(lambda: ladder.conn.fetchval(owned))
    yield task
    await task


FOR_EVER = "import time; time.sleep(600)"


async def test_a_ready_session_is_drafted(ladder, workshop):
    """The drafter's patch is stored and handed to the outbox, and the session is drafted."""
    await ladder.clarified()

    assert await workshop(GOOD).tick(Phase.DRAFT)

    assert (await ladder.session())["status"] == "drafted"
    draft = await ladder.conn.fetchrow("select summary, patch from drafts")
    assert dict(draft) == {"summary": "Adds a note.", "patch": PATCH}
    owed = await ladder.conn.fetchval("select text from outbox")
    assert "Adds a note." in owed
    assert "+one" in owed


async def test_a_drafter_that_runs_holds_up_no_delivery(database, ladder, workshop, tmp_path):
    """Deliveries to the same event loop are answered before it ends: nothing waits for it there."""
    await ladder.clarified()
    end = tmp_path / "end"
    runs = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.01)"
    async with drafting(workshop(runs), ladder), receiver(database) as service:
        answers = [await service.post(shapes.labelled(story)) for story in range(2, 12)]
        assert (await ladder.session())["status"] == "drafting"
        end.touch()

    assert {answer.status_code for answer in answers} == {200}


async def test_nothing_ready_is_no_work(ladder, workshop):
    """Without a ready session a worker has nothing to do."""
    assert not await workshop(GOOD).tick(Phase.DRAFT)


@pytest.mark.parametrize(
    ("drafter", "error"),
    [
        ("raise SystemExit(1)", "code 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("pass", "no patch"),
        ("print('not JSON')", "JSON"),
        (Breaks(), "ZeroDivisionError"),
    ],
    ids=["exits 1", "is killed", "gives nothing", "gives nonsense", "raises"],
)
async def test_a_drafter_that_fails_restores_the_prior_status(ladder, workshop, drafter, error):
    """The session is clarified again, with its error, its attempt and its next time."""
    await ladder.clarified()

    await workshop(drafter).tick(Phase.DRAFT)

    row = await ladder.session()
    assert (row["status"], row["attempts"], row["crashes"]) == ("clarified", 1, 0)
    assert error in row["last_error"]
    assert row["next_attempt_at"] > row["updated_at"]
    assert await ladder.conn.fetchval("select count(*) from drafts") == 0


async def test_a_drafter_that_takes_too_long_restores_the_prior_status(ladder, workshop, tmp_path):
    """A drafter over its time is ended, and the session is clarified again."""
    await ladder.clarified()

    await workshop(command(FOR_EVER, tmp_path, timeout_seconds=0.5)).tick(Phase.DRAFT)

    row = await ladder.session()
    assert (row["status"], row["attempts"]) == ("clarified", 1)
    assert "longer than 0.5 s" in row["last_error"]


async def test_the_failure_path_can_not_fail_on_text(ladder, workshop):
    """Whatever a drafter prints when it fails, the session is released."""
    await ladder.clarified()
    noise = "import os; os.write(2, b'a\\0b\\xff\\xed\\xa0\\x80' + b'x' * 3_000_000); os._exit(3)"

    await workshop(noise).tick(Phase.DRAFT)

    row = await ladder.session()
    assert (row["status"], row["attempts"]) == ("clarified", 1)
    assert "code 3" in row["last_error"]


async def test_after_the_last_attempt_the_session_is_failed(ladder, workshop):
    """Attempts are counted; the last one fails the session and owes the story a comment."""
    await ladder.clarified()
    worker = workshop("raise SystemExit(1)")

    for _ in range(LIMITS.max_attempts):
        await ladder.due()
        assert await worker.tick(Phase.DRAFT)

    row = await ladder.session()
    assert (row["status"], row["attempts"]) == ("failed", 3)
    text = await ladder.conn.fetchval("select text from outbox")
    assert "Drafting failed 3 times" in text
    assert "/retry" in text


async def test_a_drafter_may_ask_first(ladder, workshop):
    """Questions are put to the story, and an answer brings the session back to be drafted."""
    await ladder.clarified()
    await workshop(ASKS).tick(Phase.DRAFT)
    assert (await ladder.session())["status"] == "clarifying"
    assert "1. Which format?" in await ladder.conn.fetchval("select text from outbox")

    await ladder.deliver(shapes.commented(1, minute=9, text="CSV.", comment=7))

    assert (await ladder.session())["status"] == "clarified"
    said = await sessions.conversation(ladder.conn, (await ladder.session())["id"])
    assert [remark.text for remark in said] == ["CSV."]


async def test_feedback_makes_a_second_revision(ladder, workshop):
    """`/revise` has a drafted session drafted again, and both drafts are kept."""
    await ladder.clarified()
    worker = workshop(GOOD)
    await worker.tick(Phase.DRAFT)

    await ladder.deliver(shapes.commented(1, minute=9, text="/revise Shorter.", comment=7))
    await worker.tick(Phase.DRAFT)

    revisions = await ladder.conn.fetch("select revision from drafts order by revision")
    assert [row["revision"] for row in revisions] == [1, 2]


async def test_a_worker_whose_claim_was_reassigned_can_not_complete(ladder, workshop, tmp_path):
    """Its result is kept as evidence; the session, its drafts and outbox are the other worker's."""
    await ladder.clarified()
    go_on = tmp_path / "go-on"
    waits = f"import os\nwhile not os.path.exists({str(go_on)!r}): pass\n{GOOD}"
    # A heart that never beats: the worker does not hear of the loss before it completes.
    deaf = workshop(waits, name="stale", limits=replace(LIMITS, lease=timedelta(hours=1)))

    async with drafting(deaf, ladder):
        await ladder.lapse()
        assert await workshop(GOOD, name="expirer").expire_tick()
        await ladder.due()
        assert await workshop(GOOD, name="new").tick(Phase.DRAFT)
        go_on.touch()

    row = await ladder.session()
    assert (row["status"], row["revision"]) == ("drafted", 1)
    assert await ladder.conn.fetchval("select count(*) from drafts") == 1
    assert await ladder.conn.fetchval("select count(*) from outbox") == 1
    late = await ladder.conn.fetchrow("select generation, summary from late_results")
    assert dict(late) == {"generation": 1, "summary": "Adds a note."}


async def test_closing_a_session_ends_its_drafter(ladder, workshop, tmp_path):
    """A story that is archived while it is drafted: the drafter's processes are gone."""
    await ladder.clarified()
    pid_file = tmp_path / "pid"
    source = f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid())); {FOR_EVER}"
    worker = workshop(source)

    async with drafting(worker, ladder):
        await until(lambda: asyncio.to_thread(has_text, pid_file))
        await ladder.deliver(shapes.archived(1, minute=9))
        await worker.watch_tick()

    assert (await ladder.session())["status"] == "closed"
    assert not await asyncio.to_thread(is_running, pid_file)
    told = await ladder.conn.fetch("select move, generation from timeline order by id")
    assert tuple(told[-1]) == ("stopped", 1)


async def test_nobody_begins_before_the_drafter_that_lost_its_claim_has_ended(
    ladder, workshop, tmp_path
):
    """Taken away by an operator, a session is another's when the first worker's tree is gone."""
    await ladder.clarified()
    pid_file = tmp_path / "pid"
    source = f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid())); {FOR_EVER}"
    worker, other = workshop(source, name="first"), workshop(GOOD, name="second")

    async with drafting(worker, ladder):
        await until(lambda: asyncio.to_thread(has_text, pid_file))
        await sessions.take_away(ladder.conn, (await ladder.session())["id"], actor="operator")
        assert not await other.tick(Phase.DRAFT)
        await worker.watch_tick()

    assert not await asyncio.to_thread(is_running, pid_file)
    assert await other.tick(Phase.DRAFT)
    assert (await ladder.session())["status"] == "drafted"


async def test_work_that_ends_by_itself_after_its_claim_was_taken_lets_others_begin(
    ladder, workshop, tmp_path
):
    """A worker that hears at the end only keeps its result, and holds nobody up any longer."""
    await ladder.clarified()
    go_on = tmp_path / "go-on"
    waits = f"import os\nwhile not os.path.exists({str(go_on)!r}): pass\n{GOOD}"
    deaf = workshop(waits, name="first", limits=replace(LIMITS, lease=timedelta(hours=1)))

    async with drafting(deaf, ladder):
        await sessions.take_away(ladder.conn, (await ladder.session())["id"], actor="operator")
        go_on.touch()

    assert await ladder.conn.fetchval("select count(*) from late_results") == 1
    assert await workshop(GOOD, name="second").tick(Phase.DRAFT)


def has_text(path: Path) -> bool:
    """Whether the file is there and not empty."""
    return path.exists() and bool(path.read_text())


def is_running(pid_file: Path) -> bool:
    """Whether the process that wrote its number there still lives."""
    return Path(f"/proc/{pid_file.read_text()}").exists()


#: How many questions for sessions of this status wait for a lock.
ASKING = """
    select count(*) from pg_stat_activity
     where datname = current_database() and wait_event_type = 'Lock'
       and query like '%where status = ' || quote_literal($1) || '%skip locked%'
"""


def no_reconciler():
    """Where nothing is applied, nothing is reconciled."""
    raise AssertionError


async def test_of_the_slots_that_are_idle_one_asks(ladder, connect, workshop):
    """For all of them: whoever has got something lets the next one ask."""
    for story in (1, 2, 3):
        await ladder.clarified(story)
    worker = workshop(FOR_EVER)
    engine = Engine(
        applier=partial(asyncio.sleep, 0),
        reconciler=no_reconciler,
        workshop=worker,
        sender=None,
        watches=(),
        bell=worker.bell,
        stopping=asyncio.Event(),
        slots=3,
        poll_seconds=60,
    )

    async def others_ask() -> bool:
        return await ladder.conn.fetchval(ASKING, "opened") == 1

    async with asyncio.TaskGroup() as tasks:
        locker = await connect()
        async with locker.transaction():
            await locker.execute("lock table patch_sessions in access exclusive mode")
            tasks.create_task(engine.run())
            await until(others_ask)  # By then every slot would have asked: theirs come first.
            assert await ladder.conn.fetchval(ASKING, "clarified") == 1

        owned = "select count(*) = 3 from patch_sessions where status = 'drafting'"
        await until(lambda: ladder.conn.fetchval(owned))
        engine.stopping.set()
        worker.cut_off.set()
        worker.bell.ring()


async def test_a_shutdown_gives_the_session_back(ladder, workshop):
    """Cut off by a shutdown, the session is ready at once, and no attempt is counted."""
    await ladder.clarified()
    worker = workshop(FOR_EVER)

    async with drafting(worker, ladder):
        worker.cut_off.set()

    row = await ladder.session()
    assert (row["status"], row["attempts"], row["interruptions"]) == ("clarified", 0, 1)
    assert await workshop(GOOD).tick(Phase.DRAFT)


def test_a_shutdown_outlasts_an_answer_that_is_lost(database):
    """What gives a session back, and is never answered, is asked for again before the end."""
    again = END_PAUSE_SECONDS + 1

    assert database.command_timeout_seconds + again < LAST_SECONDS


async def test_an_opened_session_without_text_waits(ladder, workshop):
    """A story with no text at all is looked at again later, and is never failed for it."""
    await ladder.deliver(shapes.labelled(1, name=""))
    worker = workshop(GOOD)

    for _ in range(5):
        await ladder.due()
        assert await worker.clarify_tick()

    row = await ladder.session()
    assert (row["status"], row["last_error"]) == ("opened", "the story has no text yet")
    assert row["attempts"] == 0
    assert row["next_attempt_at"] - row["updated_at"] > LONGEST / 2


class BreaksToo:
    """An API whose answers break us."""

    async def story(self, sc_id):
        raise ZeroDivisionError


async def test_the_clarify_phase_has_a_last_attempt_too(ladder, workshop):
    """What breaks us each time ends as failed, and the story is told."""
    await ladder.deliver(shapes.labelled(1, name=""))
    worker = replace(workshop(GOOD), workspaces=here(BreaksToo()))

    for _ in range(LIMITS.max_attempts):
        await ladder.due()
        assert await worker.clarify_tick()

    row = await ladder.session()
    assert (row["status"], row["attempts"]) == ("failed", 3)
    said = await ladder.conn.fetchval("select text from outbox")
    assert "Looking for what to ask failed 3 times" in said


async def test_a_phase_that_takes_too_long_is_a_failed_attempt(ladder, workshop, monkeypatch):
    """Whatever hung, the session is ready again, and that can't go on for ever."""
    monkeypatch.setattr("app.worker.draft.PHASE_SLACK", timedelta(seconds=4))
    await ladder.clarified()
    never = replace(LIMITS, lease=timedelta(seconds=3), drafter_timeout=timedelta(0))

    await workshop(Hangs(), limits=never).tick(Phase.DRAFT)

    row = await ladder.session()
    assert (row["status"], row["attempts"], row["crashes"]) == ("clarified", 1, 0)
    assert "longer than a phase" in row["last_error"]


class Hangs:
    """A drafter that knows no limit."""

    async def draft(self, claim, story, **more):
        await asyncio.Event().wait()


async def test_a_sign_of_life_is_passed_on(ladder, workshop):
    """What a drafter prints shows in the session while it works, by way of the heartbeat."""
    await ladder.clarified()
    prints = "import time\nwhile True: print('still here', flush=True); time.sleep(0.05)"
    worker = workshop(prints, limits=replace(LIMITS, lease=timedelta(seconds=0.9)))

    async with drafting(worker, ladder):
        shown = "select progressed_at > claimed_at from patch_sessions"
        await until(lambda: ladder.conn.fetchval(shown))
        worker.cut_off.set()


async def test_drafters_hear_what_was_said(ladder, workshop, tmp_path):
    """The request holds the story, the conversation and the limits."""
    await ladder.deliver(
        shapes.labelled(1), shapes.commented(1, minute=2, text="In euros.", comment=7)
    )
    seen = tmp_path / "seen.json"
    source = f"import sys; open({str(seen)!r}, 'w').write(sys.stdin.read()); {GOOD}"

    await workshop(source).tick(Phase.DRAFT)

    request = await asyncio.to_thread(seen.read_text)
    assert "In euros." in request
    assert "Story 1" in request


async def test_drafters_hear_what_was_said_a_moment_ago(ladder, workshop, conn, connect, tmp_path):
    """What is committed while a claim waits for its session is in no snapshot of that statement."""
    await ladder.clarified()
    session = (await ladder.session())["id"]
    speaking, claiming = await connect(), await connect()
    seen = tmp_path / "seen.json"
    source = f"import sys; open({str(seen)!r}, 'w').write(sys.stdin.read()); {GOOD}"

    transaction = speaking.transaction()
    await transaction.start()
    await sessions.lock(speaking, [("shortcut", 1)])
    asked_at = time.monotonic()
    wanted = {"workspace": "shortcut", "sc_id": 1}
    claim = await blocked(conn, claiming, gate.claim(claiming, Phase.DRAFT, bid(), **wanted))
    await sessions.remark(speaking, [(session, IN_EUROS)])
    await transaction.commit()
    await workshop(source).work(Won(await claim, asked_at))

    assert "In euros." in await asyncio.to_thread(seen.read_text)
