"""Which workspace each source tells of, and whose API is asked about which workspace."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import structlog
from pydantic import SecretStr

from app.budget import Budget, name_of
from app.db import installations
from app.db.connect import Pool, take
from app.errors import DraftgateError, ShortcutError, ShortcutUnavailable
from app.installs import Installs, installs_of
from app.model import Installation
from app.settings import Settings
from app.shortcut.agent import AgentClient
from app.shortcut.client import Me, ShortcutClient
from app.sources import Source
from app.worker.teams import Teams

UPDATE_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Workspaces:
    """What is known of the workspaces that this process works for; `learn` finds out the rest.

    Attributes:
        homes: the workspace of each source, for deliveries that don't say theirs.
        apis: the API that is asked about each workspace.
        bots: our own member ids, in all workspaces.
        asking: sources whose API has not said yet who we are there.
        refused: sources whose token is no good: what they deliver waits for a new one.
        agents: the API of each workspace that has installed the agent app; it goes first.
        installs: the agent app; None where the settings name none.
        teams: those whose members' commands count.
        new_agent: makes the API of a workspace that has installed it.
    """

    homes: dict[str, str] = field(default_factory=dict)
    apis: dict[str, ShortcutClient] = field(default_factory=dict)
    bots: set[str] = field(default_factory=set)
    asking: dict[str, tuple[Source, ShortcutClient]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    agents: dict[str, AgentClient] = field(default_factory=dict)
    installs: Installs | None = None
    teams: Teams = field(default_factory=Teams)
    new_agent: Callable[[Installation], AgentClient] | None = None
    _updated_at: float = 0.0

    def home(self, source: str) -> str:
        """The workspace of what the source delivers; its own name where nothing else is known."""
        return self.homes.get(source, source)

    def has_api(self, workspace: str) -> bool:
        """Whether stories of this workspace can be read and commented on."""
        return workspace in self.apis or workspace in self.agents

    @property
    def known(self) -> set[str]:
        """Every workspace that there is an API for."""
        return {*self.apis, *self.agents}

    def api(self, workspace: str) -> ShortcutClient | None:
        """The API of a workspace; None where there is no token for it.

        Raises ShortcutUnavailable while one of the tokens may turn out to be for it.
        """
        if workspace in self.agents:
            return self.agents[workspace]
        if workspace not in self.apis and self.asking:
            raise ShortcutUnavailable("it is not known yet which workspace each token is for")
        return self.apis.get(workspace)

    async def tick(self) -> bool:
        """Notes, once a second, who has installed the agent app, and who has it no more."""
        if time.monotonic() - self._updated_at > UPDATE_SECONDS:
            await self.update()
            self._updated_at = time.monotonic()
        return False

    async def update(self) -> None:
        """Notes who has installed the agent app, and who has it no more."""
        if self.installs is None or self.new_agent is None:
            return
        async with self.installs.take() as conn:
            rows = await installations.all_of_them(conn)
        self.bots.update(row.member_id for row in rows if row.member_id)
        for row in rows:
            known = self.agents.get(row.workspace)
            if known is None or known.slug != row.slug:
                self.agents[row.workspace] = self.new_agent(row)
        for gone in self.agents.keys() - {row.workspace for row in rows}:
            del self.agents[gone]

    async def learn(self) -> bool:
        """Asks each API that has not said it who we are; True if no answer is missing.

        Raises DraftgateError if each of them refuses its token.
        """
        names = list(self.asking)
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self._ask(name))
        if self.refused and not self.homes:
            raise DraftgateError("the API does not say who we are: it refuses the token")
        return not self.asking

    async def _ask(self, name: str) -> None:
        source, client = self.asking[name]
        try:
            said = await client.me()
        except ShortcutUnavailable as error:
            log.warning(
                "shortcut.unavailable", source=name, error=str(error), waiting_for="who we are"
            )
            return
        except ShortcutError as error:
            log.error("shortcut.refused", source=name, error=str(error))
            del self.asking[name]
            self.refused.add(name)
            return
        del self.asking[name]
        self._know(name, source, client, said)

    def _know(self, name: str, source: Source, client: ShortcutClient | None, said: Me) -> None:
        self.homes[name] = source.workspace or said.workspace_id
        if source.bot_member_id or said.member_id:
            self.bots.add(str(source.bot_member_id or said.member_id))
        if client is not None:
            # By its name too: that was its workspace for as long as it had no token.
            for workspace in (self.homes[name], name):
                self.apis.setdefault(workspace, client)

    def _add(self, name: str, source: Source, client: ShortcutClient | None) -> None:
        if client is None or (source.workspace and source.bot_member_id):
            nothing = Me(member_id=None, workspace_id=name)
            self._know(name, source, client, nothing)
        else:
            self.asking[name] = (source, client)
            if source.workspace:
                self.apis.setdefault(source.workspace, client)


@asynccontextmanager
async def connected(settings: Settings, pool: Pool) -> AsyncIterator[Workspaces]:
    """The workspaces of all sources; connections to their APIs are closed when the block ends.

    The requests of each token are counted in the pool's database.
    """
    them = Workspaces(teams=Teams(ids=settings.command_teams))
    async with AsyncExitStack() as closing:
        if installs := installs_of(settings, partial(take, pool)):
            _with_agents(them, installs, settings, pool, closing)
        for name, source in settings.all_sources.items():
            client = None
            if source.api_token is None:
                effect = "stories are not read, comments not posted"
                log.warning("shortcut.no_token", source=name, effect=effect)
            else:
                client = await closing.enter_async_context(
                    _client(settings, pool, source.api_token)
                )
            them._add(name, source, client)
        yield them


def _with_agents(
    them: Workspaces, installs: Installs, settings: Settings, pool: Pool, closing: AsyncExitStack
) -> None:
    def new_agent(it: Installation) -> AgentClient:
        name = name_of(f"installation {it.workspace}")
        budget = Budget(pool=pool, name=name, a_minute=settings.shortcut_requests_a_minute)
        token = partial(installs.token, it.workspace)
        client = AgentClient(settings.shortcut_api_url, it.slug, token, budget=budget)
        closing.push_async_exit(client)
        return client

    them.installs, them.new_agent = installs, new_agent
    closing.push_async_callback(installs.settle)


def _client(settings: Settings, pool: Pool, secret: SecretStr) -> ShortcutClient:
    token, a_minute = secret.get_secret_value(), settings.shortcut_requests_a_minute
    budget = Budget(pool=pool, name=name_of(token), a_minute=a_minute)
    return ShortcutClient(settings.shortcut_api_url, token, budget=budget)
