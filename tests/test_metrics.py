"""Figures for Prometheus, and health: what is told, to whom, and at what cost."""

import ast
import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import live, metrics
from app.api.guard import MOST_FAILURES
from app.db import hooks
from app.db.connect import Database
from app.door.counts import OUTCOMES, Counts, room
from app.machine import Status
from app.shortcut.signature import sign
from tests import shapes
from tests.locks import until
from tests.service import SECRET, receiver

TOKEN = "a token of tests only"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}

WAITING = """
    select count(*) from pg_stat_activity
     where wait_event_type = 'Lock' and datname = current_database()
"""


def read(page: str) -> dict[str, float]:
    """Every figure by its name and labels, as Prometheus itself reads the page."""
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def figures(service) -> dict[str, float]:
    """The figures that somebody with the token is told."""
    answer = await service.client.get("/metrics", headers=AUTHORIZED)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return read(answer.text)


async def test_deliveries_are_counted_by_their_answer(database):
    """Each delivery counts once, whichever way it takes; what was recorded has a time."""

    async def pieces():
        yield shapes.labelled(2)[:50]
        yield shapes.labelled(2)[50:]

    signed = {"Payload-Signature": sign(SECRET.encode(), shapes.labelled(2))}
    async with receiver(database, api_token=TOKEN) as service:
        for body in (shapes.labelled(1), shapes.labelled(1), b"{"):
            await service.post(body)
        await service.client.post("/webhooks/shortcut", content=pieces(), headers=signed)
        await service.client.post("/webhooks/shortcut", content=b"{}")
        await service.client.get("/webhooks/shortcut")
        told = await figures(service)

    counted = {name: told[f"draftgate_deliveries_total {name}"] for name in OUTCOMES}
    assert {name: number for name, number in counted.items() if number} == {
        "new": 2,
        "duplicate": 1,
        "not-json": 1,
        "signature-invalid": 1,
        "method-not-allowed": 1,
    }
    assert told["draftgate_delivery_seconds_bucket +Inf"] == 4
    assert told["draftgate_delivery_seconds_count"] == 4
    assert told["draftgate_deliveries_waiting"] == 0
    assert 1 <= told["draftgate_delivery_batches_total"] <= 4


def test_every_refusal_at_the_door_has_a_name():
    """No code that the door refuses by is counted as something else."""
    door = Path(__file__).parent.parent / "app" / "door"
    codes = {
        call.args[1].value
        for name in ("receive.py", "body.py")
        for call in ast.walk(ast.parse((door / name).read_text()))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") == "Rejected"
        and isinstance(call.args[1], ast.Constant)
    }

    assert "signature-invalid" in codes
    assert codes <= set(OUTCOMES)


async def held_up(service, conn, stories: int) -> list[asyncio.Task]:
    """Posts deliveries of so many stories, whose commit waits for a lock on `events`."""
    first = asyncio.ensure_future(service.post(shapes.labelled(0)))
    await until(lambda: conn.fetchval(f"select 1 = ({WAITING})"))
    rest = [
        asyncio.ensure_future(service.post(shapes.labelled(story))) for story in range(1, stories)
    ]
    await until(lambda: asyncio.sleep(0, service.recorder.waiting == stories - 1))
    return [first, *rest]


async def test_waiting_deliveries_are_counted(database, conn, connect):
    """While the database holds a commit up, figures come, and with them how many wait behind it."""
    locker = await connect()
    async with receiver(database, api_token=TOKEN) as service:
        async with locker.transaction():
            await locker.execute("lock table events in share row exclusive mode")
            answering = await held_up(service, conn, 20)
            assert (await figures(service))["draftgate_deliveries_waiting"] == 19
        assert {answer.status_code for answer in await asyncio.gather(*answering)} == {200}


async def test_what_waits_is_told(database, ladder):
    """Sessions by status, what waits at each stage and for how long, and who is connected."""
    await ladder.in_status(Status.DRAFTING)
    await hooks.save(ladder.conn, "acme", url="u", integration_id=7, wait=timedelta(0))
    await ladder.conn.execute(
        "insert into installations (workspace, slug, access, status)"
        " values ('w', 'bravo', '', 'revoked')"
    )
    async with receiver(database, api_token=TOKEN) as service:
        await service.post(shapes.labelled(5))
        told = await figures(service)

    assert told["draftgate_database_up"] == 1
    assert told["draftgate_sessions drafting"] == 1
    assert told["draftgate_sessions failed"] == 0
    assert told["draftgate_backlog apply"] >= 1
    assert told["draftgate_backlog_seconds apply"] >= 0
    assert told["draftgate_failed comments"] == 0
    assert told["draftgate_hook_alive acme"] == 1
    assert told["draftgate_installation_active bravo"] == 0
    assert told["draftgate_last_event_timestamp_seconds"] > 0
    # The one that asks; a pooler gives the others the name of whoever used them last.
    assert told["draftgate_database_connections health active"] == 1
    assert "draftgate_spool_up" not in told


async def test_without_the_database_the_rest_is_told(tmp_path):
    """Its own figures are left out, the door's and the spool's are not."""
    nowhere = Database(dsn="postgresql://127.0.0.1:1/none", listen_dsn="")
    async with receiver(nowhere, api_token=TOKEN, spool_dir=tmp_path) as service:
        assert (await service.post(shapes.labelled(1))).status_code == 202
        told = await figures(service)

    assert (told["draftgate_database_up"], told["draftgate_spool_up"]) == (0, 1)
    assert told["draftgate_spool_deliveries"] == 1
    assert 0 < told["draftgate_spool_used_bytes"] < told["draftgate_spool_limit_bytes"]
    assert told["draftgate_deliveries_total spooled"] == 1
    assert not [name for name in told if name.startswith("draftgate_sessions")]


async def test_figures_do_not_wait_for_a_database_that_hangs(database, connect, monkeypatch):
    """After a moment the page comes without what it would have told, and says so."""
    monkeypatch.setattr(metrics, "TIMEOUT_SECONDS", 0.2)
    locker = await connect()
    async with receiver(database, api_token=TOKEN) as service, locker.transaction():
        await locker.execute("lock table patch_sessions")
        told = await figures(service)

    assert told["draftgate_database_up"] == 0
    assert told["draftgate_deliveries_waiting"] == 0


async def test_figures_are_for_those_who_have_the_token(database):
    """Without it 401, after ten times 429 with a wait; who has it is told all the same."""
    async with receiver(database, api_token=TOKEN) as service:
        wrong = [
            (await service.client.get("/metrics", headers={"Authorization": "Bearer x"}))
            for _ in range(MOST_FAILURES + 1)
        ]
        api = await service.client.get("/api/v1/sessions")
        assert "draftgate_database_up" in await figures(service)

    assert {answer.status_code for answer in wrong[:-1]} == {401}
    assert (wrong[-1].status_code, wrong[-1].headers["retry-after"]) == (429, "60")
    assert api.status_code == 401  # Counted apart: a scraper's mistake locks nobody else out.


async def test_without_a_token_there_are_no_figures(database):
    """They are nobody's business by default: 404, which says what is missing."""
    async with receiver(database) as service:
        answer = await service.client.get("/metrics")

    assert (answer.status_code, answer.json()["code"]) == (404, "metrics-off")


def test_processes_count_together():
    """Any of them tells the sum; one that is started again goes on, but nothing waits in it."""
    with room(2) as fd:
        first, second = (Counts.inherited(fd, slot=slot) for slot in (0, 1))
        for counts in (first, second, second):
            counts.answered("new")
            counts.recorded([0.02, 30])
            counts.waiting(7)
        again = Counts.inherited(fd, slot=1)
        again.answered("new")

        assert first.outcomes()["new"] == again.outcomes()["new"] == 4
        buckets, together = first.histogram()
        assert (sum(buckets), buckets[-1], round(together, 2)) == (6, 3, 90.06)
        assert first.all_waiting() == 7


@pytest.mark.parametrize("path", ["/readyz", "/metrics"])
async def test_however_many_ask_the_database_is_asked_once(
    database, conn, connect, path, monkeypatch
):
    """A hundred who ask while it hangs cost one connection; alive is answered meanwhile."""
    locker = await connect()
    # Nothing is shared only for having been asked a moment ago.
    monkeypatch.setattr(live, "SHARED_SECONDS", 0.0)
    held = {"/readyz": "alembic_version", "/metrics": "patch_sessions"}[path]
    async with receiver(database, api_token=TOKEN) as service:
        async with locker.transaction():
            await locker.execute(f"lock table {held}")
            asking = [
                asyncio.ensure_future(service.client.get(path, headers=AUTHORIZED))
                for _ in range(50)
            ]

            await until(lambda: conn.fetchval(f"select 1 = ({WAITING})"))
            for _ in range(20):
                assert (await service.client.get("/livez")).status_code == 200
                assert await conn.fetchval(WAITING) == 1
        answers = await asyncio.gather(*asking)

    assert {answer.status_code for answer in answers} == {200}


async def test_a_pool_that_is_taken_holds_up_neither_health_nor_deliveries(database, conn, connect):
    """Every connection for people hangs: ready is answered, figures too, and deliveries."""
    database, locker = replace(database, pool_size=2), await connect()
    taken = f"select {database.pool_size} = ({WAITING})"
    async with receiver(database, api_token=TOKEN) as service:
        async with locker.transaction():
            await locker.execute("lock table outbox")
            asking = [
                asyncio.ensure_future(service.client.get("/api/v1/outbox", headers=AUTHORIZED))
                for _ in range(database.pool_size)
            ]
            await until(lambda: conn.fetchval(taken))
            assert (await service.client.get("/readyz")).status_code == 200
            assert (await service.post(shapes.labelled(1))).status_code == 200
        answers = await asyncio.gather(*asking)

    assert {answer.status_code for answer in answers} == {200}


async def test_a_flood_that_waits_for_its_commit_holds_up_no_health(database, conn, connect):
    """With the queue full of deliveries and the commit held up, alive and ready are answered."""
    locker = await connect()
    async with receiver(database, queue_limit=200) as service:
        async with locker.transaction():
            await locker.execute("lock table events in share row exclusive mode")
            answering = await held_up(service, conn, 90)
            alive, ready = [await service.client.get(path) for path in ("/livez", "/readyz")]
            assert service.recorder.waiting == 89
        answers = await asyncio.gather(*answering)

    assert (alive.status_code, ready.status_code) == (200, 200)
    assert {answer.status_code for answer in answers} == {200}
