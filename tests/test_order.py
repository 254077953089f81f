"""Nothing is delivered in order, so nothing depends on it."""

import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.db import events, gate, sessions
from app.machine import Status
from app.shortcut.client import ShortcutClient
from app.simulator.records import PEOPLE
from app.simulator.workspace import Workspace
from tests import shapes
from tests.ladder import DRAFT, Ladder, comment, here
from tests.office import TOKEN, simulated

STORY = 1

DELIVERIES = [
    shapes.created(STORY, minute=0, description="As a bookkeeper I want a CSV export."),
    shapes.labelled(STORY, minute=1, name=""),
    shapes.renamed(STORY, minute=2, title="Export invoices"),
    shapes.commented(STORY, minute=3, text="One row per invoice.", comment=71),
    shapes.commented(STORY, minute=4, text="Looks clear.\n/draft", comment=72),
    shapes.commented(STORY, minute=4.5, text="Looks clear.\n/draft", comment=72),
    shapes.comment_edited(STORY, minute=5, text="One row per line.", comment=71),
    shapes.commented(STORY, minute=5.5, text="/status", comment=76),
    shapes.unlabelled(STORY, minute=6),
    shapes.commented(STORY, minute=7, text="Why did it stop?", comment=73),
    shapes.labelled(STORY, minute=8, name=""),
    shapes.commented(STORY, minute=8.5, text="/stop", comment=77, author="a guest"),
    shapes.commented(STORY, minute=8.7, text="/status", comment=78),
    shapes.archived(STORY, minute=9),
    shapes.labelled(STORY, minute=10),
    shapes.commented(STORY, minute=11, text="/stop", comment=74),
    shapes.labelled(STORY, minute=11, name="Same time"),
    shapes.commented(STORY, minute=11.5, text="/stop", comment=74),
    shapes.commented(STORY, minute=12, text="Ours", comment=75, author=shapes.BOT),
    shapes.comment_deleted(STORY, minute=13, comment=73),
]


async def outcome(ladder: Ladder):
    """What the deliveries led to: the session, the conversation, and what is owed."""
    sessions = await ladder.conn.fetch(
        "select workspace, sc_id, title, app_url, description, status, claim_generation, attempts,"
        " crashes, revision, decided_at, heard_at from patch_sessions"
    )
    conversation = await ladder.conn.fetch(
        "select comment_id, author, text, said_at, as_of from conversation order by comment_id"
    )
    owed = await ladder.conn.fetch("select key, kind, text from outbox order by key")
    return sessions, conversation, owed


async def start_over(ladder: Ladder) -> None:
    """Empties the database."""
    await ladder.conn.execute("truncate events, patch_sessions restart identity cascade")


def commanded_by(ladder: Ladder, *members: str) -> Ladder:
    """The same ladder, where only these members' commands count."""
    rules = replace(ladder.applier.rules, commanders=frozenset(members))
    return replace(ladder, applier=replace(ladder.applier, rules=rules))


def multiset(bodies: list[bytes], copies: int, seed: int) -> list[bytes]:
    """Each of them once or several times, in any order."""
    how_many = random.Random(seed + 1)
    shuffled = [body for body in bodies for _ in range(how_many.randint(1, copies))]
    random.Random(seed).shuffle(shuffled)
    return shuffled


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    chosen=st.sets(st.integers(0, len(DELIVERIES) - 1), min_size=2),
    copies=st.integers(1, 3),
    seed=st.integers(0, 2**32),
    together=st.booleans(),
)
@example(chosen={1, 13, 15}, copies=1, seed=0, together=False)
async def test_any_order_of_arrival_ends_the_same(ladder, chosen, copies, seed, together):
    """Any permutation of any multiset of the same deliveries ends as in order, once each."""
    in_order = [DELIVERIES[index] for index in sorted(chosen)]
    shuffled = multiset(in_order, copies, seed)

    ladder = commanded_by(ladder, shapes.MEMBER)
    await start_over(ladder)
    await ladder.deliver(*in_order)
    expected = await outcome(ladder)
    await start_over(ladder)
    if together:
        for body in shuffled:
            await ladder.record(body)
        await ladder.applier.tick()
    else:
        await ladder.deliver(*shuffled)

    assert await outcome(ladder) == expected


#: What is said after a question was asked.
ANSWERS = [
    shapes.renamed(STORY, minute=31, title="Export all invoices"),
    shapes.commented(STORY, minute=32, text="CSV.", comment=81),
    shapes.comment_edited(STORY, minute=33, text="CSV, in UTF-8.", comment=81),
    shapes.commented(STORY, minute=34, text="In euros.", comment=82),
    shapes.commented(STORY, minute=34.1, text="In euros.", comment=82),
    shapes.comment_deleted(STORY, minute=35, comment=82),
    shapes.commented(STORY, minute=36, text="Ours", comment=83, author=shapes.BOT),
]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    chosen=st.sets(st.integers(0, len(ANSWERS) - 1), min_size=2),
    copies=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
async def test_any_order_of_answers_ends_the_same(ladder, chosen, copies, seed):
    """After a question, what is said ends the same in any order, whichever answer is the first."""
    in_order = [ANSWERS[index] for index in sorted(chosen)]
    shuffled = multiset(in_order, copies, seed)

    ends = []
    for bodies in (in_order, shuffled):
        await start_over(ladder)
        await ladder.in_status(Status.CLARIFYING)
        await ladder.deliver(*bodies)
        (session,), conversation, owed = await outcome(ladder)
        told = {name: value for name, value in session.items() if name != "decided_at"}
        ends.append((told, conversation, [(row["kind"], row["text"]) for row in owed]))

    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "late",
    [
        shapes.renamed(STORY, minute=31, title="Export all"),
        shapes.described(STORY, minute=31, description="As CSV."),
    ],
    ids=["title", "description"],
)
async def test_a_newer_comment_hides_no_late_word_of_the_story(ladder, late):
    """An edited comment says nothing of title and text, so it makes no word about them old."""
    await ladder.in_status(Status.CLARIFYING)

    await ladder.deliver(shapes.comment_edited(STORY, minute=33, text="CSV", comment=91), late)

    session = await ladder.session()
    assert session["title"] == "Export all" or session["description"] == "As CSV."


@pytest.mark.parametrize(
    "closing",
    [shapes.archived(STORY, minute=32), shapes.unlabelled(STORY, minute=32)],
    ids=["archived", "unlabelled"],
)
async def test_an_answer_outlives_no_older_closing(ladder, closing):
    """Withdrawn first and answered then, a story ends closed, though the answer was heard first."""
    await ladder.in_status(Status.CLARIFYING)

    await ladder.deliver(shapes.commented(STORY, minute=33, text="CSV.", comment=91), closing)

    assert (await ladder.session())["status"] == "closed"


async def test_a_closing_fact_before_the_opening_one_closes(ladder):
    """A story that was archived after it was labelled ends closed, whichever arrives first."""
    await ladder.deliver(shapes.archived(STORY, minute=2), shapes.labelled(STORY, minute=1))

    assert (await ladder.session())["status"] == "closed"


async def test_a_comment_before_the_opening_fact_joins_the_conversation(ladder):
    """A comment that arrives before the label it came after is not lost."""
    await ladder.deliver(
        shapes.commented(STORY, minute=2, text="In euros.", comment=71),
        shapes.labelled(STORY, minute=1),
    )

    assert await ladder.conn.fetchval("select text from conversation") == "In euros."


async def test_an_old_control_fact_does_not_undo_what_a_worker_was_told(ladder):
    """Once a worker has acted, a control fact older than the last decision is ignored."""
    await ladder.deliver(shapes.labelled(STORY, minute=5))
    await ladder.claim(STORY)

    await ladder.deliver(shapes.unlabelled(STORY, minute=4))

    assert (await ladder.session())["status"] == "drafting"
    reason = "select reason from events order by id desc limit 1"
    assert await ladder.conn.fetchval(reason) == "older than the last decision"


async def test_a_label_that_is_there_already_outlives_an_older_removal(ladder):
    """A label that was put back stays, though its removal is heard of after it."""
    await ladder.deliver(shapes.labelled(STORY, minute=1))
    await ladder.claim(STORY)

    await ladder.deliver(shapes.labelled(STORY, minute=3), shapes.unlabelled(STORY, minute=2))

    assert (await ladder.session())["status"] == "drafting"


@pytest.mark.parametrize(
    "last",
    [
        shapes.unlabelled(STORY, minute=4),
        shapes.archived(STORY, minute=4),
        shapes.commented(STORY, minute=4, text="/stop", comment=71),
    ],
    ids=["unlabelled", "archived", "stopped"],
)
async def test_an_end_that_was_heard_first_outlives_an_older_label(ladder, last):
    """A closed session that is closed once more is not opened by what came in between."""
    await ladder.deliver(shapes.labelled(STORY, minute=1))
    await ladder.claim(STORY)
    await ladder.deliver(shapes.unlabelled(STORY, minute=2))

    await ladder.deliver(last, shapes.labelled(STORY, minute=3))

    assert (await ladder.session())["status"] == "closed"


async def test_a_newer_closing_fact_takes_the_claim_away(ladder):
    """A story that is archived while it is being drafted is closed, and its worker is fenced."""
    await ladder.deliver(shapes.labelled(STORY, minute=1))
    claim = await ladder.claim(STORY)

    await ladder.deliver(shapes.archived(STORY, minute=2))

    row = await ladder.session()
    assert (row["status"], row["claim_token"]) == ("closed", None)
    assert row["claim_generation"] > claim.generation


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (Status.DRAFTED, "/revise Shorter.", "clarified"),
        (Status.CLARIFYING, "CSV", "clarified"),
        (Status.FAILED, "/retry", "clarified"),
        (Status.DRAFTING, "/stop", "closed"),
    ],
)
async def test_words_that_another_change_overtook_are_obeyed(ladder, before, text, after):
    """A command or an answer that arrives after a newer change of the story counts all the same."""
    await ladder.in_status(before)
    await ladder.deliver(shapes.renamed(STORY, minute=11, title="Other"))

    await ladder.deliver(shapes.commented(STORY, minute=10, text=text, comment=9))

    assert (await ladder.session())["status"] == after


@dataclass(frozen=True)
class Telling:
    """A story with a session, and an API that knows what is said about it."""

    ladder: Ladder
    workspace: Workspace
    story: int

    def say(self, text: str) -> int:
        """Somebody comments; the comment's id."""
        return self.workspace.add_comment(PEOPLE[0], self.story, text).id

    async def status(self) -> str:
        return (await self.ladder.session(self.story))["status"]

    async def told(self, minute: float, said: int, text: str) -> None:
        """Version 1 tells of the comment."""
        await self.ladder.deliver(
            shapes.commented(self.story, minute=minute, text=text, comment=said)
        )

    async def triggered(self, kind: str, minute: float, said: int) -> None:
        """An agent is told of the comment."""
        await self.ladder.deliver(
            shapes.triggered(kind, self.story, minute=minute, comment=said, parent=1)
        )

    async def redraft(self) -> None:
        """A worker drafts the story once more."""
        claim = await self.ladder.claim(self.story)
        assert await gate.complete(self.ladder.conn, claim, DRAFT, comment=comment(claim))


@pytest.fixture
async def telling(ladder: Ladder) -> AsyncIterator[Telling]:
    """A drafted story whose comments can be read."""
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        story = simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id
        reading = replace(ladder, applier=replace(ladder.applier, workspaces=here(shortcut)))
        await reading.in_status(Status.DRAFTED, story)
        yield Telling(reading, simulation.workspace, story)


@pytest.mark.parametrize("kind", ["comment-reply", "mentioned"])
async def test_a_comment_that_is_told_of_twice_is_obeyed_once(telling, kind):
    """What version 2 tells of a comment that version 1 told of revises no second draft."""
    said = telling.say("/revise In euros.")
    await telling.told(10, said, "/revise In euros.")
    await telling.redraft()

    await telling.triggered(kind, 10.005, said)

    assert await telling.status() == "drafted"


async def test_a_reply_that_version_1_told_of_first_is_feedback(telling):
    """Only version 2 says that a comment is a reply; which delivery is first changes nothing."""
    said = telling.say("In euros.")
    await telling.told(10, said, "In euros.")
    assert await telling.status() == "drafted"

    await telling.triggered("comment-reply", 10.005, said)
    assert await telling.status() == "clarified"
    await telling.redraft()
    await telling.triggered("mentioned", 10.005, said)

    assert await telling.status() == "drafted"


async def test_a_reply_that_mentions_is_obeyed_once(telling):
    """One comment that replies and mentions comes in two deliveries, and is one word to us."""
    said = telling.say("In euros.")
    await telling.triggered("comment-reply", 10, said)
    await telling.redraft()

    await telling.triggered("mentioned", 10, said)

    assert await telling.status() == "drafted"


async def test_a_comment_that_is_replayed_is_obeyed_once(telling):
    """An operator's replay of a command that was obeyed moves nothing."""
    await telling.told(10, 9, "/revise In euros.")
    await telling.redraft()

    conn = telling.ladder.conn
    newest = await conn.fetchval("select max(id) from events")
    assert await events.replay(conn, newest, nonce="once", actor="operator")
    await telling.ladder.apply()

    assert await telling.status() == "drafted"


async def test_a_mention_that_stops_opens_nothing(telling):
    """A comment that stops the session and mentions us leaves it closed."""
    said = telling.say("/stop")
    await telling.told(10, said, "/stop")

    await telling.triggered("mentioned", 10.005, said)

    assert await telling.status() == "closed"


async def test_a_mention_opens_though_its_comment_was_told_of_before(telling):
    """A comment on a closed session opens it if it mentions us, whatever is heard first."""
    await telling.ladder.deliver(shapes.archived(telling.story, minute=10))
    said = telling.say("In euros.")
    await telling.told(11, said, "In euros.")

    await telling.triggered("mentioned", 11.005, said)

    assert await telling.status() == "clarified"


async def test_a_comment_whose_edit_was_heard_of_first_is_obeyed(telling):
    """An edit joins the conversation; the words themselves still have their say."""
    await telling.ladder.deliver(
        shapes.comment_edited(telling.story, minute=11, text="/revise In dollars.", comment=9)
    )

    await telling.told(10, 9, "/revise In euros.")

    assert await telling.status() == "clarified"
    said = "select text from conversation"
    assert await telling.ladder.conn.fetchval(said) == "/revise In dollars."


async def test_what_is_said_while_a_session_is_closed_is_kept(telling):
    """A comment on a closed session is there when it opens again."""
    await telling.ladder.deliver(shapes.archived(telling.story, minute=10))
    await telling.told(11, 9, "In euros.")
    await telling.ladder.deliver(shapes.labelled(telling.story, minute=12))

    said = "select text from conversation"
    assert await telling.ladder.conn.fetchval(said) == "In euros."


async def test_a_batch_is_decided_about_in_the_sender_s_order(ladder):
    """What comes together counts in the order in which it was done, also once a worker acted."""
    await ladder.in_status(Status.FAILED)
    for body in (
        shapes.labelled(STORY, minute=12),
        shapes.unlabelled(STORY, minute=11),
    ):
        await ladder.record(body)

    await ladder.apply()

    assert (await ladder.session())["status"] == "clarified"


SAID = (
    shapes.commented(STORY, minute=10, text="Once", comment=9),
    shapes.comment_edited(STORY, minute=11, text="Twice", comment=9, editor="editor"),
    shapes.comment_edited(STORY, minute=12, text="Thrice", comment=9, editor="editor"),
)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_versions_of_a_comment_come_in_any_order(ladder, order):
    """Also once a worker acted: the newest text, and the author and time of the first."""
    await ladder.in_status(Status.DRAFTED)

    await ladder.deliver(*(SAID[index] for index in order))

    (said,) = await sessions.conversation(ladder.conn, 1)
    assert (said.text, said.author) == ("Thrice", shapes.MEMBER)
    assert said.said_at == shapes.START + timedelta(minutes=10)
    assert said.as_of == shapes.START + timedelta(minutes=12)


@pytest.mark.parametrize("order", [1, -1])
async def test_a_deleted_comment_is_not_said_to_a_drafter(ladder, order):
    """What was deleted stays deleted, whichever is heard of first."""
    await ladder.in_status(Status.DRAFTED)
    told = [
        shapes.commented(STORY, minute=10, text="Once", comment=9),
        shapes.comment_deleted(STORY, minute=11, comment=9),
    ]

    await ladder.deliver(*told[::order])

    assert await sessions.conversation(ladder.conn, 1) == []


async def test_two_tellings_of_the_same_time_end_the_same(ladder):
    """Which of two versions of one time counts is not decided by which was heard first."""
    told = [
        shapes.commented(STORY, minute=2, text=author, comment=9, author=author)
        for author in ("one", "other")
    ]
    ends = []
    for bodies in (told, told[::-1]):
        await start_over(ladder)
        await ladder.deliver(shapes.labelled(STORY), *bodies)
        ends.append(await outcome(ladder))

    assert ends[0] == ends[1]


async def test_a_command_older_than_the_last_decision_moves_nothing(ladder):
    """What was said before a session was opened again does not close it."""
    await ladder.in_status(Status.DRAFTED)
    await ladder.deliver(
        shapes.archived(STORY, minute=10),
        shapes.labelled(STORY, minute=12),
    )

    await ladder.deliver(shapes.commented(STORY, minute=11, text="/stop", comment=9))

    assert (await ladder.session())["status"] == "clarified"


async def test_a_comment_that_is_edited_later_was_obeyed_once(telling):
    """An edit does not give its comment another say."""
    said = telling.say("/revise In euros.")
    await telling.told(10, said, "/revise In euros.")
    await telling.redraft()
    await telling.ladder.deliver(
        shapes.comment_edited(telling.story, minute=10.001, text="/revise It", comment=said)
    )

    await telling.triggered("comment-reply", 10.005, said)

    assert await telling.status() == "drafted"
