"""What is owed to a story is posted once, whatever the API does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from app.cli.simulate import serve_app
from app.cli.trial import listen
from app.db import gate, outbox
from app.outbox import LEASE, Sender
from app.shortcut.client import ShortcutClient
from app.simulator.faults import Fault
from app.simulator.records import AGENT, PEOPLE
from app.simulator.server import create_simulator
from app.simulator.simulation import Simulation
from tests import shapes
from tests.ladder import DRAFT, Ladder, comment

TOKEN = "a-token-of-tests-only"


@dataclass(frozen=True, slots=True)
class Office:
    """A sender, and the workspace that it posts to."""

    simulation: Simulation
    shortcut: ShortcutClient
    sender: Sender
    ladder: Ladder
    story: int

    def comments(self) -> list[str]:
        """What we have said on stories."""
        said = self.simulation.workspace.comments.values()
        return [it.text for it in said if it.author_id == AGENT.id]

    async def owe(self) -> None:
        """A drafted session, and so a comment that is owed."""
        await self.ladder.deliver(shapes.labelled(self.story))
        claim = await self.ladder.claim(self.story)
        assert await gate.complete(self.ladder.conn, claim, DRAFT, comment=comment(claim))

    async def row(self):
        """The outbox's only row."""
        (row,) = await self.ladder.conn.fetch("select * from outbox")
        return row

    async def due(self) -> None:
        """The wait before the next try is over."""
        await self.ladder.conn.execute("update outbox set next_attempt_at = now()")

    def fault(self, **fault: object) -> None:
        """The next request that it fits goes wrong."""
        self.simulation.faults.pending.append(Fault(**fault))


@asynccontextmanager
async def simulated() -> AsyncIterator[tuple[Simulation, str]]:
    """A simulated workspace with its API on a real port."""
    stopping = asyncio.Event()
    app = create_simulator(webhook_url=None, secret="", api_token=TOKEN, seeded=False)
    with listen(0) as listener:
        serving = asyncio.create_task(serve_app(app, listener, stopping))
        try:
            yield app.state.simulation, f"http://127.0.0.1:{listener.getsockname()[1]}/api/v3"
        finally:
            stopping.set()
            await serving


@pytest.fixture
async def office(ladder, pool) -> AsyncIterator[Office]:
    """A sender with a comment that is owed to a story that exists."""
    async with (
        simulated() as (simulation, url),
        ShortcutClient(url, TOKEN, deadline_seconds=1) as shortcut,
    ):
        story = simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id
        sender = Sender(name="sender", pool=pool, shortcut=shortcut)
        made = Office(simulation, shortcut, sender, ladder, story)
        await made.owe()
        yield made


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


async def test_two_senders_do_not_share_a_row(ladder, office, connect):
    """A row that is being claimed is passed by, not waited for."""
    first, second = await connect(), await connect()
    await second.execute("set lock_timeout = '1s'")

    async with first.transaction():
        assert await outbox.claim(first, sender="first", lease=LEASE) is not None
        assert await outbox.claim(second, sender="second", lease=LEASE) is None


@pytest.mark.parametrize("end", ["sent", "postpone", "give_up"])
async def test_a_sender_whose_row_was_taken_over_says_nothing(ladder, office, end):
    """After its claim has run out, what a slow sender says of the row counts for nothing."""
    conn = ladder.conn
    slow = await outbox.claim(conn, sender="slow", lease=LEASE)
    await conn.execute("update outbox set claim_expires_at = now()")
    await outbox.expire(conn, limit=10)
    await outbox.claim(conn, sender="new", lease=LEASE)
    before = await office.row()
    say = {
        "sent": lambda: outbox.sent(conn, slow, comment_id=1),
        "postpone": lambda: outbox.postpone(conn, slow, error="x", delay=LEASE),
        "give_up": lambda: outbox.give_up(conn, slow, error="x"),
    }

    assert await say[end]() is False

    assert await office.row() == before


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
