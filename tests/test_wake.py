"""Wake-ups make the loops quick, and are never what makes them right."""

import asyncio

from app.wake import CHANNEL, Bell, Ring
from tests.locks import until


async def test_a_ring_reaches_a_loop_of_the_same_process(database):
    """A loop that waits is woken without the database."""
    bell = Bell(database)
    waiter = bell.waiter()

    bell.ring()

    assert waiter.is_set()


async def test_a_ring_reaches_another_process(database):
    """NOTIFY carries a ring to a listener elsewhere."""
    here, there = Bell(database), Bell(database)
    waiter = there.waiter()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(here.send()), tasks.create_task(there.listen())]
        await waiter.wait()  # The listener's own first look.
        waiter.clear()

        here.ring()

        await asyncio.wait_for(waiter.wait(), 10)
        for task in running:
            task.cancel()


async def test_a_recorded_event_wakes_only_who_applies_events(database):
    """Here and elsewhere; what else there is to do wakes everybody, though rung for together."""
    here, there = Bell(database), Bell(database)
    others = [bell.waiter() for bell in (here, there)]
    appliers = [bell.waiter(Ring.EVENT) for bell in (here, there)]
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(there.listen())
        await others[1].wait()  # The listener's own first look.
        for waiter in (*others, *appliers):
            waiter.clear()

        here.ring(Ring.EVENT)
        sending = tasks.create_task(here.send())
        await asyncio.wait_for(appliers[1].wait(), 10)

        assert [waiter.is_set() for waiter in (*others, *appliers)] == [False, False, True, True]

        here.ring(Ring.EVENT)
        here.ring()
        await asyncio.wait_for(others[1].wait(), 10)

        assert others[0].is_set()
        listening.cancel()
        sending.cancel()


async def test_a_session_that_is_ready_wakes_only_who_claims(database):
    """Nor does a ring come back to whoever rang, who has heeded it."""
    here, there = Bell(database), Bell(database)
    others = [bell.waiter() for bell in (here, there)]
    claiming = [bell.waiter(Ring.SESSION) for bell in (here, there)]
    later = here.waiter(Ring.EVENT)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(bell.listen()) for bell in (here, there)]
        for waiter in others:
            await waiter.wait()  # The listener's own first look.
        for waiter in (*others, *claiming, later):
            waiter.clear()

        here.ring(Ring.SESSION)
        claiming[0].clear()
        running.append(tasks.create_task(here.send()))
        await asyncio.wait_for(claiming[1].wait(), 10)

        there.ring(Ring.EVENT)
        running.append(tasks.create_task(there.send()))
        await asyncio.wait_for(later.wait(), 10)

        assert not any(waiter.is_set() for waiter in (*others, claiming[0]))
        for task in running:
            task.cancel()


async def test_a_listener_that_lost_its_connection_looks_again(database, conn):
    """After a cut connection the listener reconnects, and wakes the loops for what it missed."""
    bell = Bell(database)
    waiter = bell.waiter()
    listening = asyncio.create_task(bell.listen())
    await waiter.wait()
    waiter.clear()

    await conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'draftgate listener' and datname = current_database()"
    )
    await conn.execute("select pg_notify($1, '')", CHANNEL)

    await asyncio.wait_for(waiter.wait(), 10)
    listening.cancel()


async def test_rings_are_coalesced(database, conn):
    """A thousand rings at once are one or two notifications, not a thousand."""
    heard: list[str] = []
    await conn.add_listener(CHANNEL, lambda *_: heard.append("ring"))
    bell = Bell(database)
    sending = asyncio.create_task(bell.send())

    for _ in range(1000):
        bell.ring()

    async def has_heard() -> bool:
        return await conn.fetchval("select true") and bool(heard)

    await until(has_heard)
    assert len(heard) <= 2
    sending.cancel()
