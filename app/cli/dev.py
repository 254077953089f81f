"""`draftgate dev`: everything on this machine, to click on."""

import asyncio
import os
import signal
import time

from rich.markup import escape
from rich.panel import Panel

from app import migrate as migrations
from app.cli.common import dsn_of, err, errors_as_exit_codes, run
from app.cli.trial import SAMPLE_DRAFTER, Trial, listen
from app.main import LAST_SECONDS
from app.processes import Child, supervise
from app.settings import Settings, load

SERVICE_PORT, SIMULATOR_PORT = 8000, 8100
#: Enough to try it, and no longer than one wants to wait for a Ctrl-C.
GRACE_SECONDS = 3


def dev() -> None:
    """Run everything here: embedded PostgreSQL, a simulated Shortcut, the service."""
    with errors_as_exit_codes():
        settings = load()
        with (
            dsn_of(settings) as dsn,
            listen(SERVICE_PORT) as service,
            listen(SIMULATOR_PORT) as simulator,
        ):
            run(migrations.migrate(dsn))
            trial = Trial(dsn=dsn, service=service, simulator=simulator)
            run(_supervise(trial, settings))


async def _supervise(trial: Trial, settings: Settings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    _say(trial)
    drafter = settings.drafter_command or (*SAMPLE_DRAFTER, "--seconds", "2")
    grace = {"DRAFTGATE_SHUTDOWN_GRACE_SECONDS": str(GRACE_SECONDS)}
    environment = {**trial.environment(drafter), **grace}
    fd = trial.simulator.fileno()
    arguments = ["simulate", "--fd", str(fd), "--url", trial.webhook_url]
    # The database outlives a run, so the simulated stories need numbers that it has not seen.
    arguments += ["--first-story", str(int(time.time()) // 10 % 100_000_000)]
    children = [
        trial.serving(environment=environment),
        Child(arguments=arguments, fds=[fd], environment=environment),
    ]
    await supervise(children, stopping, seconds=GRACE_SECONDS + 2 * LAST_SECONDS)


def _say(trial: Trial) -> None:
    text = (
        f"Simulated Shortcut   [bold]{trial.simulator_url}/[/]\n"
        f"Draftgate            {trial.service_url}/docs\n\n"
        "Add the label [bold]patch[/] to a story on the simulator's page:\n"
        "a few seconds later its draft is there, as a comment.\n\n"
        f"{escape(_command())} sessions list\n"
        f"{escape(_command())} events list\n\n"
        "Ctrl-C stops everything; what is recorded stays."
    )
    err.print(Panel(text, title="Draftgate", expand=False))


def _command() -> str:
    return ".venv/bin/draftgate" if os.path.exists(".venv/bin/draftgate") else "draftgate"
