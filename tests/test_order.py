"""Nothing is delivered in order, so nothing depends on it."""

import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.machine import Status
from tests import shapes
from tests.ladder import Ladder

STORY = 1

DELIVERIES = [
    shapes.created(STORY, minute=0, description="As a bookkeeper I want a CSV export."),
    shapes.labelled(STORY, minute=1, name=""),
    shapes.renamed(STORY, minute=2, title="Export invoices"),
    shapes.commented(STORY, minute=3, text="One row per invoice.", comment=71),
    shapes.commented(STORY, minute=4, text="Looks clear.\n/draft", comment=72),
    shapes.comment_edited(STORY, minute=5, text="One row per line.", comment=71),
    shapes.unlabelled(STORY, minute=6),
    shapes.commented(STORY, minute=7, text="Why did it stop?", comment=73),
    shapes.labelled(STORY, minute=8, name=""),
    shapes.archived(STORY, minute=9),
    shapes.labelled(STORY, minute=10),
    shapes.commented(STORY, minute=11, text="/stop", comment=74),
    shapes.labelled(STORY, minute=11, name="Same time"),
    shapes.commented(STORY, minute=12, text="Ours", comment=75, author=shapes.BOT),
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
    owed = await ladder.conn.fetch("select kind, text from outbox order by id")
    return sessions, conversation, owed


async def start_over(ladder: Ladder) -> None:
    """Empties the database."""
    await ladder.conn.execute("truncate events, patch_sessions restart identity cascade")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    chosen=st.sets(st.integers(0, len(DELIVERIES) - 1), min_size=2),
    copies=st.integers(1, 3),
    seed=st.integers(0, 2**32),
    together=st.booleans(),
)
@example(chosen={1, 9, 11}, copies=1, seed=0, together=False)
async def test_any_order_of_arrival_ends_the_same(ladder, chosen, copies, seed, together):
    """Any permutation of any multiset of the same deliveries ends as in order, once each."""
    in_order = [DELIVERIES[index] for index in sorted(chosen)]
    shuffled = in_order * copies
    random.Random(seed).shuffle(shuffled)

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
