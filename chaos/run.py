"""A whole run: everything is started, harmed, brought to rest, ended, and checked."""

import asyncio
import math
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import uvloop

from app import migrate as migrations
from app.cli.simulate import serve_app
from app.cli.trial import Trial, listen
from app.db.connect import DATABASE_ERRORS
from app.embedded import postgres
from app.errors import DraftgateError
from app.processes import Child
from app.simulator.records import AGENT, Change
from app.simulator.server import create_simulator
from app.simulator.simulation import Simulation
from chaos import database, plan, runs
from chaos.fleet import Fleet, Postgres, Role
from chaos.harm import Harm
from chaos.history import Comment, History, Timing
from chaos.proxy import Proxy
from chaos.sender import Sender
from chaos.traffic import People, parcels

DRAFTER = Path(__file__).with_name("drafter.py")
SOCKET = ".s.PGSQL.5432"
TIMING = Timing(lease=3.0, heartbeat=1.0, poll=0.5, retry_base=0.5, allowance=2.0)
RECEIVERS, WORKERS, SLOTS = 2, 3, 4
PACE_SECONDS, REST_PAUSE_SECONDS, REPORT_SECONDS = 0.05, 0.5, 10.0
START_SECONDS = 120.0
#: Copies that may wait for their acknowledgement before people pause.
MOST_WAITING = 3_000
#: When deliveries and events come to no fewer: for the leases of dead senders, which are a minute,
#: and some tries.
REST_SECONDS = 180.0
#: A run shorter than this has too few kills, beside too much else, to judge the time they cost.
LONG_SECONDS = 240.0
ANY_SECONDS = 3600.0
STRAY_LOOKS = 10


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run is told."""

    seconds: float
    seed: int
    per_second: float
    fault_every_seconds: float
    home: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run gives: the history, and figures that are not part of it."""

    history: History
    copies: int
    acknowledged: int
    duplicates: int
    faults: dict[str, int]
    proxied: dict[str, int]
    errors: dict[str, int]
    failed_starts: int
    seconds: float


def run(options: Options, say: Say) -> Outcome:
    """Runs all of it; nothing is left running, whatever happens."""
    server = postgres(options.home, options="-c max_connections=300")
    with server as dsn, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(migrations.migrate(dsn))
        return runner.run(_run(options, dsn, say))


async def _run(options: Options, dsn: str, say: Say) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with _stage(options, dsn, say) as stage:
        return await stage.play()


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything that runs, at its place.

    Attributes:
        dsn: of the server itself, past the proxy.
    """

    options: Options
    dsn: str
    simulation: Simulation
    sender: Sender
    harm: Harm
    say: Say
    said_at: float = 0.0

    @property
    def fleet(self) -> Fleet:
        return self.harm.fleet

    @property
    def patient(self) -> bool:
        """Whether the leases of dead senders are waited for."""
        return self.options.seconds >= LONG_SECONDS

    async def play(self) -> Outcome:
        began = time.monotonic()
        for role in (*[Role.RECEIVER] * RECEIVERS, *[Role.WORKER] * WORKERS):
            await self.fleet.start(role)
        await self._ready()
        async with self.sender.running():
            await self._act()
            await self._rest()
        seconds = time.monotonic() - began
        self.say("At rest; ending the processes")
        await self.fleet.end_all()
        return await self._outcome(seconds)

    async def _ready(self) -> None:
        """Waits until every process says that it has started."""
        give_up_at = time.monotonic() + START_SECONDS
        while not all(member.has_started() for member in self.fleet.members):
            if time.monotonic() > give_up_at:
                raise DraftgateError("the processes did not start")
            await asyncio.sleep(REST_PAUSE_SECONDS)
        self.say("Started")

    async def _act(self) -> None:
        """People work, and things go wrong, for as long as the run is to take."""
        people = People(workspace=self.simulation.workspace, seed=self.options.seed)
        faults = plan.faults(self.options.seed, every_seconds=self.options.fault_every_seconds)
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(self._report())
            working = tasks.create_task(self._work(people))
            await self.harm.run(faults, seconds=self.options.seconds)
            await working
            reporting.cancel()

    async def _work(self, people: People) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (elapsed := loop.time() - began) < self.options.seconds:
            due = self.options.per_second * elapsed
            while self.sender.copies < due and self.sender.waiting < MOST_WAITING:
                people.act()
                self.sender.perhaps_repeat()
            await asyncio.sleep(PACE_SECONDS)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self.say(
                f"{self.sender.copies} deliveries, {self.sender.waiting} of them on their way, "
                f"{self.harm.counts.total()} faults"
            )

    async def _rest(self) -> None:
        """Waits until nothing is left to be done, or it is clear that it never will be."""
        least, give_up_at = math.inf, time.monotonic() + REST_SECONDS
        while time.monotonic() < give_up_at:
            with suppress(*DATABASE_ERRORS):
                left = await database.ask(self.dsn, database.unrest)
                if left.is_rest and not self.sender.waiting:
                    return
                backlog = self.sender.waiting + left.pending_events
                if backlog < least:
                    least, give_up_at = backlog, time.monotonic() + REST_SECONDS
                self._say_at_times(f"{self.sender.waiting} deliveries on their way, {left}")
            await asyncio.sleep(REST_PAUSE_SECONDS)

    def _timing(self) -> Timing:
        if self.options.seconds >= LONG_SECONDS:
            return TIMING
        return replace(TIMING, restart_allowance=ANY_SECONDS)

    def _say_at_times(self, what: str) -> None:
        if time.monotonic() - self.said_at > REPORT_SECONDS / 2:
            self.said_at = time.monotonic()
            self.say(f"Coming to rest: {what}")

    async def _outcome(self, seconds: float) -> Outcome:
        found = await database.ask(self.dsn, database.load)
        if self.patient:
            found["outbox"] = [replace(row, explained=False) for row in found["outbox"]]
        log = self.harm.runs
        history = History(
            timing=self._timing(),
            told=self.sender.told(),
            runs=runs.read(log),
            comments=_comments(self.simulation),
            kills=self.fleet.kills,
            frozen=self.fleet.frozen,
            deaths=self.fleet.deaths,
            tracebacks=_tracebacks(self.options.home),
            answers=dict(self.sender.answers),
            left_over=await _strays(str(log)),
            **found,
        )
        return Outcome(
            history=history,
            copies=self.sender.copies,
            acknowledged=self.sender.acknowledged,
            duplicates=self.sender.duplicates,
            faults={kind.value: count for kind, count in self.harm.counts.items()},
            proxied=dict(self.harm.proxy.counts),
            errors=dict(self.sender.errors),
            failed_starts=self.fleet.failed_starts,
            seconds=seconds,
        )


@asynccontextmanager
async def _stage(options: Options, dsn: str, say: Say) -> AsyncIterator[Stage]:
    stopping = asyncio.Event()
    proxy = Proxy(_socket_of(dsn), seed=options.seed)
    front = options.home / "proxy"
    front.mkdir()
    await proxy.listen(front / SOCKET)
    with listen(0) as service, listen(0) as simulator, _trace(options.home) as tell:
        proxied = f"postgresql://postgres@/postgres?host={quote(str(front))}"
        trial = Trial(dsn=proxied, service=service, simulator=simulator)
        app = create_simulator(
            webhook_url=None, secret=trial.secret, api_token=trial.token, seeded=False
        )
        simulation: Simulation = app.state.simulation
        fleet = Fleet(children=_children(options, trial), home=options.home)
        harm = Harm(
            fleet=fleet,
            postgres=Postgres(options.home / "postgres"),
            proxy=proxy,
            api=simulation.faults,
            dsn=dsn,
            timing=TIMING,
            slots=SLOTS,
            runs=_runs_in(options.home),
            tell=tell,
        )
        sender = _listening_sender(options, trial, simulation)
        serving = asyncio.create_task(serve_app(app, simulator, stopping))
        try:
            yield Stage(
                options=options, dsn=dsn, simulation=simulation, sender=sender, harm=harm, say=say
            )
        finally:
            await fleet.kill_all()
            stopping.set()
            await serving
            proxy.close()


def _listening_sender(options: Options, trial: Trial, simulation: Simulation) -> Sender:
    """A sender that is told of everything that happens in the workspace."""
    sender = Sender(trial.webhook_url, trial.secret.encode(), seed=options.seed)

    def tell(change: Change) -> None:
        for parcel in parcels(change):
            sender.offer(parcel)

    simulation.workspace.tell = tell
    return sender


@contextmanager
def _trace(home: Path) -> Iterator[Say]:
    """Writes down each fault with its time, for whoever looks for what broke."""
    began = time.monotonic()
    with (home / "trace.log").open("a", buffering=1) as trace:

        def note(what: str) -> None:
            trace.write(f"{time.time():.3f} {time.monotonic() - began:8.3f} {what}\n")

        yield note


def _children(options: Options, trial: Trial) -> dict[Role, Child]:
    log = _runs_in(options.home)
    interpreter = (sys.executable, "-I", "-S", str(DRAFTER))
    drafter = (*interpreter, str(log), str(options.seed), str(TIMING.lease))
    environment = trial.environment(
        drafter,
        DRAFTGATE_STATE_DIR=str(options.home),
        DRAFTGATE_LEASE_SECONDS=str(TIMING.lease),
        DRAFTGATE_HEARTBEAT_SECONDS=str(TIMING.heartbeat),
        DRAFTGATE_POLL_SECONDS=str(TIMING.poll),
        DRAFTGATE_RETRY_BASE_SECONDS=str(TIMING.retry_base),
        DRAFTGATE_STORY_COMMENTS_AN_HOUR="1000000",
        DRAFTGATE_WORKER_SLOTS=str(SLOTS),
        DRAFTGATE_RETRY_MAX_SECONDS="3",
        DRAFTGATE_DRAFTER_TIMEOUT_SECONDS="30",
        DRAFTGATE_SHUTDOWN_GRACE_SECONDS="1",
        DRAFTGATE_LOG_FORMAT="json",
    )
    receiver = trial.serving("receiver", environment=environment)
    return {
        Role.RECEIVER: receiver,
        Role.WORKER: Child(arguments=["worker"], environment=environment),
    }


def _runs_in(home: Path) -> Path:
    return home / "runs.jsonl"


def _socket_of(dsn: str) -> Path:
    return Path(parse_qs(urlsplit(dsn).query)["host"][0]) / SOCKET


def _comments(simulation: Simulation) -> list[Comment]:
    return [
        Comment(id=comment.id, story=comment.story_id, marker=comment.external_id or "")
        for comment in simulation.workspace.comments.values()
        if comment.author_id == AGENT.id
    ]


def _tracebacks(home: Path) -> list[str]:
    """The beginnings of lines that tell of an error nobody has foreseen."""
    return [
        f"{log.name}: {line[:300]}"
        for log in sorted(home.glob("*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if "Traceback" in line
    ]


async def _strays(mark: str) -> list[str]:
    """The drafters that still run, after they have had a moment to end."""
    found = _marked(mark)
    for _ in range(STRAY_LOOKS):
        if not found:
            break
        await asyncio.sleep(REST_PAUSE_SECONDS)
        found = _marked(mark)
    return found


def _marked(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if mark in words:
                    found.append(f"{process.name}: {words}")
    return found
