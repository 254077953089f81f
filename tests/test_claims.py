"""Holding a claim: beats that nothing starves, and work that stops when the claim may be lost."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from app.db import gate, sessions
from app.db.connect import Database
from app.errors import SettingsError
from app.machine import Phase
from app.settings import load
from app.worker.claims import End, Heart, backoff
from tests.ladder import bid
from tests.locks import PATIENCE_SECONDS, until

SHORT = timedelta(seconds=0.6)


@pytest.fixture
async def heart(database: Database) -> AsyncIterator[Heart]:
    """A heart with a short lease."""
    heart = Heart(database, lease=SHORT, interval=SHORT / 6)
    heart.start()
    yield heart
    heart.stop()


async def short_claim(ladder, story=1, lease=SHORT):
    """A claim with a short lease, and the time from before it was asked for."""
    await ladder.clarified(story)
    asked_at = time.monotonic()
    claim = await gate.claim(
        ladder.conn, Phase.DRAFT, bid(lease=lease), workspace="shortcut", sc_id=story
    )
    return claim, asked_at


async def for_ever():
    """Work that does not end by itself."""
    await asyncio.Event().wait()


async def how_it_ends(held):
    """How the claim's endless work ends; it must, within half a minute."""
    return await asyncio.wait_for(held.run(for_ever()), PATIENCE_SECONDS)


def expiries(ladder):
    """Asks when the claim runs out."""
    return ladder.conn.fetchval("select claim_expires_at from patch_sessions")


async def test_work_longer_than_the_lease_keeps_its_claim(ladder, heart):
    """Beats carry a claim over several leases."""
    claim, asked_at = await short_claim(ladder)
    first = await expiries(ladder)

    async def several_leases():
        await until(lambda: is_later(first + 3 * SHORT))
        return "done"

    async def is_later(moment):
        return await expiries(ladder) > moment

    async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()) as held:
        assert await held.run(several_leases()) == "done"

    assert (await ladder.session())["claim_generation"] == claim.generation


async def test_a_blocked_event_loop_does_not_stop_the_beat(ladder, heart, conn):
    """The heart beats from a thread of its own: a claim outlives a blocked main loop."""
    claim, asked_at = await short_claim(ladder)

    async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()):
        blocked_until = time.monotonic() + 2 * SHORT.total_seconds()
        threading.Event().wait(blocked_until - time.monotonic())
        alive = "select claim_expires_at > clock_timestamp() from patch_sessions"
        assert await conn.fetchval(alive)


async def test_a_busy_pool_does_not_stop_the_beat(ladder, heart, pool, conn):
    """All work connections taken: the beat has its own."""
    claim, asked_at = await short_claim(ladder)
    before = await expiries(ladder)
    taken = [await pool.acquire() for _ in range(5)]

    async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()):
        beaten = "select claim_expires_at > $1 from patch_sessions"
        await until(lambda: conn.fetchval(beaten, before))

    for connection in taken:
        await pool.release(connection)


async def test_losing_the_claim_stops_the_work(ladder, database):
    """A beat that finds no row cancels the work at once, however long the lease still is."""
    claim, asked_at = await short_claim(ladder)
    await sessions.take_away(ladder.conn, claim.session_id, actor="operator")
    heart = Heart(database, lease=timedelta(hours=1), interval=SHORT / 6)
    heart.start()

    async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()) as held:
        assert await how_it_ends(held) is End.LOST

    heart.stop()


async def test_a_worker_that_can_not_know_stops_before_its_lease_ends(ladder, heart, connect):
    """Beats that get no answer: the work stops while nobody else can have the claim yet."""
    claim, asked_at = await short_claim(ladder)
    locker = await connect()

    async with locker.transaction():
        await locker.execute("select from patch_sessions for update")
        async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()) as held:
            assert await how_it_ends(held) is End.LOST
        assert time.monotonic() < asked_at + SHORT.total_seconds()


async def test_a_row_that_is_locked_costs_no_other_claim(ladder, database, connect):
    """Beats of one claim that wait for its row do not hold up those of the others."""
    lease = timedelta(seconds=3)
    heart = Heart(database, lease=lease, interval=lease / 6)
    heart.start()
    locker = await connect()
    locked, other = [await short_claim(ladder, story, lease) for story in (1, 2)]
    hold = partial(heart.hold, cut_off=asyncio.Event())

    async def until_the_first_is_lost():
        assert await how_it_ends(first) is End.LOST
        later = "select claim_expires_at > $1 from patch_sessions where sc_id = 2"
        now = await ladder.conn.fetchval("select clock_timestamp()")
        await until(lambda: ladder.conn.fetchval(later, now + lease))
        return "done"

    async with locker.transaction():
        await locker.execute("select from patch_sessions where sc_id = 1 for update")
        async with (
            hold(locked[0], asked_at=locked[1]) as first,
            hold(other[0], asked_at=other[1]) as second,
        ):
            assert await second.run(until_the_first_is_lost()) == "done"

    heart.stop()


async def test_a_beat_that_waits_is_given_up_for_the_next_one(ladder, database, connect):
    """A row that is locked for longer than an interval costs beats, and not the claim."""
    claim, asked_at = await short_claim(ladder, lease=timedelta(seconds=60))
    patient = replace(database, command_timeout_seconds=600)
    heart = Heart(patient, lease=timedelta(seconds=60), interval=timedelta(seconds=0.3))
    heart.start()
    locker = await connect()
    wait = (
        "select count(*) >= 2 from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()"
    )

    async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()):
        async with locker.transaction():
            await locker.execute("select from patch_sessions for update")
            await until(lambda: ladder.conn.fetchval(wait))
        now = await ladder.conn.fetchval("select clock_timestamp() + interval '60 s'")
        later = "select claim_expires_at > $1 from patch_sessions"
        await until(lambda: ladder.conn.fetchval(later, now))

    heart.stop()


async def test_beats_that_the_database_refuses_are_no_beats(ladder, database):
    """A worker whose beats are not understood any more stops its work long before its lease."""
    claim, asked_at = await short_claim(ladder)
    heart = Heart(database, lease=timedelta(seconds=4 * PATIENCE_SECONDS), interval=SHORT / 6)
    heart.start()
    await ladder.conn.execute("alter table patch_sessions rename progressed_at to progress")

    async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()) as held:
        assert await how_it_ends(held) is End.LOST

    heart.stop()


async def test_no_work_outlives_its_phase(ladder, database):
    """However well it beats, a worker stops its work before the claim ends with its phase."""
    claim, asked_at = await short_claim(ladder)
    heart = Heart(database, lease=timedelta(seconds=1), interval=SHORT / 6)
    heart.start()
    limit = timedelta(seconds=0.5)

    async with heart.hold(
        claim, asked_at=asked_at, cut_off=asyncio.Event(), phase_limit=limit
    ) as held:
        assert await how_it_ends(held) is End.OVER

    heart.stop()
    assert await ladder.conn.fetchval("select claim_token is not null from patch_sessions")


async def test_a_shutdown_cuts_work_off(ladder, heart):
    """When the process must go, the work is cancelled and says so."""
    claim, asked_at = await short_claim(ladder)
    cut_off = asyncio.Event()
    cut_off.set()

    async with heart.hold(claim, asked_at=asked_at, cut_off=cut_off) as held:
        assert await how_it_ends(held) is End.CUT_OFF


async def test_every_way_out_stops_the_beat(ladder, heart, conn):
    """An exception between claim and end leaves nothing behind that renews the claim."""
    claim, asked_at = await short_claim(ladder)

    with pytest.raises(ZeroDivisionError):
        async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()):
            raise ZeroDivisionError

    lapsed = "select claim_expires_at <= clock_timestamp() from patch_sessions"
    await until(lambda: conn.fetchval(lapsed))


async def test_two_claims_beat_side_by_side(ladder, heart, conn):
    """One heart keeps all claims of a process."""
    held = [await short_claim(ladder, story) for story in (1, 2)]
    first = await conn.fetchval("select max(claim_expires_at) from patch_sessions")
    beaten = "select min(claim_expires_at) > $1 from patch_sessions"

    async with (
        heart.hold(held[0][0], asked_at=held[0][1], cut_off=asyncio.Event()),
        heart.hold(held[1][0], asked_at=held[1][1], cut_off=asyncio.Event()),
    ):
        await until(lambda: conn.fetchval(beaten, first + SHORT))


def test_a_heartbeat_over_a_third_of_the_lease_is_refused():
    """A lease must survive two beats that are late or lost."""
    with pytest.raises(SettingsError, match="more than a third"):
        load(lease_seconds=30, heartbeat_seconds=11)


def test_the_backoff_doubles_and_is_capped():
    """Waits grow to the longest and no further, and are spread over the upper half."""
    base, longest = timedelta(seconds=10), timedelta(seconds=60)
    for attempt, whole in ((1, 10), (2, 20), (3, 40), (4, 60), (1000, 60)):
        wait = backoff(attempt, base=base, longest=longest).total_seconds()
        assert whole / 2 <= wait <= whole
