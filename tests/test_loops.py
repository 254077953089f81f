"""Nobody talks with itself: our own writes, another bot, a person's account that is ours."""

from dataclasses import replace
from datetime import timedelta

import pytest

from app import words
from app.db import look
from app.machine import Phase, Status
from app.model import Answer, Draft
from app.operate import Action, act
from app.settings import Settings
from app.why import why
from tests import shapes
from tests.ladder import RULES

MOST = 5


@pytest.fixture
async def chat(office):
    """An office that mutes a story after five comments; its draft was sent, the first of them."""
    assert await office.sender.tick()
    return replace(office, sender=replace(office.sender, most_an_hour=MOST))


async def reply(office, number: int, text: str = "/status") -> list[str]:
    """Another bot says something, we answer; what we have said so far."""
    said = shapes.commented(office.story, text=text, comment=900 + number, minute=5 + number)
    await office.ladder.deliver(said)
    for _ in range(2 * MOST):
        await office.sender.tick()
    return office.comments()


async def outcomes(office) -> list[tuple[str, str]]:
    """What came of each event about the story, oldest first."""
    rows = (await look.events(office.ladder.conn, sc_id=office.story)).rows
    return [(row["status"], row["reason"]) for row in reversed(rows)]


async def test_two_bots_on_one_story_come_to_an_end(chat):
    """The fifth comment is followed by one that says so; then nothing more is said, or moves."""
    for number in range(9):
        said = await reply(chat, number)

    assert len(said) == MOST + 1
    assert said[-1] == words.muted(MOST, chat.story)
    assert (await outcomes(chat))[-1] == ("ignored", "the story is muted")
    answer = await why(chat.ladder.conn, chat.story, Settings(_env_file=None))
    assert "is muted since" in answer.verdict
    moves = await chat.ladder.conn.fetch("select move, reason from timeline where move = 'mute'")
    assert [tuple(row) for row in moves] == [("mute", "5 comments within an hour")]

    revised = await reply(chat, 10, "/revise Once more.")
    assert (len(revised), (await chat.ladder.session(chat.story))["status"]) == (6, "drafted")


async def test_a_muted_story_can_be_closed(chat):
    """What withdraws it counts all the same."""
    for number in range(MOST):
        await reply(chat, number)

    await chat.ladder.deliver(shapes.archived(chat.story, minute=99))

    assert (await chat.ladder.session(chat.story))["status"] == "closed"


async def test_a_story_goes_on_when_an_operator_says_so(chat):
    """What was owed meanwhile is sent, and counting begins anew."""
    for number in range(MOST):
        await reply(chat, number)
    await chat.ladder.conn.execute(
        "insert into outbox (session_id, key, kind, text)"
        " select id, 'draftgate:draft:late', 'draft', 'A late draft' from patch_sessions"
    )
    assert not await chat.sender.tick()
    session = await chat.ladder.session(chat.story)

    assert await act(chat.ladder.conn, session["id"], Action.UNMUTE, actor="operator ada")
    assert await chat.sender.tick()

    assert chat.comments()[-1] == "A late draft"
    said = await reply(chat, 20)
    assert (len(said), said[-1].splitlines()[0]) == (MOST + 3, "**Status**")


async def test_people_who_talk_slowly_are_not_a_loop(chat):
    """Only the last hour counts."""
    for number in range(9):
        said = await reply(chat, number)
        await chat.ladder.conn.execute("update outbox set sent_at = sent_at - interval '20 min'")

    assert len(said) == 10


async def test_where_a_story_stands_is_not_counted(chat):
    """A comment that is rewritten tells nobody anything new."""
    sender = replace(chat.sender, quiet=timedelta(0), most_an_hour=2)
    await sender.tell_tick()
    await sender.tick()

    assert (await chat.ladder.session(chat.story))["muted_at"] is None


async def test_our_own_writes_do_nothing(chat):
    """A comment, a label, a state of ours comes back: ignored, with the reason."""
    own = [
        shapes.commented(chat.story, text="/revise More.", comment=1, minute=5, author=shapes.BOT),
        shapes.unlabelled(chat.story, minute=6).replace(
            shapes.MEMBER.encode(), shapes.BOT.encode()
        ),
    ]
    await chat.ladder.deliver(*own)

    assert (await outcomes(chat))[1:] == [("ignored", "our own change")] * 2
    assert (await chat.ladder.session(chat.story))["status"] == "drafted"


TEXTS = [
    words.draft(3, Draft(summary="s", patch="p")),
    words.questions(("q?",)),
    *map(words.standing, Status),
    *(words.answer(kind, Status.DRAFTED, "why") for kind in Answer),
    *(words.failure(phase, 2, "error") for phase in Phase),
    words.crash(3),
    words.muted(20, 7),
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.splitlines()[0])
async def test_an_account_that_is_a_person_s_says_nothing_to_itself(chat, text):
    """Each of our texts is known as ours by how it begins, as it was and when it is edited."""
    shared = replace(chat.ladder.applier, rules=replace(RULES, shared=True))
    office = replace(chat, ladder=replace(chat.ladder, applier=shared))
    ours = shapes.commented(office.story, text=text, comment=5, minute=5, author=shapes.BOT)
    await office.ladder.deliver(ours)

    assert (await outcomes(office))[-1] == ("ignored", "our own change")


async def test_a_person_whose_account_is_ours_is_heard(chat):
    """What that person says and does counts like anybody's."""
    shared = replace(chat.ladder.applier, rules=replace(RULES, shared=True))
    office = replace(chat, ladder=replace(chat.ladder, applier=shared))
    said = shapes.commented(
        office.story, text="/revise Shorter.", comment=5, minute=5, author=shapes.BOT
    )

    await office.ladder.deliver(said)

    assert (await office.ladder.session(office.story))["status"] == "clarified"
