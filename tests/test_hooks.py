"""Webhooks that are registered from here, watched, and registered again."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from app.budget import name_of
from app.db import hooks as db
from app.db.connect import take
from app.errors import DraftgateError, ShortcutUnavailable
from app.model import Hook, HookStatus
from app.settings import Settings
from app.simulator.faults import Fault
from app.simulator.simulation import Simulation
from app.sources import Source
from app.worker.hooks import Hooks
from app.worker.workspaces import connected
from tests.office import TOKEN, simulated
from tests.service import SECRET
from tests.test_cli import draftgate as draftgate  # a fixture

PUBLIC = "https://draftgate.example/bot"


class Watch:
    """Hooks beside the simulated workspace that they are registered in."""

    def __init__(self, simulation: Simulation, hooks: Hooks, conn) -> None:
        self.simulation = simulation
        self.hooks = hooks
        self.conn = conn

    @property
    def urls(self) -> list[str]:
        """Where the simulated workspace delivers to."""
        return [it.hook.url for it in self.simulation.integrations.values()]

    async def known(self) -> Hook:
        (hook,) = await db.all_of_them(self.conn)
        return hook

    def disable(self) -> None:
        for it in self.simulation.integrations.values():
            it.disabled = True

    async def due(self) -> None:
        """It is time to look, as if so much had passed."""
        await self.conn.execute("update hooks set next_check_at = now()")


def settings(url: str, **given: object) -> Settings:
    """One source without a name and one with, for the same workspace."""
    acme = Source(secrets=(SECRET,), api_token=TOKEN)
    return Settings(
        _env_file=None,
        shortcut_secrets=SECRET,
        shortcut_api_token=TOKEN,
        shortcut_api_url=url,
        sources={"acme": acme},
        **{"public_url": PUBLIC, **given},
    )


@pytest.fixture
async def watch(pool, conn) -> AsyncIterator[Watch]:
    async with simulated() as (simulation, url), connected(settings(url), pool) as workspaces:
        await workspaces.learn()
        hooks = Hooks(take=partial(take, pool), settings=settings(url), workspaces=workspaces)
        yield Watch(simulation, hooks, conn)


def with_settings(watch: Watch, **given: object) -> Hooks:
    return replace(watch.hooks, settings=watch.hooks.settings.model_copy(update=given))


@pytest.mark.parametrize(("source", "path"), [("shortcut", ""), ("acme", "/acme")])
async def test_a_hook_leads_to_its_source(watch, source, path):
    """It is registered with the source's address and first secret, and known from then on."""
    hook = await watch.hooks.register(source)

    assert watch.urls == [f"{PUBLIC}/webhooks/shortcut{path}"] == [hook.url]
    assert watch.simulation.integrations[hook.integration_id].hook.secret == SECRET.encode()
    assert await watch.known() == hook


async def test_a_rotated_hook_has_no_gap(watch):
    """The new one is there before the old one is deleted; if that fails, it is tried again."""
    first = await watch.hooks.register("shortcut")
    watch.simulation.faults.pending.append(Fault(method="DELETE"))

    with pytest.raises(ShortcutUnavailable):
        await watch.hooks.register("shortcut")

    assert len(watch.urls) == 2
    assert (await watch.known()).retired_id == first.integration_id
    await watch.due()
    assert await watch.hooks.tick()
    assert len(watch.urls) == 1
    assert (await watch.known()).retired_id is None
    assert first.integration_id not in watch.simulation.integrations


async def test_a_removed_hook_is_gone_on_both_sides(watch):
    """Whether Shortcut still had it or not."""
    hook = await watch.hooks.register("shortcut")
    watch.simulation.integrations.clear()

    await watch.hooks.remove(hook)

    assert await db.all_of_them(watch.conn) == []


async def test_a_hook_that_was_made_by_hand_is_taken_over(watch):
    """Its id is enough, if Shortcut knows it."""
    hook = await watch.hooks.register("shortcut")
    await db.remove(watch.conn, hook)

    assert (await watch.hooks.adopt("shortcut", hook.integration_id)).url == hook.url
    with pytest.raises(DraftgateError, match="no webhook 99"):
        await watch.hooks.adopt("shortcut", 99)


async def test_a_disabled_hook_is_said_once_and_so_is_its_return(watch):
    """Whoever looks, and however often: the row knows what was said."""
    await watch.hooks.register("shortcut")
    with capture_logs() as said:
        for disabled in (False, True, True, False):
            for it in watch.simulation.integrations.values():
                it.disabled = disabled
            await watch.due()
            assert await watch.hooks.tick()
            assert not await watch.hooks.tick()

    told = [(it["event"], it["log_level"]) for it in said if it["event"].startswith("hook.")]
    assert told == [("hook.disabled", "error"), ("hook.alive_again", "warning")]


async def test_a_hook_that_can_not_be_asked_keeps_its_status(watch):
    """An outage is no dead hook; what is not known is said beside what was seen last."""
    await watch.hooks.register("shortcut")
    await watch.due()
    watch.simulation.faults.pending.append(Fault(path="/integrations"))

    await watch.hooks.tick()

    hook = await watch.known()
    assert (hook.status, "503" in hook.error) == (HookStatus.ALIVE, True)


def _disable(watch: Watch) -> None:
    watch.disable()


def _lose(watch: Watch) -> None:
    watch.simulation.integrations.clear()


@pytest.mark.parametrize("harm", [_disable, _lose])
async def test_a_dead_hook_is_registered_again_if_a_setting_says_so(
    watch, harm: Callable[[Watch], None]
):
    """Once for each time that it is found dead, and not before it has had time to live."""
    hooks = with_settings(watch, webhook_reregister=True)
    first = await hooks.register("shortcut")
    harm(watch)
    await watch.due()

    assert await hooks.tick()

    hook = await watch.known()
    assert (hook.status, hook.retired_id) == (HookStatus.ALIVE, None)
    assert list(watch.simulation.integrations) == [hook.integration_id] != [first.integration_id]
    watch.disable()
    assert not await hooks.tick()


async def test_a_dead_hook_is_left_to_people_otherwise(watch):
    """Shortcut may have had its reasons."""
    hook = await watch.hooks.register("shortcut")
    watch.disable()
    await watch.due()

    await watch.hooks.tick()

    assert list(watch.simulation.integrations) == [hook.integration_id]
    assert (await watch.known()).status is HookStatus.DISABLED


async def test_what_is_seen_of_a_retired_hook_says_nothing_of_its_successor(watch):
    """An answer that comes late changes no other row."""
    old = await watch.hooks.register("shortcut")
    await watch.hooks.register("shortcut")

    assert (await watch.hooks.look(old)).status is HookStatus.GONE

    assert (await watch.known()).status is HookStatus.ALIVE
    await db.remove(watch.conn, old)
    assert (await watch.known()).status is HookStatus.ALIVE


async def test_two_watchers_do_not_look_at_once(watch, connect):
    """While one is given a hook, another passes it by."""
    await watch.hooks.register("shortcut")
    await watch.due()
    other = await connect()
    async with other.transaction():
        await other.execute("select 1 from hooks for update")
        assert not await watch.hooks.tick()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"public_url": None}, "DRAFTGATE_PUBLIC_URL is not set"),
        ({"public_url": f"https://{'a' * 2040}.example"}, "2048"),
        ({"shortcut_secrets": (), "shortcut_api_token": None}, "no secret"),
    ],
)
async def test_what_shortcut_would_refuse_is_not_sent(watch, given, said):
    """Settings that lead to no webhook are named; nothing is registered."""
    with pytest.raises(DraftgateError, match=said):
        await with_settings(watch, **given).register("shortcut")

    assert watch.urls == []


async def test_a_hook_whose_id_is_not_told_is_made_once(watch):
    """It can't be watched, so people are told what to do, and no other one is made meanwhile."""
    hooks = with_settings(watch, webhook_reregister=True)
    await hooks.register("shortcut")
    watch.disable()
    await watch.due()
    blank = Fault(kind="blank", method="POST", path="/integrations", times=9)
    watch.simulation.faults.pending.append(blank)

    with capture_logs() as logs:
        assert await hooks.tick()
        await watch.conn.execute("update hooks set next_check_at = next_check_at - interval '9 h'")
        assert not await hooks.tick()

    dead, unwatched = watch.simulation.integrations
    known = await watch.known()
    assert (known.integration_id, known.status) == (dead, HookStatus.DISABLED)
    assert "--adopt" in known.error
    assert [it["event"] for it in logs] == ["hook.disabled", "hook.not_mended"]
    watch.simulation.integrations[dead].disabled = False
    assert (await hooks.look(known)).status is HookStatus.ALIVE
    assert await hooks.tick()
    adopted = await hooks.adopt("shortcut", unwatched)
    assert (adopted.status, adopted.error) == (HookStatus.ALIVE, None)
    assert list(watch.simulation.integrations) == [unwatched]


async def test_the_commands(draftgate, conn):
    """register, status, rotate, remove: each says what came of it; a dead hook is exit 1."""
    async with simulated() as (simulation, url):
        given = {
            "DRAFTGATE_SHORTCUT_API_URL": url,
            "DRAFTGATE_SHORTCUT_API_TOKEN": TOKEN,
            "DRAFTGATE_SHORTCUT_SECRETS": SECRET,
            "DRAFTGATE_PUBLIC_URL": PUBLIC,
        }
        plan = (await draftgate("webhook", "register", "--dry-run", "--json", **given)).json
        assert (plan["done"], "first secret" in plan["plan"]) == (False, True)
        assert simulation.integrations == {}
        done = await draftgate("webhook", "register", **given)
        assert (done.code, f"leads to {PUBLIC}/webhooks/shortcut" in done.out) == (0, True)
        assert (await draftgate("webhook", "register", **given)).code == 1
        assert (await draftgate("webhook", "register", "nobody", **given)).code == 2

        (integration,) = simulation.integrations.values()
        integration.disabled = True
        done = await draftgate("webhook", "status", "--json", **given)
        assert (done.code, done.json["items"][0]["status"]) == (1, "disabled")
        doctor = (await draftgate("doctor", **given)).out
        assert f"FAULT webhook: Webhook {integration.id} is disabled" in " ".join(doctor.split())

        plan = (await draftgate("webhook", "rotate", "--dry-run", **given)).out
        assert f"{integration.id} is deleted" in plan
        assert list(simulation.integrations) == [integration.id]
        assert (await draftgate("webhook", "rotate", "--yes", **given)).code == 0
        assert [it.disabled for it in simulation.integrations.values()] == [False]
        assert (await draftgate("webhook", "remove", "--yes", **given)).code == 0

    assert simulation.integrations == {}
    assert await db.all_of_them(conn) == []
    budgets = "select name from request_budgets"
    assert await conn.fetchval(budgets) == name_of(TOKEN), "commands ask in their turn, too"
