"""`draftgate dev`: everything on this machine, to click on."""

import asyncio
import os
import signal

import asyncpg
from rich.markup import escape
from rich.panel import Panel

from app import migrate as migrations
from app.cli.common import dsn_of, err, errors_as_exit_codes, run
from app.cli.simulate import FIRST_STORY
from app.cli.trial import SAMPLE_DRAFTER, Trial, listen
from app.db import installations, look
from app.main import LAST_SECONDS
from app.processes import Child, supervise
from app.settings import Settings, load
from app.simulator.records import WORKSPACE_ID

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
            trial = Trial(dsn=dsn, service=service, simulator=simulator, **_secrets(settings))
            run(_supervise(trial, settings))


def _secrets(settings: Settings) -> dict[str, str]:
    """Those of the settings, if there are any, so that `send` and scripts can use them too."""
    first = next(iter(settings.shortcut_secrets), None)
    named = {"secret": first, "api_token": settings.api_token}
    return {name: secret.get_secret_value() for name, secret in named.items() if secret}


async def _supervise(trial: Trial, settings: Settings) -> None:
    conn = await asyncpg.connect(trial.dsn)
    # The database outlives a run, so the simulated stories need numbers that it has not seen.
    first_story = max(FIRST_STORY, await look.highest_number(conn) + 1)
    # Neither does the simulator know of an installation that was made in an earlier run.
    await installations.disconnect(conn, WORKSPACE_ID)
    await conn.close()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    _say(trial)
    drafter = settings.drafter_command or (*SAMPLE_DRAFTER, "--seconds", "2")
    grace = {"DRAFTGATE_SHUTDOWN_GRACE_SECONDS": str(GRACE_SECONDS)}
    environment = {**trial.environment(drafter), **trial.agent_app(), **grace}
    fd = trial.simulator.fileno()
    arguments = ["simulate", "--fd", str(fd), "--url", trial.webhook_url]
    arguments += ["--first-story", str(first_story)]
    children = [
        trial.serving(environment=environment),
        Child(arguments=arguments, fds=[fd], environment=environment),
    ]
    await supervise(children, stopping, seconds=GRACE_SECONDS + 2 * LAST_SECONDS)


def _say(trial: Trial) -> None:
    text = (
        # Short enough to stay on one line of a terminal: a cut address is none.
        f"Stories  [bold]{trial.simulator_url}/[/]\n"
        f"Console  [bold]{escape(trial.sign_in_url)}[/]\n\n"
        "Open both. At one of the simulated stories choose [bold]Add label[/], and watch\n"
        "it under [bold]Sessions[/] in the console: a few seconds later it is drafted.\n"
        "The story without a description is asked about first: answer it.\n\n"
        f"{escape(_command())} sessions list\n"
        f"{escape(_command())} events list\n\n"
        "Ctrl-C stops everything. Sessions and events stay; the simulated\n"
        "stories start afresh."
    )
    err.print(Panel(text, title="Draftgate", expand=False))


def _command() -> str:
    return ".venv/bin/draftgate" if os.path.exists(".venv/bin/draftgate") else "draftgate"
