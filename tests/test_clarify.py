"""The clarify phase: what a story lacks is asked for, people answer, and it goes on."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.clarify import SHORT_CHARS, Rule, lacking
from app.db import gate
from app.db.connect import Database
from app.machine import Phase
from app.model import Draft, Story
from app.shortcut.client import ShortcutClient
from app.wake import Bell
from app.worker.claims import Heart
from app.worker.draft import Clarifying, Workshop
from tests import shapes
from tests.ladder import Ladder, bid, comment, here
from tests.test_work import GOOD, LIMITS, PATCH, command

BARE = Story(sc_id=1, title="Make the search faster", description="")
RULES = (Rule.DESCRIPTION, Rule.CRITERIA)
BY_RULES = Clarifying(rules=RULES, rounds=2)


# --- the rules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("description", "lacks"),
    [
        ("", [Rule.DESCRIPTION]),
        (" \n", [Rule.DESCRIPTION]),
        ("Faster.", [Rule.LENGTH, Rule.CRITERIA]),
        ("- below 100 ms", [Rule.LENGTH]),
        ("Expected: below 100 ms", [Rule.LENGTH]),
        ("x" * SHORT_CHARS, [Rule.CRITERIA]),
        ("1. " + "x" * SHORT_CHARS, []),
    ],
)
def test_what_a_story_lacks(description, lacks):
    """Each rule looks for one thing; of a story that says nothing only that is asked."""
    assert lacking(replace(BARE, description=description), [], tuple(Rule)) == lacks


@pytest.mark.parametrize(
    ("kind", "lacks"), [("feature", Rule.CRITERIA), ("bug", Rule.STEPS), ("chore", None)]
)
def test_features_have_criteria_and_bugs_have_steps(kind, lacks):
    """What is asked of a story depends on its type."""
    story = replace(BARE, story_type=kind, description="Like this.")

    found = lacking(story, [], (Rule.CRITERIA, Rule.STEPS))

    assert found == ([] if lacks is None else [lacks])


def test_what_was_answered_counts_as_if_it_stood_there():
    """An answer need not be copied into the description."""
    assert lacking(BARE, ["It takes 2 s."], (Rule.DESCRIPTION,)) == []


def test_tasks_are_criteria():
    """A story that has tasks says when it is done."""
    story = replace(BARE, description="Faster.", tasks=("Measure",))

    assert lacking(story, [], (Rule.CRITERIA,)) == []


# --- the phase -------------------------------------------------------------------------------


@pytest.fixture
def asking(ladder: Ladder) -> Ladder:
    """A ladder where a worker looks at a session before it is drafted."""
    rules = replace(ladder.applier.rules, clarify=True)
    nobody = here(ShortcutClient("http://127.0.0.1:9/api/v3", "a-made-up-token"))
    return replace(ladder, applier=replace(ladder.applier, rules=rules, workspaces=nobody))


@pytest.fixture
async def worker(database: Database, pool, tmp_path) -> AsyncIterator[Workshop]:
    """A worker that asks by the rules, and whose drafter is good."""
    heart = Heart(database, lease=LIMITS.lease, interval=LIMITS.lease / 3)
    heart.start()
    yield Workshop(
        worker="worker",
        pool=pool,
        endings=pool,
        heart=heart,
        drafter=command(GOOD, tmp_path),
        clarifying=BY_RULES,
        workspaces=here(),
        bell=Bell(database),
        limits=LIMITS,
        cut_off=asyncio.Event(),
    )
    heart.stop()


async def status(ladder: Ladder) -> str:
    return (await ladder.session())["status"]


async def questions(ladder: Ladder) -> list[str]:
    """The question comments that are owed."""
    rows = await ladder.conn.fetch("select text from outbox where kind = 'questions' order by id")
    return [row["text"] for row in rows]


async def test_a_story_that_lacks_something_is_asked_about(asking, worker):
    """The question is one comment on the story, and nothing is drafted before the answer."""
    await asking.deliver(shapes.labelled(1))
    assert await status(asking) == "opened"

    assert await worker.clarify_tick()

    assert await status(asking) == "clarifying"
    (text,) = await questions(asking)
    assert "1. The story has no description." in text
    assert not await worker.tick(Phase.DRAFT)


async def test_a_story_that_lacks_nothing_is_drafted(asking, worker):
    """Where there is nothing to ask, nobody is asked."""
    await asking.deliver(
        shapes.created(1, minute=0, description="- one row per invoice"), shapes.labelled(1)
    )

    assert await worker.clarify_tick()
    assert await worker.tick(Phase.DRAFT)

    assert await status(asking) == "drafted"
    assert await questions(asking) == []


async def test_an_answer_has_the_story_looked_at_again(asking, worker):
    """After the answer the next thing is asked for, and never the same twice."""
    await asking.deliver(shapes.labelled(1))
    await worker.clarify_tick()

    await asking.deliver(shapes.commented(1, minute=2, text="It takes 2 s.", comment=7))
    assert await status(asking) == "opened"
    await worker.clarify_tick()
    await asking.deliver(shapes.commented(1, minute=3, text="Half of that.", comment=8))
    await worker.clarify_tick()

    first, second = await questions(asking)
    assert "no description" in first
    assert "no description" not in second
    assert "acceptance criteria" in second
    assert await status(asking) == "clarified"


async def test_after_the_last_round_it_is_drafted_all_the_same(asking, worker):
    """A clarifier that always has another question does not hold a story up for ever."""
    asks = "import json; print(json.dumps({'questions': ['And then?']}))"
    curious = replace(worker, clarifying=Clarifying(command=by(worker, asks), rounds=2))
    await asking.deliver(shapes.labelled(1))

    for minute in (2, 3):
        await curious.clarify_tick()
        assert await status(asking) == "clarifying"
        await asking.deliver(
            shapes.commented(1, minute=minute, text="Nothing.", comment=int(minute))
        )
    await curious.clarify_tick()

    assert await status(asking) == "clarified"
    assert len(await questions(asking)) == 2


async def test_draft_skips_the_questions(asking, worker):
    """`/draft` has the story drafted as it is, wherever the questions stand."""
    await asking.deliver(shapes.labelled(1))
    await worker.clarify_tick()

    await asking.deliver(shapes.commented(1, minute=2, text="/draft", comment=7))

    assert await status(asking) == "clarified"


async def test_draft_ends_a_look_that_is_under_way(asking):
    """While a worker looks for questions, `/draft` takes the session from it."""
    await asking.deliver(shapes.labelled(1))
    claim = await gate.claim(asking.conn, Phase.CLARIFY, bid(), workspace="shortcut", sc_id=1)

    await asking.deliver(shapes.commented(1, minute=2, text="/draft", comment=7))

    asked = Draft(summary="", patch="", questions=("Which format?",))
    assert not await gate.question(asking.conn, claim, asked, comment=comment(claim, "questions"))
    assert await status(asking) == "clarified"
    assert await questions(asking) == []


async def test_a_new_description_is_an_answer(asking, worker):
    """Who writes what was asked for into the story need not say so in a comment."""
    await asking.deliver(shapes.labelled(1))
    await worker.clarify_tick()

    await asking.deliver(shapes.described(1, minute=2, description="- below 100 ms"))
    await worker.clarify_tick()

    assert await status(asking) == "clarified"


async def test_an_old_description_is_no_answer(asking, worker):
    """What was written before the label and is heard of late answers no question."""
    await asking.deliver(shapes.labelled(1, minute=3))
    await worker.clarify_tick()

    await asking.deliver(shapes.described(1, minute=2, description="Faster."))

    assert await status(asking) == "clarifying"


async def test_who_opens_a_session_again_is_asked_again(asking, worker):
    """Rounds are counted from the opening: closing and opening starts over."""
    await asking.deliver(shapes.labelled(1))
    await worker.clarify_tick()

    await asking.deliver(shapes.unlabelled(1, minute=2), shapes.labelled(1, minute=3))
    await worker.clarify_tick()

    assert await status(asking) == "clarifying"
    assert len(await questions(asking)) == 2


def by(worker: Workshop, source: str):
    """A command that is this piece of Python."""
    return replace(worker.drafter, command=[sys.executable, "-c", source])


async def test_a_clarifier_is_told_what_was_asked_and_answered(asking, worker, tmp_path):
    """Its request has its phase, the rounds so far and the answer as it was edited."""
    seen = tmp_path / "seen.json"
    reads = f"import sys; open({str(seen)!r}, 'w').write(sys.stdin.read())"
    both = Clarifying(rules=(Rule.DESCRIPTION,), command=by(worker, reads), rounds=2)
    told = replace(worker, clarifying=both)
    await asking.deliver(shapes.labelled(1))
    await told.clarify_tick()
    assert not seen.exists()

    await asking.deliver(
        shapes.commented(1, minute=2, text="It takes 2 s.", comment=7),
        shapes.comment_edited(1, minute=3, text="It takes 3 s.", comment=7),
    )
    await told.clarify_tick()

    request = json.loads(await asyncio.to_thread(seen.read_text))
    assert request["phase"] == "clarify"
    assert [len(it["questions"]) for it in request["asked"]] == [1]
    assert [it["text"] for it in request["conversation"]] == ["It takes 3 s."]
    assert await status(asking) == "clarified"


async def test_a_clarifier_that_fails_is_tried_again_and_then_given_up(asking, worker):
    """Its attempts are counted as a drafter's are, and the story is told; `/retry` drafts it."""
    breaks = replace(
        worker, clarifying=Clarifying(command=by(worker, "raise SystemExit(1)"), rounds=2)
    )
    await asking.deliver(shapes.labelled(1))

    for _ in range(LIMITS.max_attempts):
        await asking.due()
        assert await breaks.clarify_tick()

    assert await status(asking) == "failed"
    said = await asking.conn.fetchval("select text from outbox")
    assert "Looking for what to ask failed 3 times" in said
    await asking.deliver(shapes.commented(1, minute=2, text="/retry", comment=7))
    assert await status(asking) == "clarified"


async def test_what_a_clarifier_costs_is_counted(asking, worker):
    """The cost of a run counts, whether it asked or not."""
    cheap = "import json; print(json.dumps({'cost_usd': 0.25}))"
    counting = replace(worker, clarifying=Clarifying(command=by(worker, cheap), rounds=2))
    await asking.deliver(shapes.labelled(1))

    await counting.clarify_tick()

    assert float((await asking.session())["cost_usd"]) == 0.25


async def test_a_drafter_s_question_is_answered_in_the_same_way(asking, worker):
    """After the answer the story is looked at again, then drafted, and the drafter knows it all."""
    await asking.deliver(
        shapes.created(1, minute=0, description="- one row per invoice"), shapes.labelled(1)
    )
    asks_once = (
        "import json, sys; asked = json.load(sys.stdin)['asked']; print(json.dumps("
        f"{{'patch': {PATCH!r}}} if asked else {{'questions': ['Which format?']}}))"
    )
    asker = replace(worker, drafter=by(worker, asks_once))
    await asker.clarify_tick()
    await asker.tick(Phase.DRAFT)
    assert await status(asking) == "clarifying"

    await asking.deliver(shapes.commented(1, minute=2, text="CSV.", comment=7))
    await asker.clarify_tick()
    await asker.tick(Phase.DRAFT)

    assert await status(asking) == "drafted"
    assert len(await questions(asking)) == 1
