"""Cancelled at every await: nothing is half written, nothing is lost, nothing leaks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from app.db import gate, look, sessions
from app.db.connect import Database, Pool, take
from app.machine import Phase, Status
from app.model import Claim, Story
from app.shortcut.client import ShortcutClient
from app.simulator.records import AGENT, PEOPLE
from app.wake import Bell
from app.worker.apply import Applier
from app.worker.claims import Heart, Held, Pulse, acquire
from app.worker.draft import Workshop
from app.worker.outbox import Sender
from tests import shapes
from tests.ladder import DRAFT, LEASE, RULES, Ladder, bid, comment, here
from tests.locks import blocked, until
from tests.office import TOKEN, simulated
from tests.proxy import proxy_to
from tests.test_lost_replies import ENDINGS, LIMITS, Drafts
from tests.test_order import start_over

#: More suspensions than anything here has; a coroutine that never ends is a failure.
MOST = 500
POOL_SIZE = 3

Make = Callable[[], Coroutine[Any, Any, Any]]


class Cancelled:
    """A coroutine that is cancelled at its n-th suspension: when it begins, or when it is over.

    At the beginning the request is on its way and nothing has come back; at the end all has come
    back, and the coroutine has not been told of it yet.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, *, late: bool) -> None:
        self._work = work
        self._at = at
        self._late = late
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._work.__await__()
        error: BaseException | None = None
        for count in range(1, MOST):
            try:
                waits_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            if count == self._at:
                self.reached = True
                if self._late and waits_for is not None:
                    waits_for.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown
        raise AssertionError("it does not end")


async def cancel(make: Make, at: int, *, late: bool) -> bool:
    """Runs the work and cancels it there; False if it ended before."""
    work = Cancelled(make(), at, late=late)

    async def run() -> None:
        await work

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    assert task.cancelled() == work.reached, "it has taken the cancellation for something else"
    return work.reached


@dataclass
class Bench:
    """What the cancelled work runs on, and what must hold of it afterwards."""

    database: Database
    pool: Pool
    ladder: Ladder

    async def at_every_await(
        self, arrange: Callable[[], Awaitable[Make]], check: Callable[[], Awaitable[None]]
    ) -> None:
        """Cancels what `arrange` prepares at each suspension in turn; `check` looks at the end."""
        for late in (False, True):
            at = 0
            cancelled = True
            while cancelled:
                at += 1
                await start_over(self.ladder)
                cancelled = await cancel(await arrange(), at, late=late)
                await self.is_sound()
                await check()
                await self.is_sound()
            assert at > 1

    async def is_sound(self) -> None:
        """The rows agree with each other, and the pool is as good as new."""
        await self._rows_agree()
        async with take(self.pool, timeout_seconds=5) as conn:
            assert await conn.fetchval("select pg_current_xact_id_if_assigned() is null")
        await until(self._is_tidy)

    async def _is_tidy(self) -> bool:
        """No connection is in a transaction, and there are no more of them than there may be."""
        return await self.ladder.conn.fetchval(
            "select count(*) <= $1 and not coalesce(bool_or(state like 'idle in %'), false)"
            " from pg_stat_activity"
            " where application_name = 'draftgate cancelled' and datname = current_database()",
            POOL_SIZE,
        )

    async def _rows_agree(self) -> None:
        """A draft, its move and what it owes are there together or not at all."""
        row = await self.ladder.conn.fetchrow(
            """
            select (select count(*) from drafts) as drafts,
                   (select count(*) from timeline where move = 'complete') as completed,
                   (select count(*) from outbox where kind = 'draft') as owed,
                   (select coalesce(sum(revision), 0) from patch_sessions) as revisions,
                   (select count(*) from timeline where move in ('complete', 'question', 'fail'))
                       = (select count(*) from outbox) as told,
                   (select count(*) from patch_sessions as s where status is distinct from (
                       select t.status from timeline as t where t.session_id = s.id
                        order by t.id desc limit 1)) as disagree,
                   (select count(*) from late_results) as late
            """
        )
        assert row["drafts"] == row["completed"] == row["owed"] == row["revisions"]
        assert (row["told"], row["disagree"], row["late"]) == (True, 0, 0)


async def expire(ladder: Ladder) -> None:
    """Whoever owns a session loses it, as if the lease had passed; backoffs are over too."""
    await ladder.conn.execute(
        "update patch_sessions set claim_expires_at = now() where claim_token is not null"
    )
    how = {"limit": 9, "max_crashes": 9, "delay": LEASE, "error": "gone", "text": "No"}
    await gate.expire(ladder.conn, **how)
    await ladder.conn.execute("update patch_sessions set next_attempt_at = now()")


async def is_drafted_once(ladder: Ladder) -> None:
    """Whatever was left behind, the next worker drafts the story unless that is done already."""
    await expire(ladder)
    claim = await gate.claim_next(ladder.conn, Phase.DRAFT, bid("next"))
    if claim is not None:
        assert await gate.complete(ladder.conn, claim, DRAFT, comment=comment(claim))
    counts = await look.counts(ladder.conn)
    assert (counts.drafts, counts.drafted, counts.owned) == (1, 1, 0)


@pytest.fixture
async def bench(database: Database, ladder: Ladder) -> AsyncIterator[Bench]:
    """A small pool that only the cancelled work uses."""
    async with replace(database, pool_size=POOL_SIZE).pool("cancelled") as pool:
        yield Bench(database, pool, ladder)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_cancelled_claim_can_be_asked_for_again_or_runs_out(bench, ladder, connected):
    """Made or not, the claim is found by its token, and if nobody asks it expires."""
    asked = bid()

    async def arrange() -> Make:
        await ladder.clarified()
        if not connected:
            await bench.pool.expire_connections()
        return lambda: acquire(bench.pool, Phase.DRAFT, asked)

    async def check() -> None:
        row = await ladder.session()
        found = await gate.held(ladder.conn, asked.token)
        assert (row["status"] == "drafting") == (found is not None)
        assert row["claim_generation"] == (0 if found is None else found.generation)
        again = await acquire(bench.pool, Phase.DRAFT, asked) if found is None else found
        assert (again.token, again.generation) == (asked.token, 1)
        await is_drafted_once(ladder)

    await bench.at_every_await(arrange, check)


async def test_a_claim_that_is_cancelled_while_its_answer_is_on_its_way_was_made(ladder, database):
    """What the server has carried out is not undone by a cancellation: the token finds it."""
    await ladder.clarified()
    asked = bid()
    async with proxy_to(database.dsn) as proxy, proxy.through(database).pool("far") as pool:
        caught = proxy.catch("status = 'drafting', prior_status")
        asking = asyncio.create_task(acquire(pool, Phase.DRAFT, asked))
        await caught.executed.wait()

        asking.cancel()
        caught.lose()
        await asyncio.wait([asking])

        assert asking.cancelled()
    assert await gate.claim_next(ladder.conn, Phase.DRAFT, bid("other")) is None
    found = await gate.held(ladder.conn, asked.token)
    assert (found.token, found.generation) == (asked.token, 1)


async def test_a_claim_that_is_cancelled_while_it_waits_is_not_made(ladder, connect):
    """Before it had won the row's lock, a cancelled claim has done nothing, and never will."""
    await ladder.clarified()
    first, second = await connect(), await connect()
    async with first.transaction():
        await first.execute("select from patch_sessions for update")
        asked = gate.claim(second, Phase.DRAFT, bid(), workspace="shortcut", sc_id=1)
        waiting = await blocked(ladder.conn, second, asked)

        waiting.cancel()
        await asyncio.wait([waiting])
        assert await second.fetchval("select true")

    assert (await ladder.session())["status"] == "clarified"


ALL_ENDINGS = {
    **ENDINGS,
    "clear": lambda conn, claim: gate.clear(
        conn, claim, Story(sc_id=1, title="Export", description="")
    ),
    "interruption": lambda conn, claim: gate.release(
        conn, claim, error="x", delay=timedelta(0), failed=False
    ),
}
#: Each of them with where it leads, and what it counts.
LEADS_TO = {
    "complete": ("drafted", 0),
    "question": ("clarifying", 0),
    "fail": ("failed", 1),
    "release": ("clarified", 1),
    "interruption": ("clarified", 0),
    "abandon": ("closed", 0),
    "clear": ("clarified", 0),
}


@pytest.mark.parametrize("name", ALL_ENDINGS)
async def test_a_cancelled_ending_is_carried_out_once(bench, ladder, name):
    """Asked for again, an ending leads to the same row, whether or not the first one did it."""
    begun = Status.ASKING if name == "clear" else Status.DRAFTING
    claims: list[Claim] = []
    told: list[int] = []

    async def lines() -> int:
        return await ladder.conn.fetchval("select count(*) from timeline")

    async def end(conn) -> bool:
        return await ALL_ENDINGS[name](conn, claims[-1])

    async def arrange() -> Make:
        claims.append(await ladder.in_status(begun))
        told.append(await lines())
        return lambda: on(bench.pool, end)

    async def check() -> None:
        assert (await ladder.session())["status"] in (begun, LEADS_TO[name][0])
        await end(ladder.conn)
        row = await ladder.session()
        assert (row["status"], row["attempts"]) == LEADS_TO[name]
        assert await lines() == told[-1] + 1

    await bench.at_every_await(arrange, check)


async def test_a_cancelled_word_that_work_has_stopped_is_said_once(bench, ladder):
    """Said again, it is in the timeline once, and the session can be claimed."""
    claims: list[Claim] = []

    async def confirm(conn) -> None:
        await gate.confirm_stopped(conn, claims[-1])

    async def arrange() -> Make:
        claims.append(await ladder.claimed())
        await sessions.take_away(ladder.conn, claims[-1].session_id, actor="operator")
        return lambda: on(bench.pool, confirm)

    async def check() -> None:
        await confirm(ladder.conn)
        stopped = "select count(*) from timeline where move = 'stopped'"
        assert await ladder.conn.fetchval(stopped) == 1
        await ladder.claim()

    await bench.at_every_await(arrange, check)


async def on(pool: Pool, call):
    """Makes a call with a connection of the pool."""
    async with take(pool) as conn:
        return await call(conn)


async def test_a_cancelled_beat_leaves_a_live_claim(bench, ladder):
    """The claim is its worker's still, and can be completed."""
    claims: list[Claim] = []

    async def beat(conn) -> bool:
        return await gate.beat(conn, claims[-1], lease=LEASE)

    async def arrange() -> Make:
        claims.append(await ladder.claimed())
        return lambda: on(bench.pool, beat)

    async def check() -> None:
        assert await beat(ladder.conn)
        assert await ENDINGS["complete"](ladder.conn, claims[-1])

    await bench.at_every_await(arrange, check)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_pulse_that_is_cut_off_in_a_beat_beats_on(bench, ladder, connected):
    """A beat ends in the middle; the next ones go on, over one connection."""
    pulses: list[Pulse] = []
    own = (
        "select count(*) <= 1 from pg_stat_activity"
        " where application_name = 'draftgate heart' and datname = current_database()"
    )

    async def arrange() -> Make:
        for old in pulses:
            old.disconnect()
        held = Held(await ladder.claimed(), asyncio.Event())
        pulses.append(Pulse(bench.database, held, lease=LEASE, interval=LEASE / 3))
        if connected:
            assert await pulses[-1].once(seconds=20)
        return lambda: pulses[-1].once(seconds=20)

    async def check() -> None:
        assert await pulses[-1].once(seconds=20) is True
        await until(lambda: ladder.conn.fetchval(own))

    await bench.at_every_await(arrange, check)
    pulses[-1].disconnect()


async def test_a_cancelled_expiry_counts_one_crash(bench, ladder, workshop):
    """Carried out or not, the next sweep ends with the claim taken back once."""

    async def arrange() -> Make:
        await ladder.claimed()
        await ladder.lapse()
        return workshop.expire_tick

    async def check() -> None:
        await workshop.expire_tick()
        row = await ladder.session()
        assert (row["status"], row["crashes"], row["claim_generation"]) == ("clarified", 1, 2)
        await is_drafted_once(ladder)

    await bench.at_every_await(arrange, check)


async def test_a_cancelled_application_loses_no_event(bench, ladder):
    """An event is applied with all that belongs to it, or is pending still; then it is applied."""
    applier = Applier(bench.pool, RULES, here(), Bell(bench.database))

    async def arrange() -> Make:
        await ladder.record(
            shapes.labelled(1), shapes.commented(1, minute=2, text="In euros.", comment=7)
        )
        return applier.tick

    async def check() -> None:
        pending = "select count(*) from events where status = 'pending'"
        facts = await ladder.conn.fetchval("select count(*) from facts")
        assert (await ladder.conn.fetchval(pending), facts) in ((2, 0), (0, 2))
        while await applier.tick():
            pass
        assert await ladder.conn.fetchval(pending) == 0
        moves = await ladder.conn.fetch("select move from timeline order by id")
        assert [row["move"] for row in moves] == ["open", "clear"]
        assert await ladder.conn.fetchval("select text from conversation") == "In euros."

    await bench.at_every_await(arrange, check)


async def test_a_cancelled_sending_posts_one_comment(bench, ladder):
    """Posted or not, said or not: in the end the comment is there once, and the row knows it."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        sender = Sender(name="sender", pool=bench.pool, workspaces=here(shortcut))
        stories: list[int] = []

        async def arrange() -> Make:
            stories.append(simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id)
            claim = await ladder.claimed(stories[-1])
            await ENDINGS["complete"](ladder.conn, claim)
            return sender.tick

        async def check() -> None:
            await ladder.conn.execute(
                "update outbox set claim_expires_at = now() where status = 'sending'"
            )
            await sender.expire_tick()
            await sender.tick()
            said = simulation.workspace.comments.values()
            ours = [it for it in said if it.author_id == AGENT.id and it.story_id == stories[-1]]
            assert len(ours) == 1
            row = await ladder.conn.fetchrow("select status, comment_id from outbox")
            assert tuple(row) == ("sent", ours[0].id)

        await bench.at_every_await(arrange, check)


async def test_cancelled_work_is_done_once(bench, ladder, workshop):
    """Wherever a worker is cut off, the next one ends with one draft, and no beat goes on."""

    async def arrange() -> Make:
        await ladder.clarified()
        return partial(workshop.tick, Phase.DRAFT)

    async def check() -> None:
        assert workshop.held == {}
        await until(no_beats)
        await is_drafted_once(ladder)

    async def no_beats() -> bool:
        beats = asyncio.all_tasks(workshop.heart._loop)
        return await asyncio.sleep(0, not beats)

    await bench.at_every_await(arrange, check)


@pytest.fixture
async def workshop(bench: Bench) -> AsyncIterator[Workshop]:
    """A worker on the small pool, whose drafter takes no time."""
    heart = Heart(bench.database, lease=LIMITS.lease, interval=LIMITS.lease / 3)
    heart.start()
    yield Workshop(
        worker="worker",
        pool=bench.pool,
        endings=bench.pool,
        heart=heart,
        drafter=Drafts(),
        workspaces=here(),
        bell=Bell(bench.database),
        limits=LIMITS,
        cut_off=asyncio.Event(),
    )
    heart.stop()
