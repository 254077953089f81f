"""The one comment that says where a story's session stands, and its marks: rewritten in place."""

from dataclasses import replace
from datetime import timedelta

import pytest

from app.db import outbox
from app.machine import Status
from app.simulator.records import PEOPLE, STATES
from app.words import standing
from app.worker.outbox import LEASE, tellings
from tests import shapes
from tests.ladder import here
from tests.office import Office
from tests.test_gate import plan_badly

NO_TIME = timedelta(0)
HERE = ["shortcut"]


@pytest.fixture
async def telling(office):
    """An office whose draft is sent, and that tells where a session stands at once."""
    assert await office.sender.tick()
    sender = replace(office.sender, quiet=NO_TIME, tellings=tellings())
    return replace(office, sender=sender)


def said(office: Office) -> list[str]:
    """Where the story stands, as our comments on it say."""
    return [text for text in office.comments() if text.startswith("**Where this stands**")]


async def tell(office: Office) -> None:
    """Whatever there is to tell is told."""
    while await office.sender.tell_tick() or await office.sender.tick():
        pass


async def revise(office: Office) -> None:
    """The session moves: another draft is asked for."""
    await office.ladder.deliver(
        shapes.commented(office.story, text="/revise Shorter.", comment=77, minute=5)
    )


async def test_where_a_story_stands_is_one_comment(telling):
    """It is posted once, and edited when the session moves."""
    await tell(telling)
    assert said(telling) == [standing(Status.DRAFTED)]

    await revise(telling)
    await tell(telling)
    assert said(telling) == [standing(Status.CLARIFIED)]

    await telling.ladder.claim(telling.story)
    await tell(telling)
    assert said(telling) == [standing(Status.DRAFTING)]


async def test_what_goes_by_quickly_is_not_told(telling):
    """A session that moves again before it was told of is told of once."""
    office = telling
    await office.sender.tell_tick()
    await revise(office)
    await office.sender.tell_tick()

    assert await office.sender.tick()
    assert not await office.sender.tick()

    assert said(office) == [standing(Status.CLARIFIED)]


async def test_a_session_is_told_of_when_it_stands_still(telling):
    """Until the quiet time is over nothing is owed."""
    hasty = replace(telling.sender, quiet=timedelta(minutes=1))

    assert not await hasty.tell_tick()

    await telling.ladder.conn.execute(
        "update patch_sessions set updated_at = now() - interval '2 min'"
    )
    assert await hasty.tell_tick()
    assert not await hasty.tell_tick()


@pytest.mark.parametrize("kind", ["hang", "cut"])
async def test_a_standing_comment_without_an_answer_is_not_posted_again(telling, kind):
    """Its marker is looked for first, also when its text has changed since; then it is edited."""
    office = telling
    await office.sender.tell_tick()
    office.fault(kind=kind, method="POST")
    await office.sender.tick()
    await revise(office)
    await office.due()

    await tell(office)

    assert said(office) == [standing(Status.CLARIFIED)]


async def test_what_changes_while_it_is_sent_is_sent_again(telling, ladder):
    """A sender that was at an older text leaves the row to be sent; nothing newer is lost."""
    office = telling
    await office.sender.tell_tick()
    owed = await outbox.claim(ladder.conn, sender="slow", lease=LEASE)
    await revise(office)
    await office.sender.tell_tick()
    assert (await office.row("standing"))["status"] == "sending"

    posted = await office.shortcut.post_comment(office.story, owed.text, owed.key)
    assert await outbox.sent(ladder.conn, owed, comment_id=posted)
    assert (await office.row("standing"))["status"] == "pending"
    await tell(office)

    assert said(office) == [standing(Status.CLARIFIED)]


async def test_an_edit_that_fails_is_tried_again(telling):
    """A 503 at the edit is a delay, and the newest text comes through."""
    office = telling
    await tell(office)
    await revise(office)
    office.fault(status=503, method="PUT")
    await office.sender.tell_tick()
    await office.sender.tick()
    assert said(office) == [standing(Status.DRAFTED)]
    await office.due()

    await tell(office)

    assert said(office) == [standing(Status.CLARIFIED)]


async def test_a_standing_comment_that_somebody_deleted_stays_deleted(telling):
    """It is not posted again at the next move, and no operator is called."""
    office = telling
    await tell(office)
    comment_id = (await office.row("standing"))["comment_id"]
    office.simulation.workspace.delete_comment(PEOPLE[0], office.story, comment_id)
    await revise(office)

    await tell(office)

    row = await office.row("standing")
    assert (row["status"], said(office)) == ("sent", [])
    assert "404" in row["last_error"]


async def test_a_refused_text_does_not_hold_up_the_next(telling):
    """A row that was given up is tried again with the next text."""
    office = telling
    office.fault(status=422)
    await tell(office)
    assert (await office.row("standing"))["status"] == "failed"
    await revise(office)

    await tell(office)

    assert said(office) == [standing(Status.CLARIFIED)]


async def test_two_tellers_owe_one_comment(telling, connect):
    """A session that one process is telling of is passed by by another."""
    first, second = await connect(), await connect()
    await second.execute("set lock_timeout = '1s'")
    told = telling.sender.tellings

    async with first.transaction():
        assert await outbox.tell(first, told, workspaces=HERE, quiet=NO_TIME) == 1
        assert await outbox.tell(second, told, workspaces=HERE, quiet=NO_TIME) == 0

    assert await outbox.tell(second, told, workspaces=HERE, quiet=NO_TIME) == 0


async def test_no_story_is_told_of_that_can_not_be_told(telling):
    """Where there is no token for a workspace, nothing piles up."""
    nobody = replace(telling.sender, workspaces=here())

    assert not await nobody.tell_tick()


async def test_telling_is_bounded_under_any_plan(ladder, conn):
    """One sweep takes no more sessions than its limit."""
    for story in (1, 2, 3):
        await ladder.clarified(story)
    await plan_badly(conn)

    assert await outbox.tell(conn, tellings(), workspaces=HERE, quiet=NO_TIME, limit=2) == 2

    assert await conn.fetchval("select count(*) from outbox") == 2


async def test_a_drafted_story_is_marked(telling):
    """The label comes and goes with the draft, the state is set; other labels stay."""
    office = telling
    office = replace(
        office,
        sender=replace(office.sender, tellings=tellings("has-draft", STATES[2].name)),
    )
    workspace, story = office.simulation.workspace, office.story
    workspace.update_stories(PEOPLE[0], [story], {}, labels_add=["urgent"])

    def labels():
        return sorted(workspace.labels[it].name for it in workspace.story(story).label_ids)

    await tell(office)
    assert labels() == ["has-draft", "urgent"]
    assert workspace.story(story).workflow_state_id == STATES[2].id

    workspace.update_stories(PEOPLE[0], [story], {"workflow_state_id": STATES[3].id})
    await revise(office)
    await tell(office)
    assert labels() == ["urgent"]
    assert workspace.story(story).workflow_state_id == STATES[3].id


async def test_a_story_without_a_draft_is_not_touched(telling, ladder):
    """Nothing is taken from a story that never was given anything."""
    office = telling
    other = office.simulation.workspace.create_story(PEOPLE[0], {"name": "Other"}).id
    await ladder.clarified(other)
    await outbox.tell(ladder.conn, tellings("has-draft"), workspaces=HERE, quiet=NO_TIME)

    rows = await ladder.conn.fetch(
        "select sc_id, kind from outbox join patch_sessions as s on s.id = session_id"
        " where kind <> 'draft' order by 1, 2"
    )

    assert [tuple(row) for row in rows] == [
        (office.story, "marks"),
        (office.story, "standing"),
        (other, "standing"),
    ]


async def test_a_state_that_the_workflow_lacks_is_left_to_a_person(telling):
    """The row fails with a reason, and the comments go on."""
    office = telling
    told = tellings(None, "No such state")
    office = replace(office, sender=replace(office.sender, tellings=told))

    await tell(office)

    row = await office.row("marks")
    assert row["status"] == "failed"
    assert "has no state 'No such state'" in row["last_error"]
    assert said(office) == [standing(Status.DRAFTED)]
