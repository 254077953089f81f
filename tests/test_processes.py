"""The whole, as real processes: receivers behind nginx, a worker, a simulated Shortcut."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest

from app.cli.trial import SAMPLE_DRAFTER, listen
from app.db import look
from app.simulator.faults import Fault
from app.simulator.records import PEOPLE, WORKSPACE_ID
from tests import shapes
from tests.locks import until
from tests.stack import Stack, free_port, stack

#: A story about which nothing need be asked.
TOLD = {"name": "Export invoices", "description": "As CSV."}
SLOW = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
async def it(database, tmp_path) -> AsyncIterator[Stack]:
    """The processes of one test; what they log has no traceback."""
    async with stack(database, tmp_path) as started:
        started.settings |= {
            "DRAFTGATE_RETRY_BASE_SECONDS": "0.2",
            "DRAFTGATE_POLL_SECONDS": "0.2",
            "DRAFTGATE_LOG_FORMAT": "json",
        }
        yield started


def story(it: Stack, **fields: object) -> int:
    """A story in the simulated workspace that has the label."""
    told = {**TOLD, **fields}
    made = it.simulation.workspace.create_story(PEOPLE[0], told)
    it.simulation.workspace.update_stories(PEOPLE[1], [made.id], {}, labels_add=["patch"])
    return made.id


def at_rest(conn, *, drafted: int):
    """Asks whether so many are drafted, and nothing is pending or owed."""

    async def rests() -> bool:
        counts = await look.counts(conn)
        return counts.drafted == drafted and not counts.pending_events and not counts.owed

    return rests


def drafted(conn):
    """Asks whether any session is drafted."""
    return lambda: conn.fetchval(
        "select exists (select from patch_sessions where status = 'drafted')"
    )


def is_drafting(conn):
    """Asks whether a worker owns a session."""
    owned = "select exists (select from patch_sessions where status = 'drafting')"
    return lambda: conn.fetchval(owned)


async def test_a_worker_works_while_nobody_says_who_we_are(it, ladder):
    """The API does not say who we are: events wait for it, and nothing else does."""
    it.simulation.faults.pending.append(Fault(path="/member", times=10_000))
    it.settings["DRAFTGATE_SHORTCUT_WORKSPACE"] = "shortcut"
    await it.receiver()
    await ladder.clarified(story(it))
    await ladder.record(shapes.labelled(2))

    await it.worker()

    await until(drafted(ladder.conn))
    assert await ladder.conn.fetchval("select count(*) from patch_sessions") == 1
    it.simulation.faults.clear()
    await until(at_rest(ladder.conn, drafted=1))


async def test_both_versions_tell_of_one_story(it, ladder):
    """A story that version 1 and an agent's delivery tell of has one session."""
    sc_id = it.simulation.workspace.create_story(PEOPLE[0], TOLD).id
    told = json.loads(shapes.triggered("assigned", sc_id, minute=2, comment=0))
    told["workspace2"] = {"id": WORKSPACE_ID, "url_slug": "acme"}
    await it.receiver()
    await ladder.record(shapes.labelled(sc_id), json.dumps(told).encode())

    await it.worker()

    await until(at_rest(ladder.conn, drafted=1))
    assert await ladder.conn.fetch("select workspace from patch_sessions") == [(WORKSPACE_ID,)]


async def test_copies_through_nginx_are_one_draft(it, conn, require_tool):
    """200 copies, 32 at a time, through nginx to two receivers: one event, draft and comment."""
    listeners = [listen(0), listen(0)]
    for listener in listeners:
        await it.receiver_on(listener)
    await it.worker()
    ports = [listener.getsockname()[1] for listener in listeners]
    port = await it.nginx(require_tool("nginx"), ports)
    sc_id = it.simulation.workspace.create_story(PEOPLE[0], TOLD).id
    async with httpx.AsyncClient(trust_env=False) as client:

        async def is_ready() -> bool:
            try:
                return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
            except httpx.TransportError:
                return await asyncio.sleep(0, False)

        await until(is_ready)

    report = await it.send(shapes.labelled(sc_id), copies=200, concurrency=32, port=port)
    await until(at_rest(conn, drafted=1))

    assert {status: n for (status, _), n in report.answers.items() if status != 200} == {}
    assert report.answers == {(200, False): 1, (200, True): 199}
    labelled = (
        "select count(*) from events where event_id <> '' and kind = 'v1' and reason ~ 'open'"
    )
    assert await conn.fetchval(labelled) == 1
    assert await conn.fetchval("select count(*) from timeline where move = 'claim'") == 1
    assert await conn.fetchval("select count(*) from drafts") == 1
    assert len(it.comments()) == 1
    for listener in listeners:
        listener.close()


async def test_a_worker_killed_in_the_middle_of_a_draft(it, conn):
    """After the lease another worker drafts the story: one draft, one comment, one crash."""
    it.settings["DRAFTGATE_LEASE_SECONDS"] = "2"
    await it.receiver()
    it.drafter = SLOW
    victim = await it.worker()
    story(it)
    await until(is_drafting(conn))
    it.drafter = SAMPLE_DRAFTER
    await it.worker()

    victim.kill()

    await until(at_rest(conn, drafted=1))
    row = await conn.fetchrow("select crashes, revision, claim_generation from patch_sessions")
    # One claim to look for questions; then the lost one, its expiry, and the one that drafted.
    assert (row["revision"], row["claim_generation"]) == (1, 4)
    assert len(it.comments()) == 1


async def test_a_worker_that_is_told_to_stop_gives_its_session_back(it, conn):
    """SIGTERM: after the grace the drafter is ended, and no attempt is counted."""
    it.settings["DRAFTGATE_SHUTDOWN_GRACE_SECONDS"] = "0.5"
    await it.receiver()
    it.drafter = SLOW
    worker = await it.worker()
    story(it)
    await until(is_drafting(conn))

    worker.terminate()

    assert await asyncio.wait_for(worker.wait(), 20) == 0
    row = await conn.fetchrow("select status, attempts, interruptions from patch_sessions")
    assert tuple(row) == ("clarified", 0, 1)


async def test_a_second_signal_ends_at_once(it, conn):
    """Who can't wait sends SIGTERM again, a second later; the lease takes care of the rest."""
    await it.receiver()
    it.drafter = SLOW
    worker = await it.worker()
    story(it)
    await until(is_drafting(conn))

    async def has_ended_when_told_again() -> bool:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)
        return await log_says(it, "process.stopping") and worker.returncode is not None

    await until(has_ended_when_told_again)
    assert worker.returncode == 1
    assert (await look.counts(conn)).owned == 1


async def log_says(it: Stack, words: str) -> bool:
    """Whether the log has these words by now."""
    return words in await asyncio.to_thread(it.log)


async def test_a_worker_stops_while_the_api_is_away(it):
    """A worker that waits to hear from the API who it is ends on SIGTERM all the same."""
    it.settings["DRAFTGATE_SHORTCUT_API_URL"] = "http://127.0.0.1:1/api/v3"
    worker = await it.worker()
    await until(lambda: log_says(it, "shortcut.unavailable"))

    worker.terminate()

    assert await asyncio.wait_for(worker.wait(), 10) == 0


async def test_a_receiver_that_is_told_to_stop_loses_nothing(it, conn):
    """SIGTERM under load: every delivery that was answered 200 is recorded."""
    receiver = await it.receiver()
    it.drafter = SLOW
    url_port = it.trial.service.getsockname()[1]
    first = await it.send(shapes.labelled(1), copies=1, concurrency=1, port=url_port)
    assert first.ok
    sending = [
        asyncio.create_task(it.send(shapes.labelled(n), copies=1, concurrency=1, port=url_port))
        for n in range(2, 60)
    ]
    await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)

    receiver.terminate()
    await receiver.wait()
    await it.receiver()
    reports = await asyncio.gather(*sending)

    accepted = sum(report.answers.get((200, False), 0) for report in reports) + 1
    recorded = await conn.fetchval("select count(*) from events")
    assert accepted <= recorded <= 59
    assert receiver.returncode == 0


async def test_a_process_whose_loop_breaks_ends(it, conn):
    """A schema that disappears under a worker: the process does not go on as if all were well."""
    worker = await it.worker()
    await until(lambda: log_says(it, "process.started"))

    worker.send_signal(signal.SIGINT)

    assert await asyncio.wait_for(worker.wait(), 10) == 0


async def test_serve_refuses_an_old_schema(it, conn):
    """With another schema the process ends at once, with one line and the exit code 3."""
    await conn.execute("update alembic_version set version_num = '0000'")

    process = await it.receiver()

    assert await asyncio.wait_for(process.wait(), 20) == 3
    assert "run `draftgate migrate`" in it.log()


async def test_serve_refuses_to_run_without_a_secret(it):
    """Without a secret no delivery could be trusted: exit code 2, and one line that says so."""
    fd = it.trial.service.fileno()
    environment = {**it.trial.environment(), "DRAFTGATE_SHORTCUT_SECRETS": ""}

    process = await it.run(
        *(sys.executable, "-m", "app.cli.main", "serve", "--fd", str(fd)),
        environment=environment,
        fds=[fd],
    )

    assert await asyncio.wait_for(process.wait(), 20) == 2
    assert "DRAFTGATE_SHORTCUT_SECRETS is not set" in it.log()


async def told(port, path):
    """An answer on a connection of its own, so that any process may give it."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://127.0.0.1:{port}{path}")


async def test_many_processes_share_a_port(it, conn):
    """`serve --processes 2`: both receive, tell each other's figures, and end on SIGTERM."""
    metrics = free_port()
    it.settings["DRAFTGATE_METRICS_LISTEN"] = f"127.0.0.1:{metrics}"
    fd = it.trial.service.fileno()
    arguments = ["serve", "--role", "receiver", "--processes", "2", "--fd", str(fd)]
    parent = await it.start(*arguments, fd=fd)
    port = it.trial.service.getsockname()[1]
    report = await it.send(shapes.labelled(1), copies=50, concurrency=8, port=port)
    assert report.answers == {(200, False): 1, (200, True): 49}
    pages = [await told(metrics, "/metrics") for _ in range(4)]
    elsewhere = [await told(metrics, path) for path in ("/", "/livez", "/openapi.json")]
    for page in pages:
        assert 'draftgate_deliveries_total{outcome="new"} 1.0\n' in page.text
        assert 'draftgate_deliveries_total{outcome="duplicate"} 49.0\n' in page.text
    assert {answer.status_code for answer in elsewhere} == {404}

    parent.terminate()

    assert await asyncio.wait_for(parent.wait(), 30) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_whole_group_is_one_signal(it, conn, number):
    """Ctrl-C, or a service manager that signals every process: drained, and no crash counted."""
    it.settings["DRAFTGATE_SHUTDOWN_GRACE_SECONDS"] = "0.5"
    it.drafter = SLOW
    fd = it.trial.service.fileno()
    parent = await it.start("serve", "--processes", "2", "--fd", str(fd), fd=fd)
    story(it)
    await until(is_drafting(conn))
    children = "select distinct claimed_by from patch_sessions where claimed_by is not null"
    (owner,) = [row["claimed_by"] for row in await conn.fetch(children)]

    parent.send_signal(number)
    os.kill(int(owner.split(":")[1]), number)

    assert await asyncio.wait_for(parent.wait(), 30) == 0
    row = await conn.fetchrow("select status, crashes, interruptions from patch_sessions")
    assert tuple(row) == ("clarified", 0, 1)
