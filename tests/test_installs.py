"""The agent app: installed by OAuth, its tokens sealed, refreshed once, and missed when revoked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from cryptography.fernet import Fernet
from structlog.testing import capture_logs

from app.db import installations
from app.db.connect import take
from app.errors import Rejected, SettingsError, ShortcutRefused, ShortcutUnavailable
from app.installs import Installs, installs_of
from app.model import InstallationStatus
from app.settings import Settings, load
from app.shortcut.agent import AgentClient
from app.shortcut.client import ShortcutClient
from app.simulator.faults import Fault
from app.simulator.oauth import CLIENT_ID
from app.simulator.records import (
    AGENT,
    AGENT_ID,
    PEOPLE,
    STATES,
    TEAM,
    TEAM_ID,
    URL_SLUG,
    WORKSPACE_ID,
)
from app.simulator.simulation import Simulation
from app.vault import Vault
from app.worker.workspaces import connected
from tests import shapes
from tests.ladder import here
from tests.locks import until
from tests.office import TOKEN
from tests.service import SECRET, receiver
from tests.test_cli import draftgate as draftgate  # a fixture
from tests.test_client import api, says
from tests.test_official_client import CLIENT_SECRET, simulator

KEY, OTHER_KEY = (Fernet.generate_key().decode() for _ in range(2))


def settings(origin: str, **given: object) -> Settings:
    """An agent app, and one source with its webhook secret."""
    return Settings(
        _env_file=None,
        **{
            "shortcut_secrets": SECRET,
            "shortcut_api_url": f"{origin}/api/v3",
            "oauth_url": f"{origin}/oauth-authorization-code-flow",
            "oauth_client_id": CLIENT_ID,
            "oauth_client_secret": CLIENT_SECRET,
            "oauth_token_keys": KEY,
            "public_url": "https://draftgate.example",
            **given,
        },
    )


async def agree(link: str) -> dict[str, str]:
    """Somebody follows the link and agrees; with what they come back."""
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(link)
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    return {name: values[0] for name, values in query.items()}


async def install(app: Installs) -> None:
    """The simulated workspace installs the app by a link of ours."""
    back = await agree(await app.begin())
    await app.finish(back["code"], back["state"])


@dataclass
class Shop:
    """An agent app beside the simulated workspace that installs it."""

    simulation: Simulation
    origin: str
    installs: Installs
    conn: object
    pool: object
    slug: str = URL_SLUG

    async def agree(self, link: str) -> dict[str, str]:
        return await agree(link)

    async def install(self) -> None:
        await install(self.installs)

    async def code(self) -> str:
        """Somebody installs the app from within Shortcut."""
        app = self.installs.app
        query = f"client_id={app.client_id}&redirect_uri={app.redirect_uri}"
        return (await self.agree(f"{app.url}/code?{query}"))["code"]

    async def token(self, refused: int | None = None) -> tuple[str, int]:
        return await self.installs.token(WORKSPACE_ID, refused)

    async def due(self) -> None:
        """The access token is about to end."""
        await self.conn.execute("update installations set refresh_at = now()")

    async def known(self):
        (it,) = await installations.all_of_them(self.conn)
        return it

    def client(self) -> AgentClient:
        token = partial(self.installs.token, WORKSPACE_ID)
        return AgentClient(f"{self.origin}/api/v3", self.slug, token, budget=None)


def installs(origin: str, pool, **given: object) -> Installs:
    found = installs_of(settings(origin, **given), partial(take, pool))
    assert found is not None
    return found


@pytest.fixture
async def shop(pool, conn) -> AsyncIterator[Shop]:
    async with simulator(webhook_url=None) as (simulation, origin):
        yield Shop(simulation, origin, installs(origin, pool), conn, pool)


# --- installing ------------------------------------------------------------------------------


async def test_an_installation_is_stored_sealed(shop):
    """Who we are there, and no token that anybody could read."""
    await shop.install()

    it = await shop.known()
    assert (it.workspace, it.slug, it.member_id) == (WORKSPACE_ID, URL_SLUG, AGENT_ID)
    assert (it.status, it.missing_scopes) == (InstallationStatus.ACTIVE, [])
    stored = str(await shop.conn.fetchrow("select * from installations"))
    token, _ = await shop.token()
    assert shop.simulation.oauth.accepts(f"Bearer {token}")
    assert not [it for it in (token, shop.simulation.oauth.refresh) if it in stored]


async def test_a_link_is_good_once_and_not_for_long(shop):
    """Whoever comes back by it again, or late, or by one that we never gave, installs nothing."""
    first, late = [await shop.agree(await shop.installs.begin()) for _ in range(2)]
    await shop.installs.finish(first["code"], first["state"])
    await shop.conn.execute("update oauth_states set created_at = now() - interval '11 minutes'")

    for state in (first["state"], late["state"], "draftgate.made-up"):
        with pytest.raises(Rejected) as refused:
            await shop.installs.finish(await shop.code(), state)
        assert refused.value.code == "state-invalid"


async def test_a_code_is_bound_to_its_link(shop):
    """A code that was granted for another link's verifier is no good."""
    one, other = [await shop.agree(await shop.installs.begin()) for _ in range(2)]

    with pytest.raises(Rejected) as refused:
        await shop.installs.finish(one["code"], other["state"])

    assert refused.value.code == "code-refused"
    assert await installations.all_of_them(shop.conn) == []


@pytest.mark.parametrize("allowed", ["", URL_SLUG, WORKSPACE_ID])
async def test_only_named_workspaces_install_from_within_shortcut(shop, pool, allowed):
    """There no link of ours is followed, and whoever is not named gets nothing."""
    ours = installs(shop.origin, pool, oauth_workspaces=allowed)

    with suppress(Rejected):
        await ours.finish(await shop.code(), "a state of Shortcut's own")

    assert len(await installations.all_of_them(shop.conn)) == bool(allowed)


async def test_the_callback(database, conn):
    """It answers with a page that says what came of it, or a problem that says what did not."""
    async with simulator(webhook_url=None) as (simulation, origin):
        given = settings(origin, oauth_workspaces=URL_SLUG).model_dump(exclude_unset=True)
        async with receiver(database, **given) as it, httpx.AsyncClient(trust_env=False) as http:

            async def come_back(**query: str) -> httpx.Response:
                return await it.client.get("/oauth/shortcut/callback", params=query)

            async def code() -> str:
                link = f"{given['oauth_url']}/code?client_id={CLIENT_ID}&redirect_uri="
                link += f"{given['public_url']}/oauth/shortcut/callback"
                where = (await http.get(link)).headers["location"]
                return parse_qs(urlsplit(where).query)["code"][0]

            done = await come_back(code=await code())
            assert (done.status_code, URL_SLUG in done.text) == (200, True)
            wrong = [
                await come_back(error="access_denied", error_description="<script>"),
                await come_back(),
                await come_back(code="made-up"),
                await come_back(code=await code(), state="draftgate.made-up"),
                await come_back(code="x" * 3000),
            ]
            simulation.faults.pending.append(Fault(path="/token"))
            wrong.append(await come_back(code="made-up"))

    codes = [(answer.status_code, answer.json()["code"]) for answer in wrong]
    assert codes == [
        (400, "not-agreed"),
        (400, "not-agreed"),
        (400, "code-refused"),
        (400, "state-invalid"),
        (422, "parameters-invalid"),
        (503, "unavailable"),
    ]
    assert len(await installations.all_of_them(conn)) == 1


@pytest.mark.parametrize(
    "left_out", [{"oauth_client_secret": None}, {"oauth_token_keys": ()}, {"public_url": None}]
)
def test_an_app_that_is_not_whole_is_a_wrong_setting(left_out):
    """A client id alone installs nothing, and would only seem to."""
    with pytest.raises(ValueError, match="oauth_client_id needs"):
        settings("http://localhost", **left_out)


def test_a_key_that_is_none_is_a_wrong_setting(monkeypatch, tmp_path):
    """It is named, and not told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTGATE_OAUTH_TOKEN_KEYS", f"{KEY},not-a-key")

    with pytest.raises(SettingsError, match=r"^DRAFTGATE_OAUTH_TOKEN_KEYS: [^;]* base64$"):
        load()


# --- tokens ----------------------------------------------------------------------------------


async def test_a_token_is_refreshed_once_for_all_who_ask(shop, database):
    """Its refresh token is good once: two processes, and all that they do, get the same new one."""
    await shop.install()
    await shop.due()
    async with database.pool("other") as other:
        elsewhere = replace(shop, installs=installs(shop.origin, other))
        asked = [it.token() for it in (shop, elsewhere) for _ in range(4)]
        found = await asyncio.gather(*asked)

    assert len(set(found)) == 1
    assert shop.simulation.oauth.refreshes == 1


async def test_a_token_is_stored_before_it_is_used(shop):
    """Who asks gets it when its row has it, and not as soon as Shortcut has said it."""
    held = await _held(shop)
    asking = asyncio.create_task(held.installs.token(WORKSPACE_ID, None))
    await _refreshed(shop)

    assert await _generation(shop) == 1
    assert not asking.done()
    held.go_on.set()
    assert (await asking)[1] == await _generation(shop) == 2


async def test_a_refresh_outlives_who_asked_for_it(shop):
    """The new refresh token is the only one that counts: it is stored whatever is cancelled."""
    held = await _held(shop)
    asking = asyncio.create_task(held.installs.token(WORKSPACE_ID, None))
    await _refreshed(shop)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    held.go_on.set()
    await held.installs.settle()

    await shop.due()
    token, generation = await shop.token()
    assert (generation, shop.simulation.oauth.refreshes) == (3, 2)
    assert shop.simulation.oauth.accepts(f"Bearer {token}")


@dataclass
class Held:
    """An app that gets no connection after a refresh, until it may go on."""

    installs: Installs
    go_on: asyncio.Event


async def _held(shop: Shop) -> Held:
    await shop.install()
    await shop.due()
    go_on = asyncio.Event()

    @asynccontextmanager
    async def taking():
        if shop.simulation.oauth.refreshes:
            await go_on.wait()
        async with take(shop.pool) as conn:
            yield conn

    return Held(replace(shop.installs, take=taking), go_on)


async def _refreshed(shop: Shop) -> None:
    async def done() -> bool:
        await asyncio.sleep(0)
        return shop.simulation.oauth.refreshes == 1

    await until(done)


async def _generation(shop: Shop) -> int:
    return await shop.conn.fetchval("select generation from installations")


async def test_tokens_that_come_late_replace_no_others(shop):
    """While one refreshes, the app is installed anew: what was installed stays."""
    await shop.install()
    async with take(shop.pool) as conn:
        old = await installations.tokens(conn, WORKSPACE_ID)
    await shop.install()
    token = await shop.token()

    fresh = shop.installs._sealed(await shop.installs.app.refresh(shop.simulation.oauth.refresh))
    assert await installations.refreshed(shop.conn, old, fresh) is None
    assert not await installations.revoked(shop.conn, old, error="late")

    assert await shop.token() == token


async def test_a_refused_token_is_refreshed_and_the_request_sent_again(shop):
    """Access may end before its time; what was refused was not done."""
    story = shop.simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id
    await shop.install()
    shop.simulation.oauth.access.clear()
    async with shop.client() as client:
        assert await client.post_comment(story, "Hello", "mark")

    assert shop.simulation.oauth.refreshes == 1
    assert len(shop.simulation.workspace.comments) == 1


async def test_a_refresh_that_fails_for_a_while_is_tried_again(shop):
    """An outage revokes nothing."""
    await shop.install()
    await shop.due()
    shop.simulation.faults.pending.append(Fault(path="/token"))

    with pytest.raises(ShortcutUnavailable):
        await shop.token()

    assert "503" in (await shop.known()).error
    assert (await shop.token())[1] == 2
    assert (await shop.known()).error is None


async def test_a_revoked_installation_is_said_once_and_ends_when_installed_again(shop):
    """Nothing is tried with dead tokens: whoever reads or writes there has to wait."""
    await shop.install()
    shop.simulation.oauth.revoke()
    with capture_logs() as said:
        async with shop.client() as client:
            for _ in range(3):
                with pytest.raises(ShortcutRefused) as refused:
                    await client.story(1)
                assert refused.value.status == 401

    assert (await shop.known()).status is InstallationStatus.REVOKED
    assert [it["log_level"] for it in said if it["event"] == "installation.revoked"] == ["error"]
    await shop.install()
    assert (await shop.known()).status is InstallationStatus.ACTIVE
    assert await shop.token()


async def test_a_comment_waits_for_the_installation(shop, office):
    """What is owed to a workspace that has revoked us is posted once it has installed us again."""
    await shop.install()
    shop.simulation.oauth.revoke()
    story = shop.simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id
    assert story == office.story
    async with shop.client() as client:
        sender = replace(office.sender, workspaces=here(client))
        await sender.tick()
        row = await office.row()
        assert (row["status"], "revoked" in row["last_error"]) == ("pending", True)

        await shop.install()
        await office.due()
        assert await sender.tick()

    said = [it.text for it in shop.simulation.workspace.comments.values()]
    assert len(said) == 1
    assert (await office.row())["status"] == "sent"


async def test_keys_can_be_rotated(shop, pool):
    """The first key encrypts; one that is no longer set loses what only it can decrypt."""
    await shop.install()
    both = replace(shop.installs, vault=Vault([OTHER_KEY, KEY]))
    await shop.due()
    token, _ = await both.token(WORKSPACE_ID, None)

    after = replace(shop.installs, vault=Vault([OTHER_KEY]))
    assert (await after.token(WORKSPACE_ID, None))[0] == token
    with pytest.raises(ShortcutRefused, match="key"):
        await shop.token()


# --- reading ---------------------------------------------------------------------------------


async def test_both_versions_read_the_same(shop):
    """A story, a comment, a label and a state are what version 3 says they are."""
    workspace = shop.simulation.workspace
    fields = {"name": "Export", "description": "One row.", "labels": ["patch", "billing"]}
    links = {"external_links": ["https://example.com/spec"]}
    story = workspace.create_story(PEOPLE[0], fields | links, tasks=["Header", "Rows"]).id
    said = workspace.add_comment(PEOPLE[0], story, "Please.").id
    gone = workspace.add_comment(PEOPLE[0], story, "Oops.").id
    workspace.delete_comment(PEOPLE[0], story, gone)
    label = next(iter(workspace.labels))
    await shop.install()
    async with (
        shop.client() as agent,
        ShortcutClient(f"{shop.origin}/api/v3", TOKEN) as client,
    ):
        for both in (agent, client):
            assert await both.comment_text(story, said) == "Please."
            assert await both.comment_text(story, gone) is None
            assert await both.comment_text(story, 999) is None
            assert await both.label_name(label) == "patch"
            assert await both.label_name(999) is None
            assert await both.state_name(STATES[-1].id) == "Done"
            assert await both.state_name(999) is None
            assert await both.team_members(TEAM_ID) == {it.id for it in TEAM}
            with pytest.raises(ShortcutRefused):
                await both.story(999)
        assert await agent.story(story) == await client.story(story)


async def test_a_workspace_that_is_called_something_else_now_is_found(shop):
    """Nothing is found under the name that is in the installation, and yet nothing is gone."""
    workspace = shop.simulation.workspace
    story = workspace.create_story(PEOPLE[0], {"name": "Export", "labels": ["patch"]}).id
    mark = workspace.add_comment(AGENT, story, "x", external_id="mark").id
    label = next(iter(workspace.labels))
    await shop.install()
    async with replace(shop, slug="called-so-before").client() as agent:
        found = await asyncio.gather(agent.label_name(label), agent.find_comment(story, "mark"))
        assert found == ["patch", mark]
        assert (await agent.story(story)).title == "Export"
        with pytest.raises(ShortcutRefused):
            await agent.story(999)
        assert agent.slug == "called-so-before"


async def test_a_marker_is_found_on_any_page(shop):
    """Lists are followed by their cursors to the end."""
    workspace = shop.simulation.workspace
    story = workspace.create_story(PEOPLE[0], {"name": "Export"}).id
    for number in range(205):
        workspace.add_comment(AGENT, story, "x", external_id=f"mark-{number}")
    await shop.install()
    async with shop.client() as agent:
        assert await agent.find_comment(story, "mark-0") is not None
        assert await agent.find_comment(story, "mark-204") is not None
        assert await agent.find_comment(story, "mark-205") is None


@pytest.mark.parametrize(
    "link",
    [
        "https://elsewhere.example/api/v4/acme/stories/1/comments?cursor=x",
        "http://127.0.0.1:1/api/v4/acme/stories/1/comments?cursor=x",
        "{origin}/api/v3/stories?cursor=x",
        "{origin}/api/v4/../v3/stories?cursor=x",
        "{origin}/api/v4/acme/stories/1/comments?cursor=x&limit=1000000",
        "{origin}/api/v4/acme/stories/1/comments?page=2",
        "//elsewhere.example/api/v4/acme?cursor=x",
        "{origin}@elsewhere.example/api/v4/acme?cursor=x",
        "{origin}/api/v4/acme/stories/1/comments?cursor=same",
        7,
    ],
)
async def test_a_link_that_leads_elsewhere_is_not_followed(link):
    """The token goes where the link leads: only to the same server, and by nothing but a cursor."""

    async def token(refused: int | None) -> tuple[str, int]:
        return "a-made-up-token", 1

    page = {"entities": [], "next_page_url": link}
    async with api(says(page)) as server:
        origin = server.url.removesuffix("/api/v3")
        page["next_page_url"] = link.format(origin=origin) if isinstance(link, str) else link
        server.answers = [says(page)]
        async with AgentClient(server.url, "acme", token, budget=None) as client:
            with pytest.raises(ShortcutUnavailable):
                await client.find_comment(1, "mark")

    followed = [head for head, _, _ in server.requests[1:]]
    assert len(followed) == ("cursor=same" in str(link))


# --- many workspaces -------------------------------------------------------------------------


async def test_each_workspace_has_its_own_agent(shop, pool):
    """Behind one secret and address: the session's workspace says whose token is used."""
    await shop.install()
    await shop.conn.execute(
        "insert into installations (workspace, slug, member_id, access)"
        " select 'another', 'another-slug', 'another-member', access from installations"
    )
    async with connected(settings(shop.origin), pool) as workspaces:
        await workspaces.update()
        assert workspaces.api(WORKSPACE_ID).slug == URL_SLUG
        assert workspaces.api("another").slug == "another-slug"
        assert workspaces.bots >= {AGENT_ID, "another-member"}

        assert await installations.disconnect(shop.conn, "another")
        await workspaces.update()
        assert workspaces.known == {WORKSPACE_ID}
        assert workspaces.api("another") is None


async def test_what_we_do_in_a_workspace_that_has_just_installed_us_is_ours(ladder, shop, pool):
    """Our own change is known as such, even by a process that has not heard of the installation."""
    async with connected(settings(shop.origin), pool) as workspaces:
        applier = replace(ladder.applier, workspaces=workspaces)
        await shop.install()
        ours = shapes.labelled(1).replace(shapes.MEMBER.encode(), AGENT_ID.encode())
        await replace(ladder, applier=applier).deliver(ours)

    assert await ladder.conn.fetchval("select reason from events") == "our own change"


# --- the commands ----------------------------------------------------------------------------


async def test_the_commands(draftgate, shop):
    """list, link, disconnect, and reconcile; the doctor says what is wrong with an installation."""
    given = {
        f"DRAFTGATE_{name.upper()}": value.get_secret_value()
        if hasattr(value, "get_secret_value")
        else value
        for name, value in settings(shop.origin).model_dump(exclude_unset=True).items()
        if name not in ("shortcut_secrets", "oauth_token_keys")
    } | {"DRAFTGATE_OAUTH_TOKEN_KEYS": KEY}
    done = await draftgate("installs", "link", **given)
    back = await shop.agree(done.out.strip())
    await shop.installs.finish(back["code"], back["state"])

    listed = (await draftgate("installs", "list", "--json", **given)).json["items"]
    assert [(it["slug"], it["status"]) for it in listed] == [(URL_SLUG, "active")]
    found = (await draftgate("reconcile", "--since", "2020-01-01", "--json", **given)).json
    assert [it["workspace"] for it in found] == [WORKSPACE_ID]
    shop.simulation.oauth.revoke()
    with suppress(ShortcutRefused):
        await shop.token(refused=1)
    doctor = " ".join((await draftgate("doctor", **given)).out.split())
    assert f"FAULT installation in {URL_SLUG}: It was revoked" in doctor

    assert (await draftgate("installs", "disconnect", WORKSPACE_ID, "--yes", **given)).code == 0
    assert (await draftgate("installs", "disconnect", WORKSPACE_ID, "--yes", **given)).code == 1
    assert await installations.all_of_them(shop.conn) == []
