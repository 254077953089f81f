"""Cases that break claims elsewhere, forced here; README.md lists them all."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from app.cli.trial import SAMPLE_DRAFTER
from app.db import events, gate, look, outbox, sessions
from app.db.connect import Connection, Database, Pool, redoable, take
from app.machine import Phase
from app.outage import Outage
from app.settings import Settings
from app.shortcut.envelope import read
from app.wake import Bell
from app.worker.apply import Applier
from app.worker.claims import acquire
from app.worker.engine import Engine
from app.worker.hooks import Hooks
from app.worker.reconcile import Reconciler
from tests import shapes
from tests.ladder import DRAFT, LEASE, RULES, Ladder, bid, comment, here
from tests.locks import blocked, until
from tests.proxy import Proxy, proxy_to
from tests.stack import Stack, stack
from tests.test_lost_replies import BEAT, LIMITS, Drafts, beating, everything, waiting, workshop
from tests.test_processes import SLOW, at_rest, is_drafting, log_says, story

APP = Path(__file__).parent.parent / "app"
SHORT = timedelta(seconds=0.6)


class Waits(Drafts):
    """A drafter that the test lets go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def draft(self, claim, story, **more):
        self.begun.set()
        await self.go_on.wait()
        return await super().draft(claim, story)


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    """A proxy in front of the fresh database."""
    async with proxy_to(database.dsn) as proxy:
        yield proxy


async def expire(conn: Connection, **how: Any) -> list[asyncpg.Record]:
    """Takes back what has run out."""
    asked = {"limit": 10, "max_crashes": 9, "delay": timedelta(0), "error": "gone", "text": "No"}
    return await gate.expire(conn, **{**asked, **how})


async def complete(conn: Connection, claim) -> bool:
    """Ends a claim with a draft."""
    return await gate.complete(conn, claim, DRAFT, comment=comment(claim))


# --- two that want the same row --------------------------------------------------------------


async def test_expiry_passes_by_a_session_that_is_being_completed(ladder, connect):
    """A sweep that meets a completion neither waits for it nor overwrites what it wrote."""
    claim = await ladder.claimed()
    await ladder.lapse()
    worker, expirer = await connect(), await connect()
    await expirer.execute("set lock_timeout = '1s'")

    async with worker.transaction():
        assert await complete(worker, claim)
        assert await expire(expirer) == []
    before = await everything(ladder)

    assert await expire(expirer) == []
    assert await everything(ladder) == before


async def test_a_sweep_from_an_old_snapshot_takes_no_new_claim(ladder, connect):
    """What was seen as lapsed and has been claimed anew since is not taken from its new owner."""
    await ladder.claimed(worker="old")
    await ladder.lapse()
    expirer = await connect()
    sweep = expirer.transaction(isolation="repeatable_read")
    await sweep.start()
    await expirer.fetch("select from patch_sessions")
    await expire(ladder.conn)
    new = await ladder.claim(worker="new")

    with pytest.raises(asyncpg.SerializationError):
        await expire(expirer)
    await sweep.rollback()

    assert await expire(expirer) == []
    assert await gate.beat(ladder.conn, new, lease=LEASE)


async def test_two_sweeps_at_once_take_each_claim_back_once(ladder, connect):
    """While one sweep is writing, another passes by; each claim counts one crash."""
    for number in (1, 2):
        await ladder.claimed(number)
        await ladder.lapse(number)
    first, second = await connect(), await connect()
    await second.execute("set lock_timeout = '1s'")

    async with first.transaction():
        taken = await expire(first, limit=1)
        taken += await expire(second)
    taken += await expire(second)

    assert sorted(row["sc_id"] for row in taken) == [1, 2]
    crashes = "select array_agg(crashes) from patch_sessions"
    assert await ladder.conn.fetchval(crashes) == [1, 1]


async def test_a_sweep_that_is_killed_in_the_middle_holds_nothing_up(ladder, connect):
    """What a dying process had taken back is as it was, and the next sweep takes it back."""
    claim = await ladder.claimed()
    await ladder.lapse()
    killed, next_one = await connect(), await connect()
    await killed.transaction().start()
    assert len(await expire(killed)) == 1
    pid = killed.get_server_pid()

    await ladder.conn.execute("select pg_terminate_backend($1)", pid)
    gone = "select not exists (select from pg_stat_activity where pid = $1)"
    await until(lambda: ladder.conn.fetchval(gone, pid))

    assert [row["sc_id"] for row in await expire(next_one)] == [1]
    row = await ladder.session()
    assert (row["crashes"], row["claim_generation"]) == (1, claim.generation + 1)


async def test_two_claims_within_one_tick_of_the_clock_differ(ladder, conn):
    """A generation is a counter and no time: under a clock that stands still it still grows."""
    await ladder.clarified()
    await conn.execute("set draftgate.now = '2099-01-02 03:04:05+00'")

    first = await ladder.claim(worker="same")
    await gate.release(conn, first, error="x", delay=timedelta(0), failed=True)
    second = await ladder.claim(worker="same")

    assert second.generation == first.generation + 1
    assert not await complete(conn, first)
    assert await complete(conn, second)


async def test_a_taken_back_session_is_claimed_like_any_other(ladder, conn):
    """After an expiry the ordinary claim gets the row, and the timeline tells whose it was."""
    await ladder.claimed(worker="dead")
    await ladder.lapse()
    await expire(conn)

    again = await gate.claim_next(conn, Phase.DRAFT, bid("new"))

    assert again.worker == "new"
    told = await conn.fetchrow("select actor, reason from timeline where move = 'expire'")
    assert tuple(told) == ("dead", "gone")


async def test_who_may_crash_once_never_runs_again_after_a_crash(ladder, conn):
    """With a budget of one, the first crash ends it: failed, told, and no claim left."""
    await ladder.claimed()
    await ladder.lapse()

    assert [row["status"] for row in await expire(conn, max_crashes=1)] == ["failed"]

    assert await gate.claim_next(conn, Phase.DRAFT, bid()) is None
    row = await ladder.session()
    assert (row["claim_token"], row["attempts"], row["last_error"]) == (None, 0, "gone")
    assert await conn.fetchval("select kind from outbox") == "failure"


async def test_however_many_crashes_are_allowed_the_wait_stays_a_wait(ladder, conn):
    """The backoff after a hundredth crash is a time that can be stored, and that comes."""
    await ladder.claimed()
    await ladder.lapse()
    await conn.execute("update patch_sessions set crashes = 98")

    await expire(conn, max_crashes=100, delay=timedelta(seconds=10))

    soon = "select next_attempt_at < now() + interval '1 day' from patch_sessions"
    assert await conn.fetchval(soon)


async def test_an_expiry_is_what_the_row_says_whoever_looks(ladder, conn):
    """Workers with different leases: each claim ends when its own row says so."""
    await ladder.clarified(1)
    await ladder.clarified(2)
    await conn.execute("set draftgate.now = '2099-01-01 00:00:00+00'")
    for number, lease in ((1, timedelta(seconds=1)), (2, timedelta(minutes=30))):
        asked = bid(lease=lease)
        await gate.claim(conn, Phase.DRAFT, asked, workspace="shortcut", sc_id=number)

    await conn.execute("set draftgate.now = '2099-01-01 00:01:00+00'")
    expired = await expire(conn)

    assert [row["sc_id"] for row in expired] == [1]


async def test_time_zones_of_sessions_change_nothing(ladder, connect):
    """A claim made under one time zone is neither expired nor due earlier under another."""
    await ladder.clarified()
    east, west = await connect(), await connect()
    await east.execute("set time zone 'Pacific/Auckland'")
    await west.execute("set time zone 'America/Anchorage'")

    claim = await gate.claim_next(east, Phase.DRAFT, bid())
    assert await expire(west) == []
    wait = timedelta(minutes=5)
    assert await gate.release(west, claim, error="x", delay=wait, failed=True)

    assert await gate.claim_next(east, Phase.DRAFT, bid()) is None
    assert await gate.claim_next(west, Phase.DRAFT, bid()) is None
    await ladder.due()
    assert await gate.claim_next(west, Phase.DRAFT, bid()) is not None


async def test_a_status_of_a_later_version_is_left_alone(ladder, conn):
    """Old code next to a newer schema: a row it does not know is neither claimed nor expired."""
    await ladder.clarified()
    await conn.execute("alter table patch_sessions drop constraint session_status_is_known")
    await conn.execute("update patch_sessions set status = 'paused'")
    before = await everything(ladder)

    for phase in Phase:
        assert await gate.claim_next(conn, phase, bid()) is None
    assert await expire(conn) == []

    assert await everything(ladder) == before


async def test_a_server_that_serialises_by_default_changes_nothing(ladder, conn, connect, database):
    """Whatever isolation the server's default is, a completion is carried out in the end."""
    name = await conn.fetchval("select current_database()")
    await conn.execute(f'alter database "{name}" set default_transaction_isolation = serializable')
    await ladder.clarified()
    other, drafter = await connect(), Waits()
    async with workshop(database, drafter) as worker:
        working = asyncio.create_task(worker.tick(Phase.DRAFT))
        await drafter.begun.wait()
        async with other.transaction():
            await other.execute("update patch_sessions set updated_at = updated_at")
            drafter.go_on.set()
            await waiting(ladder, 1)
        await working

    assert (await ladder.session())["status"] == "drafted"
    assert (await look.counts(conn)).drafts == 1


async def test_a_completion_that_loses_a_deadlock_is_carried_out_later(ladder, connect, database):
    """What was drafted is not thrown away because the server had to break a circle."""
    await ladder.clarified()
    other = await connect()
    await other.execute("set deadlock_timeout = '1min'")
    drafter = Waits()
    async with workshop(database, drafter) as worker:
        working = asyncio.create_task(worker.tick(Phase.DRAFT))
        await drafter.begun.wait()
        circle = other.transaction()
        await circle.start()
        await other.execute("lock table outbox")
        drafter.go_on.set()
        await waiting(ladder, 1)
        # The completion holds the session's row and waits for the outbox; now the other way round.
        await other.execute("update patch_sessions set updated_at = updated_at")
        await circle.rollback()
        await working

    assert drafter.runs == 1
    counts = await look.counts(ladder.conn)
    assert (counts.drafts, counts.drafted, counts.owed) == (1, 1, 1)


# --- beats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [True, False])
async def test_finishing_while_a_beat_is_in_flight_succeeds(ladder, proxy, database, answered):
    """A beat changes no generation: neither one that was carried out nor a late one disturbs."""
    caught = proxy.catch(BEAT) if answered else proxy.catch_request(BEAT)
    far = proxy.through(database)
    async with beating(ladder, far) as (held, _):
        await (caught.executed if answered else caught.seen).wait()

        assert await complete(ladder.conn, held.claim)
        before = await everything(ladder)
        caught.deliver()

    assert (await ladder.session())["status"] == "drafted"
    assert await everything(ladder) == before


async def test_slow_beats_leave_no_gap(ladder, proxy, database):
    """Each beat takes most of its interval, again and again: the claim never runs out."""
    proxy.delay(0.08)
    async with beating(ladder, proxy.through(database)) as (held, _):
        first = (await ladder.session())["claim_expires_at"]
        later = "select claim_expires_at > $1 from patch_sessions"

        async def several_leases() -> str:
            await until(lambda: ladder.conn.fetchval(later, first + 3 * SHORT))
            return "done"

        assert await held.run(several_leases()) == "done"
    assert await expire(ladder.conn) == []


async def test_a_worker_completes_while_every_work_connection_is_taken(ladder, database):
    """The ends of claims have a pool of their own: nothing else can keep a result waiting."""
    await ladder.clarified()
    drafter = Waits()
    async with workshop(database, drafter) as worker:
        working = asyncio.create_task(worker.tick(Phase.DRAFT))
        await drafter.begun.wait()
        taken = [await worker.pool.acquire() for _ in range(database.pool_size)]

        drafter.go_on.set()
        await asyncio.wait([working], timeout=LIMITS.lease.total_seconds() / 3)
        in_time = working.done()

        for connection in taken:
            await worker.pool.release(connection)
        await working
    assert in_time
    assert (await ladder.session())["status"] == "drafted"


async def test_two_attempts_of_one_worker_are_kept_apart(ladder, database):
    """An old attempt that comes to its end does not put out the mark of the new one."""
    await ladder.clarified()
    old, new = Waits(), Waits()
    async with workshop(database, old) as worker:
        second = replace(worker, drafter=new)
        first_tick = asyncio.create_task(worker.tick(Phase.DRAFT))
        await old.begun.wait()
        await sessions.take_away(ladder.conn, (await ladder.session())["id"], actor="operator")
        # The old attempt takes longer than its lease to hear of it.
        await ladder.stop_waiting()
        second_tick = asyncio.create_task(second.tick(Phase.DRAFT))
        await new.begun.wait()

        old.go_on.set()
        await first_tick
        assert [generation for _, generation in second.held] == [3]
        new.go_on.set()
        await second_tick

    counts = await look.counts(ladder.conn)
    assert (counts.drafts, counts.drafted, counts.owed) == (1, 1, 1)


async def test_a_cut_connection_in_the_middle_of_a_draft_costs_nothing(ladder, proxy, database):
    """The database goes away while a drafter runs and comes back: one finisher, one draft."""
    await ladder.clarified()
    drafter = Waits()
    async with workshop(proxy.through(database), drafter) as worker:
        working = asyncio.create_task(worker.tick(Phase.DRAFT))
        await drafter.begun.wait()

        proxy.refuse()
        drafter.go_on.set()
        proxy.accept()
        await working

    assert drafter.runs == 1
    row = await ladder.session()
    assert (row["status"], row["claim_generation"], row["crashes"]) == ("drafted", 1, 0)


async def test_restarts_of_workers_cost_no_attempt(ladder, database):
    """Five rolling restarts in the middle of one draft: no attempt is counted, and it is done."""
    await ladder.clarified()
    for _ in range(5):
        drafter = Waits()
        async with workshop(database, drafter) as worker:
            working = asyncio.create_task(worker.tick(Phase.DRAFT))
            await drafter.begun.wait()
            worker.cut_off.set()
            await working

    async with workshop(database, Drafts()) as worker:
        await worker.tick(Phase.DRAFT)

    row = await ladder.session()
    assert (row["attempts"], row["crashes"], row["interruptions"]) == (0, 0, 5)
    assert (await look.counts(ladder.conn)).drafts == 1


def test_an_outage_is_two_lines_in_the_log():
    """However often something is tried in vain, its going and its coming back are said once."""
    outage = Outage("database")
    with capture_logs() as lines:
        for _ in range(1000):
            outage.failed(ConnectionRefusedError())
        for _ in range(2):
            outage.worked()

    assert [line["event"] for line in lines] == ["outage.began", "outage.ended"]


async def test_loops_outlive_an_outage(ladder, proxy, database):
    """The database is away: each loop says so once, and goes on when it is back."""
    proxy.refuse()
    async with workshop(proxy.through(database), Drafts()) as worker:
        bell, stopping = worker.bell, asyncio.Event()
        applier = Applier(worker.pool, RULES, here(), bell)
        reconciler = Reconciler(
            take=partial(take, worker.pool),
            workspaces=here(),
            rules=RULES,
            every=timedelta(0),
            ring=bell.ring,
        )
        engine = Engine(
            applier=lambda: asyncio.sleep(0, applier),
            reconciler=lambda: reconciler,
            workshop=worker,
            sender=None,
            watches=[
                Hooks(
                    take=partial(take, worker.pool),
                    settings=Settings(_env_file=None),
                    workspaces=here(),
                ).tick
            ],
            bell=bell,
            stopping=stopping,
            slots=3,
            poll_seconds=0.1,
        )
        with capture_logs() as lines:
            running = asyncio.create_task(engine.run())

            async def have_all_failed() -> bool:
                return await asyncio.sleep(0, len(said("outage.began", lines)) >= 7)

            async def have_all_worked() -> bool:
                return await asyncio.sleep(0, len(said("outage.ended", lines)) >= 7)

            await until(have_all_failed)
            proxy.accept()
            await until(have_all_worked)  # Before there is anything to draft.
            await ladder.record(shapes.labelled(1))
            drafted = "select exists (select from patch_sessions where status = 'drafted')"
            await until(lambda: ladder.conn.fetchval(drafted))
            stopping.set()
            bell.ring()
            await running

    loops = [
        "clarify_tick",
        "draft_tick",
        "expire_tick",
        "read_tick",
        "tick",
        "tick",
        "tick",
    ]
    assert said("outage.began", lines) == loops
    assert said("outage.ended", lines) == loops


def said(event: str, lines: list[Any]) -> list[str]:
    """Of what this was said, once for each time that it was said."""
    return sorted(line["what"] for line in lines if line["event"] == event)


# --- connections -----------------------------------------------------------------------------


SMALL = 2


@pytest.fixture
async def small(database: Database) -> AsyncIterator[Pool]:
    """A pool of two."""
    pool = await replace(database, pool_size=SMALL).pool("small")
    yield pool
    pool.terminate()


async def is_clean(pool: Pool, conn: Connection) -> None:
    """Every connection of the pool starts outside a transaction, and what it writes is seen."""
    async with take(pool) as one, take(pool) as other:
        for number, mine in enumerate((one, other)):
            assert await mine.fetchval("select pg_current_xact_id_if_assigned() is null")
            kind = f"clean {number}"
            await mine.execute(
                "insert into events (source, dedupe_key, kind, body)"
                " values ('s', gen_random_uuid(), $1, '')",
                kind,
            )
            written = "select count(*) from events where kind = $1"
            assert await conn.fetchval(written, kind) == 1
            await conn.execute("delete from events where kind = $1", kind)
    connected = (
        "select count(*) <= $1 from pg_stat_activity"
        " where application_name = 'draftgate small' and datname = current_database()"
    )
    await until(lambda: conn.fetchval(connected, SMALL))


async def test_cancelled_waits_for_a_connection_leak_none(small, conn):
    """Two thousand that were cancelled while they waited leave the pool as it was."""
    taken = [await small.acquire() for _ in range(SMALL)]
    waits = [asyncio.ensure_future(small.acquire(timeout=60)) for _ in range(2000)]
    await asyncio.wait(waits, timeout=0)

    for wait in waits[::2]:
        wait.cancel()
    for connection in taken:
        await small.release(connection)
    for wait in waits[1::2]:
        wait.cancel()
    await asyncio.wait(waits)
    for wait in waits:
        if not wait.cancelled():
            await small.release(wait.result())

    await is_clean(small, conn)


async def test_cancelled_transactions_leave_no_connection_in_one(small, conn):
    """Cancelled at any point of BEGIN, INSERT and COMMIT, three hundred times over."""

    async def insert() -> None:
        async with redoable(small) as mine:
            await mine.execute(
                "insert into events (source, dedupe_key, kind, body)"
                " values ('s', gen_random_uuid(), 'v1', '')"
            )

    for turns in range(300):
        task = asyncio.create_task(insert())
        for _ in range(turns % 30):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    await is_clean(small, conn)


async def test_connections_that_died_unnoticed_cost_a_claim_nothing(ladder, pool):
    """After a restart of the server the first claim of an idle pool is made all the same."""
    await ladder.clarified()
    for mine in [await pool.acquire() for _ in range(SMALL)]:
        await pool.release(mine)
    await ladder.conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'draftgate test' and datname = current_database()"
        " and pid <> pg_backend_pid()"
    )

    assert (await acquire(pool, Phase.DRAFT, bid())).generation == 1


# --- many rows -------------------------------------------------------------------------------


@dataclass
class Field:
    """Six stories with all that several statements at once could want to lock."""

    ladder: Ladder
    pool: Pool
    database: Database

    async def prepare(self) -> None:
        for number in range(1, 7):
            claim = await self.ladder.claimed(number)
            if number == 6:
                await complete(self.ladder.conn, claim)
            elif number > 3:
                await gate.release(
                    self.ladder.conn, claim, error="x", delay=timedelta(0), failed=True
                )
            else:
                await self.ladder.lapse(number)
        await self.ladder.conn.execute(
            "insert into outbox (session_id, key, kind, text, status, claimed_by, claim_expires_at)"
            " select id, 'k' || id, 'draft', 'x', 'sending', 'dead', now() from patch_sessions"
        )
        for number in (5, 3, 1, 6, 4, 2):
            await self.ladder.record(shapes.archived(number, minute=30 + number))

    async def apply(self) -> None:
        applier = Applier(self.pool, RULES, here(), Bell(self.database))
        await applier.tick()

    async def apply_backwards(self) -> None:
        """What another applier would do with the same stories in another order."""
        stories = [("shortcut", number) for number in (6, 5, 4, 3, 2, 1)]
        async with redoable(self.pool) as conn:
            await sessions.lock(conn, stories)
            for _, number in stories:
                await sessions.evict(conn, "shortcut", number)

    def batch(self, *numbers: int) -> Callable[[], Awaitable[None]]:
        async def record() -> None:
            bodies = [shapes.labelled(number, minute=60) for number in numbers]
            async with take(self.pool) as conn:
                await events.record(conn, [read("shortcut", body, []) for body in bodies])

        return record

    def on_one(self, call: Callable[[Connection], Coroutine[Any, Any, object]]):
        async def run() -> None:
            async with take(self.pool) as conn:
                await call(conn)

        return run

    def statements(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Everything that writes to more than one row."""
        return {
            "apply": self.apply,
            "apply backwards": self.apply_backwards,
            "record": self.batch(1, 2, 3),
            "record backwards": self.batch(3, 2, 1),
            "expire": self.on_one(expire),
            "claim": self.on_one(lambda conn: gate.claim_next(conn, Phase.DRAFT, bid())),
            "expire senders": self.on_one(lambda conn: outbox.expire(conn, limit=10)),
            "send": self.on_one(lambda conn: outbox.claim(conn, sender="s", lease=LEASE)),
        }


NAMES = list(Field(None, None, None).statements())  # type: ignore[arg-type]
PAIRS = [(one, other) for n, one in enumerate(NAMES) for other in NAMES[n:]]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda name: name)
async def test_no_two_statements_wait_for_each_other(ladder, connect, database, one, other):
    """Over the same rows, held up in the middle of them, two statements end without a deadlock."""
    locker = await connect()
    async with database.pool("field") as pool:
        field = Field(ladder, pool, database)
        await field.prepare()
        held = locker.transaction()
        await held.start()
        # In the middle, so that whoever takes rows in order holds some and waits for others.
        for table in ("patch_sessions", "outbox", "events"):
            await locker.execute(f"select from {table} where id = 3 for update")
        await locker.execute(
            "insert into events (source, dedupe_key, kind, body) values ('shortcut', $1, '', '')",
            read("shortcut", shapes.labelled(2, minute=60), []).dedupe_key.hex(),
        )
        running = [asyncio.ensure_future(field.statements()[name]()) for name in (one, other)]
        await until(lambda: held_up_or_done(ladder, running))
        await held.rollback()

        async with asyncio.timeout(20):
            await asyncio.gather(*running)


async def held_up_or_done(ladder: Ladder, running: list[asyncio.Future[None]]) -> bool:
    """Whether each of them has either ended or waits for a lock."""
    waits = await ladder.conn.fetchval(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        " and application_name = 'draftgate field' and datname = current_database()"
    )
    return waits + sum(task.done() for task in running) >= len(running)


@pytest.mark.parametrize("start", [1, 1001, 2001, 3001])
async def test_batches_of_any_size_take_their_keys_in_one_order(ladder, connect, start):
    """A small batch and a large one with the same deliveries end, whatever plans they have."""
    deliveries = [read("shortcut", shapes.labelled(n), []) for n in range(start, start + 256)]
    middle = sorted(delivery.dedupe_key for delivery in deliveries[:100])[50]
    locker, small, large = await connect(), await connect(), await connect()

    held = locker.transaction()
    await held.start()
    await locker.execute(
        "insert into events (source, dedupe_key, kind, body) values ('shortcut', $1, '', '')",
        middle.hex(),
    )
    first = await blocked(ladder.conn, small, events.record(small, deliveries[:100]))
    second = await blocked(ladder.conn, large, events.record(large, deliveries))
    await held.rollback()

    assert len(await first) + len(await second) == 256


async def test_two_receivers_of_the_same_thousand_record_a_thousand(ladder, connect):
    """The same deliveries at two doors at once, in opposite orders: each is recorded once."""
    bodies = [shapes.labelled(number) for number in range(1, 1001)]
    deliveries = [read("shortcut", body, []) for body in bodies]

    async def record(conn: Connection, whole: list[Any]) -> int:
        pieces = [whole[n : n + 100] for n in range(0, 1000, 100)]
        return sum([len(await events.record(conn, piece)) for piece in pieces])

    new = await asyncio.gather(
        record(await connect(), deliveries), record(await connect(), deliveries[::-1])
    )

    assert sum(new) == 1000
    assert await ladder.conn.fetchval("select count(*) from events") == 1000


async def test_a_long_queue_that_is_locked_hides_nothing_behind_it(ladder, connect):
    """Two hundred sessions at the head are being written: the one behind them is found."""
    for number in range(1, 202):
        await ladder.record(shapes.labelled(number))
    while await ladder.applier.tick():
        pass
    locker, puller = await connect(), await connect()
    await ladder.conn.execute(
        "update patch_sessions set next_attempt_at = now() - interval '1 hour' where sc_id < 201"
    )

    async with locker.transaction():
        await locker.execute("select from patch_sessions where sc_id < 201 for update")
        claim = await gate.claim_next(puller, Phase.DRAFT, bid())

    assert claim.sc_id == 201


async def test_failing_sessions_hold_up_no_good_one(ladder, conn):
    """However many fail again and again, one that is due is claimed before any is tried anew."""
    for number in range(1, 11):
        await ladder.clarified(number)
    tried = []
    for _ in range(9):
        claim = await gate.claim_next(conn, Phase.DRAFT, bid())
        tried.append(claim.sc_id)
        await gate.release(conn, claim, error="x", delay=timedelta(0), failed=True)

    assert (await gate.claim_next(conn, Phase.DRAFT, bid())).sc_id == 10
    assert tried == list(range(1, 10))


async def test_hot_tables_are_vacuumed_early(conn):
    """Tables that are updated all the time say so to autovacuum, and leave room in their pages."""
    options = dict(await conn.fetch("select relname, reloptions from pg_class where relkind = 'r'"))

    assert "autovacuum_vacuum_scale_factor=0.02" in options["patch_sessions"]
    assert "fillfactor=70" in options["patch_sessions"]
    assert "autovacuum_vacuum_scale_factor=0.05" in options["events"]
    assert "fillfactor=80" in options["outbox"]


def test_what_goes_through_a_pooler_needs_no_session():
    """No statement of ours keeps anything in its connection: no SET, LISTEN or session lock."""
    keeps = re.compile(r"pg_advisory_lock|pg_try_advisory_lock|^\s*\"*(set|listen)\s", re.M | re.I)
    found = {
        path.name: keeps.findall(text)
        for path in sorted((APP / "db").glob("*.py"))
        if keeps.search(text := re.sub(r"(?m)^\s+set \w+ =", "", path.read_text()))
    }

    assert found == {}


def test_no_worker_s_clock_decides():
    """What holds a claim reads no wall clock of its own machine; leases are the server's."""
    packages = (sorted((APP / name).glob("*.py")) for name in ("worker", "db"))
    paths = [APP / "decide.py", APP / "wake.py", *chain.from_iterable(packages)]

    reads = re.compile(r"datetime\.now|utcnow|time\.time\(|date\.today")
    assert [path.name for path in paths if reads.search(path.read_text())] == []


def test_every_test_that_is_named_exists():
    """The tables of README.md name tests that are there."""
    here = Path(__file__).parent
    named = set(re.findall(r"`(test_\w+)`", (here / "README.md").read_text()))
    written = "\n".join(path.read_text() for path in here.glob("test_*.py"))

    assert named - set(re.findall(r"def (test_\w+)", written)) == set()


# --- real processes --------------------------------------------------------------------------


@asynccontextmanager
async def processes(database: Database, home: Path, **settings: str) -> AsyncIterator[Stack]:
    """A receiver, and whatever a test starts beside it."""
    async with stack(database, home) as started:
        started.settings |= {
            "DRAFTGATE_RETRY_BASE_SECONDS": "0.2",
            "DRAFTGATE_POLL_SECONDS": "0.2",
            "DRAFTGATE_LEASE_SECONDS": "2",
            "DRAFTGATE_LOG_FORMAT": "json",
            **settings,
        }
        yield started


async def have_started(it: Stack, count: int) -> bool:
    """Whether so many processes are up."""
    return (await asyncio.to_thread(it.log)).count("process.started") >= count


async def test_a_worker_that_was_stopped_past_its_lease_counts_for_nothing(dsn, conn, tmp_path):
    """SIGSTOP, another worker drafts, SIGCONT: one draft, one comment, and the zombie lives on."""
    go_on = tmp_path / "go-on"
    waits = f"until test -e {go_on}; do sleep 0.1; done; exec {' '.join(SAMPLE_DRAFTER)}"
    # Straight to the server: what is frozen here is a worker, not a pooler's client, whose server
    # connections come free after the pooler's `query_timeout`.
    direct = Database(dsn=dsn, listen_dsn=dsn)
    async with processes(direct, tmp_path) as it:
        await it.receiver()
        it.drafter = ("sh", "-c", waits)
        frozen = await it.worker()
        story(it)
        await until(is_drafting(conn))
        frozen.send_signal(signal.SIGSTOP)
        it.drafter = SAMPLE_DRAFTER
        await it.worker()
        await until(at_rest(conn, drafted=1))

        go_on.touch()
        frozen.send_signal(signal.SIGCONT)
        await until(lambda: log_says(it, "claim.lost"))
        await until(at_rest(conn, drafted=1))

        row = await conn.fetchrow("select revision, claim_generation from patch_sessions")
        # Looked at, drafting, expired, drafting.
        assert tuple(row) == (1, 4)
        assert await conn.fetchval("select generation from drafts") == 4
        assert len(it.comments()) == 1
        assert frozen.returncode is None


async def test_from_the_kill_to_the_next_start_is_bounded(database, conn, tmp_path):
    """kill -9: the next start comes within the lease, a poll, the crash's backoff and a second."""
    async with processes(database, tmp_path) as it:
        await it.receiver()
        it.drafter = SLOW
        victim = await it.worker()
        story(it)
        await until(is_drafting(conn))
        it.drafter = SAMPLE_DRAFTER
        await it.worker()
        await until(lambda: have_started(it, 3))

        killed_at = await conn.fetchval("select clock_timestamp()")
        victim.kill()
        await until(at_rest(conn, drafted=1))

        started = "select max(at) from timeline where move = 'claim'"
        gap = await conn.fetchval(started) - killed_at
        assert gap.total_seconds() < 2 + 0.2 + 0.2 + 1


async def test_a_deploy_hands_work_over_at_once(database, conn, tmp_path):
    """SIGTERM to the worker that drafts: another one begins within seconds of the release."""
    async with processes(database, tmp_path, DRAFTGATE_SHUTDOWN_GRACE_SECONDS="0.2") as it:
        await it.receiver()
        it.drafter = SLOW
        old = await it.worker()
        story(it)
        await until(is_drafting(conn))
        it.drafter = SAMPLE_DRAFTER
        await it.worker()
        await until(lambda: have_started(it, 3))

        old.terminate()
        await until(at_rest(conn, drafted=1))

        gap = await conn.fetchval(
            "select max(at) filter (where move = 'claim') - max(at) filter (where move = 'release')"
            " from timeline"
        )
        assert timedelta(0) < gap < timedelta(seconds=5)
        attempts = "select attempts + crashes from patch_sessions"
        assert await conn.fetchval(attempts) == 0


@pytest.mark.parametrize("way", ["refuses", "is silent"])
async def test_a_worker_ends_though_the_database_is_gone(database, conn, proxy, tmp_path, way):
    """SIGTERM while nothing can be given back: the process ends within its limit all the same."""
    far = replace(proxy.through(database), listen_dsn=database.listen_dsn)
    async with processes(far, tmp_path, DRAFTGATE_SHUTDOWN_GRACE_SECONDS="0.2") as it:
        await it.receiver()
        it.drafter = SLOW
        worker = await it.worker()
        story(it)
        await until(is_drafting(conn))
        if way == "refuses":
            proxy.refuse()
        else:
            proxy.freeze()

        worker.terminate()
        async with asyncio.timeout(30):
            await worker.wait()

        proxy.thaw()
        proxy.accept()
