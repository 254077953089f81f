"""Wiring: settings to a running process. Decides nothing."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from uuid import uuid4

import structlog
from starlette.types import ASGIApp

from app.api.access import Desk, guard_of
from app.db.connect import DATABASE_ERRORS, Database, Pool, reason, take
from app.decide import Rules
from app.door.connection import Lobby
from app.door.counts import Counts
from app.door.record import DATABASE_SHARE, Recorder
from app.door.spool import Spool, require_directory
from app.drafters.command import CommandDrafter, allowed_environment
from app.drafters.git import git_environment
from app.drafters.process import Spares
from app.errors import DraftgateError, SettingsError
from app.in_force import in_force
from app.live import Live
from app.migrate import require_latest
from app.settings import Settings
from app.wake import Bell, wait
from app.web import Server, create_app, create_metrics_app
from app.worker.apply import Applier
from app.worker.claims import Heart
from app.worker.draft import Clarifying, Limits, Workshop
from app.worker.engine import Engine
from app.worker.hooks import Hooks
from app.worker.outbox import Sender, tellings
from app.worker.reconcile import Reconciler
from app.worker.workspaces import Workspaces, connected

#: After the grace: for killing drafters and giving their claims back, also where a statement is
#: never answered, which takes `command_timeout_seconds`, and is carried out again.
LAST_SECONDS = 13
#: Signals that come closer together than this mean the same.
SAME_SIGNAL_SECONDS = 1.0
ME_PAUSE_SECONDS = 5
#: One to be ready by, one for figures; each asks one thing at a time.
HEALTH_CONNECTIONS = 2
#: Each is an idle process of 10 MB; as soon as one is used, another is started.
SPARE_SUPERVISORS = 1

log = structlog.get_logger(__name__)


class Role(StrEnum):
    """What a process does."""

    RECEIVER = "receiver"
    WORKER = "worker"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """How a process comes to its end: first nothing new is begun, then what runs is cut off."""

    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    cut_off: asyncio.Event = field(default_factory=asyncio.Event)
    since: list[float] = field(default_factory=list)

    def signalled(self) -> None:
        """The first signal drains; a second one ends the process at once.

        Unless it comes together with the first: a service manager signals every process of a
        service, and the parent among them passes its own on.
        """
        self.since.append(time.monotonic())
        if not self.stopping.is_set():
            log.info("process.stopping")
            self.stopping.set()
        elif self.since[-1] - self.since[0] > SAME_SIGNAL_SECONDS:
            # Drafters die with the process, and their claims expire.
            os._exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a process listens, and where it counts.

    Attributes:
        metrics: for figures alone, without a token.
        counts: shared with its siblings, if it has any.
    """

    sockets: Sequence[socket.socket] = ()
    metrics: socket.socket | None = None
    counts: Counts | None = None

    @property
    def all_sockets(self) -> list[socket.socket]:
        """Every one of them."""
        return [*self.sockets, *([self.metrics] if self.metrics else [])]


async def run(
    settings: Settings,
    dsn: str,
    roles: Collection[Role],
    listening: Listening,
    shutdown: Shutdown | None = None,
) -> None:
    """Runs a process in these roles until it is told to stop.

    `dsn` is the setting's, or that of the embedded server. Raises DraftgateError if it can't
    start, and whatever ended a loop that must not end.
    """
    shutdown = shutdown or Shutdown()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, shutdown.signalled)
    database = _database(settings, dsn)
    bell = Bell(database)
    recorder = None
    if Role.RECEIVER in roles:
        recorder = recorder_of(settings, database, bell, listening.counts)
    # People have a pool of their own: what they look at may take long, and work can't wait.
    async with database.pool("work") as pool, database.pool("console") as people:
        await _require_schema(pool, may_be_away=roles == {Role.RECEIVER} and settings.spool_dir)
        desk = desk_of(settings, people, bell) if Role.CONSOLE in roles else None
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(bell.send())]
            if recorder is not None:
                background.append(tasks.create_task(recorder.run()))
            if desk is not None:
                background.append(tasks.create_task(desk.live.run(shutdown.stopping)))
            serving = _serve_http(settings, database, recorder, desk, listening, shutdown)
            work = [tasks.create_task(serving)]
            if Role.WORKER in roles:
                background.append(tasks.create_task(bell.listen()))
                work.append(tasks.create_task(_work(settings, database, pool, bell, shutdown)))
            log.info(
                "process.started", roles=" ".join(sorted(roles)), at=_addresses(listening.sockets)
            )
            await asyncio.wait(work)
            for task in background:
                task.cancel()
    log.info("process.stopped")


def _addresses(sockets: Sequence[socket.socket]) -> list[str]:
    names = (listener.getsockname() for listener in sockets)
    return [name if isinstance(name, str) else f"http://{name[0]}:{name[1]}" for name in names]


def _database(settings: Settings, dsn: str) -> Database:
    listen = settings.listen_database_url
    return Database(
        dsn=dsn,
        listen_dsn=listen.get_secret_value() if listen else dsn,
        statement_cache_size=settings.database_statement_cache,
        pool_size=settings.database_pool_size,
    )


async def _require_schema(pool: Pool, *, may_be_away: object) -> None:
    try:
        async with take(pool) as conn:
            await require_latest(conn)
    except DATABASE_ERRORS as error:
        if may_be_away:  # Deliveries go to the spool until it is there.
            log.warning("database.away", error=reason(error))
            return
        raise DraftgateError(f"the database can't be used: {reason(error)}") from None


def recorder_of(
    settings: Settings, database: Database, bell: Bell, counts: Counts | None = None
) -> Recorder:
    """The recorder that these settings ask for, with its spool."""
    if not settings.secrets:
        raise SettingsError("DRAFTGATE_SHORTCUT_SECRETS is not set: no delivery could be trusted")
    return Recorder(
        database,
        bell,
        queue_limit=settings.queue_limit,
        queue_limit_bytes=settings.buffer_limit_bytes,
        commit_timeout_seconds=settings.commit_timeout_seconds,
        spool=_spool(settings),
        counts=counts,
    )


def _spool(settings: Settings) -> Spool | None:
    if settings.spool_dir is None:
        return None
    require_directory(settings.spool_dir)
    return Spool(
        settings.spool_dir,
        limit_bytes=settings.spool_limit_bytes,
        timeout_seconds=settings.commit_timeout_seconds * (1 - DATABASE_SHARE),
    )


def desk_of(settings: Settings, pool: Pool, bell: Bell) -> Desk | None:
    """What the operators' API and the console work with; None where no token is set."""
    guard = guard_of(settings)
    if guard is None:
        log.warning("console.off", reason="DRAFTGATE_API_TOKEN is not set; so is the API")
        return None
    return Desk(
        pool=pool,
        settings=settings,
        in_force=in_force(settings, os.environ),
        guard=guard,
        ring=bell.ring,
        live=Live(pool),
    )


async def _serve_http(
    settings: Settings,
    database: Database,
    recorder: Recorder | None,
    desk: Desk | None,
    listening: Listening,
    shutdown: Shutdown,
) -> None:
    if not listening.sockets:
        await shutdown.stopping.wait()
        return
    draining = shutdown.stopping.is_set
    # Whoever asks how we are waits for no work, and work for none of them.
    async with database.pool("health", size=HEALTH_CONNECTIONS) as pool, asyncio.TaskGroup() as all:
        app = create_app(settings, pool=pool, recorder=recorder, draining=draining, desk=desk)
        servers = [_server(settings, app)]
        all.create_task(servers[0].serve(sockets=list(listening.sockets)))
        if listening.metrics is not None:
            servers.append(_server(settings, create_metrics_app(settings, pool, recorder)))
            all.create_task(servers[1].serve(sockets=[listening.metrics]))
        await shutdown.stopping.wait()
        for server in servers:
            server.should_exit = True


def _server(settings: Settings, app: ASGIApp) -> Server:
    lobby = Lobby(timeout_seconds=settings.header_timeout_seconds, most=settings.connection_limit)
    return Server(app, graceful_timeout_seconds=settings.shutdown_grace_seconds, lobby=lobby)


async def _work(
    settings: Settings, database: Database, pool: Pool, bell: Bell, shutdown: Shutdown
) -> None:
    async with asyncio.TaskGroup() as tasks, engine(settings, database, pool, bell, shutdown) as it:
        running = tasks.create_task(it.run())
        await shutdown.stopping.wait()
        bell.ring()  # Loops that wait for work see at once that there will be none.
        await asyncio.wait([running], timeout=settings.shutdown_grace_seconds)
        shutdown.cut_off.set()
        await asyncio.wait([running], timeout=LAST_SECONDS)
        if not running.done():
            log.error("process.gave_up_waiting")
            os._exit(1)


@asynccontextmanager
async def engine(
    settings: Settings, database: Database, pool: Pool, bell: Bell, shutdown: Shutdown
) -> AsyncIterator[Engine]:
    """A worker's loops with all they need; what they need is closed when the block ends."""
    with _heart(settings, database) as heart:
        async with (
            database.pool("endings") as endings,
            connected(settings, pool) as workspaces,
            Spares(SPARE_SUPERVISORS if settings.drafter_command else 0) as spares,
        ):
            await workspaces.learn()
            workshop = Workshop(
                worker=f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}",
                pool=pool,
                endings=endings,
                heart=heart,
                drafter=_drafter(settings, settings.drafter_command, spares),
                clarifying=_clarifying(settings, spares),
                workspaces=workspaces,
                bell=bell,
                limits=_limits(settings),
                cut_off=shutdown.cut_off,
            )
            yield Engine(
                applier=partial(_applier, settings, workspaces, pool, bell, shutdown.stopping),
                reconciler=partial(_reconciler, settings, workspaces, pool, bell),
                workshop=workshop,
                sender=_sender(settings, workshop.worker, pool, workspaces),
                watches=[_hooks(settings, pool, workspaces).tick, workspaces.tick],
                bell=bell,
                stopping=shutdown.stopping,
                slots=settings.worker_slots if settings.drafter_command else 0,
                poll_seconds=settings.poll_seconds,
            )


@contextmanager
def _heart(settings: Settings, database: Database) -> Iterator[Heart]:
    heart = Heart(database, lease=settings.lease, interval=settings.heartbeat)
    heart.start()
    try:
        yield heart
    finally:
        heart.stop()


def _hooks(settings: Settings, pool: Pool, workspaces: Workspaces) -> Hooks:
    return Hooks(take=partial(take, pool), settings=settings, workspaces=workspaces)


def _sender(settings: Settings, name: str, pool: Pool, workspaces: Workspaces) -> Sender | None:
    if not (workspaces.apis or workspaces.asking or workspaces.installs):
        return None
    told = tellings(settings.drafted_label, settings.drafted_state)
    return Sender(
        name=name,
        pool=pool,
        workspaces=workspaces,
        tellings=told,
        most_an_hour=settings.story_comments_an_hour,
    )


def _clarifying(settings: Settings, spares: Spares) -> Clarifying:
    command = settings.clarifier_command
    return Clarifying(
        rules=settings.clarify_rules,
        command=_drafter(settings, command, spares) if command else None,
        rounds=settings.clarify_rounds,
    )


def _drafter(settings: Settings, command: Sequence[str], spares: Spares) -> CommandDrafter:
    if not settings.drafter_command:
        log.warning("drafter.not_set", effect="clarified sessions wait")
    return CommandDrafter(
        command=command,
        repository=settings.repository,
        base_ref=settings.base_ref,
        state_dir=settings.state_dir,
        timeout_seconds=settings.drafter_timeout_seconds,
        environment=allowed_environment(os.environ, settings.drafter_environment),
        git_environment=git_environment(os.environ),
        spares=spares,
    )


def _limits(settings: Settings) -> Limits:
    return Limits(
        lease=settings.lease,
        drafter_timeout=timedelta(seconds=settings.drafter_timeout_seconds),
        max_attempts=settings.max_attempts,
        max_crashes=settings.max_crashes,
        retry_base=timedelta(seconds=settings.retry_base_seconds),
        retry_longest=timedelta(seconds=settings.retry_max_seconds),
    )


async def _applier(
    settings: Settings,
    workspaces: Workspaces,
    pool: Pool,
    bell: Bell,
    stopping: asyncio.Event,
) -> Applier | None:
    """Waits for the API to say who we are; None when the process is told to stop before.

    Without knowing it our own comments would come back as somebody's.
    """
    while workspaces.asking:
        await wait(stopping, seconds=ME_PAUSE_SECONDS)
        if stopping.is_set():
            return None
        await workspaces.learn()
    return Applier(pool, rules_of(settings, workspaces), workspaces, bell)


def _reconciler(settings: Settings, workspaces: Workspaces, pool: Pool, bell: Bell) -> Reconciler:
    return Reconciler(
        take=partial(take, pool),
        workspaces=workspaces,
        rules=rules_of(settings, workspaces),
        every=settings.reconcile_every,
        ring=bell.ring,
    )


def rules_of(settings: Settings, workspaces: Workspaces) -> Rules:
    """What opens a session and whom we ignore, by the settings and by who we are."""
    asks = settings.clarify_rounds > 0
    commanded = settings.command_members or settings.command_teams
    return Rules(
        label=settings.trigger_label or None,
        owner=settings.trigger_owner,
        state=settings.trigger_state,
        assigned=settings.trigger_assigned,
        mentioned=settings.trigger_mentioned,
        bots=frozenset(workspaces.bots),
        shared=settings.shared_account,
        clarify=asks and bool(settings.clarify_rules or settings.clarifier_command),
        commanders=frozenset(settings.command_members) if commanded else None,
    )
