"""`draftgate demo`: the main job once, by itself, checked."""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import typer
from rich.table import Table

from app import migrate as migrations
from app.cli.common import FAILED, err, errors_as_exit_codes, fail, out, run
from app.cli.show import print_json
from app.cli.simulate import serve_app
from app.cli.trial import SAMPLE_DRAFTER, Trial, listen
from app.db import look
from app.db.connect import Connection
from app.embedded import postgres
from app.main import LAST_SECONDS
from app.processes import Child, supervise
from app.simulator.records import PEOPLE
from app.simulator.server import create_simulator
from app.simulator.simulation import Simulation

POLL_SECONDS = 0.1
DEADLINE_SECONDS = 120
GRACE_SECONDS = 5
QUICK = {
    "DRAFTGATE_RETRY_BASE_SECONDS": "0.5",
    "DRAFTGATE_RETRY_MAX_SECONDS": "2",
    "DRAFTGATE_LOG_LEVEL": "error",
    "DRAFTGATE_SHUTDOWN_GRACE_SECONDS": str(GRACE_SECONDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of it; counted in the database and by the simulator, not by the service."""

    deliveries: int
    events: int
    duplicates: int
    sessions: int
    drafted: int
    failed: int
    double_drafts: int
    comments: int
    seconds: float


def demo(
    stories: Annotated[int, typer.Option(min=1, max=500, help="Stories to have drafted.")] = 24,
    copies: Annotated[int, typer.Option(min=1, max=50, help="Copies of each delivery.")] = 5,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Deliveries at a time.")] = 16,
    failing: Annotated[
        int, typer.Option(min=0, max=100, help="First attempts that fail, in a hundred stories.")
    ] = 30,
    seed: Annotated[int, typer.Option(help="Decides the order of the deliveries.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON as the last line.")] = False,
) -> None:
    """Have stories drafted once each, from deliveries that come often and in any order."""
    with (
        errors_as_exit_codes(),
        tempfile.TemporaryDirectory(prefix="draftgate-demo-") as home,
        postgres(Path(home)) as dsn,
        listen(0) as service,
        listen(0) as simulator,
    ):
        run(migrations.migrate(dsn))
        trial = Trial(dsn=dsn, service=service, simulator=simulator)
        app = create_simulator(
            webhook_url=trial.webhook_url,
            secret=trial.secret,
            api_token=trial.token,
            copies=copies,
            shuffle=True,
            seed=seed,
            senders=concurrency,
            seeded=False,
        )
        figures, faults = run(_demo(trial, app, stories, failing, home))
    _show(figures, as_json)
    if faults:
        fail("; ".join(faults), FAILED)


async def _demo(
    trial: Trial, app: Any, stories: int, failing: int, home: str
) -> tuple[Figures, list[str]]:
    simulation: Simulation = app.state.simulation
    stopping = asyncio.Event()
    drafter = (*SAMPLE_DRAFTER, "--fail-first-percent", str(failing))
    environment = trial.environment(drafter, DRAFTGATE_STATE_DIR=home, **QUICK)
    receiver = trial.serving("receiver", environment=environment)
    children = [receiver, receiver, Child(arguments=["worker"], environment=environment)]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_app(app, trial.simulator, stopping))
        tasks.create_task(supervise(children, stopping, seconds=GRACE_SECONDS + 2 * LAST_SECONDS))
        try:
            async with _connection(trial.dsn) as conn:
                return await _tell_and_wait(simulation, conn, stories)
        finally:
            stopping.set()


@asynccontextmanager
async def _connection(dsn: str) -> AsyncIterator[Connection]:
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


async def _tell_and_wait(
    simulation: Simulation, conn: Connection, stories: int
) -> tuple[Figures, list[str]]:
    began = time.monotonic()
    for number in range(1, stories + 1):
        fields = {"name": f"Demo story {number}", "description": "Write this story down."}
        story = simulation.workspace.create_story(PEOPLE[0], fields)
        simulation.workspace.update_stories(PEOPLE[1], [story.id], {}, labels_add=["patch"])
    with err.status("Delivering and drafting …"):
        counts = await _settled(simulation, conn, stories, began)
    seconds = time.monotonic() - began
    return _figures(simulation, counts, seconds), _faults(simulation, counts, stories)


async def _settled(
    simulation: Simulation,
    conn: Connection,
    stories: int,
    began: float,
) -> look.Counts:
    """Waits until nothing is under way any more, in the database or in the simulator."""
    while True:
        counts = await look.counts(conn)
        at_rest = counts.drafted + counts.failed >= stories and not counts.owed
        if at_rest and not counts.pending_events and not simulation.deliverer.waiting:
            return counts
        if time.monotonic() - began > DEADLINE_SECONDS:
            return counts
        await asyncio.sleep(POLL_SECONDS)


def _figures(simulation: Simulation, counts: look.Counts, seconds: float) -> Figures:
    answered = [a for a in simulation.deliverer.attempts if a.status == 200]
    comments = simulation.workspace.comments.values()
    ours = [c for c in comments if (c.external_id or "").startswith("draftgate:draft:")]
    return Figures(
        deliveries=len(answered),
        events=counts.events,
        duplicates=sum(bool(attempt.duplicate) for attempt in answered),
        sessions=counts.sessions,
        drafted=counts.drafted,
        failed=counts.failed,
        double_drafts=counts.double_drafts,
        comments=len(ours),
        seconds=round(seconds, 2),
    )


def _faults(simulation: Simulation, counts: look.Counts, stories: int) -> list[str]:
    figures = _figures(simulation, counts, 0)
    offered = simulation.deliverer.counts["offered"]
    copies = simulation.deliverer.weather.copies
    checks = {
        "a delivery was not accepted": figures.deliveries == offered * copies,
        "an event was not recorded exactly once": counts.events == offered,
        "duplicates were not recognised": figures.duplicates == figures.deliveries - offered,
        "a story has no session": counts.sessions == stories,
        "a session was not drafted": counts.drafted == stories and counts.drafts == stories,
        "a session was drafted twice": counts.double_drafts == 0,
        "a story has not exactly one draft on it": figures.comments == stories,
        "something is still owned or owed": counts.owned == 0 and counts.owed == 0,
    }
    return [fault for fault, holds in checks.items() if not holds]


def _show(figures: Figures, as_json: bool) -> None:
    meanings = {
        "deliveries": "accepted, every event five times by default, shuffled",
        "events": "recorded",
        "duplicates": "recognised, and nothing written",
        "sessions": "one per story",
        "drafted": "with one draft each",
        "failed": "given up",
        "double_drafts": "drafted more than once",
        "comments": "with a draft, on the stories",
        "seconds": "from the first delivery to the last comment",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in asdict(figures).items():
        table.add_row(name.replace("_", " "), f"[bold]{value}[/]", f"[dim]{meanings[name]}[/]")
    (err if as_json else out).print(table)
    if as_json:
        print_json(asdict(figures))
    sys.stdout.flush()
