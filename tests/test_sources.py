"""Several workspaces: each source has a path, secrets, a token and a workspace of its own."""

import os
from dataclasses import replace

import pytest

from app.db import events
from app.errors import DraftgateError, SettingsError, ShortcutUnavailable
from app.in_force import in_force
from app.settings import Settings, load, strangers
from app.shortcut.client import ShortcutClient
from app.shortcut.envelope import read
from app.shortcut.signature import sign
from app.simulator.faults import Fault
from app.simulator.records import AGENT_ID, PEOPLE, WORKSPACE_ID
from app.sources import Source
from app.worker.workspaces import Workspaces, connected
from tests import shapes
from tests.ladder import here
from tests.office import TOKEN, simulated
from tests.service import SECRET, receiver

ACME, BRAVO = "a secret of acme's alone", "a secret of bravo's alone"
TWO = {"acme": {"secrets": ACME}, "bravo": {"secrets": BRAVO}}


def source(token: str | None = TOKEN, **more: str) -> Source:
    return Source(secrets=(ACME,), api_token=token, **more)


def of(url: str, **sources: Source) -> Settings:
    """Settings with these sources alone."""
    return Settings(_env_file=None, shortcut_api_url=url, sources=sources)


# --- settings --------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty directory that commands are started in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sources_stand_in_a_file(home):
    """Tables name the sources; a secret may be in a file of its own, one a line."""
    (home / "rotated").write_text(f"{ACME}\n{BRAVO}\n")
    (home / "draftgate.toml").write_text(
        'trigger_label = "bot"\n'
        '[sources.acme]\nsecrets_file = "rotated"\nworkspace = "w"\n'
        f'[sources.bravo]\nsecrets = ["{BRAVO}"]\napi_token = "t"\n'
    )

    settings = load()

    assert settings.trigger_label == "bot"
    assert settings.secrets == {
        "acme": (ACME.encode(), BRAVO.encode()),
        "bravo": (BRAVO.encode(),),
    }
    assert settings.all_sources["acme"].workspace == "w"


def test_the_environment_outdoes_the_file(home, monkeypatch):
    """Variables name sources and their parts, too, beside those of the file."""
    (home / "draftgate.toml").write_text(f'[sources.acme]\nsecrets = "{BRAVO}"\n')
    monkeypatch.setenv("DRAFTGATE_SOURCES__ACME__SECRETS", f"{ACME},{BRAVO}")
    monkeypatch.setenv("DRAFTGATE_SOURCES__ACME__WORKSPACE", "w")
    monkeypatch.setenv("DRAFTGATE_SHORTCUT_SECRETS", SECRET)

    settings = load()

    assert strangers(os.environ) == {}
    (shown,) = [it for it in in_force(settings, os.environ) if it.variable == "DRAFTGATE_SOURCES"]
    assert (shown.value, shown.origin) == ("acme", "the environment")
    assert settings.secrets == {
        "shortcut": (SECRET.encode(),),
        "acme": (ACME.encode(), BRAVO.encode()),
    }


@pytest.mark.parametrize(
    ("toml", "named"),
    {
        '[sources.acme]\nsecrets = "short"': "DRAFTGATE_SOURCES__ACME__SECRETS",
        f'[sources.acme]\nsecrets = "{ACME},"': "DRAFTGATE_SOURCES__ACME__SECRETS",
        '[sources.acme]\nworkspace = "w"': "DRAFTGATE_SOURCES__ACME__SECRETS",
        "[sources.acme]\nsecrets = []": "DRAFTGATE_SOURCES__ACME",
        f'[sources.acme]\nsecrets = "{ACME}"\ntokn = "x"': "DRAFTGATE_SOURCES__ACME__TOKN",
        '[sources.acme]\nsecrets_file = "nowhere"': "DRAFTGATE_SOURCES__ACME",
        f'[sources."a/b"]\nsecrets = "{ACME}"': "DRAFTGATE_SOURCES",
        f'[sources.shortcut]\nsecrets = "{ACME}"': "DRAFTGATE_SOURCES",
        "sources = 3": "DRAFTGATE_SOURCES",
        "sources": "draftgate.toml",
    }.items(),
)
def test_a_wrong_source_is_named(home, toml, named):
    """What is wrong is one line that names the setting, and tells no secret."""
    (home / "draftgate.toml").write_text(toml)

    with pytest.raises(SettingsError) as refused:
        load()

    assert named in str(refused.value)
    assert ACME not in str(refused.value)


def test_a_list_that_is_none_is_named(home, monkeypatch):
    """The variable itself takes JSON, and what is not JSON is a wrong setting."""
    monkeypatch.setenv("DRAFTGATE_SOURCES", "acme")

    with pytest.raises(SettingsError, match="sources"):
        load()


# --- the door --------------------------------------------------------------------------------


async def test_each_path_takes_its_own_secrets_only(database, conn):
    """A delivery is its source's, whose secrets alone count; a path of nobody's is a 404."""
    body = shapes.labelled(1)
    async with receiver(database, sources=TWO) as it:
        signed = {"Payload-Signature": sign(ACME.encode(), body)}
        answers = [
            (await it.post(body, path=path, headers=signed)).status_code
            for path in ("/acme", "/acme/", "/bravo", "", "/nobody")
        ]
        others = {"Payload-Signature": sign(BRAVO.encode(), body)}
        answers.append((await it.post(body, path="/bravo", headers=others)).status_code)

    assert answers == [200, 200, 401, 401, 404, 200]
    rows = await conn.fetch("select source from events order by source")
    assert [row["source"] for row in rows] == ["acme", "bravo"]


async def test_only_named_sources_take_deliveries(database):
    """Where only sources by name are set, the path without a name is nobody's."""
    body = shapes.labelled(1)
    async with receiver(database, shortcut_secrets="", sources=TWO) as it:
        assert (await it.post(body)).status_code == 404
        signed = {"Payload-Signature": sign(ACME.encode(), body)}
        assert (await it.post(body, path="/acme", headers=signed)).status_code == 200


# --- the workspaces --------------------------------------------------------------------------


async def test_a_source_is_the_workspace_of_its_token(pool):
    """The API says it; without a token it is the setting, or else the source's name."""
    async with simulated() as (_, url):
        sources = {
            "acme": source(),
            "bravo": source(None),
            "cecil": source(None, workspace="w", bot_member_id="b"),
        }
        async with connected(of(url, **sources), pool) as them:
            assert await them.learn()

            assert them.homes == {"acme": WORKSPACE_ID, "bravo": "bravo", "cecil": "w"}
            assert them.bots == {AGENT_ID, "b"}
            assert them.api(WORKSPACE_ID) is them.api("acme") is not None
            assert them.api("bravo") is None


async def test_a_token_that_is_refused_is_its_source_s_affair(pool):
    """Others go on; if there is no other, the process says so and ends."""
    async with simulated() as (_, url):
        async with connected(of(url, acme=source(), bravo=source("wrong")), pool) as them:
            assert await them.learn()
            assert (set(them.homes), them.refused) == ({"acme"}, {"bravo"})

        async with connected(of(url, bravo=source("wrong")), pool) as them:
            with pytest.raises(DraftgateError):
                await them.learn()


async def test_nothing_is_said_to_the_wrong_workspace_meanwhile(pool):
    """While it isn't known which workspace a token is for, whoever asks comes again."""
    async with simulated() as (simulation, url):
        simulation.faults.pending.append(Fault(path="/member"))
        async with connected(of(url, acme=source()), pool) as them:
            assert not await them.learn()
            with pytest.raises(ShortcutUnavailable):
                them.api(WORKSPACE_ID)

            assert await them.learn()
            assert them.api(WORKSPACE_ID) is not None


async def test_events_of_a_refused_source_wait_alone(ladder):
    """What it delivers stays pending, and what others deliver is applied."""
    workspaces = here()
    workspaces.refused.add("acme")
    ladder = replace(ladder, applier=replace(ladder.applier, workspaces=workspaces))
    await events.record(ladder.conn, [read("acme", shapes.labelled(1), [])])

    await ladder.deliver(shapes.labelled(2))

    rows = await ladder.conn.fetch("select source, status from events order by source")
    assert [tuple(row) for row in rows] == [("acme", "pending"), ("shortcut", "applied")]


async def test_stories_with_one_number_are_two_stories(ladder):
    """Each source's story is its own workspace's, whatever numbers they have."""
    workspaces = Workspaces(homes={"acme": "a", "bravo": "b"})
    ladder = replace(ladder, applier=replace(ladder.applier, workspaces=workspaces))
    for name in ("acme", "bravo"):
        await events.record(ladder.conn, [read(name, shapes.labelled(1), [])])

    await ladder.apply()

    rows = await ladder.conn.fetch("select workspace, sc_id from patch_sessions order by 1")
    assert [tuple(row) for row in rows] == [("a", 1), ("b", 1)]


async def test_a_comment_goes_to_its_story_s_workspace(office):
    """It is posted by the API of the session's workspace, and waits where there is none."""
    async with simulated() as (elsewhere, url), ShortcutClient(url, TOKEN) as other:
        elsewhere.workspace.create_story(PEOPLE[0], {"name": "Theirs"})
        elsewhere_only = Workspaces(apis={"elsewhere": other})
        assert await replace(office.sender, workspaces=elsewhere_only).tick()

        row = await office.row()
        assert (row["status"], row["last_error"]) == (
            "pending",
            "there is no token for its workspace",
        )
        assert elsewhere.workspace.comments == {}

    await office.due()
    assert await office.sender.tick()
    assert len(office.comments()) == 1
