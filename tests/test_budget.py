"""The budget of requests: all processes together stay below the API's limit."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from app.budget import Budget, name_of
from app.db import budgets
from app.errors import ShortcutBusy, ShortcutUnavailable
from app.settings import Settings
from app.shortcut.client import ShortcutClient
from app.simulator.faults import Fault
from app.worker.workspaces import connected
from tests.locks import WAITS, until
from tests.office import TOKEN, simulated
from tests.proxy import proxy_to

START = datetime(2026, 1, 2, tzinfo=UTC)
#: A burst of 6, and 54 more in each minute.
MINUTE = {"burst": 6, "per_second": 54 / 60}


async def at(conn, seconds):
    """It is so many seconds after the start."""
    now = (START + timedelta(seconds=seconds)).isoformat()
    await conn.execute("select set_config('draftgate.now', $1, false)", now)


async def spend(conn, name="a"):
    return await budgets.spend(conn, name, **MINUTE)


@pytest.mark.parametrize("idle", [0, 45])
async def test_in_no_minute_there_are_more_requests_than_allowed(conn, idle):
    """However the asking goes, any 60 seconds have 60 requests at most; and nearly as many."""
    given = []
    for second in (*range(60), *range(60 + idle, 150 + idle)):
        await at(conn, second)
        while not await spend(conn):
            given.append(second)
            assert len(given) <= 200

    for second in given:
        assert len([it for it in given if second <= it < second + 60]) <= 60
    assert len(given) >= 0.85 * (150 if not idle else 130)


async def test_how_long_to_wait_is_said(conn):
    """Who asks again at that time is given a request, and not before."""
    await at(conn, 0)
    while not (seconds := await spend(conn)):
        pass

    await at(conn, seconds - 0.01)
    assert await spend(conn) == pytest.approx(0.01, abs=0.005)
    await at(conn, seconds + 0.001)
    assert await spend(conn) == 0


async def test_who_closes_it_closes_it_for_all(conn, connect):
    """After a 429 nobody has a request, until the time is over; other tokens have theirs."""
    other = await connect()
    await at(conn, 0)
    await budgets.close(conn, "a", until=timedelta(minutes=1))

    await at(other, 59)
    assert await spend(other) == pytest.approx(1 + 1 / MINUTE["per_second"])
    assert await spend(other, "b") == 0
    await at(other, 62)
    assert await spend(other) == 0


async def test_what_was_closed_begins_anew_and_not_all_at_once(conn):
    """The API still counts the minute in which it had enough: no burst follows a closing."""
    await at(conn, 0)
    await spend(conn)
    await budgets.close(conn, "a", until=timedelta(minutes=1))

    await at(conn, 61.2)
    assert [await spend(conn) == 0 for _ in range(3)] == [True, False, False]


async def test_a_longer_closing_stands(conn):
    """Of two answers, the one that asked for more time counts."""
    await at(conn, 0)
    await budgets.close(conn, "a", until=timedelta(minutes=1))
    await budgets.close(conn, "a", until=timedelta(seconds=1))

    await at(conn, 30)
    assert await spend(conn) > 29


async def test_two_that_ask_at_once_do_not_share_a_request(conn, connect):
    """The second waits for the first, and is then told that nothing is left."""
    first, second = await connect(), await connect()
    only = {"burst": 1, "per_second": 0.001}

    async with first.transaction():
        assert await budgets.spend(first, "a", **only) == 0
        asking = asyncio.create_task(budgets.spend(second, "a", **only))
        await until(lambda: conn.fetchval(WAITS))

    assert await asking > 0


async def test_a_429_is_heard_by_every_client(pool):
    """One is told to wait; another one, in another process as it were, does not even ask."""
    async with simulated() as (simulation, url):
        budget = Budget(pool=pool, name="a", a_minute=180)
        async with (
            ShortcutClient(url, TOKEN, budget=budget) as first,
            ShortcutClient(url, TOKEN, budget=budget) as second,
        ):
            assert (await first.me()).member_id
            simulation.faults.pending.append(Fault(status=429, retry_after="60"))
            with pytest.raises(ShortcutBusy):
                await first.me()
            with pytest.raises(ShortcutBusy) as busy:
                await second.me()

    assert 55 < busy.value.retry_after_seconds < 65


async def test_a_short_wait_is_waited_and_a_long_one_is_not(pool):
    """A call waits for its turn for a moment; beyond that it says when to come back."""
    quick = Budget(pool=pool, name="quick", a_minute=600)
    for _ in range(70):
        await quick.turn()
    slow = Budget(pool=pool, name="slow", a_minute=2)
    await slow.turn()

    with pytest.raises(ShortcutBusy) as busy:
        await slow.turn()

    assert 50 < busy.value.retry_after_seconds <= 60


async def test_without_the_database_there_is_no_turn(database):
    """A request that can't be counted is not made; trying later may help."""
    async with proxy_to(database.dsn) as proxy, proxy.through(database).pool("far") as far:
        proxy.refuse()
        with pytest.raises(ShortcutUnavailable, match="can't be asked"):
            await Budget(pool=far, name="a", a_minute=180).turn()


async def test_each_token_has_a_budget_of_the_settings(pool, conn):
    """A process asks by it; its name tells nothing of the token."""
    async with simulated() as (_, url):
        given = Settings(
            _env_file=None,
            shortcut_api_url=url,
            shortcut_api_token=TOKEN,
            shortcut_secrets="a secret of tests only",
            shortcut_requests_a_minute=2,
        )
        async with connected(given, pool) as workspaces:
            assert await workspaces.learn()

    row = await conn.fetchrow("select name, remaining from request_budgets")
    assert (row["name"], row["remaining"]) == (name_of(TOKEN), 0)
    assert TOKEN not in row["name"]
