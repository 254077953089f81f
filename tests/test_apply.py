"""From recorded events to moves: each with an outcome and a reason; none holds others up."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.db import events, sessions
from app.db.connect import DATABASE_ERRORS, Database, take
from app.db.events import Replay
from app.embedded import postgres
from app.errors import ShortcutUnavailable
from app.migrate import migrate
from app.model import EventStatus
from app.shortcut.client import ShortcutClient
from app.simulator.faults import Fault
from app.simulator.records import AGENT_ID, PEOPLE
from app.wake import Bell, Ring
from app.worker import apply
from app.worker.apply import Applier
from tests import shapes
from tests.ladder import RULES, Ladder, here
from tests.ladder import ladder as make_ladder
from tests.locks import WAITS, blocked, until
from tests.office import TOKEN, simulated
from tests.proxy import proxy_to

SAMPLES = Path(__file__).parent / "samples" / "deliveries"


async def outcome(ladder: Ladder):
    """The newest event's outcome and reason."""
    row = await ladder.conn.fetchrow("select status, reason from events order by id desc limit 1")
    return row["status"], row["reason"]


def reading(ladder: Ladder, shortcut: ShortcutClient) -> Ladder:
    """The same ladder with an API to read from."""
    return replace(ladder, applier=replace(ladder.applier, workspaces=here(shortcut)))


def nameless(story: int, label: int) -> bytes:
    """The story got a label of which the delivery says only the id."""
    body = shapes.labelled(story, label="x").replace(b'"name": "x"', b'"nothing": 1')
    return body.replace(str(shapes.LABEL_ID).encode(), str(label).encode())


def with_rules(ladder: Ladder, **rules: object) -> Ladder:
    """The same ladder with other rules."""
    return replace(ladder, applier=replace(ladder.applier, rules=replace(RULES, **rules)))


#: What each body leads to by default: outcome, reason, and the session's status.
OUTCOMES = {
    "v1-batch-without-primary-id": ("applied", "open to opened, then clear to clarified"),
    "v1-branch-from-vcs-without-member": ("ignored", "state entered, which opens no session"),
    "v1-comment-created-command": ("ignored", "commented, which opens no session"),
    "v1-comment-created": ("ignored", "commented, which opens no session"),
    "v1-comment-updated": ("ignored", "comment edited, which opens no session"),
    "v1-description-cleared": ("ignored", "described, which opens no session"),
    "v1-label-added-name-in-actions": ("applied", "open to opened, then clear to clarified"),
    "v1-label-added-name-in-references": ("applied", "open to opened, then clear to clarified"),
    "v1-label-id-equals-story-id": ("applied", "open to opened, then clear to clarified"),
    "v1-state-moved-owner-auto-added": (
        "applied",
        "open to opened, then clear to clarified; changes nothing that matters here",
    ),
    "v1-story-archived": ("ignored", "archived, which opens no session"),
    "v1-story-create": (
        "ignored",
        "created, which opens no session; state entered, which opens no session",
    ),
    "v1-story-deleted": ("ignored", "deleted, which opens no session"),
    "v2-assigned": ("applied", "open to opened"),
    "v2-mentioned-in-description": ("applied", "open to opened"),
    "v2-observer-id-as-string-no-changes": ("ignored", "touched, which opens no session"),
    "v2-observer-same-audit-id-as-assigned": ("applied", "open to opened"),
    "v2-own-write": ("ignored", "our own change"),
    "v2-validation-ping": ("ignored", "a validation ping"),
}
#: These two refer to a comment whose text must be read from the API first.
NEED_THE_API = {"v2-comment-reply", "v2-mentioned-in-comment"}


def test_every_sample_has_a_stated_outcome():
    """No delivery body is left without a word on what it leads to."""
    assert {path.stem for path in SAMPLES.glob("*.json")} == set(OUTCOMES) | NEED_THE_API


@pytest.mark.parametrize("name", OUTCOMES)
async def test_a_delivery_has_a_stated_outcome(ladder, name):
    """Each body ends with its outcome and a reason that a person can read."""
    await ladder.deliver((SAMPLES / f"{name}.json").read_bytes())

    assert await outcome(ladder) == OUTCOMES[name]


@pytest.mark.parametrize("name", sorted(NEED_THE_API))
async def test_without_the_api_a_comment_is_waited_for(ladder, name):
    """An event that needs the API stays pending, says so, and has a next time."""
    await ladder.deliver((SAMPLES / f"{name}.json").read_bytes())

    status, reason = await outcome(ladder)
    assert status == "pending"
    assert reason == "waits for the API: there is no token for its workspace"
    assert await ladder.conn.fetchval("select next_attempt_at > now() from events")


async def test_a_batch_opens_a_session_for_each_story(ladder):
    """One delivery about two stories opens two sessions."""
    await ladder.deliver((SAMPLES / "v1-batch-without-primary-id.json").read_bytes())

    rows = await ladder.conn.fetch("select sc_id from patch_sessions order by sc_id")
    assert [row["sc_id"] for row in rows] == [4105, 4106]


async def test_a_story_is_one_whether_its_number_is_a_number_or_text(ladder):
    """`"entity_id": "4201"` and `"id": 4201` are the same story, and one session."""
    names = ("v2-assigned", "v2-observer-same-audit-id-as-assigned")
    await ladder.deliver(*((SAMPLES / f"{name}.json").read_bytes() for name in names))

    assert await ladder.conn.fetchval("select count(*) from patch_sessions") == 1
    assert await outcome(ladder) == ("ignored", "the session is opened")


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ({"owner": shapes.BOT}, "v1-state-moved-owner-auto-added"),
        ({"state": "Ready for patch"}, "v1-state-moved-owner-auto-added"),
        ({"state": "500000008"}, "v1-state-moved-owner-auto-added"),
        ({"label": "PATCH"}, "v1-label-added-name-in-references"),
    ],
    ids=["owner", "state by name", "state by id", "label in another case"],
)
async def test_what_opens_a_session_is_a_rule(ladder, rules, name):
    """A session opens by label, by owner or by state, as the settings say."""
    await with_rules(ladder, **rules).deliver((SAMPLES / f"{name}.json").read_bytes())

    assert (await outcome(ladder))[0] == "applied"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ({"label": None}, "v1-label-added-name-in-references"),
        ({"label": "other"}, "v1-label-added-name-in-references"),
        ({"assigned": False}, "v2-assigned"),
        ({"mentioned": False}, "v2-mentioned-in-description"),
    ],
)
async def test_a_rule_that_is_off_opens_nothing(ladder, rules, name):
    """Without its rule a fact is ignored, and says why."""
    await with_rules(ladder, **rules).deliver((SAMPLES / f"{name}.json").read_bytes())

    assert (await outcome(ladder))[0] == "ignored"


async def test_an_event_that_breaks_us_does_not_hold_up_others(ladder):
    """One event in a batch that can't be applied is put off alone; the others are applied."""
    await ladder.conn.execute("alter table facts add constraint broken check (sc_id <> 2)")
    for story in (1, 2, 3):
        await ladder.record(shapes.labelled(story))

    while await ladder.applier.tick():
        pass

    rows = await ladder.conn.fetch("select status, reason, attempts from events order by id")
    assert [row["status"] for row in rows] == ["applied", "pending", "applied"]
    assert rows[1]["reason"] == "an error of ours: CheckViolationError"
    assert rows[1]["attempts"] == 1


async def test_an_error_of_ours_ends_after_its_tries(ladder):
    """An event that never works ends as failed, with the reason, and can be replayed."""
    await ladder.conn.execute("alter table facts add constraint broken check (sc_id <> 2)")
    await ladder.record(shapes.labelled(2))
    for _ in range(20):
        await ladder.conn.execute("update events set next_attempt_at = now()")
        await ladder.applier.tick()
    assert (await outcome(ladder))[0] == "failed"

    await ladder.conn.execute("alter table facts drop constraint broken")
    await events.replay(ladder.conn, 1, nonce="once", actor="operator")
    await ladder.applier.tick()

    assert (await outcome(ladder))[0] == "applied"


async def test_a_column_that_is_added_is_not_noticed(ladder):
    """A migration that adds to a table under a worker that runs costs it nothing."""
    await ladder.deliver(shapes.labelled(1))
    await ladder.conn.execute("alter table patch_sessions add column later integer")
    await ladder.record(shapes.archived(1, minute=2))

    await ladder.applier.tick()

    assert (await ladder.session())["status"] == "closed"


async def test_a_migration_under_a_worker_costs_a_try(ladder):
    """Statements prepared for another schema are no event's fault, and are tried again."""
    await ladder.deliver(shapes.labelled(1))
    await ladder.conn.execute("alter table patch_sessions alter column title type varchar")
    await ladder.record(shapes.archived(1, minute=2))

    async def applied() -> bool:
        with suppress(DATABASE_ERRORS):
            await ladder.applier.tick()
        return (await ladder.session())["status"] == "closed"

    with capture_logs() as lines:
        await until(applied)

    assert lines == []


async def test_the_database_is_no_event_s_fault(ladder, database):
    """An event whose application was cut off has not been tried."""
    async with (
        simulated() as (_, url),
        ShortcutClient(url, TOKEN) as shortcut,
        proxy_to(database.dsn) as proxy,
        proxy.through(database).pool("far") as far,
    ):
        applier = replace(reading(ladder, shortcut).applier, pool=far)
        await ladder.record(nameless(2, 5000))
        await applier.tick()
        proxy.lose_request("insert into facts")

        with pytest.raises(DATABASE_ERRORS):
            await applier.read_tick()

    assert await ladder.conn.fetchval("select attempts from events") == 0


async def test_what_is_done_with_an_event_is_done(ladder, conn):
    """An event that has ended is not taken, ended, put off or set aside again."""
    await ladder.clarified()
    before = await conn.fetchrow("select * from events")

    assert not await events.retake(conn, 1)
    await events.finish(conn, [(1, EventStatus.FAILED, "It broke")])
    await events.defer(conn, 1, delay=timedelta(hours=1), reason="Later")
    await events.set_aside(conn, [1])

    assert await conn.fetchrow("select * from events") == before


async def test_an_event_that_is_being_applied_is_waited_for(ladder, connect):
    """Who read for an event that somebody else is applying learns that it is done."""
    await ladder.record(shapes.labelled(1))
    first, second = await connect(), await connect()

    async with first.transaction():
        assert await events.retake(first, 1)
        waiting = await blocked(ladder.conn, second, events.retake(second, 1))
        await events.finish(first, [(1, EventStatus.IGNORED, "Nothing")])

    assert not await waiting


async def test_a_replay_has_all_its_tries(ladder, conn):
    """A failed event that is replayed is due at once and counts anew; a pending one is left."""
    await ladder.record(shapes.labelled(1))
    await events.defer(conn, 1, delay=timedelta(hours=1), reason="It broke")
    waiting = await conn.fetchrow("select * from events")

    assert await events.replay(conn, 1, nonce="same", actor="me") is Replay.PENDING
    assert await conn.fetchrow("select * from events") == waiting

    await events.set_aside(conn, [1])
    await events.finish(conn, [(1, EventStatus.FAILED, "It broke")])
    assert await events.replay(conn, 1, nonce="same", actor="me") is Replay.REPLAYED
    row = await conn.fetchrow(
        "select attempts, to_read, next_attempt_at <= clock_timestamp() as due from events"
    )
    assert tuple(row) == (0, False, True)


async def test_stories_are_locked_in_one_order(ladder, connect):
    """Two appliers of the same stories, told of them in different orders, both come through."""
    stories = [("shortcut", 1), ("shortcut", 2)]
    locker, one, other = [await connect() for _ in range(3)]

    async def hold(conn, these) -> None:
        async with conn.transaction():
            await sessions.lock(conn, these)

    async with locker.transaction():
        await sessions.lock(locker, stories)
        first = await blocked(ladder.conn, one, hold(one, stories))
        second = await blocked(ladder.conn, other, hold(other, stories[::-1]))

    await asyncio.gather(first, second)


async def test_rows_are_locked_in_the_order_of_their_ids(ladder, connect):
    """Whatever the plan, the session with the lower id is locked before the higher one."""
    await ladder.clarified(2)
    await ladder.clarified(1)
    locker, applier = await connect(), await connect()
    for way in ("seqscan", "hashjoin", "mergejoin"):
        await applier.execute(f"set enable_{way} = off")

    async with locker.transaction():
        await locker.execute("select from patch_sessions where sc_id = 1 for update")
        async with applier.transaction():
            locking = await blocked(
                ladder.conn, applier, sessions.lock(applier, [("shortcut", 1), ("shortcut", 2)])
            )
            free = "select sc_id from patch_sessions for update skip locked"
            assert await ladder.conn.fetch(free) == []
            await locker.execute("commit")
            await locking


async def test_two_appliers_pass_by_each_others_events(ladder, connect):
    """Events that one worker is applying are not waited for by another."""
    for story in (1, 2):
        await ladder.record(shapes.labelled(story))
    first, second = await connect(), await connect()
    await second.execute("set lock_timeout = '1s'")

    async with first.transaction(), second.transaction():
        taken = await events.take(first, limit=1), await events.take(second, limit=5)

    assert [[event.id for event in batch] for batch in taken] == [[1], [2]]


async def test_a_story_is_applied_by_one_worker_at_a_time(ladder, connect, pool, database):
    """A closing fact that is applied while the opening one is, waits, and closes the session."""
    await ladder.record(shapes.labelled(1, minute=1))
    opener = await connect()
    transaction = opener.transaction()
    await transaction.start()
    (opening,) = await events.take(opener, limit=1)
    said = ladder.applier._interpret(opening, {})
    await ladder.applier._apply(opener, [(opening, said)])
    await ladder.record(shapes.archived(1, minute=2))
    other = Applier(pool, RULES, here(), Bell(database))
    closing = asyncio.ensure_future(other.tick())
    await until(lambda: ladder.conn.fetchval(WAITS))

    await transaction.commit()

    await closing
    assert (await ladder.session())["status"] == "closed"


async def test_what_was_applied_wakes_who_has_to_do_with_it(ladder, monkeypatch):
    """A session that is ready whoever claims; its end everybody; a full batch whoever helps."""
    bell = ladder.applier.bell
    waiters = [bell.waiter(ring) for ring in (Ring.SESSION, Ring.BACKLOG, Ring.WORK)]
    heard = []
    for body in (shapes.labelled(1), shapes.archived(1, minute=2), shapes.labelled(1, minute=3)):
        await ladder.deliver(body)
        heard.append([waiter.is_set() for waiter in waiters])
        for waiter in waiters:
            waiter.clear()
        monkeypatch.setattr(apply, "BATCH_EVENTS", 1)

    assert heard == [[True, False, False], [True, True, True], [True, True, False]]


async def test_no_crash_of_the_server_costs_a_claim_or_an_event(tmp_path):
    """Applying waits for no disk: what a crash takes back is pending; a claim was durable first."""
    with postgres(tmp_path, options="-c wal_writer_delay=10s") as dsn:
        await migrate(dsn)
        async with laddered(dsn) as ladder:
            await ladder.claimed(1)
            await ladder.clarified(2)
            # All others go with it, and what is in memory: as in a crash of the whole server.
            os.kill(ladder.conn.get_server_pid(), signal.SIGKILL)
            await until(lambda: asyncio.sleep(0, ladder.conn.is_closed()))
        async with laddered(dsn) as ladder:
            assert (await ladder.session(1))["status"] == "drafting"

            await ladder.apply()

            assert (await ladder.session(2))["status"] == "clarified"
            assert await outcomes(ladder) == ["applied", "applied"]


@asynccontextmanager
async def laddered(dsn):
    """A ladder on a server of the test's own, as soon as that takes connections."""
    database = Database(dsn=dsn, listen_dsn=dsn)
    conns = []

    async def is_connected():
        with suppress(*DATABASE_ERRORS):
            conns.append(await database.connect("test"))
        return bool(conns)

    await until(is_connected)
    async with database.pool("worker") as pool:
        yield make_ladder(database, pool, conns[0])
        pool.terminate()
    conns[0].terminate()


async def outcomes(ladder):
    """Of all events, in the order in which they were recorded."""
    rows = await ladder.conn.fetch("select status from events order by id")
    return [row["status"] for row in rows]


STANDS_STILL = """
import asyncio, os, signal, sys
from app.db import connect, sessions

connect.IDLE_SECONDS, connect.TRANSACTION_SECONDS = int(sys.argv[2]), int(sys.argv[3])

async def stand_still():
    database = connect.Database(dsn=sys.argv[1], listen_dsn="", statement_cache_size=0)
    async with database.pool("worker") as pool, connect.redoable(pool) as conn:
        await sessions.lock(conn, [("shortcut", 1)])
        if sys.argv[4] == "in a statement":
            await conn.prepare("select $1::int")
        os.kill(os.getpid(), signal.SIGSTOP)
        await conn.execute("select 1")

try:
    asyncio.run(stand_still())
except connect.DATABASE_ERRORS:
    sys.exit("its transaction was ended")
"""


@pytest.mark.parametrize("where", ["between statements", "in a statement"])
async def test_a_worker_that_stands_still_holds_nobody_up(ladder, pool, database, where):
    """SIGSTOP in a transaction: the server ends it, others apply the story, and it hears of that.

    In the middle of a statement only PostgreSQL 17 can do that, and not as soon.
    """
    if where == "in a statement" and ladder.conn.get_server_version() < (17,):
        pytest.skip("this PostgreSQL has no transaction_timeout")
    await ladder.claimed()
    await ladder.record(shapes.archived(1, minute=2))
    bounds = ("1", "60") if where == "between statements" else ("60", "2")
    arguments = (sys.executable, "-c", STANDS_STILL, database.dsn, *bounds, where)
    worker = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)
    try:
        await until(lambda: asyncio.to_thread(is_stopped, worker.pid))

        await Applier(pool, RULES, here(), Bell(database)).tick()

        assert (await ladder.session())["status"] == "closed"
    finally:
        worker.send_signal(signal.SIGCONT)
        _, said = await worker.communicate()
    assert said.decode().strip() == "its transaction was ended"


def is_stopped(pid: int) -> bool:
    """Whether the process has been sent SIGSTOP, and stands."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_what_an_event_refers_to_is_read_from_the_api(ladder):
    """A mention in a comment opens a session once the comment's text has been read."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        workspace = simulation.workspace
        story = workspace.create_story(PEOPLE[0], {"name": "Export"}).id
        said = workspace.add_comment(PEOPLE[0], story, "Please draft this.\n/draft").id
        body = (SAMPLES / "v2-mentioned-in-comment.json").read_bytes()
        body = body.replace(b'"4202"', f'"{story}"'.encode())
        body = body.replace(b'"7103"', f'"{said}"'.encode())

        await with_rules(reading(ladder, shortcut), bots=frozenset({AGENT_ID})).deliver(body)

    assert (await ladder.session(story))["status"] == "clarified"
    assert "Please draft this." in await ladder.conn.fetchval("select text from conversation")


async def test_an_event_that_needs_the_api_and_breaks_us_ends_nothing(ladder):
    """What breaks us after a look at the API is put off, and the tick goes on."""
    await ladder.conn.execute("alter table facts add constraint broken check (sc_id <> 4202)")
    async with simulated() as (_, url), ShortcutClient(url, TOKEN) as shortcut:
        await reading(ladder, shortcut).deliver(
            (SAMPLES / "v2-mentioned-in-comment.json").read_bytes()
        )

    row = await ladder.conn.fetchrow("select status, attempts, reason from events")
    assert tuple(row) == ("pending", 1, "an error of ours: CheckViolationError")


async def test_a_slow_api_holds_nothing_up_that_does_not_need_it(ladder):
    """While one event waits for an answer, others are applied."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        simulation.faults.pending.append(Fault(kind="hang"))
        applier = reading(ladder, shortcut).applier
        await ladder.record(nameless(2, 5000))
        await applier.tick()
        waiting = asyncio.create_task(applier.read_tick())
        await until(lambda: asyncio.sleep(0, not simulation.faults.pending))
        await ladder.record(shapes.labelled(1))

        await applier.tick()

        assert (await ladder.session())["status"] == "clarified"
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_what_is_being_read_for_is_left_to_who_reads(ladder):
    """Nobody else asks the API for an event, until who asked is dead for sure."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        simulation.faults.pending.append(Fault(kind="hang"))
        applier = reading(ladder, shortcut).applier
        await ladder.record(nameless(2, 5000))
        await applier.tick()
        assert await events.take(ladder.conn, limit=1) == []
        waiting = asyncio.create_task(applier.read_tick())
        await until(lambda: asyncio.sleep(0, not simulation.faults.pending))

        assert not await applier.read_tick()

        waiting.cancel()
        await asyncio.wait([waiting])
        await ladder.conn.execute("update events set next_attempt_at = now()")
        assert await applier.read_tick()


async def test_an_api_that_is_away_is_not_asked_for_each_event(ladder):
    """After one event was read for in vain, the others wait as they are."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        simulation.faults.pending.append(Fault(status=503, times=9))
        for story in (2, 3):
            await ladder.record(nameless(story, 5000 + story))

        with pytest.raises(ShortcutUnavailable):
            await reading(ladder, shortcut).apply()

        assert [fault.times for fault in simulation.faults.pending] == [8]
    rows = await ladder.conn.fetch(
        "select attempts, next_attempt_at > now() as waits from events order by id"
    )
    assert [tuple(row) for row in rows] == [(1, True), (0, False)]


async def test_the_event_that_broke_us_is_put_off_and_no_other(ladder, database):
    """What comes in while an event breaks us is not blamed for it, though it is due before."""
    await ladder.conn.execute("alter table facts add constraint broken check (sc_id <> 2)")
    await ladder.record(shapes.labelled(2))
    async with proxy_to(database.dsn) as proxy, proxy.through(database).pool("far") as far:
        first, again = (proxy.catch_request("insert into facts") for _ in range(2))
        first.deliver()
        applying = asyncio.create_task(replace(ladder.applier, pool=far).tick())
        await again.seen.wait()
        await ladder.record(shapes.labelled(1))
        await ladder.conn.execute(
            "update events set next_attempt_at = now() - interval '1 day' where id = 2"
        )
        again.deliver()
        await applying

    rows = await ladder.conn.fetch("select attempts from events order by id")
    assert [row["attempts"] for row in rows] == [1, 0]


async def test_a_replay_takes_back_what_was_read_before(ladder):
    """An event that is replayed is interpreted anew, and says nothing else any more."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        simulation.workspace.create_story(PEOPLE[0], {"name": "Export", "labels": ["patch"]})
        (label,) = simulation.workspace.labels
        await ladder.deliver(nameless(1, label))
        assert await outcome(ladder) == ("ignored", "the label is not 'patch'")
        await events.replay(ladder.conn, 1, nonce="once", actor="operator")

        await reading(ladder, shortcut).apply()

    assert (await ladder.session())["status"] == "clarified"
    assert await ladder.conn.fetchval("select array_agg(value) from facts") == ["patch"]


async def test_comments_that_come_late_are_folded_in_together(ladder, database):
    """A batch has a story's past read once, however many of its events come late."""
    asked = []
    last = shapes.commented(1, minute=50, text="Hm", comment=31)
    await ladder.deliver(shapes.labelled(1, minute=0), last)
    for number in range(1, 31):
        await ladder.record(shapes.commented(1, minute=40 - number, text="Hm", comment=number))
    async with replace(database, pool_size=1).pool("logged") as pool:
        async with take(pool) as conn:
            conn.add_query_logger(lambda record: asked.append(record.query))
        await replace(ladder.applier, pool=pool).tick()

    assert sum("order by occurred_at" in query for query in asked) == 1
    assert await ladder.conn.fetchval("select count(*) from conversation") == 31


async def test_a_label_without_a_name_is_looked_up(ladder):
    """A label whose name is nowhere in the delivery is read from the API by its id."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        story = simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id
        simulation.workspace.update_stories(PEOPLE[0], [story], {}, labels_add=["patch"])
        (label,) = simulation.workspace.labels

        await reading(ladder, shortcut).deliver(nameless(story, label))

    assert (await ladder.session(story))["status"] == "clarified"
