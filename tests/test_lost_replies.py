"""Answers that never arrive: whatever was carried out counts, once, and is found again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from app.db import gate, outbox
from app.db.connect import DATABASE_ERRORS, Database
from app.errors import DrafterError
from app.machine import Phase
from app.model import Draft
from app.shortcut.client import ShortcutClient
from app.simulator.records import AGENT, PEOPLE
from app.wake import Bell
from app.worker.apply import Applier
from app.worker.claims import End, Heart, acquire
from app.worker.draft import Limits, Workshop
from app.worker.outbox import Sender
from tests import shapes
from tests.ladder import DRAFT, LEASE, RULES, Ladder, bid, comment, here
from tests.locks import PATIENCE_SECONDS, until
from tests.office import TOKEN, simulated
from tests.proxy import Catch, Proxy, proxy_to
from tests.service import receiver

CLAIM = "status = 'drafting', prior_status"
SHORT = timedelta(seconds=3)
LIMITS = Limits(
    lease=timedelta(seconds=30),
    drafter_timeout=timedelta(seconds=20),
    max_attempts=3,
    max_crashes=3,
    retry_base=timedelta(seconds=10),
    retry_longest=timedelta(seconds=60),
)


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    """A proxy in front of the fresh database."""
    async with proxy_to(database.dsn) as proxy:
        yield proxy


@pytest.fixture
def far(database: Database, proxy: Proxy) -> Database:
    """The fresh database by way of the proxy, given up soon when it says nothing."""
    patience = {"connect_timeout_seconds": 5, "command_timeout_seconds": 1}
    return replace(proxy.through(database), **patience)


@pytest.fixture
async def far_pool(far: Database):
    """A pool whose connections lead through the proxy."""
    async with far.pool("far") as pool:
        yield pool


async def lose(call, *arguments, **named) -> None:
    """Makes a call whose answer does not arrive."""
    with pytest.raises(DATABASE_ERRORS):
        await call(*arguments, **named)


async def everything(ladder: Ladder):
    """All that a statement could have written, as it stands."""
    tables = ("patch_sessions", "timeline", "drafts", "outbox", "late_results")
    return {table: await ladder.conn.fetch(f"select * from {table}") for table in tables}  # noqa: S608


async def counts(ladder: Ladder) -> tuple[int, ...]:
    """How many drafts, comments that are owed, and late results there are."""
    return tuple(
        await ladder.conn.fetchrow(
            "select (select count(*) from drafts), (select count(*) from outbox),"
            " (select count(*) from late_results)"
        )
    )


async def waiting(ladder: Ladder, count: int) -> None:
    """Returns once so many connections wait for a lock."""
    statement = (
        "select count(*) = $1 from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()"
    )
    await until(lambda: ladder.conn.fetchval(statement, count))


# --- claiming --------------------------------------------------------------------------------


async def test_a_claim_whose_answer_is_lost_is_found_again(ladder, proxy, far_pool):
    """The worker gets the claim it made, with its generation; who asks in between gets nothing."""
    await ladder.clarified()
    caught = proxy.catch(CLAIM)
    asked = bid("first")
    asking = asyncio.create_task(acquire(far_pool, Phase.DRAFT, asked))
    await caught.executed.wait()

    caught.lose()
    competitor = await gate.claim_next(ladder.conn, Phase.DRAFT, bid("second"))
    found = await asking

    assert competitor is None
    assert (found.token, found.worker, found.generation) == (asked.token, "first", 1)
    assert (await ladder.session())["claim_generation"] == 1


async def test_claims_of_many_workers_are_all_found_again(ladder, proxy, far_pool):
    """Each of several lost answers leads back to a session of its own."""
    stories = range(1, 5)
    for story in stories:
        await ladder.clarified(story)
        proxy.lose_reply(CLAIM)

    found = await asyncio.gather(*(acquire(far_pool, Phase.DRAFT, bid()) for _ in stories))

    assert sorted(claim.sc_id for claim in found) == list(stories)
    assert {claim.generation for claim in found} == {1}
    assert proxy.catches == []


async def test_a_claim_that_never_arrived_is_asked_for_again(ladder, proxy, far_pool):
    """A request that was lost on its way has claimed nothing, and the next one does."""
    await ladder.clarified()
    proxy.lose_request(CLAIM)

    found = await acquire(far_pool, Phase.DRAFT, bid())

    assert found.generation == 1


async def test_a_claim_that_is_still_under_way_is_not_made_twice(ladder, connect, pool):
    """Asked again before the first request has committed, the worker gets the first one's claim."""
    await ladder.clarified(1)
    await ladder.clarified(2)
    asked = bid()
    first = await connect()
    async with first.transaction():
        made = await gate.claim_next(first, Phase.DRAFT, asked)
        asking = asyncio.create_task(acquire(pool, Phase.DRAFT, asked))
        await waiting(ladder, 1)

    assert await asking == made
    owned = "select count(*) from patch_sessions where claim_token is not null"
    assert await ladder.conn.fetchval(owned) == 1


async def test_an_answer_that_is_cut_off_is_a_lost_answer(ladder, proxy, far_pool):
    """However much of the answer arrives before the connection breaks, the claim is found."""
    for story, size in enumerate((1, 60, 500), start=1):
        await ladder.clarified(story)
        caught = proxy.catch(CLAIM)
        asking = asyncio.create_task(acquire(far_pool, Phase.DRAFT, bid()))
        await caught.executed.wait()

        proxy.cut_after(size)
        caught.deliver()

        assert (await asking).sc_id == story


async def test_a_server_that_falls_silent_has_claimed_all_the_same(ladder, proxy, far_pool):
    """No answer within the limit, and no broken connection either: the claim is found."""
    await ladder.clarified()
    caught = proxy.catch(CLAIM)

    async with asyncio.timeout(20):
        found = await acquire(far_pool, Phase.DRAFT, bid())

    assert caught.executed.is_set()
    assert found.generation == 1


async def outage(proxy: Proxy, caught: Catch, said: str) -> None:
    """The answer is lost, and the server is away until several more tries have failed."""
    with capture_logs() as lines:

        async def have_failed() -> bool:
            return await asyncio.sleep(0.01, sum(line["event"] == said for line in lines) > 5)

        proxy.refuse()
        caught.lose()
        await until(have_failed)
    proxy.accept()


async def test_a_claim_is_found_again_after_an_outage(ladder, proxy, far_pool):
    """Its answer was lost with the server: the worker asks until it is back."""
    await ladder.clarified()
    caught = proxy.catch(CLAIM)
    asking = asyncio.create_task(acquire(far_pool, Phase.DRAFT, bid()))
    await caught.executed.wait()

    await outage(proxy, caught, "claim.unanswered")

    assert (await asking).generation == 1


async def test_a_claim_is_not_asked_for_for_ever(ladder, proxy, far_pool):
    """When half of its lease has passed without an answer, it is left to run out."""
    await ladder.clarified()
    caught = proxy.catch(CLAIM)
    asked_at = time.monotonic()
    asking = asyncio.create_task(acquire(far_pool, Phase.DRAFT, bid(lease=timedelta(seconds=2))))
    await caught.executed.wait()

    proxy.refuse()
    caught.lose()
    ended, _ = await asyncio.wait([asking], timeout=PATIENCE_SECONDS)

    assert ended
    with pytest.raises(DATABASE_ERRORS):
        await asking
    assert time.monotonic() - asked_at >= 1


# --- ending ----------------------------------------------------------------------------------


ENDINGS = {
    "complete": lambda conn, claim: gate.complete(conn, claim, DRAFT, comment=comment(claim)),
    "question": lambda conn, claim: gate.question(conn, claim, DRAFT, comment=comment(claim, "q")),
    "fail": lambda conn, claim: gate.fail(conn, claim, error="x", comment=comment(claim, "f")),
    "release": lambda conn, claim: gate.release(
        conn, claim, error="x", delay=timedelta(0), failed=True
    ),
    "abandon": lambda conn, claim: gate.abandon(conn, claim, reason="x"),
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
async def test_an_ending_whose_answer_is_lost_can_be_asked_for_again(ladder, proxy, far, end):
    """An ending was carried out once, and asking for it again changes nothing."""
    claim = await ladder.claimed()
    conn = await far.connect("worker")
    proxy.lose_reply("with ended as")
    await lose(end, conn, claim)
    before = await everything(ladder)

    await end(ladder.conn, claim)

    assert before["patch_sessions"][0]["claim_token"] is None
    assert await everything(ladder) == before


class Drafts:
    """A drafter that makes the same of every story, and knows how often it was asked."""

    def __init__(self, draft: Draft | DrafterError = DRAFT) -> None:
        self.result = draft
        self.runs = 0

    async def draft(self, claim, story, **more):
        self.runs += 1
        if isinstance(self.result, DrafterError):
            raise self.result
        return self.result


@asynccontextmanager
async def workshop(database: Database, drafter: Drafts, **limits: object):
    """A worker all of whose connections lead to this database."""
    limited = replace(LIMITS, **limits)
    heart = Heart(database, lease=limited.lease, interval=limited.lease / 3)
    heart.start()
    try:
        async with database.pool("work") as pool, database.pool("endings") as endings:
            yield Workshop(
                worker="worker",
                pool=pool,
                endings=endings,
                heart=heart,
                drafter=drafter,
                workspaces=here(),
                bell=Bell(database),
                limits=limited,
                cut_off=asyncio.Event(),
            )
    finally:
        heart.stop()


@pytest.mark.parametrize(
    ("result", "limits", "expected"),
    [
        (DRAFT, {}, ("drafted", 0, 1, (1, 1, 0))),
        (Draft(summary="", patch="", questions=("Which?",)), {}, ("clarifying", 0, 0, (0, 1, 0))),
        (DrafterError("it broke"), {}, ("clarified", 1, 0, (0, 0, 0))),
        (DrafterError("it broke"), {"max_attempts": 1}, ("failed", 1, 0, (0, 1, 0))),
    ],
    ids=["complete", "question", "release", "fail"],
)
@pytest.mark.parametrize("way", ["reply", "request"])
async def test_work_whose_ending_is_not_answered_ends_as_if_it_were(
    ladder, proxy, far, result, limits, expected, way
):
    """Drafted once, ended once, told once, whether the request or its answer was lost."""
    await ladder.clarified()
    drafter = Drafts(result)
    caught = proxy.lose_reply("with ended") if way == "reply" else proxy.lose_request("with ended")

    async with workshop(far, drafter, **limits) as worker:
        assert await worker.tick(Phase.DRAFT)

    row = await ladder.session()
    assert caught.seen.is_set()
    assert drafter.runs == 1
    assert (row["status"], row["attempts"], row["revision"], await counts(ladder)) == expected


async def test_work_whose_every_answer_is_lost_once_is_done_once(ladder, proxy, far):
    """Claim, conversation, and completion: each is unanswered the first time."""
    await ladder.clarified()
    drafter = Drafts()
    proxy.lose_reply(CLAIM)
    proxy.lose_reply("with ended")

    async with workshop(far, drafter) as worker:
        await worker.tick(Phase.DRAFT)

    assert drafter.runs == 1
    assert await counts(ladder) == (1, 1, 0)
    moves = await ladder.conn.fetch("select move from timeline order by id")
    assert [row["move"] for row in moves] == ["open", "clear", "claim", "complete"]


async def test_a_completion_that_is_under_way_twice_is_no_late_result(ladder, proxy, far, connect):
    """Asked for again while the first request still waits for the row: one draft, nothing late."""
    await ladder.clarified()
    locker = await connect()
    ending = proxy.catch_request("with ended")

    async with workshop(replace(far, command_timeout_seconds=20), Drafts()) as worker:
        working = asyncio.create_task(worker.tick(Phase.DRAFT))
        await ending.seen.wait()
        async with locker.transaction():
            await locker.execute("select from patch_sessions for update")
            ending.deliver()
            await waiting(ladder, 1)
            proxy.cut()
            await waiting(ladder, 2)
        await working

    assert await counts(ladder) == (1, 1, 0)


async def test_an_ending_is_tried_for_as_long_as_the_claim_lives(ladder, proxy, far, database):
    """The endings' connections are away for several leases, and the beats go on: it is drafted."""
    await ladder.clarified()
    lease = timedelta(seconds=0.9)
    ending = proxy.catch_request("with ended")

    async with far.pool("endings") as away, workshop(database, Drafts(), lease=lease) as worker:
        worker = replace(worker, endings=away)
        working = asyncio.create_task(worker.tick(Phase.DRAFT))
        await ending.seen.wait()
        proxy.refuse()
        ending.lose()
        first = (await ladder.session())["claim_expires_at"]
        later = "select claim_expires_at > $1 from patch_sessions"
        await until(lambda: ladder.conn.fetchval(later, first + 3 * lease))
        proxy.accept()
        await working

    assert (await ladder.session())["status"] == "drafted"
    assert await counts(ladder) == (1, 1, 0)


class Waits:
    """A drafter that is never done."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def draft(self, claim, story, **more):
        self.begun.set()
        await asyncio.Event().wait()


async def test_an_outage_of_the_database_is_no_crash(ladder, proxy, far):
    """A worker that stopped because it could not know gives back what is its own still."""
    await ladder.clarified()
    drafter = Waits()
    async with workshop(far, drafter, lease=timedelta(seconds=1.5)) as worker:
        working = asyncio.create_task(worker.tick(Phase.DRAFT))
        await drafter.begun.wait()
        with capture_logs() as lines:
            proxy.refuse()
            await until(lambda: have_said(lines, "claim.end_unanswered"))
        assert "claim.lost" in [line["event"] for line in lines]
        proxy.accept()
        await working

    row = await ladder.session()
    assert (row["status"], row["attempts"], row["crashes"]) == ("clarified", 0, 0)
    assert row["interruptions"] == 1


async def have_said(lines, event: str) -> bool:
    """Whether the log has it."""
    return await asyncio.sleep(0.01, event in [line["event"] for line in lines])


# --- beating ---------------------------------------------------------------------------------


@asynccontextmanager
async def beating(ladder: Ladder, database: Database):
    """Work under a claim with a short lease, whose beats go to this database."""
    await ladder.clarified()
    heart = Heart(database, lease=SHORT, interval=SHORT / 6)
    heart.start()
    asked_at = time.monotonic()
    claim = await gate.claim(
        ladder.conn, Phase.DRAFT, bid(lease=SHORT), workspace="shortcut", sc_id=1
    )
    try:
        async with heart.hold(claim, asked_at=asked_at, cut_off=asyncio.Event()) as held:
            yield held, asked_at
    finally:
        heart.stop()


BEAT = "set claim_expires_at = least"


@pytest.mark.parametrize("way", ["reply", "request"])
async def test_a_beat_that_is_not_answered_does_not_cost_the_claim(ladder, proxy, far, way):
    """The next beat, over a new connection, prolongs the claim, and the work goes on."""
    caught = proxy.lose_reply(BEAT) if way == "reply" else proxy.lose_request(BEAT)

    async with beating(ladder, far) as (held, _):
        first = (await ladder.session())["claim_expires_at"]

        async def several_leases() -> str:
            later = "select claim_expires_at > $1 from patch_sessions"
            await until(lambda: ladder.conn.fetchval(later, first + 2 * SHORT))
            return "done"

        assert await held.run(several_leases()) == "done"

    assert caught.seen.is_set()
    assert (await ladder.session())["claim_generation"] == 1


async def test_a_worker_with_a_silent_server_stops_before_anybody_else_can_begin(
    ladder, proxy, far
):
    """Half-open: nothing answers and nothing breaks. The work ends while the lease still runs."""
    still_ours: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            runs = "select claim_expires_at > clock_timestamp() from patch_sessions"
            still_ours.append(await ladder.conn.fetchval(runs))

    async with beating(ladder, far) as (held, _):
        first = (await ladder.session())["claim_expires_at"]
        beaten = "select claim_expires_at > $1 from patch_sessions"
        await until(lambda: ladder.conn.fetchval(beaten, first))

        proxy.freeze()

        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await held.run(work()) is End.LOST
        assert still_ours == [True]
    proxy.thaw()


async def test_a_frozen_worker_s_late_beat_takes_nothing_from_its_successor(ladder, proxy, far):
    """A beat that arrives long after it was sent finds another generation, and does nothing."""
    caught = proxy.catch_request(BEAT)
    async with beating(ladder, far) as (held, _):
        await caught.seen.wait()
        await ladder.lapse()
        how = {"limit": 9, "max_crashes": 9, "delay": timedelta(0)}
        await gate.expire(ladder.conn, error="gone", text="No", **how)
        await ladder.claim(worker="new")
        before = await everything(ladder)

        caught.deliver()

        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await held.run(asyncio.Event().wait()) is End.LOST
    assert await everything(ladder) == before


# --- expiring, applying ----------------------------------------------------------------------


async def test_an_expiry_whose_answer_is_lost_counts_one_crash(ladder, proxy, far):
    """Asked again, the sweep finds nothing left to take back."""
    await ladder.claimed()
    await ladder.lapse()
    proxy.lose_reply("with lapsed as")

    async with workshop(far, Drafts()) as worker:
        await lose(worker.expire_tick)
        assert not await worker.expire_tick()

    row = await ladder.session()
    assert (row["status"], row["crashes"], row["claim_generation"]) == ("clarified", 1, 2)


async def test_a_commit_whose_answer_is_lost_applies_an_event_once(ladder, proxy, far, far_pool):
    """Facts, moves and the outcome came together; the next look finds nothing pending."""
    await ladder.record(shapes.labelled(1))
    applier = Applier(far_pool, RULES, here(), Bell(far))
    proxy.lose_reply("commit;")

    await lose(applier.tick)
    assert await ladder.conn.fetchval("select status from events") == "applied"
    await applier.tick()

    moves = await ladder.conn.fetch("select move from timeline order by id")
    assert [row["move"] for row in moves] == ["open", "clear"]


async def test_a_commit_that_never_arrived_applies_an_event_later(ladder, proxy, far, far_pool):
    """Of a transaction that was cut off nothing is left, and the event is still pending."""
    await ladder.record(shapes.labelled(1))
    applier = Applier(far_pool, RULES, here(), Bell(far))
    proxy.lose_request("commit;")

    await lose(applier.tick)

    async def is_applied() -> bool:
        await applier.tick()
        return await ladder.conn.fetchval("select status = 'applied' from events")

    await until(is_applied)
    moves = await ladder.conn.fetch("select move from timeline order by id")
    assert [row["move"] for row in moves] == ["open", "clear"]


# --- the door --------------------------------------------------------------------------------


async def test_a_delivery_whose_commit_is_not_answered_is_not_acknowledged(ladder, proxy, far):
    """503, although it is recorded; the sender's next try is a duplicate and nothing more."""
    body = shapes.labelled(1)
    async with receiver(far) as service:
        proxy.lose_reply("insert into events")
        first = await service.post(body)
        await until(lambda: is_up(service))
        second = await service.post(body)

    assert first.status_code == 503
    assert (second.status_code, second.json()["duplicate"]) == (200, True)
    assert await ladder.conn.fetchval("select count(*) from events where body = $1", body) == 1


async def test_a_delivery_that_never_arrived_is_new_the_next_time(ladder, proxy, far):
    """503, and nothing is recorded; the sender's next try is not taken for a duplicate."""
    body = shapes.labelled(1)
    async with receiver(far) as service:
        proxy.lose_request("insert into events")
        first = await service.post(body)
        await until(lambda: is_up(service))
        second = await service.post(body)

    assert first.status_code == 503
    assert (second.status_code, second.json()["duplicate"]) == (200, False)


async def is_up(service) -> bool:
    """Whether deliveries are recorded again."""
    return (await service.post(shapes.labelled(99))).status_code == 200


# --- the outbox ------------------------------------------------------------------------------


@asynccontextmanager
async def office(ladder: Ladder, pool):
    """A sender that owes a comment to a simulated story; and what the bot has said there."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        story = simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id
        claim = await ladder.claimed(story)
        assert await gate.complete(ladder.conn, claim, DRAFT, comment=comment(claim))

        def said() -> int:
            comments = simulation.workspace.comments.values()
            return sum(comment.author_id == AGENT.id for comment in comments)

        yield Sender(name="sender", pool=pool, workspaces=here(shortcut)), said


@pytest.mark.parametrize("way", ["reply", "request"])
@pytest.mark.parametrize("statement", ["status = 'sending', claim", "then 'sent' else 'pending'"])
async def test_a_comment_is_posted_once_whichever_answer_is_lost(
    ladder, proxy, far_pool, statement, way
):
    """A sender that can't know whether its row was written leaves it to the expiry and a look."""
    async with office(ladder, far_pool) as (sender, said):
        caught = proxy.lose_reply(statement) if way == "reply" else proxy.lose_request(statement)
        await lose(sender.tick)
        for _ in range(2):
            await ladder.conn.execute(
                "update outbox set claim_expires_at = now() where status = 'sending'"
            )
            await sender.expire_tick()
            await sender.tick()

        assert caught.seen.is_set()
        assert said() == 1
    assert await ladder.conn.fetchval("select status from outbox") == "sent"
    assert await outbox.claim(ladder.conn, sender="other", lease=LEASE) is None


# --- the proxy -------------------------------------------------------------------------------


async def test_a_late_server_is_only_late(ladder, proxy, far):
    """Delays change nothing but the time that things take."""
    await ladder.clarified()
    proxy.delay(0.01)

    async with workshop(far, Drafts()) as worker:
        assert await worker.tick(Phase.DRAFT)

    assert await counts(ladder) == (1, 1, 0)


async def test_a_server_that_is_down_claims_nothing_and_comes_back(ladder, proxy, far_pool):
    """While nothing can connect a worker says so, and afterwards it goes on with the same pool."""
    await ladder.clarified()
    proxy.refuse()
    await lose(acquire, far_pool, Phase.DRAFT, bid())

    proxy.accept()

    assert (await acquire(far_pool, Phase.DRAFT, bid())).generation == 1


async def test_a_caught_statement_waits_for_its_test(ladder, proxy, far, connect):
    """The proxy tells a statement that the server has carried out from one that it has not."""
    claim = await ladder.claimed()
    conn, locker = await far.connect("worker"), await connect()
    caught = proxy.catch("with ended as")

    async with locker.transaction():
        await locker.execute("select from patch_sessions for update")
        ending = asyncio.create_task(ENDINGS["release"](conn, claim))
        await caught.seen.wait()
        assert not caught.executed.is_set()
    await caught.executed.wait()

    assert not ending.done()
    caught.deliver()
    assert await ending
    conn.terminate()
