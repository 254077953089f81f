"""The gate, with independent connections: the second arrives before the first commits."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from app.db import gate, look, sessions
from app.db.gate import Comment
from app.machine import Move, Phase, Status
from app.model import Claim, Draft, Story
from tests import shapes
from tests.ladder import DRAFT, LEASE, Ladder, bid, comment
from tests.locks import blocked

HOUR = timedelta(hours=1)


async def claim_known(conn, story=1, **bids):
    return await gate.claim(conn, Phase.DRAFT, bid(**bids), workspace="shortcut", sc_id=story)


async def release(conn, claim, **how):
    asked = {"error": "exit code 1", "delay": timedelta(0), "failed": True, **how}
    return await gate.release(conn, claim, **asked)


async def expire(conn, **how):
    asked = {"limit": 10, "max_crashes": 3, "delay": timedelta(0), **how}
    return await gate.expire(conn, error="the worker stopped responding", text="No draft", **asked)


async def plan_badly(conn):
    """Leaves the planner nothing but to run a subquery anew for each row, if it may."""
    for method in ("hashjoin", "mergejoin", "material", "hashagg", "sort"):
        await conn.execute(f"set enable_{method} = off")


async def everything(ladder: Ladder):
    """All that a statement could have written."""
    tables = ("patch_sessions", "timeline", "drafts", "outbox", "late_results", "conversation")
    return {table: await ladder.conn.fetch(f"select * from {table}") for table in tables}  # noqa: S608


# --- claiming --------------------------------------------------------------------------------


async def test_the_second_claim_of_a_known_row_loses(ladder, connect):
    """Two workers at one row: the second arrives before the first commits, and gets nothing."""
    await ladder.clarified()
    first, second = await connect(), await connect()

    async with first.transaction():
        won = await claim_known(first, worker="first")
        waiting = await blocked(ladder.conn, second, claim_known(second, worker="second"))
    lost = await waiting

    assert won is not None
    assert lost is None
    row = await ladder.session()
    assert (row["status"], row["claimed_by"], row["claim_generation"]) == ("drafting", "first", 1)


async def test_the_loser_of_a_known_row_writes_nothing_and_goes_on(ladder, connect):
    """A lost claim leaves no trace, and the loser's connection takes the next story."""
    await ladder.clarified(1)
    await ladder.clarified(2)
    first, second = await connect(), await connect()
    async with first.transaction():
        await claim_known(first, 1)
        waiting = await blocked(ladder.conn, second, claim_known(second, 1))
    before = await everything(ladder)

    assert await waiting is None

    assert await everything(ladder) == before
    assert await claim_known(second, 2) is not None


async def test_a_claim_that_rolls_back_leaves_the_row_to_the_second(ladder, connect):
    """When the first worker's transaction fails, the one that waited gets the claim."""
    await ladder.clarified()
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    await claim_known(first, worker="first")
    waiting = await blocked(ladder.conn, second, claim_known(second, worker="second"))

    await transaction.rollback()

    won = await waiting
    assert won is not None
    assert (won.worker, won.generation) == ("second", 1)


async def test_a_row_being_claimed_is_passed_by(ladder, connect):
    """Pulling the next session neither takes one that is being claimed nor waits for it."""
    await ladder.clarified(1)
    await ladder.clarified(2)
    first, second, third = await connect(), await connect(), await connect()
    for conn in (second, third):
        await conn.execute("set lock_timeout = '1s'")

    async with first.transaction():
        taken = [await gate.claim_next(c, Phase.DRAFT, bid()) for c in (first, second, third)]

    assert [claim and claim.sc_id for claim in taken] == [1, 2, None]


async def test_a_known_row_being_pulled_by_another_is_lost(ladder, connect):
    """A worker that knows the row loses it to one that pulls it first."""
    await ladder.clarified()
    puller, knower = await connect(), await connect()

    async with puller.transaction():
        assert await gate.claim_next(puller, Phase.DRAFT, bid()) is not None
        waiting = await blocked(ladder.conn, knower, claim_known(knower))

    assert await waiting is None


@pytest.mark.parametrize("phase", Phase)
async def test_a_pull_claims_one_row_under_any_plan(ladder, conn, phase):
    """LIMIT 1 claims one row even where the planner would run it once per row."""
    name = "Story" if phase is Phase.DRAFT else ""
    for story in range(1, 31):
        await ladder.deliver(shapes.labelled(story, name=name))
    await plan_badly(conn)

    assert await gate.claim_next(conn, phase, bid()) is not None

    owned = "select count(*) from patch_sessions where claim_token is not null"
    assert await conn.fetchval(owned) == 1


async def test_the_longest_due_is_pulled_first(ladder, conn):
    """Sessions are pulled in the order in which they became due, so none can be passed for ever."""
    for story in (1, 2, 3):
        await ladder.clarified(story)
    await conn.execute(
        "update patch_sessions set next_attempt_at = now() - sc_id * interval '1 minute'"
    )

    pulled = [await gate.claim_next(conn, Phase.DRAFT, bid()) for _ in range(3)]

    assert [claim.sc_id for claim in pulled] == [3, 2, 1]


@pytest.mark.parametrize("pull", [True, False])
async def test_a_session_is_not_claimed_before_its_time(ladder, conn, pull):
    """The backoff holds for both ways to claim."""
    claim = await ladder.claimed()
    await release(conn, claim, delay=HOUR)

    if pull:
        again = await gate.claim_next(conn, Phase.DRAFT, bid())
    else:
        again = await claim_known(conn)

    assert again is None


async def test_each_claim_has_a_generation_of_its_own(ladder, conn):
    """The same worker's second claim of a story can be told from its first."""
    first = await ladder.claimed(worker="same")
    await release(conn, first)

    second = await ladder.claim(worker="same")

    assert second.generation > first.generation


async def test_a_claim_is_visible_before_work_begins(ladder, connect):
    """A claim commits by itself: another connection sees who owns the row, and until when."""
    await ladder.clarified()
    one, other = await connect(), await connect()

    await claim_known(one, worker="me")

    row = await other.fetchrow(
        "select claimed_by, claim_expires_at > now() as live from patch_sessions"
    )
    assert dict(row) == {"claimed_by": "me", "live": True}


async def test_a_lost_answer_is_not_a_lost_claim(ladder, conn):
    """Asking with the same token finds the claim that was made, with the same generation."""
    await ladder.clarified()
    token = uuid4()
    made = await gate.claim_next(conn, Phase.DRAFT, bid(token=token))

    found = await gate.held(conn, token)

    assert found == made


async def test_one_token_never_claims_two_sessions(ladder, conn):
    """A worker that asks twice with one token can't end up with two sessions."""
    await ladder.clarified(1)
    await ladder.clarified(2)
    token = uuid4()
    await gate.claim_next(conn, Phase.DRAFT, bid(token=token))

    with pytest.raises(asyncpg.UniqueViolationError):
        await gate.claim_next(conn, Phase.DRAFT, bid(token=token))


async def test_a_lease_begins_when_the_lock_was_won(ladder, connect):
    """A claim that waited for a lock does not begin with part of its lease already over."""
    await ladder.clarified()
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    await first.execute("select from patch_sessions for update")
    waiting = await blocked(ladder.conn, second, claim_known(second))
    released_at = await ladder.conn.fetchval("select clock_timestamp()")

    await transaction.rollback()

    await waiting
    row = await ladder.session()
    assert row["claimed_at"] >= released_at
    assert row["claim_expires_at"] >= released_at + LEASE


STAMPED = {
    "claim_expires_at": lambda conn, claim: gate.beat(conn, claim, lease=LEASE),
    "next_attempt_at": lambda conn, claim: release(conn, claim, delay=LEASE),
}


@pytest.mark.parametrize("column", STAMPED)
async def test_what_waited_for_a_row_is_stamped_afterwards(ladder, conn, connect, column):
    """A lease, or a backoff, is counted from when the statement had its row."""
    claim = await ladder.claimed()
    writer, worker = await connect(), await connect()

    async with writer.transaction():
        await writer.execute("update patch_sessions set title = 'Another'")
        waiting = await blocked(conn, worker, STAMPED[column](worker, claim))
        released_at = await conn.fetchval("select clock_timestamp()")

    assert await waiting
    assert (await ladder.session())[column] >= released_at + LEASE


# --- the fence -------------------------------------------------------------------------------


async def reassigned(ladder: Ladder, conn) -> Claim:
    """A claim that has run out, and whose session another worker has claimed since."""
    stale = await ladder.claimed(worker="stale")
    await ladder.lapse()
    await expire(conn)
    await ladder.due()
    await ladder.claim(worker="new")
    return stale


ENDINGS = {
    "beat": lambda conn, claim: gate.beat(conn, claim, lease=LEASE),
    "complete": lambda conn, claim: gate.complete(conn, claim, DRAFT, comment=comment(claim)),
    "question": lambda conn, claim: gate.question(conn, claim, DRAFT, comment=comment(claim)),
    "release": release,
    "fail": lambda conn, claim: gate.fail(conn, claim, error="x", comment=comment(claim)),
    "abandon": lambda conn, claim: gate.abandon(conn, claim, reason="x"),
}


@pytest.mark.parametrize("write", ENDINGS.values(), ids=ENDINGS)
async def test_a_worker_whose_claim_was_reassigned_writes_nothing(ladder, conn, write):
    """Nothing that a stale worker still does touches the row, its drafts or its outbox."""
    stale = await reassigned(ladder, conn)
    before = await everything(ladder)

    accepted = await write(conn, stale)

    assert accepted is False
    assert await everything(ladder) == before


@pytest.mark.parametrize("write", ENDINGS.values(), ids=ENDINGS)
async def test_a_claim_that_has_ended_can_not_end_again(ladder, conn, write):
    """After a release the generation is still the row's, and counts for nothing all the same."""
    claim = await ladder.claimed()
    await release(conn, claim)
    before = await everything(ladder)

    accepted = await write(conn, claim)

    assert accepted is False
    assert await everything(ladder) == before


async def test_completion_waits_for_the_expiry_and_then_loses(ladder, connect):
    """A completion that arrives while the claim is being taken away is not accepted."""
    claim = await ladder.claimed()
    await ladder.lapse()
    expirer, worker = await connect(), await connect()

    async with expirer.transaction():
        await expire(expirer)
        ending = gate.complete(worker, claim, DRAFT, comment=comment(claim))
        waiting = await blocked(ladder.conn, worker, ending)

    assert await waiting is False
    assert (await ladder.session())["status"] == "clarified"


async def test_late_work_that_nobody_took_over_is_accepted(ladder, conn):
    """A claim that has run out, but was not taken by anybody, is completed all the same."""
    claim = await ladder.claimed()
    await ladder.lapse()

    assert await gate.complete(conn, claim, DRAFT, comment=comment(claim))

    assert (await ladder.session())["status"] == "drafted"


async def test_completing_again_after_a_lost_answer_changes_nothing(ladder, conn):
    """A completion whose answer was lost is found to have succeeded, and is not done twice."""
    claim = await ladder.claimed()
    await gate.complete(conn, claim, DRAFT, comment=comment(claim))
    before = await everything(ladder)

    again = await gate.complete(conn, claim, DRAFT, comment=comment(claim))

    assert again is True
    assert await everything(ladder) == before


async def test_a_late_result_is_kept_as_evidence(ladder, conn):
    """What a stale worker made is stored beside the session, once."""
    stale = await reassigned(ladder, conn)

    for _ in range(2):
        await gate.keep_late_result(conn, stale, DRAFT)

    kept = await conn.fetch("select generation, summary from late_results")
    assert [dict(row) for row in kept] == [
        {"generation": stale.generation, "summary": DRAFT.summary}
    ]


async def test_a_late_result_can_be_adopted_once(ladder, conn):
    """An operator hands a stale worker's result to the story, as a revision, and not twice."""
    stale = await ladder.claimed(worker="stale")
    await ladder.lapse()
    await expire(conn)
    await gate.keep_late_result(conn, stale, DRAFT)
    owed = comment(stale, "adopted")

    adopted = [
        await gate.adopt(conn, stale.session_id, stale.generation, actor="me", comment=owed)
        for _ in range(2)
    ]

    assert adopted == [True, False]
    row = await ladder.session()
    assert (row["status"], row["revision"]) == ("drafted", 1)
    assert await conn.fetchval("select count(*) from outbox") == 1
    assert (await look.drafts(conn, row["id"]))[0]["generation"] == stale.generation


async def test_two_operators_adopt_a_late_result_once(ladder, conn, connect):
    """The second one waits for the first, and finds that there is nothing left to adopt."""
    stale = await ladder.claimed(worker="stale")
    await ladder.lapse()
    await expire(conn)
    await gate.keep_late_result(conn, stale, DRAFT)
    first, second = await connect(), await connect()

    def adopt(operator, key):
        owed = comment(stale, key)
        return gate.adopt(operator, stale.session_id, stale.generation, actor="me", comment=owed)

    async with first.transaction():
        assert await adopt(first, "first")
        waiting = await blocked(conn, second, adopt(second, "second"))

    assert await waiting is False
    assert (await ladder.session())["revision"] == 1


async def test_a_late_result_is_not_adopted_while_a_worker_owns_the_session(ladder, conn):
    """What another worker is drafting at the moment is not overtaken by an operator."""
    stale = await reassigned(ladder, conn)
    await gate.keep_late_result(conn, stale, DRAFT)
    before = await everything(ladder)
    owed = comment(stale, "adopted")

    assert not await gate.adopt(conn, stale.session_id, stale.generation, actor="me", comment=owed)

    assert await everything(ladder) == before


# --- completing ------------------------------------------------------------------------------


async def test_a_completion_commits_all_that_belongs_to_it(ladder, conn):
    """The move, the draft, the comment that is owed and the timeline come together."""
    claim = await ladder.claimed()
    draft = Draft(summary="Adds it.", patch="diff --git a/a b/a\n", cost_usd=0.25, meta={"m": 1})

    assert await gate.complete(conn, claim, draft, comment=comment(claim))

    row = await ladder.session()
    assert (row["status"], row["revision"], row["claim_token"]) == ("drafted", 1, None)
    assert float(row["cost_usd"]) == 0.25
    stored = (await look.drafts(conn, row["id"]))[0]
    assert (stored["revision"], stored["generation"], stored["patch"]) == (1, 1, draft.patch)
    assert await conn.fetchval("select status from outbox") == "pending"
    moves = [entry["move"] for entry in await look.timeline(conn, row["id"])]
    assert moves == ["open", "clear", "claim", "complete"]


# --- failing ---------------------------------------------------------------------------------


async def test_a_failure_restores_the_prior_status(ladder, conn):
    """A release puts the row back where it was claimed, with its error, attempt and next time."""
    claim = await ladder.claimed()
    asked_at = await conn.fetchval("select clock_timestamp()")

    assert await release(conn, claim, error="exit code 1", delay=HOUR)

    row = await ladder.session()
    assert (row["status"], row["prior_status"]) == ("clarified", None)
    assert (row["attempts"], row["last_error"]) == (1, "exit code 1")
    assert row["next_attempt_at"] >= asked_at + HOUR


async def test_an_interruption_costs_no_attempt(ladder, conn):
    """A shutdown gives the session back without counting against it."""
    claim = await ladder.claimed()

    await release(conn, claim, failed=False)

    row = await ladder.session()
    assert (row["attempts"], row["interruptions"]) == (0, 1)


STORY = Story(sc_id=1, title="Export", description="")
#: Each end of a claim with the status that it ends, and what it leaves of (attempts, crashes,
#: interruptions) where each was 1.
COUNTS = {
    "complete": (Status.DRAFTING, ENDINGS["complete"], (0, 0, 1)),
    "question of a drafter": (Status.DRAFTING, ENDINGS["question"], (0, 0, 1)),
    "question of a clarifier": (Status.ASKING, ENDINGS["question"], (0, 0, 1)),
    "clear": (Status.ASKING, lambda conn, claim: gate.clear(conn, claim, STORY), (0, 0, 1)),
    "release": (Status.DRAFTING, release, (2, 1, 1)),
    "interruption": (
        Status.DRAFTING,
        lambda conn, claim: release(conn, claim, failed=False),
        (1, 1, 2),
    ),
    "fail": (Status.DRAFTING, ENDINGS["fail"], (2, 1, 1)),
    "abandon": (Status.DRAFTING, ENDINGS["abandon"], (1, 1, 1)),
}


@pytest.mark.parametrize(("status", "end", "left"), COUNTS.values(), ids=COUNTS)
async def test_what_an_end_forgives_and_what_it_counts(ladder, conn, status, end, left):
    """What has worked begins anew; what failed or was interrupted counts as that, and once."""
    claim = await ladder.in_status(status)
    await conn.execute("update patch_sessions set attempts = 1, crashes = 1, interruptions = 1")

    assert await end(conn, claim)

    row = await ladder.session()
    assert (row["attempts"], row["crashes"], row["interruptions"]) == left


HANDS = {
    "retry": (Status.FAILED, sessions.retry),
    "reopen": (Status.CLOSED, sessions.reopen),
    "adopt": (Status.CLARIFIED, lambda conn, session_id, actor: adopt(conn, session_id, actor)),
}


async def adopt(conn, session_id, actor):
    owed = Comment(key="adopted", kind="draft", text="Some text")
    return await gate.adopt(conn, session_id, 9, actor=actor, comment=owed)


@pytest.mark.parametrize(("status", "act"), HANDS.values(), ids=HANDS)
async def test_an_operator_s_hand_begins_anew(ladder, conn, status, act):
    """What an operator sets going again has all its attempts and crashes, and waits for none."""
    await ladder.in_status(status)
    session_id = (await ladder.session())["id"]
    await conn.execute(
        "update patch_sessions set attempts = 1, crashes = 1,"
        " next_attempt_at = case when $1 then now() else now() + interval '1 hour' end",
        act is HANDS["adopt"][1],
    )
    await conn.execute(
        "insert into late_results (session_id, generation, summary, patch) values ($1, 9, '', '')",
        session_id,
    )

    assert await act(conn, session_id, actor="operator")

    assert tuple(await conn.fetchrow(BUDGETS)) == (0, 0, True)


async def test_giving_up_tells_the_story(ladder, conn):
    """After the last attempt the session is failed, and a comment is owed."""
    claim = await ladder.claimed()

    assert await gate.fail(conn, claim, error="it broke", comment=comment(claim, "failure"))

    row = await ladder.session()
    assert (row["status"], row["last_error"]) == ("failed", "it broke")
    assert await conn.fetchval("select kind from outbox") == "failure"


async def test_a_retry_has_fresh_budgets_and_a_new_generation(ladder, conn):
    """An operator's retry resets attempts and crashes, and never the generation."""
    claim = await ladder.claimed()
    await gate.fail(conn, claim, error="it broke", comment=comment(claim, "failure"))
    failed = await ladder.session()

    assert await sessions.retry(conn, claim.session_id, actor="operator")

    row = await ladder.session()
    assert (row["status"], row["attempts"], row["crashes"]) == ("clarified", 0, 0)
    assert row["claim_generation"] > failed["claim_generation"]


async def test_an_operator_can_take_a_session_from_its_worker(ladder, conn):
    """Taken away, the session is ready again at once, and its worker's beat is refused."""
    claim = await ladder.claimed()

    assert await sessions.take_away(conn, claim.session_id, actor="operator")

    row = await ladder.session()
    assert (row["status"], row["claim_generation"]) == ("clarified", claim.generation + 1)
    assert not await gate.beat(conn, claim, lease=LEASE)


async def taken_away(ladder: Ladder, conn, claim: Claim) -> None:
    """An operator takes the session from its worker; it is ready as before."""
    assert await sessions.take_away(conn, claim.session_id, actor="operator")


async def withdrawn(ladder: Ladder, conn, claim: Claim) -> None:
    """The story is withdrawn while it is worked on, and asked for again."""
    await ladder.deliver(shapes.unlabelled(1, minute=2), shapes.labelled(1, minute=3))


async def closed_by_hand(ladder: Ladder, conn, claim: Claim) -> None:
    """An operator closes the session, and opens it again after a second look."""
    assert await sessions.close(conn, claim.session_id, actor="operator")
    assert await sessions.reopen(conn, claim.session_id, actor="operator")
    assert await sessions.close(conn, claim.session_id, actor="operator")
    assert await sessions.reopen(conn, claim.session_id, actor="operator")


TAKEN = (taken_away, withdrawn, closed_by_hand)
WAYS_TO_CLAIM = {
    "known": claim_known,
    "pull": lambda conn: gate.claim_next(conn, Phase.DRAFT, bid()),
}
STOPPED = "select status, generation from timeline where move = 'stopped'"


@pytest.mark.parametrize("claims", WAYS_TO_CLAIM.values(), ids=WAYS_TO_CLAIM)
@pytest.mark.parametrize("take", TAKEN)
async def test_what_was_taken_waits_until_its_worker_has_stopped(ladder, conn, take, claims):
    """Nobody may claim a session whose drafter may run still; when that has ended, anybody."""
    claim = await ladder.claimed()
    await take(ladder, conn, claim)

    assert (await ladder.session())["status"] == "clarified"
    assert await claims(conn) is None
    await gate.confirm_stopped(conn, claim)

    assert await claims(conn) is not None
    assert [tuple(row) for row in await conn.fetch(STOPPED)] == [("clarified", claim.generation)]


async def test_the_clarify_phase_waits_too(ladder, conn):
    """A session that was taken from a worker that read the story is not read by two."""
    claim = await ladder.in_status(Status.ASKING)
    await taken_away(ladder, conn, claim)

    assert await gate.claim_next(conn, Phase.CLARIFY, bid()) is None
    await gate.confirm_stopped(conn, claim)

    assert await gate.claim_next(conn, Phase.CLARIFY, bid()) is not None


@pytest.mark.parametrize("claims", WAYS_TO_CLAIM.values(), ids=WAYS_TO_CLAIM)
async def test_what_was_taken_waits_no_longer_than_its_lease(ladder, conn, claims):
    """A worker that has died says nothing; by the end of its lease no drafter of its runs."""
    claim = await ladder.claimed()
    leased_until = (await ladder.session())["claim_expires_at"]
    await taken_away(ladder, conn, claim)
    assert (await ladder.session())["stopping_until"] == leased_until

    await ladder.stop_waiting()

    assert await claims(conn) is not None


async def test_only_who_was_stopped_last_is_waited_for(ladder, conn):
    """What an older worker says, late, lets nobody begin beside a newer one, and is not told."""
    older = await ladder.claimed()
    await taken_away(ladder, conn, older)
    await ladder.stop_waiting()
    newer = await ladder.claim()
    await taken_away(ladder, conn, newer)

    await gate.confirm_stopped(conn, older)

    assert await claim_known(conn) is None
    assert await conn.fetch(STOPPED) == []


async def test_a_worker_that_wakes_late_says_so_under_its_successor(ladder, conn):
    """A claim that ran out holds nobody up; that its work has ended is told all the same."""
    stale = await reassigned(ladder, conn)
    owner = (await ladder.session())["claimed_by"]

    await gate.confirm_stopped(conn, stale)

    assert [tuple(row) for row in await conn.fetch(STOPPED)] == [("drafting", stale.generation)]
    assert (await ladder.session())["claimed_by"] == owner


async def test_that_work_has_stopped_is_told_once(ladder, conn):
    """Said again after a lost answer, it writes nothing."""
    claim = await ladder.claimed()
    await taken_away(ladder, conn, claim)
    await gate.confirm_stopped(conn, claim)
    before = await everything(ladder)

    await gate.confirm_stopped(conn, claim)

    assert await everything(ladder) == before


async def test_what_a_worker_ended_itself_was_not_stopped(ladder, conn):
    """A release that is asked for again after a lost answer is no claim that was taken."""
    claim = await ladder.claimed()
    await release(conn, claim)
    before = await everything(ladder)

    await gate.confirm_stopped(conn, claim)

    assert await everything(ladder) == before


async def test_only_what_is_owned_can_be_taken_away(ladder, conn):
    """Taking away a session that nobody owns changes nothing."""
    await ladder.clarified()
    before = await everything(ladder)

    assert not await sessions.take_away(conn, (await ladder.session())["id"], actor="operator")

    assert await everything(ladder) == before


async def test_only_what_is_owned_is_evicted(ladder, conn):
    """A close that takes a claim away leaves alone what no worker owns."""
    await ladder.clarified()
    before = await everything(ladder)

    await sessions.evict(conn, "shortcut", 1)

    assert await everything(ladder) == before


async def backing_off(ladder, conn):
    """A session that failed once, crashed once, and waits."""
    await ladder.claimed()
    await ladder.lapse()
    await expire(conn)
    await ladder.due()
    await release(conn, await ladder.claim(), delay=HOUR)


BUDGETS = "select attempts, crashes, next_attempt_at <= now() as due from patch_sessions"


async def test_what_people_move_has_fresh_budgets(ladder, conn):
    """A session that is closed and opened again, even at one go, starts anew and at once."""
    await backing_off(ladder, conn)

    await ladder.record(shapes.unlabelled(1, minute=5), shapes.labelled(1, minute=6))
    await ladder.apply()

    assert (await ladder.session())["status"] == "clarified"
    assert tuple(await conn.fetchrow(BUDGETS)) == (0, 0, True)


async def test_what_moves_nothing_keeps_the_budgets(ladder, conn):
    """A change of the story neither forgives failures nor ends the wait."""
    await backing_off(ladder, conn)

    await ladder.deliver(shapes.renamed(1, minute=5, title="Other"))

    assert tuple(await conn.fetchrow(BUDGETS)) == (1, 1, False)


async def test_a_revision_goes_on_from_the_newest_draft(ladder, conn):
    """The patch that is revised is the last one that was made."""
    await ladder.in_status(Status.DRAFTED)
    await ladder.deliver(shapes.commented(1, minute=5, text="/revise It", comment=9))
    claim = await ladder.claim()
    await gate.complete(conn, claim, replace(DRAFT, patch="newer"), comment=comment(claim))

    assert await sessions.latest_patch(conn, claim.session_id) == "newer"


async def test_a_story_that_is_gone_closes_its_session_for_good(ladder, conn):
    """A worker that finds its story gone closes the session; its generation is over."""
    claim = await ladder.claimed()

    assert await gate.abandon(conn, claim, reason="the story no longer exists")

    row = await ladder.session()
    assert (row["status"], row["claim_generation"]) == ("closed", claim.generation + 1)


async def test_a_session_that_is_decided_about_is_not_claimed(ladder, connect):
    """While a fact is being decided the gate waits, and then goes by what was decided."""
    await ladder.clarified()
    decider, worker = await connect(), await connect()

    async with decider.transaction():
        locked = await sessions.lock(decider, [("shortcut", 1)])
        waiting = await blocked(ladder.conn, worker, claim_known(worker))
        (session,) = locked.values()
        await sessions.save(decider, replace(session, status=Status.CLOSED), moves=[Move.CLOSE])

    assert await waiting is None
    assert (await ladder.session())["status"] == "closed"


async def test_a_success_forgets_earlier_crashes(ladder, conn):
    """A completed draft resets the budgets: the next revision has all of them."""
    await ladder.claimed()
    await ladder.lapse()
    await expire(conn)
    await ladder.due()
    claim = await ladder.claim()

    await gate.complete(conn, claim, DRAFT, comment=comment(claim))

    row = await ladder.session()
    assert (row["crashes"], row["attempts"]) == (0, 0)


# --- expiring --------------------------------------------------------------------------------


async def test_a_claim_that_has_run_out_is_taken_back(ladder, conn):
    """Expiry restores the prior status, counts the crash and fences the old worker."""
    claim = await ladder.claimed()
    await ladder.lapse()

    expired = await expire(conn)

    assert [row["sc_id"] for row in expired] == [1]
    row = await ladder.session()
    assert (row["status"], row["crashes"], row["attempts"]) == ("clarified", 1, 0)
    assert row["claim_generation"] == claim.generation + 1


async def test_a_live_claim_is_left_alone(ladder, conn):
    """Expiry touches no claim whose lease still runs."""
    await ladder.claimed()
    before = await everything(ladder)

    assert await expire(conn) == []

    assert await everything(ladder) == before


async def test_a_beat_that_is_being_written_saves_the_claim(ladder, connect):
    """Expiry passes by a row that is locked, and never waits for it."""
    claim = await ladder.claimed()
    await ladder.lapse()
    worker, expirer = await connect(), await connect()
    await expirer.execute("set lock_timeout = '1s'")

    async with worker.transaction():
        assert await gate.beat(worker, claim, lease=LEASE)
        assert await expire(expirer) == []

    assert await expire(expirer) == []
    assert (await ladder.session())["status"] == "drafting"


async def test_expiry_takes_no_more_than_its_limit_under_any_plan(ladder, conn):
    """One sweep is bounded, also where the planner would run the LIMIT once per row."""
    for story in range(1, 11):
        await ladder.claimed(story)
        await ladder.lapse(story)
    await plan_badly(conn)

    assert len(await expire(conn, limit=3)) == 3

    owned = "select count(*) from patch_sessions where claim_token is not null"
    assert await conn.fetchval(owned) == 7


async def test_crashes_have_a_budget_of_their_own(ladder, conn):
    """A session that kills its workers is failed after so many crashes, and the story is told."""
    await ladder.clarified()
    statuses = []
    for _ in range(3):
        await ladder.claim()
        await ladder.lapse()
        statuses += [row["status"] for row in await expire(conn, max_crashes=3)]
        await ladder.due()

    assert statuses == ["clarified", "clarified", "failed"]
    assert await conn.fetchval("select count(*) from outbox where kind = 'failure'") == 1


# --- beating ---------------------------------------------------------------------------------


async def test_a_beat_prolongs_the_lease(ladder, conn):
    """A heartbeat puts the end of the claim a lease from now."""
    claim = await ladder.claimed()
    await ladder.lapse()

    assert await gate.beat(conn, claim, lease=LEASE)

    assert await conn.fetchval(
        "select claim_expires_at > now() + interval '50 s' from patch_sessions"
    )


async def test_no_beat_outlives_the_phase(ladder, conn):
    """A hung drafter does not live for ever: beats can't prolong a claim past its phase's end."""
    claim = await ladder.claimed()
    await conn.execute("update patch_sessions set phase_ends_at = now() + interval '5 s'")

    await gate.beat(conn, claim, lease=LEASE)

    assert await conn.fetchval("select claim_expires_at = phase_ends_at from patch_sessions")


async def test_a_beat_past_the_phase_says_that_it_is_over(ladder, conn):
    """A worker is not told that it has a lease which the next sweep takes back."""
    claim = await ladder.claimed()
    await conn.execute("update patch_sessions set phase_ends_at = now(), claim_expires_at = now()")

    assert not await gate.beat(conn, claim, lease=LEASE)

    assert len(await expire(conn)) == 1


async def test_beats_stay_hot(ladder, conn):
    """Heartbeats touch no index: nearly all of their updates are heap-only."""
    claim = await ladder.claimed()
    statistics = (
        "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables"
        " where relname = 'patch_sessions'"
    )

    async with conn.transaction():
        before = await conn.fetchrow(statistics)
        for _ in range(20):
            assert await gate.beat(conn, claim, lease=LEASE)
        after = await conn.fetchrow(statistics)

    assert after["n_tup_upd"] - before["n_tup_upd"] == 20
    assert after["n_tup_hot_upd"] - before["n_tup_hot_upd"] >= 19
