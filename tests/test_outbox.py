"""What is owed to a story is posted once, whatever the API does."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from app.cli.main import app as command
from app.db import outbox
from app.machine import Status
from app.simulator.records import STATES
from app.words import standing
from app.worker.outbox import LEASE, MAX_TRIES, tellings
from tests.locks import until
from tests.proxy import proxy_to
from tests.test_gate import plan_badly

STANDS = standing(Status.DRAFTED)


async def test_a_draft_is_told_once(office):
    """The comment is posted with its marker, and its row says so; there is nothing more to do."""
    assert await office.sender.tick()
    assert not await office.sender.tick()

    (posted,) = office.comments()
    row = await office.row()
    assert (row["status"], row["text"]) == ("sent", posted)
    assert await office.shortcut.find_comment(office.story, row["key"]) == row["comment_id"]


@pytest.mark.parametrize("kind", ["hang", "cut"])
async def test_a_comment_that_was_posted_without_an_answer_is_not_posted_again(office, kind):
    """After an uncertain try our own marker is looked for before anything is posted."""
    office.fault(kind=kind, method="POST")
    await office.sender.tick()
    assert (await office.row())["status"] == "pending"
    await office.due()

    await office.sender.tick()

    assert len(office.comments()) == 1
    assert (await office.row())["status"] == "sent"


async def test_a_sender_that_died_leaves_no_second_comment(office, ladder):
    """A sender that posted and died before it could say so: the next one finds the marker."""
    owed = await outbox.claim(ladder.conn, sender="dead", lease=LEASE)
    await office.shortcut.post_comment(owed.sc_id, owed.text, owed.key)
    await ladder.conn.execute("update outbox set claim_expires_at = now()")

    assert await office.sender.expire_tick()
    await office.sender.tick()

    assert len(office.comments()) == 1
    assert (await office.row())["status"] == "sent"


async def test_too_many_requests_are_a_delay(office):
    """A 429 is no failure: the row waits as long as it is told to."""
    office.fault(status=429, retry_after="120")
    await office.sender.tick()

    row = await office.row()
    assert row["status"] == "pending"
    waits = "select next_attempt_at > now() + interval '110 s' from outbox"
    assert await office.ladder.conn.fetchval(waits)
    assert not await office.sender.tick()


async def test_too_many_requests_are_no_try(office):
    """What was not carried out need not be looked for, and never uses up a row's tries."""
    office.fault(status=429, times=3)
    for _ in range(3):
        await office.sender.tick()
        assert (await office.row())["attempts"] == 0
        await office.due()
    office.fault(status=500, method="GET")

    await office.sender.tick()

    assert len(office.comments()) == 1


async def test_an_outage_is_waited_out(office):
    """A 503 is tried again, and then the comment is there once."""
    office.fault(status=503)
    await office.sender.tick()
    await office.due()

    await office.sender.tick()

    assert len(office.comments()) == 1


async def test_a_refusal_is_left_to_a_person(office):
    """A 4xx is not repeated: the row is failed, with the reason, and the draft is kept."""
    office.fault(status=422)

    await office.sender.tick()

    row = await office.row()
    assert row["status"] == "failed"
    assert "422" in row["last_error"]
    assert await office.ladder.conn.fetchval("select count(*) from drafts") == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_token_that_is_refused_for_a_while_loses_no_comment(office, status):
    """What is owed waits for another token, minutes between tries; that is said once."""
    office.fault(status=status, times=2)
    with capture_logs() as lines:
        for _ in range(2):
            await office.sender.tick()
            row = await office.row()
            assert row["status"] == "pending"
            assert str(status) in row["last_error"]
            waits = "select next_attempt_at > now() + interval '4 min' from outbox"
            assert await office.ladder.conn.fetchval(waits)
            await office.due()
        await office.sender.tick()

    assert len(office.comments()) == 1
    said = [line["event"] for line in lines if line.get("what") == "the Shortcut token"]
    assert said == ["outage.began", "outage.ended"]


@pytest.mark.parametrize("status", [301, 302, 307])
async def test_a_redirect_is_waited_out(office, status):
    """What answers in Shortcut's place for a while loses no comment; the row says what it was."""
    office.fault(status=status)
    await office.sender.tick()
    row = await office.row()
    assert row["status"] == "pending"
    assert str(status) in row["last_error"]
    await office.due()

    await office.sender.tick()

    assert len(office.comments()) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_no_row_of_failures_doubles_or_loses_anything(office, seed):
    """Comment, standing comment, label and state, each through all that an API can do wrong."""
    dice = random.Random(seed)
    sender = replace(
        office.sender, quiet=timedelta(0), tellings=tellings("has-draft", STATES[2].name)
    )
    await sender.tell_tick()
    faults = [
        *({"kind": "cut", "method": method} for method in ("POST", "PUT", "GET")),
        *({"status": status} for status in (302, 401, 408, 429, 500, 503)),
    ]
    dice.shuffle(faults)
    for fault in faults:
        office.fault(**fault)
    rows = "select kind, status, attempts, last_error from outbox order by kind"

    for _ in range(60):
        await sender.tick()
        await office.due()
        found = await office.ladder.conn.fetch(rows)
        if {row["status"] for row in found} == {"sent"}:
            break
        assert all(it["last_error"] for it in found if it["attempts"] and it["status"] != "sent")

    assert [(row["kind"], row["status"]) for row in found] == [
        ("draft", "sent"),
        ("marks", "sent"),
        ("standing", "sent"),
    ]
    assert sorted(office.comments()) == sorted([(await office.row())["text"], STANDS])
    story = office.simulation.workspace.story(office.story)
    labels = [office.simulation.workspace.labels[it].name for it in story.label_ids]
    assert (labels, story.workflow_state_id) == (["has-draft"], STATES[2].id)


async def test_a_row_that_breaks_us_does_not_hold_up_others(office):
    """It is put off with its error, again and again, and in the end is left to a person."""
    conn = office.ladder.conn
    await conn.execute("alter table outbox add check (comment_id is null or kind <> 'draft')")
    await conn.execute(
        "insert into outbox (session_id, key, kind, text)"
        " select id, 'good', 'failure', 'Good' from patch_sessions"
    )

    while await office.sender.tick():
        pass

    rows = await conn.fetch("select status, attempts, last_error from outbox order by id")
    assert [row["status"] for row in rows] == ["pending", "sent"]
    assert "CheckViolation" in rows[0]["last_error"]
    await conn.execute("update outbox set attempts = $1 where status = 'pending'", MAX_TRIES - 1)
    await office.due()
    await office.sender.tick()
    assert await conn.fetchval("select count(*) from outbox where status = 'failed'") == 1
    assert len(office.comments()) == 2


async def test_a_sender_that_stood_still_past_its_lease_posts_nothing(office, database):
    """Its claim's answer reaches it when another has posted: it sees how late it is."""
    async with proxy_to(database.dsn) as proxy, proxy.through(database).pool("far") as far:
        slow = replace(office.sender, pool=far, lease=timedelta(seconds=0.2))
        claimed = proxy.catch("status = 'sending', claim")
        sending = asyncio.create_task(slow.tick())
        await claimed.executed.wait()
        await until(office.sender.expire_tick)
        await office.sender.tick()

        claimed.deliver()
        await sending

    assert len(office.comments()) == 1
    assert (await office.row())["status"] == "sent"


async def test_comments_that_were_given_up_can_be_sent_after_all(office, database, monkeypatch):
    """An operator has a failed row sent; what was posted without an answer is found, not posted."""
    monkeypatch.setenv("DRAFTGATE_DATABASE_URL", database.dsn)
    office.fault(kind="cut", method="POST")
    office.fault(status=422)
    await office.sender.tick()
    await office.due()
    await office.sender.tick()
    row = await office.row()
    assert row["status"] == "failed"

    # In a thread: a command has an event loop of its own.
    def draftgate(*words):
        return asyncio.to_thread(CliRunner().invoke, command, ["outbox", *words])

    listed = await draftgate("list", "--status", "failed", "--json")
    assert f'"id": {row["id"]}' in listed.stdout
    done = await draftgate("retry", "--yes", str(row["id"]))
    assert done.exit_code == 0, done.output
    again = await draftgate("retry", "--yes", str(row["id"]))
    assert (again.exit_code, again.stdout) == (1, "")
    await office.sender.tick()

    assert len(office.comments()) == 1
    assert (await office.row())["status"] == "sent"


@pytest.mark.parametrize("status", ["pending", "sending", "sent"])
async def test_only_what_was_given_up_is_sent_again(ladder, office, status):
    """A row that is on its way, or was sent, is left as it is."""
    if status != "pending":
        owed = await outbox.claim(ladder.conn, sender="sender", lease=LEASE)
    if status == "sent":
        assert await outbox.sent(ladder.conn, owed, comment_id=1)
    before = await office.row()

    assert await outbox.retry(ladder.conn, [before["id"]], actor="me") == []

    assert await office.row() == before


async def test_two_senders_do_not_share_a_row(ladder, office, connect):
    """A row that is being claimed is passed by, not waited for."""
    first, second = await connect(), await connect()
    await second.execute("set lock_timeout = '1s'")

    async with first.transaction():
        assert await outbox.claim(first, sender="first", lease=LEASE) is not None
        assert await outbox.claim(second, sender="second", lease=LEASE) is None


@pytest.mark.parametrize("end", ["sent", "postpone", "give_up"])
@pytest.mark.parametrize("since", ["claimed by another", "sent by another"])
async def test_a_sender_whose_row_was_taken_over_says_nothing(ladder, office, end, since):
    """After its claim has run out, what a slow sender says of the row counts for nothing."""
    conn = ladder.conn
    slow = await outbox.claim(conn, sender="slow", lease=LEASE)
    await conn.execute("update outbox set claim_expires_at = now()")
    await outbox.expire(conn, limit=10)
    new = await outbox.claim(conn, sender="new", lease=LEASE)
    if since == "sent by another":
        assert await outbox.sent(conn, new, comment_id=2)
    before = await office.row()
    say = {
        "sent": lambda: outbox.sent(conn, slow, comment_id=1),
        "postpone": lambda: outbox.postpone(conn, slow, error="x", delay=LEASE),
        "give_up": lambda: outbox.give_up(conn, slow, error="x"),
    }

    assert await say[end]() is False

    assert await office.row() == before


@pytest.mark.parametrize("end", ["sent", "postpone", "give_up"])
async def test_what_was_said_of_a_row_is_the_last_word(ladder, office, end):
    """A sender that was through with its row, and says something again, changes nothing."""
    owed = await outbox.claim(ladder.conn, sender="sender", lease=LEASE)
    assert await outbox.sent(ladder.conn, owed, comment_id=1)
    before = await office.row()
    say = {
        "sent": lambda: outbox.sent(ladder.conn, owed, comment_id=2),
        "postpone": lambda: outbox.postpone(ladder.conn, owed, error="x", delay=LEASE),
        "give_up": lambda: outbox.give_up(ladder.conn, owed, error="x"),
    }

    assert await say[end]() is False

    assert await office.row() == before


async def owe_many(ladder, count):
    """So many more comments that are owed."""
    await ladder.conn.execute(
        "insert into outbox (session_id, key, kind, text) select id, n, 'draft', 'Some text'"
        " from patch_sessions, generate_series(1, $1) as n",
        count,
    )


async def test_a_sender_claims_one_row_under_any_plan(ladder, office, conn):
    """LIMIT 1 claims one row even where the planner would run it once per row."""
    await owe_many(ladder, 30)
    await plan_badly(conn)

    assert await outbox.claim(conn, sender="sender", lease=LEASE) is not None

    sending = "select count(*) from outbox where status = 'sending'"
    assert await conn.fetchval(sending) == 1


async def test_expiry_takes_no_more_rows_than_its_limit_under_any_plan(ladder, office, conn):
    """One sweep is bounded, also where the planner would run the LIMIT once per row."""
    await owe_many(ladder, 9)
    while await outbox.claim(conn, sender="dead", lease=LEASE):
        pass
    await conn.execute("update outbox set claim_expires_at = now()")
    await plan_badly(conn)

    assert await outbox.expire(conn, limit=3) == 3

    sending = "select count(*) from outbox where status = 'sending'"
    assert await conn.fetchval(sending) == 7


async def test_expiry_passes_by_a_row_that_is_being_written(ladder, office, connect):
    """A sender that says so just in time has sent it; the expiry does not wait for it."""
    sender, expirer = await connect(), await connect()
    await expirer.execute("set lock_timeout = '1s'")
    owed = await outbox.claim(sender, sender="late", lease=LEASE)
    await sender.execute("update outbox set claim_expires_at = now()")

    async with sender.transaction():
        assert await outbox.sent(sender, owed, comment_id=1)
        assert await outbox.expire(expirer, limit=9) == 0

    assert (await office.row())["status"] == "sent"


async def test_a_live_sender_is_left_alone(ladder, office):
    """Expiry takes no row whose sender still has time."""
    await outbox.claim(ladder.conn, sender="live", lease=LEASE)

    assert not await office.sender.expire_tick()


async def test_what_comes_late_in_a_transaction_is_sent(ladder, office, connect):
    """A row that commits after a newer one was sent is not passed over for ever."""
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await late.execute(
        "insert into outbox (session_id, key, kind, text) select id, 'late', 'draft', 'Late'"
        " from patch_sessions"
    )
    assert await office.sender.tick()

    await transaction.commit()

    assert await office.sender.tick()
    assert "Late" in office.comments()
