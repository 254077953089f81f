"""A story's whole life, as Shortcut tells it: five times, shuffled, late, or not at all."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import httpx
import pytest

from app import words
from app.clarify import Rule
from app.db.connect import Database, Pool, take
from app.machine import Phase, Status
from app.shortcut.agent import AgentClient
from app.shortcut.client import ShortcutClient
from app.shortcut.signature import sign
from app.simulator.deliveries import v1
from app.simulator.deliveries_v2 import v2
from app.simulator.records import AGENT, PEOPLE, STATES, URL_SLUG, WORKSPACE_ID, Change, Comment
from app.simulator.workspace import Workspace
from app.wake import Bell
from app.worker.claims import Heart
from app.worker.draft import Clarifying, Workshop
from app.worker.outbox import Sender
from app.worker.reconcile import Reconciler
from tests.ladder import RULES, Ladder, here
from tests.office import TOKEN
from tests.service import SECRET, receiver
from tests.test_installs import install, installs
from tests.test_official_client import simulator
from tests.test_reconcile import ALWAYS
from tests.test_work import GOOD, LIMITS, command

COPIES = 5
ASKED = "**Before I can draft this**"
#: A comment for each round of questions, and one for each revision.
SAID = [ASKED, ASKED, "**Draft 1**", "**Draft 2**"]
STANDING = frozenset(map(words.standing, Status))
FATES, WEIGHTS = ("now", "late", "never"), (6, 2, 2)
VERSIONS = {"v1": v1, "v2": v2}


@dataclass(frozen=True, kw_only=True)
class Life:
    """One story, the service around it, and what Shortcut has not delivered yet.

    Attributes:
        door: where deliveries go.
    """

    workspace: Workspace
    door: httpx.AsyncClient
    story: int
    ladder: Ladder
    ticks: tuple[Callable[[], object], ...]
    dice: random.Random
    reconciler: Reconciler
    waiting: list[bytes] = field(default_factory=list)
    late: list[bytes] = field(default_factory=list)
    found: list[int] = field(default_factory=list)

    async def settle(self) -> str:
        """Everybody works until nothing is left to do, not even to be found; the status then."""
        while True:
            await self._work()
            self.found.append((await self.reconciler.run(WORKSPACE_ID, ALWAYS)).events)
            if not self.found[-1]:
                break
        return (await self.ladder.session(self.story))["status"]

    async def _work(self) -> None:
        busy = True
        while busy or self.waiting:
            await self._deliver()
            busy = any([await tick() for tick in self.ticks])

    async def _deliver(self) -> None:
        """What waits is delivered, five times; some of it comes later, and some never does."""
        fates = [(self.dice.choices(FATES, WEIGHTS)[0], body) for body in self.waiting]
        copies = [body for fate, body in fates if fate == "now"] * COPIES
        copies += [body for body in self.late if self.dice.random() < 0.5]
        self.late.extend(body for fate, body in fates if fate == "late")
        self.waiting.clear()
        self.dice.shuffle(copies)
        for body in copies:
            signed = {"Payload-Signature": sign(SECRET.encode(), body)}
            answer = await self.door.post("/webhooks/shortcut", content=body, headers=signed)
            assert answer.status_code == 200
            if self.dice.random() < 0.3:
                await self.ladder.apply()
        await self.ladder.apply()

    def label(self) -> None:
        self.workspace.update_stories(PEOPLE[0], [self.story], {}, labels_add=["patch"])

    def assign(self) -> None:
        self.workspace.update_stories(PEOPLE[0], [self.story], {"owner_ids": [AGENT.id]})

    def finish(self) -> None:
        self.workspace.update_stories(PEOPLE[0], [self.story], {"workflow_state_id": STATES[-1].id})

    def reply(self, text: str) -> None:
        """Somebody answers our newest comment."""
        newest = max(it.id for it in self._ours() if it.text not in STANDING)
        self.workspace.add_comment(PEOPLE[1], self.story, text, parent_id=newest)

    async def said(self, *, stands: Status) -> list[str]:
        """The first line of each comment of ours, when all has come; one says where it stands."""
        self.waiting.extend(self.late)
        self.late.clear()
        assert await self.settle() == stands
        assert sum(self.found) > 0
        texts = [it.text for it in self._ours()]
        assert [text for text in texts if text in STANDING] == [words.standing(stands)]
        return [text.splitlines()[0] for text in texts if text not in STANDING]

    def _ours(self) -> list[Comment]:
        return [it for it in self.workspace.comments.values() if it.author_id == AGENT.id]


@asynccontextmanager
async def _api(origin: str, pool: Pool, *, installed: bool) -> AsyncIterator[ShortcutClient]:
    """Version 3 with a member's token; or version 4 as the agent app that was installed."""
    if not installed:
        async with ShortcutClient(f"{origin}/api/v3", TOKEN) as client:
            yield client
        return
    app = installs(origin, pool)
    await install(app)
    token = partial(app.token, WORKSPACE_ID)
    async with AgentClient(f"{origin}/api/v3", URL_SLUG, token, budget=None) as agent:
        yield agent


Born = Callable[..., object]


@pytest.fixture
async def born(ladder: Ladder, database: Database, pool, tmp_path) -> Born:
    """Begins a life that these versions tell of."""
    rules = replace(RULES, bots=frozenset({AGENT.id}), clarify=True)

    @asynccontextmanager
    async def begin(*versions: str, seed: int = 0) -> AsyncIterator[Life]:
        heart = Heart(database, lease=LIMITS.lease, interval=LIMITS.lease / 3)
        heart.start()
        async with (
            simulator(webhook_url=None) as (simulation, origin),
            _api(origin, pool, installed="v2" in versions) as shortcut,
            receiver(database) as service,
        ):
            worker = Workshop(
                worker="worker",
                pool=pool,
                endings=pool,
                heart=heart,
                drafter=command(GOOD, tmp_path),
                clarifying=Clarifying(rules=(Rule.DESCRIPTION, Rule.CRITERIA), rounds=3),
                workspaces=here(shortcut),
                bell=Bell(database),
                limits=LIMITS,
                cut_off=asyncio.Event(),
            )
            sender = Sender(quiet=timedelta(0), name="sender", pool=pool, workspaces=here(shortcut))
            applier = replace(
                ladder.applier, rules=rules, workspaces=here(shortcut, workspace=WORKSPACE_ID)
            )
            story = simulation.workspace.create_story(PEOPLE[0], {"name": "Faster search"})
            life = Life(
                workspace=simulation.workspace,
                door=service.client,
                story=story.id,
                ladder=replace(ladder, applier=applier),
                ticks=(
                    worker.clarify_tick,
                    partial(worker.tick, Phase.DRAFT),
                    sender.tick,
                    sender.tell_tick,
                ),
                reconciler=Reconciler(
                    take=partial(take, pool),
                    workspaces=applier.workspaces,
                    rules=rules,
                    every=timedelta(0),
                    ring=lambda: None,
                ),
                dice=random.Random(seed),
            )

            def tell(change: Change) -> None:
                for version in versions:
                    life.waiting.extend(it.body for it in VERSIONS[version](change))

            simulation.workspace.tell = tell
            yield life
        heart.stop()

    return begin


@pytest.mark.parametrize("seed", range(2))
async def test_a_story_s_life_in_version_1(born, seed):
    """Label, questions, answers, draft, feedback, second draft, done: each said once."""
    async with born("v1", seed=seed) as life:
        life.label()
        assert await life.settle() == "clarifying"
        life.reply("It takes 2 s; half of that would do.")
        assert await life.settle() == "clarifying"
        life.reply("Expected: 1 s for 10,000 rows.")
        assert await life.settle() == "drafted"
        life.reply("/revise A tenth of that, please.")
        assert await life.settle() == "drafted"
        life.finish()
        assert await life.settle() == "closed"

        assert await life.said(stands=Status.CLOSED) == SAID


@pytest.mark.parametrize("seed", range(2))
async def test_a_story_s_life_in_version_2(born, seed):
    """Assigned, questions, replies, draft, reply, second draft, done: each said once."""
    async with born("v2", seed=seed) as life:
        life.assign()
        assert await life.settle() == "clarifying"
        life.reply("It takes 2 s; half of that would do.")
        assert await life.settle() == "clarifying"
        life.reply("Expected: 1 s for 10,000 rows.")
        assert await life.settle() == "drafted"
        life.reply("A tenth of that, please.")
        assert await life.settle() == "drafted"
        life.finish()
        assert await life.settle() == "closed"

        assert await life.said(stands=Status.CLOSED) == SAID


async def test_a_story_that_both_versions_tell_of_lives_once(born):
    """What is told twice over is done once."""
    async with born("v1", "v2") as life:
        life.assign()
        life.label()
        assert await life.settle() == "clarifying"
        life.reply("It takes 2 s; half of that would do.")
        assert await life.settle() == "clarifying"
        life.reply("Expected: 1 s for 10,000 rows.")
        assert await life.settle() == "drafted"
        life.reply("A tenth of that, please.")
        assert await life.settle() == "drafted"

        assert await life.said(stands=Status.DRAFTED) == SAID
