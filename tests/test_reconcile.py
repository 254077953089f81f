"""What was never delivered is found in what Shortcut says of its stories, once."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest.mock import ANY

import pytest

from app.db import reconciliations
from app.db.connect import take
from app.db.reconciliations import Mark
from app.errors import ShortcutRefused, ShortcutUnavailable
from app.shortcut.client import ShortcutClient
from app.simulator.deliveries import v1
from app.simulator.faults import Fault
from app.simulator.records import AGENT, PEOPLE, STATES, Change
from app.simulator.simulation import Simulation
from app.worker import reconcile
from app.worker.reconcile import Reconciler
from tests.ladder import RULES, Ladder, here
from tests.office import TOKEN, simulated

ALWAYS = Mark(through=datetime(2020, 1, 1, tzinfo=UTC))
HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Silence:
    """A workspace that has delivered nothing, and who finds out."""

    simulation: Simulation
    reconciler: Reconciler
    ladder: Ladder
    changes: list[Change]
    rung: list[None]

    def story(self, **fields: object) -> int:
        """A story that somebody has made."""
        fields = {"name": "Export", "description": "As CSV.", **fields}
        return self.simulation.workspace.create_story(PEOPLE[0], fields).id

    def label(self, *stories: int, name: str = "patch") -> None:
        self.simulation.workspace.update_stories(PEOPLE[0], stories, {}, labels_add=[name])

    async def find(self, mark: Mark = ALWAYS) -> reconcile.Found:
        """One run, and what was found is applied."""
        found = await self.reconciler.run("shortcut", mark)
        await self.ladder.apply()
        return found

    async def deliver(self) -> int:
        """Everything is delivered after all; how many events were new."""
        bodies = [it.body for change in self.changes for it in v1(change)]
        new = await self.ladder.record(*bodies)
        await self.ladder.apply()
        return new


@pytest.fixture
async def silence(ladder, pool):
    async with simulated() as (simulation, url), ShortcutClient(url, TOKEN) as shortcut:
        changes, rung = [], []
        simulation.workspace.tell = changes.append
        rules = replace(RULES, bots=frozenset({AGENT.id}))
        applier = replace(ladder.applier, rules=rules, workspaces=here(shortcut))
        reconciler = Reconciler(
            take=partial(take, pool),
            workspaces=here(shortcut),
            rules=rules,
            every=HOUR,
            ring=lambda: rung.append(None),
        )
        yield Silence(
            simulation=simulation,
            reconciler=reconciler,
            ladder=replace(ladder, applier=applier),
            changes=changes,
            rung=rung,
        )


async def test_what_was_never_delivered_is_found(silence):
    """A label that nobody told of opens a session; what is delivered later is a duplicate."""
    story = silence.story()
    silence.label(story)

    found = await silence.find()

    assert (found.stories, found.events, found.more) == (1, 2, False)
    assert (await silence.ladder.session(story))["status"] == "clarified"
    assert silence.rung
    headers = await silence.ladder.conn.fetchval("select headers from events limit 1")
    assert headers == reconcile.FOUND
    assert await silence.deliver() == 0


async def test_what_was_delivered_is_not_found_again(silence):
    """Where everything came, a run writes nothing."""
    silence.label(silence.story())
    assert await silence.deliver() == 2

    assert (await silence.find()).events == 0
    assert not silence.rung


async def test_a_story_that_changed_while_we_were_down_is_caught_up(silence):
    """Comments come with their words and what they reply to, and the end is the end."""
    story = silence.story()
    silence.label(story)
    await silence.deliver()
    workspace = silence.simulation.workspace
    first = workspace.add_comment(PEOPLE[1], story, "In cents, please.")
    workspace.add_comment(PEOPLE[2], story, "/status", parent_id=first.id)
    gone = workspace.add_comment(PEOPLE[2], story, "Never mind.")
    workspace.delete_comment(PEOPLE[2], story, gone.id)
    workspace.update_stories(PEOPLE[0], [story], {"workflow_state_id": STATES[-1].id})

    await silence.find()

    session = await silence.ladder.session(story)
    assert session["status"] == "closed"
    said = await silence.ladder.conn.fetch(
        "select text from conversation where text is not null order by comment_id"
    )
    assert [row["text"] for row in said] == ["In cents, please.", "/status"]
    parents = "select parent_comment_id from facts where value = '/status'"
    assert await silence.ladder.conn.fetchval(parents) == first.id


async def test_a_story_that_is_given_to_us_is_found(silence):
    """An assignment that was not delivered opens a session, unless our account is a person's."""
    story = silence.story()
    silence.simulation.workspace.update_stories(PEOPLE[0], [story], {"owner_ids": [AGENT.id]})
    shared = replace(silence.reconciler, rules=replace(silence.reconciler.rules, shared=True))
    assert (await shared.run("shortcut", ALWAYS)).stories == 0

    await silence.find()

    assert (await silence.ladder.session(story))["status"] == "clarified"


async def test_what_is_found_is_of_the_workspace_that_was_asked(silence):
    """A workspace that has installed the agent app has no source of its own, and is asked, too."""
    story = silence.story()
    silence.label(story)
    agents = {"elsewhere": silence.reconciler.workspaces.api("shortcut")}
    ours = replace(silence.reconciler, workspaces=replace(here(), agents=agents, homes={}))
    assert ours.reachable == ["elsewhere"]

    await ours.run("elsewhere", ALWAYS)
    await silence.ladder.apply()

    rows = await silence.ladder.conn.fetch("select workspace, sc_id from patch_sessions")
    assert [tuple(row) for row in rows] == [("elsewhere", story)]


async def test_stories_that_are_none_of_ours_are_not_read(silence):
    """One search, and no history of what has no session and shows nothing that opens one."""
    for _ in range(3):
        silence.story()
    ours = silence.story()
    silence.label(ours)

    assert (await silence.find()).stories == 1


async def test_only_what_is_newer_than_the_mark_is_recorded(silence):
    """What has happened before is known, or none of ours: an old label opens nothing."""
    story = silence.story()
    silence.label(story)
    later = silence.simulation.workspace.story(story).updated_at + timedelta(milliseconds=1)
    silence.simulation.workspace.add_comment(PEOPLE[0], story, "By the way.")

    found = await silence.find(Mark(through=later, read_up_to=ALWAYS.through))

    assert (found.stories, found.events) == (1, 1)
    assert await silence.ladder.conn.fetchval("select count(*) from patch_sessions") == 0


async def test_a_run_is_bounded_and_the_next_goes_on(silence, monkeypatch):
    """So many stories at a time, those of one second together; in the end all were read."""
    monkeypatch.setattr(reconcile, "MOST_STORIES", 2)
    clock = iter(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(99))
    silence.simulation.workspace.clock = lambda: next(clock)
    stories = [silence.story() for _ in range(6)]
    silence.label(stories[0])
    silence.label(*stories[1:4])
    silence.label(stories[4])
    silence.label(stories[5])
    ours = silence.reconciler
    async with ours.take() as conn:
        await reconciliations.done(conn, "shortcut", ALWAYS)

    assert [await ours.tick() for _ in range(3)] == [True, False, False]
    await silence.ladder.apply()

    assert await silence.ladder.conn.fetchval("select count(*) from patch_sessions") == 6
    mark = await reconciliations.mark(silence.ladder.conn, "shortcut")
    assert mark == Mark(through=ANY, read_up_to=None)
    assert mark.through > datetime.now(UTC) - timedelta(minutes=6)


async def test_deletions_that_were_not_delivered_are_found_in_turn(silence, monkeypatch):
    """No search shows them, so a run asks for the stories of some open sessions, and goes on."""
    monkeypatch.setattr(reconcile, "MOST_OPEN", 2)
    stories = [silence.story() for _ in range(5)]
    silence.label(*stories)
    await silence.deliver()
    for story in (stories[0], stories[4]):
        silence.simulation.workspace.delete_story(PEOPLE[0], story)
    conn, left, mark = silence.ladder.conn, [], Mark(through=datetime(2999, 1, 1, tzinfo=UTC))

    for _ in range(3):
        await silence.find(mark)
        mark = await reconciliations.mark(conn, "shortcut")
        left.append(
            await conn.fetchval("select count(*) from patch_sessions where status <> 'closed'")
        )

    assert left == [4, 4, 3]
    assert mark.looked_up_to == 0
    assert (await silence.ladder.session(stories[4]))["status"] == "closed"
    assert (await silence.find(mark)).events == 0
    third = await silence.ladder.session(stories[2])
    assert (await reconciliations.mark(conn, "shortcut")).looked_up_to == third["id"]
    assert await silence.deliver() == 2


async def test_a_story_that_can_not_be_asked_for_is_not_gone(silence):
    """Only a 404 says so; with most other answers the run is done again from where it began."""
    story = silence.story()
    silence.label(story)
    await silence.deliver()
    silence.simulation.faults.pending.append(Fault(status=400, method="GET", path=f"/{story}"))
    with pytest.raises(ShortcutRefused):
        await silence.find(Mark(through=datetime(2999, 1, 1, tzinfo=UTC)))

    await silence.ladder.apply()
    assert (await silence.ladder.session(story))["status"] == "clarified"


async def test_a_story_that_may_not_be_seen_keeps_nobody_from_the_others(silence):
    """What is forbidden for good is passed by, in the histories and among the open sessions."""
    hidden, deleted, late = silence.story(), silence.story(), silence.story()
    silence.label(hidden, deleted)
    await silence.deliver()
    silence.label(late)
    silence.simulation.workspace.delete_story(PEOPLE[0], deleted)
    fault = Fault(status=403, method="GET", path=f"/{hidden}", times=100)
    silence.simulation.faults.pending.append(fault)

    await silence.find()

    found = [(await silence.ladder.session(it))["status"] for it in (hidden, deleted, late)]
    assert found == ["clarified", "closed", "clarified"]


async def test_a_story_is_gone_when_it_is_so_twice_and_others_are_found_meanwhile(silence, pool):
    """A 404 by something on the way, once or to everything for a while, closes no session."""
    story = silence.story()
    silence.label(story)
    await silence.deliver()
    mark, faults = Mark(through=datetime(2999, 1, 1, tzinfo=UTC)), silence.simulation.faults
    faults.pending.append(Fault(status=404, method="GET", path=f"/{story}"))
    assert (await silence.find(mark)).events == 0
    taken = []

    def take_and_fail_from_then_on():
        taken.append(None)
        if len(taken) == 2:  # The search is over.
            faults.pending.append(Fault(status=404, times=100))
        return take(pool)

    with pytest.raises(ShortcutRefused):
        await replace(silence.reconciler, take=take_and_fail_from_then_on).run("shortcut", mark)

    await silence.ladder.apply()
    assert (await silence.ladder.session(story))["status"] == "clarified"


async def test_a_deletion_that_came_to_nothing_is_found_again(silence):
    """By clocks that differ it may seem older than the last decision; the next run's does not."""
    story = silence.story()
    silence.label(story)
    await silence.deliver()
    silence.simulation.workspace.delete_story(PEOPLE[0], story)
    decided = "update patch_sessions set claim_generation = 1, decided_at = now() + $1"
    mark = Mark(through=datetime(2999, 1, 1, tzinfo=UTC))

    await silence.ladder.conn.execute(decided, HOUR)
    assert (await silence.find(mark)).events == 1
    assert (await silence.ladder.session(story))["status"] == "clarified"
    await silence.ladder.conn.execute(decided, -HOUR)
    assert (await silence.find(mark)).events == 1
    assert (await silence.ladder.session(story))["status"] == "closed"


async def test_it_is_done_on_a_schedule_by_one_process(silence, connect):
    """The first time only the time is kept; then once in a while, by whoever is first."""
    silence.label(silence.story())
    assert not await silence.reconciler.tick()
    taken = "select next_run_at > now() + interval '59 min' from reconciliations"
    assert await silence.ladder.conn.fetchval(taken)
    first, second = await connect(), await connect()
    assert await reconciliations.take(first, "shortcut", every=HOUR) is None

    await first.execute("update reconciliations set next_run_at = now()")
    assert await reconciliations.take(first, "shortcut", every=HOUR) is not None
    assert await reconciliations.take(second, "shortcut", every=HOUR) is None


async def test_never_means_never(silence):
    """With 0 seconds nothing is asked on a schedule."""
    await replace(silence.reconciler, every=timedelta(0)).tick()

    assert await silence.ladder.conn.fetchval("select count(*) from reconciliations") == 0


async def test_a_run_that_fails_is_done_again_from_where_it_began(silence):
    """The API fails in the middle: the mark stays, and nothing is missed or doubled."""
    story = silence.story()
    silence.label(story)
    before = Mark(through=ALWAYS.through)
    await reconciliations.done(silence.ladder.conn, "shortcut", before)
    silence.simulation.faults.pending.append(Fault(path="/history"))
    with pytest.raises(ShortcutUnavailable):
        await silence.find()
    assert await reconciliations.mark(silence.ladder.conn, "shortcut") == before

    assert (await silence.find()).events == 2


async def test_a_later_mark_stands(silence):
    """A run that took long does not take back what a newer one has reached."""
    conn = silence.ladder.conn
    await reconciliations.done(conn, "shortcut", Mark(through=datetime(2026, 2, 1, tzinfo=UTC)))

    await reconciliations.done(conn, "shortcut", ALWAYS)

    mark = await reconciliations.mark(conn, "shortcut")
    assert mark.through == datetime(2026, 2, 1, tzinfo=UTC)
