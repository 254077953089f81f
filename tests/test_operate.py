"""What an operator does by hand: only where the state allows it, once, and told in the timeline."""

from dataclasses import replace

import pytest

from app import operate
from app.db import events, gate, look
from app.db.events import Replay
from app.machine import OWNED, TRANSITIONS, Move, Status
from app.operate import Action
from app.shortcut.envelope import read
from tests import shapes
from tests.ladder import DRAFT, LEASE, comment
from tests.locks import blocked
from tests.test_machine import claim_like

ME = operate.actor("ada")


async def act(ladder, action, **more):
    """Does it to story 1, as it stands."""
    session = await ladder.session()
    return await operate.act(ladder.conn, session["id"], action, actor=ME, **more)


async def last_told(ladder, count=1):
    """The newest entries of the timeline: (move, status, actor)."""
    rows = await look.timeline(ladder.conn, (await ladder.session())["id"])
    return [(row["move"], row["status"], row["actor"]) for row in rows[-count:]]


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("status", Status)
async def test_an_action_is_possible_where_the_machine_says_so(ladder, status, action):
    """What a plan calls possible is done; what it does not changes nothing."""
    await ladder.in_status(status)
    late = replace(await claim_like(ladder), generation=99)
    await gate.keep_late_result(ladder.conn, late, DRAFT)
    before = await ladder.session()
    plan = operate.plan(before, action)

    done = await act(ladder, action, generation=late.generation)

    after = await ladder.session()
    assert done == plan.possible == (action in operate.possible(before))
    assert after["claim_generation"] == before["claim_generation"] + done
    if done:
        assert (await last_told(ladder))[0][2] == ME
    else:
        assert dict(after) == dict(before)


async def test_closing_stops_the_worker(ladder, conn):
    """A session that is closed by hand is lost to its worker, whose next beat says so."""
    claim = await ladder.claimed()

    assert await act(ladder, Action.CLOSE)

    assert not await gate.beat(conn, claim, lease=LEASE)
    assert not await gate.complete(conn, claim, DRAFT, comment=comment(claim))
    assert await last_told(ladder) == [("close", "closed", ME)]


async def test_what_is_closed_by_hand_stays_closed(ladder):
    """A delivery from before the closing changes nothing; one from after it opens again."""
    await ladder.clarified()
    await act(ladder, Action.CLOSE)

    await ladder.deliver(shapes.unlabelled(1, minute=2), shapes.labelled(1, minute=3))
    assert (await ladder.session())["status"] == "closed"

    await ladder.conn.execute("update patch_sessions set decided_at = '2026-09-14 08:30Z'")
    await ladder.deliver(shapes.labelled(1, minute=40))
    assert (await ladder.session())["status"] == "clarified"


async def test_what_is_reopened_by_hand_stays_open(ladder):
    """Reopened, a session goes on where its text is known; what is from before changes nothing."""
    await ladder.in_status(Status.CLOSED)

    assert await act(ladder, Action.REOPEN)

    assert await last_told(ladder, 2) == [("open", "opened", ME), ("clear", "clarified", ME)]
    await ladder.deliver(shapes.unlabelled(1, minute=30))
    assert (await ladder.session())["status"] == "clarified"


async def test_a_session_without_text_is_reopened_to_be_read(ladder):
    """Where neither title nor description is known, a worker reads them first."""
    await ladder.deliver(shapes.labelled(1, name=""))
    await act(ladder, Action.CLOSE)

    assert await act(ladder, Action.REOPEN)

    assert await last_told(ladder) == [("open", "opened", ME)]


def test_actions_are_moves_of_the_machine():
    """Each action is possible from somewhere, and taking away only from what is owned."""
    assert all(operate.allows(action) for action in Action)
    assert operate.allows(Action.RELEASE) == set(OWNED.values())
    assert operate.allows(Action.REOPEN) == {s for s in Status if Move.OPEN in TRANSITIONS[s]}


def test_an_operator_s_name_is_kept_short_and_plain():
    """What a header or a system calls somebody is cut, and has no control characters."""
    assert operate.actor(" ada\x1b[31m\n") == "operator ada [31m"
    assert operate.actor("") == "operator"
    assert len(operate.actor("x" * 1000)) < 120


async def test_an_operator_s_second_replay_runs(ladder, conn):
    """Each replay has a nonce of its own and is interpreted; each is told with who asked."""
    await ladder.clarified()

    for nonce in ("first", "second"):
        assert await operate.replay(conn, 1, actor=ME, nonce=nonce) is Replay.REPLAYED
        assert await conn.fetchval("select status from events") == "pending"
        await ladder.applier.tick()
        assert await conn.fetchval("select status from events") == "applied"

    assert [row["actor"] for row in await look.replays(conn, 1)] == [ME, ME]
    assert await last_told(ladder, 2) == [("replay", "clarified", ME)] * 2


async def test_a_redelivery_of_a_replayed_event_is_a_duplicate(ladder, conn):
    """A replay frees no key: what the sender delivers again writes nothing."""
    await ladder.clarified()
    await operate.replay(conn, 1, actor=ME)
    await ladder.applier.tick()

    assert await ladder.record(shapes.labelled(1)) == 0

    assert await conn.fetchval("select count(*) from events where status <> 'pending'") == 1


async def test_a_replay_that_is_asked_for_twice_runs_once(ladder, conn):
    """A request that is sent again with its nonce is known, and changes nothing."""
    await ladder.clarified()
    assert await operate.replay(conn, 1, actor=ME, nonce="same") is Replay.REPLAYED
    await ladder.applier.tick()

    assert await operate.replay(conn, 1, actor=ME, nonce="same") is Replay.REPEATED

    assert await conn.fetchval("select status from events") == "applied"


async def test_two_requests_with_one_nonce_wait_for_each_other(ladder, conn, connect):
    """Of two that come at once, the second waits for the first, and finds it done."""
    await ladder.clarified()
    first, second = await connect(), await connect()

    async def replay_again():
        return await operate.replay(second, 1, actor=ME, nonce="same")

    transaction = first.transaction()
    await transaction.start()
    assert await operate.replay(first, 1, actor=ME, nonce="same") is Replay.REPLAYED
    waiting = await blocked(conn, second, replay_again())
    await transaction.commit()
    assert await waiting is not Replay.REPLAYED

    assert len(await look.replays(conn, 1)) == 1


async def test_nothing_is_told_of_a_session_that_is_being_deleted(ladder, conn, connect):
    """A replay waits for the end of that, and leaves no timeline without a session."""
    await ladder.clarified()
    deleting, replaying = await connect(), await connect()

    transaction = deleting.transaction()
    await transaction.start()
    await deleting.execute("delete from patch_sessions")
    waiting = await blocked(conn, replaying, operate.replay(replaying, 1, actor=ME))
    await transaction.commit()

    assert await waiting is Replay.REPLAYED
    assert await conn.fetchval("select count(*) from timeline") == 0


async def test_a_session_that_is_deleted_takes_along_what_is_told_meanwhile(ladder, conn, connect):
    """That a comment is sent again is told before the comment is gone, and goes with it."""
    await ladder.in_status(Status.FAILED)
    await conn.execute("update outbox set status = 'failed', last_error = 'no'")
    deleting, resending = await connect(), await connect()

    transaction = resending.transaction()
    await transaction.start()
    assert await operate.resend(resending, [1], actor=ME) == [1]
    waiting = await blocked(conn, deleting, deleting.execute("delete from patch_sessions"))
    await transaction.commit()
    await waiting

    assert await conn.fetchval("select count(*) from timeline") == 0


async def test_what_is_pending_is_not_replayed(ladder, conn):
    """An event that waits is interpreted anyway; one that is not there is not replayed."""
    await ladder.record(shapes.labelled(1))

    assert await operate.replay(conn, 1, actor=ME) is Replay.PENDING
    assert await operate.replay(conn, 2, actor=ME) is None
    assert not operate.plan_replay(await look.event(conn, 1)).possible


async def test_a_comment_that_was_given_up_is_sent_again(ladder, conn):
    """It is pending with fresh tries but one, so that its marker is looked for first."""
    claim = await ladder.claimed()
    await gate.complete(conn, claim, DRAFT, comment=comment(claim))
    owed = (await look.outbox(conn)).rows[0]
    assert not operate.plan_resend(owed).possible
    assert await operate.resend(conn, [owed["id"]], actor=ME) == []
    await conn.execute("update outbox set status = 'failed', last_error = 'no', attempts = 600")

    assert operate.plan_resend((await look.outbox(conn)).rows[0]).possible
    assert await operate.resend(conn, [owed["id"]], actor=ME) == [owed["id"]]

    row = await conn.fetchrow("select * from outbox")
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert row["claim_generation"] == 1
    assert await last_told(ladder) == [("resend", "drafted", ME)]


async def test_a_late_result_is_adopted_as_the_next_draft(ladder, conn):
    """The comment that is owed calls it what it becomes."""
    first = await ladder.claimed()
    await act(ladder, Action.RELEASE)
    await gate.keep_late_result(conn, first, DRAFT)
    await gate.confirm_stopped(conn, first)
    second = await ladder.claim()
    await gate.complete(conn, second, DRAFT, comment=comment(second))

    assert not await act(ladder, Action.ADOPT, generation=99)
    assert await act(ladder, Action.ADOPT, generation=first.generation)
    assert not await act(ladder, Action.ADOPT, generation=first.generation)

    newest = (await look.outbox(conn)).rows[0]
    assert "**Draft 2**" in (await look.outbox_entry(conn, newest["id"]))["text"]
    assert len(await look.drafts(conn, first.session_id)) == 2


async def test_what_another_version_could_not_read_is_read_anew(ladder, conn):
    """A quarantined event is replayed as what its body says to this version; its key stays."""
    body = shapes.labelled(1)
    unread = read("shortcut", body, [])._replace(
        kind="invalid", event_id=None, occurred_at=None, defect="odd"
    )
    await events.record(conn, [unread])
    before = await look.event(conn, 1)
    assert operate.plan_replay(before).possible

    assert await operate.replay(conn, 1, actor=ME) is Replay.REPLAYED
    await ladder.apply()

    event = await look.event(conn, 1)
    assert (event["status"], event["kind"], event["sc_ids"]) == ("applied", "v1", [1])
    assert (event["body"], event["dedupe_key"]) == (body, before["dedupe_key"])
    assert event["occurred_at"] == read("shortcut", body, []).occurred_at
    assert (await ladder.session())["status"] == "clarified"


async def test_only_what_is_in_quarantine_is_read_anew(ladder, conn):
    """An event that has left it meanwhile stays what it was read as."""
    await ladder.deliver(shapes.labelled(1))
    before = dict(await look.event(conn, 1))

    await events.read_anew(conn, 1, read("shortcut", shapes.labelled(2), [])._replace(kind="v2"))

    assert dict(await look.event(conn, 1)) == before


async def test_what_can_not_be_read_is_not_replayed(ladder, conn):
    """It would only lose its place in quarantine: the plan.text why, with this version's words."""
    await ladder.record(b"{")

    plan = operate.plan_replay(await look.event(conn, 1))

    assert not plan.possible
    assert "not JSON" in plan.text
