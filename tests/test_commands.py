"""What people say and do on a story: commands, who may give them, and how work is stopped."""

from contextlib import suppress
from dataclasses import replace

import pytest

from app.db import events, gate, outbox
from app.errors import ShortcutUnavailable
from app.machine import Status
from app.shortcut.client import ShortcutClient
from app.simulator.faults import Fault
from app.simulator.records import PEOPLE, TEAM, TEAM_ID
from app.words import STATUS
from app.worker.teams import FRESH_SECONDS, Teams
from app.worker.workspaces import Workspaces
from tests import shapes
from tests.ladder import DRAFT, LEASE, Ladder, comment, here
from tests.office import TOKEN, simulated
from tests.test_order import commanded_by

GUEST = "6a100003-0000-4000-8000-000000000003"


async def told(ladder: Ladder, *kinds: str) -> list[str]:
    """What the story is told of these kinds."""
    rows = await ladder.conn.fetch(
        "select text from outbox where kind = any($1::text[]) order by id", kinds
    )
    return [row["text"] for row in rows]


async def status(ladder: Ladder) -> str:
    return (await ladder.session())["status"]


def say(text: str, *, minute: float = 30, comment: int = 7, author: str = shapes.MEMBER) -> bytes:
    """Somebody comments on the story."""
    return shapes.commented(1, minute=minute, text=text, comment=comment, author=author)


# --- who may say what ------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["/draft", "/revise Shorter.", "/retry", "/stop", "/status"])
@pytest.mark.parametrize("before", [Status.DRAFTED, Status.FAILED, Status.CLARIFYING])
async def test_a_command_of_somebody_who_may_give_none_is_refused(ladder, before, word):
    """It moves nothing, and is answered once."""
    await ladder.in_status(before)
    ladder = commanded_by(ladder, shapes.MEMBER)

    await ladder.deliver(say(word, author=GUEST), say(word, minute=31, author=GUEST))

    assert await status(ladder) == before
    assert len(await told(ladder, "refused")) == 1
    assert await told(ladder, "status", "stopped") == []


async def test_who_may_give_commands_is_obeyed(ladder):
    """The members that are named give commands, and nobody is answered without need."""
    await ladder.in_status(Status.DRAFTED)
    ladder = commanded_by(ladder, shapes.MEMBER)

    await ladder.deliver(say("/revise Shorter."))

    assert await status(ladder) == "clarified"
    assert await told(ladder, "refused", "status", "stopped") == []


async def test_anybody_may_answer_a_question(ladder):
    """An answer is no command."""
    await ladder.in_status(Status.CLARIFYING)
    ladder = commanded_by(ladder, shapes.MEMBER)

    await ladder.deliver(say("CSV", author=GUEST))

    assert await status(ladder) == "clarified"


async def test_a_guest_s_word_does_not_stop_what_a_label_opens(ladder):
    """A refused `/stop` on a closed story keeps nobody from opening it."""
    await ladder.in_status(Status.CLOSED)
    ladder = commanded_by(ladder, shapes.MEMBER)

    await ladder.deliver(say("/stop", minute=40, author=GUEST), shapes.labelled(1, minute=35))

    assert await status(ladder) == "clarified"


# --- what is said ----------------------------------------------------------------------------


@pytest.mark.parametrize("before", Status)
async def test_status_says_where_a_session_stands(ladder, before):
    """`/status` is answered on the story, once, and moves nothing."""
    await ladder.in_status(before)

    await ladder.deliver(say("How far is it?\n/status"), say("/status", minute=30.001))

    assert await status(ladder) == before
    (text,) = await told(ladder, "status")
    assert STATUS[before] in text


async def test_status_of_a_story_without_a_session_is_not_answered(ladder):
    """Where nothing was asked for there is nothing to say."""
    await ladder.deliver(say("/status"))

    assert await told(ladder, "status") == []


@pytest.mark.parametrize(
    "before", ["@patch-bot", f"[@patch-bot](shortcutapp://members/{shapes.BOT})"]
)
async def test_a_command_may_follow_a_mention(ladder, before):
    """Whoever says to whom a command is said means the same."""
    await ladder.in_status(Status.DRAFTED)

    await ladder.deliver(say(f"{before} /stop"))

    assert await status(ladder) == "closed"


async def test_an_answer_that_was_not_sent_yet_is_decided_anew(ladder):
    """What comes late can change what is answered, until it is on its way."""
    await ladder.deliver(shapes.labelled(1, minute=1), say("/status", minute=5))

    await ladder.deliver(shapes.unlabelled(1, minute=4))

    assert [STATUS[Status.CLOSED] in text for text in await told(ladder, "status")] == [True]


async def test_an_answer_that_may_have_been_sent_is_left_alone(ladder):
    """A row that a sender has tried keeps its tries, so that it is looked for before it is sent."""
    await ladder.deliver(shapes.labelled(1, minute=1), say("/status", minute=5))
    owed = await outbox.claim(ladder.conn, sender="sender", lease=LEASE)
    await outbox.postpone(ladder.conn, owed, error="no answer", delay=LEASE)

    await ladder.deliver(shapes.unlabelled(1, minute=4))

    rows = await ladder.conn.fetch("select attempts from outbox")
    assert [row["attempts"] for row in rows] == [1]


# --- teams -----------------------------------------------------------------------------------


@pytest.fixture
async def teamed(ladder):
    """A workspace where only the commands of one team's members count; its simulation."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        workspaces = here(shortcut)
        workspaces.teams = Teams(ids=(TEAM_ID, GUEST))
        yield simulation, by_workspaces(commanded_by(ladder), workspaces)


def by_workspaces(ladder: Ladder, workspaces: Workspaces) -> Ladder:
    return replace(ladder, applier=replace(ladder.applier, workspaces=workspaces))


async def test_the_commands_of_a_team_s_members_count(teamed):
    """Others' are refused; a team that is not there has nobody in it."""
    _, ladder = teamed
    await ladder.in_status(Status.DRAFTED)

    await ladder.deliver(say("/revise A", comment=7, author=PEOPLE[2].id))
    assert await status(ladder) == "drafted"
    assert len(await told(ladder, "refused")) == 1
    await ladder.deliver(say("/revise B", comment=8, author=TEAM[0].id, minute=31))

    assert await status(ladder) == "clarified"


async def test_a_command_waits_until_it_is_known_who_is_in_the_team(teamed):
    """Nobody is refused because the API is away; and what is old is read again for a comment."""
    simulation, ladder = teamed
    teams = ladder.applier.workspaces.teams
    await ladder.in_status(Status.DRAFTED)
    assert teams.must_be_read("shortcut", for_comments=True) is False
    teams._read_at["shortcut"] -= FRESH_SECONDS + 1
    simulation.faults.pending.append(Fault(path="/groups"))
    await ladder.record(say("/revise B", author=TEAM[0].id))

    await ladder.applier.tick()
    with suppress(ShortcutUnavailable):
        await ladder.applier.read_tick()
    assert (await status(ladder), await told(ladder, "refused")) == ("drafted", [])
    await ladder.conn.execute("update events set next_attempt_at = now() where status = 'pending'")
    await ladder.apply()

    assert await status(ladder) == "clarified"


async def test_without_a_token_a_team_has_nobody(ladder):
    """A setting that can't be followed opens nothing to everybody."""
    workspaces = here()
    workspaces.teams = Teams(ids=(TEAM_ID,))
    ladder = by_workspaces(commanded_by(ladder), workspaces)
    await ladder.in_status(Status.DRAFTED)

    await ladder.deliver(say("/revise B", author=TEAM[0].id))

    assert (await status(ladder), len(await told(ladder, "refused"))) == ("drafted", 1)


# --- stopping --------------------------------------------------------------------------------

ENDS = {
    "unlabelled": shapes.unlabelled(1, minute=30),
    "unassigned": shapes.disowned(1, minute=30),
    "archived": shapes.archived(1, minute=30),
    "completed": shapes.completed(1, minute=30),
    "stopped": say("Not now.\n/stop"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("owned", [Status.DRAFTING, Status.ASKING])
async def test_what_is_stopped_while_it_is_worked_on_is_said_once(ladder, owned, end):
    """The claim is gone at once, and the story is told why, however often it is replayed."""
    claim = await ladder.in_status(owned)

    await ladder.deliver(ENDS[end])
    newest = await ladder.conn.fetchval("select max(id) from events")
    await events.replay(ladder.conn, newest, nonce="once", actor="operator")
    await ladder.apply()
    await ladder.deliver(shapes.archived(1, minute=31))

    assert await status(ladder) == "closed"
    assert len(await told(ladder, "stopped")) == 1
    assert not await gate.complete(ladder.conn, claim, DRAFT, comment=comment(claim))


async def test_a_story_that_is_deleted_is_told_nothing(ladder):
    """Its worker is stopped all the same."""
    await ladder.in_status(Status.DRAFTING)

    await ladder.deliver(shapes.deleted(1, minute=30))

    assert await status(ladder) == "closed"
    assert await told(ladder, "stopped") == []


@pytest.mark.parametrize("end", [name for name in ENDS if name != "stopped"])
async def test_an_end_that_stops_nobody_is_not_said(ladder, end):
    """Who takes a label off a drafted story knows that."""
    await ladder.in_status(Status.DRAFTED)

    await ladder.deliver(ENDS[end])

    assert await status(ladder) == "closed"
    assert await told(ladder, "stopped") == []


@pytest.mark.parametrize("end", ENDS)
async def test_what_was_closed_can_be_opened_again(ladder, end):
    """The label opens the session again, and it is drafted as before."""
    await ladder.in_status(Status.DRAFTING)
    await ladder.deliver(ENDS[end])

    await ladder.deliver(shapes.labelled(1, minute=40))

    await ladder.stop_waiting()
    claim = await ladder.claim(1)
    assert await gate.complete(ladder.conn, claim, DRAFT, comment=comment(claim))
    assert await status(ladder) == "drafted"
