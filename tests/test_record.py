"""Group commit: what one statement takes, and what it leaves out."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.door.record import BATCH_BYTES, BATCH_ROWS, Outcome, Recorder
from app.model import Delivery
from app.shortcut.envelope import read
from app.wake import Bell
from tests import shapes
from tests.locks import until

WAITS = "select exists (select from pg_stat_activity where wait_event_type = 'Lock'"
OURS = " and datname = current_database())"


def delivery(story: int, name: str = "Export") -> Delivery:
    """A delivery about this story."""
    return read("shortcut", shapes.labelled(story, name=name), [])


@pytest.fixture
async def recorder(database) -> AsyncIterator[Recorder]:
    """A recorder that runs, and whose senders have some patience."""
    made = Recorder(
        database,
        Bell(database),
        queue_limit=1000,
        queue_limit_bytes=64 << 20,
        commit_timeout_seconds=5,
    )
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.wait([running])


def put(recorder: Recorder, one: Delivery) -> asyncio.Future[Outcome]:
    """Queues a delivery; the future is who waits for it."""
    recorded: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    recorder.put(one, recorded)
    return recorded


async def held_up(recorder: Recorder, conn) -> asyncio.Future[bool]:
    """A delivery whose commit waits for the test's lock; what comes now waits behind it."""
    first = put(recorder, delivery(1))
    await until(lambda: conn.fetchval(WAITS + OURS))
    return first


async def batches(conn) -> list[int]:
    """How many rows each statement has recorded, the largest first."""
    rows = await conn.fetch("select count(*) from events group by xmin::text order by 1 desc")
    return [row["count"] for row in rows]


async def test_what_nobody_waits_for_any_more_is_not_recorded(recorder, conn, connect):
    """Who was told to come back will come back: what waited for the commit is left out."""
    locker = await connect()
    async with locker.transaction():
        await locker.execute("lock table events")
        first = await held_up(recorder, conn)
        gone = put(recorder, delivery(2))
        stays = put(recorder, delivery(3))
        await until(lambda: asyncio.sleep(0, recorder.waiting == 2))
        gone.cancel()

    assert await first
    assert await stays
    assert await conn.fetchval("select count(*) from events") == 2


async def test_one_statement_takes_so_many_deliveries(recorder, conn, connect):
    """However many wait, a statement takes no more than its number of them."""
    locker, many = await connect(), BATCH_ROWS + 10
    async with locker.transaction():
        await locker.execute("lock table events")
        waiting = [await held_up(recorder, conn)]
        waiting += [put(recorder, delivery(n + 2)) for n in range(many)]
        await until(lambda: asyncio.sleep(0, recorder.waiting == many))

    assert all(await asyncio.gather(*waiting))
    assert await batches(conn) == [BATCH_ROWS, 10, 1]


async def test_one_statement_takes_so_many_bytes(recorder, conn, connect):
    """Large deliveries that wait together are recorded by several statements."""
    locker, name = await connect(), "x" * (BATCH_BYTES // 2)
    async with locker.transaction():
        await locker.execute("lock table events")
        waiting = [await held_up(recorder, conn)]
        waiting += [put(recorder, delivery(n, name)) for n in (2, 3, 4)]
        await until(lambda: asyncio.sleep(0, recorder.waiting == 3))

    assert all(await asyncio.gather(*waiting))
    assert await batches(conn) == [2, 1, 1]
