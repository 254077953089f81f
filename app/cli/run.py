"""The commands that run something: `serve`, `worker`, `migrate`."""

import asyncio
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from app import main
from app import migrate as migrations
from app.cli.common import (
    dsn_of,
    errors_as_exit_codes,
    out,
    run,
    settings_and_logs,
)
from app.cli.options import AsJson, DryRun
from app.cli.show import print_json
from app.door.counts import Counts, room
from app.errors import SettingsError
from app.main import LAST_SECONDS, Listening, Role
from app.processes import Child, die_with_parent, supervise
from app.settings import Settings

BACKLOG = 2048

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    uds: Annotated[Path | None, typer.Option(help="Listen on a Unix socket instead.")] = None,
    role: Annotated[
        list[Role] | None, typer.Option(help="What to do, repeatable. Without it: everything.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes to run.")] = 1,
    migrate: Annotated[bool, typer.Option("--migrate", help="Migrate the schema first.")] = False,
    fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    shared: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Receive deliveries and work on them."""
    with errors_as_exit_codes():
        settings = settings_and_logs()
        die_with_parent()
        roles = set(role or Role)
        with ExitStack() as closing:
            dsn = closing.enter_context(dsn_of(settings))
            listener = _bound(host, port, uds) if fd is None else socket.socket(fileno=fd)
            listening = _shared(listener, shared) if shared else _alone(listener, settings)
            for opened in listening.all_sockets:
                closing.enter_context(opened)
            if migrate:
                run(migrations.migrate(dsn))
            if processes == 1:
                run(main.run(settings, dsn, roles, listening))
            else:
                run(_serve_many(settings, dsn, roles, listening, processes))


def worker(
    migrate: Annotated[bool, typer.Option("--migrate", help="Migrate the schema first.")] = False,
) -> None:
    """Work on sessions, without listening on any port."""
    with errors_as_exit_codes():
        settings = settings_and_logs()
        die_with_parent()
        with dsn_of(settings) as dsn:
            if migrate:
                run(migrations.migrate(dsn))
            run(main.run(settings, dsn, {Role.WORKER}, Listening()))


def migrate(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Bring the database's schema to this version."""
    with errors_as_exit_codes():
        settings = settings_and_logs()
        with dsn_of(settings) as dsn:
            before = run(migrations.version(dsn))
            if not dry_run:
                run(migrations.migrate(dsn))
        if as_json:
            print_json({"before": before, "latest": migrations.LATEST, "done": not dry_run})
        elif dry_run:
            at = "at nothing yet" if before is None else f"at {before}"
            out.print(f"The schema is {at}, and would be brought to {migrations.LATEST}.")
        else:
            out.print(f"The schema is at {migrations.LATEST}.")


async def _serve_many(
    settings: Settings, dsn: str, roles: set[Role], listening: Listening, processes: int
) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    chosen = [word for role in sorted(roles) for word in ("--role", role)]
    listener, *metrics = [opened.fileno() for opened in listening.all_sockets]
    with room(processes) as counts:
        shared = [",".join(map(str, (slot, counts, *metrics))) for slot in range(processes)]
        children = [
            Child(
                arguments=["serve", "--fd", str(listener), "--shared", numbers, *chosen],
                fds=[listener, counts, *metrics],
                environment={"DRAFTGATE_DATABASE_URL": dsn},
            )
            for numbers in shared
        ]
        seconds = settings.shutdown_grace_seconds + 2 * LAST_SECONDS
        await supervise(children, stopping, seconds=seconds)


def _shared(listener: socket.socket, shared: str) -> Listening:
    """With what the parent shares among its children: a file to count in, perhaps a socket."""
    slot, counts, *metrics = map(int, shared.split(","))
    return Listening(
        sockets=[listener],
        metrics=socket.socket(fileno=metrics[0]) if metrics else None,
        counts=Counts.inherited(counts, slot=slot),
    )


def _alone(listener: socket.socket, settings: Settings) -> Listening:
    if settings.metrics_listen is None:
        return Listening(sockets=[listener])
    host, _, port = settings.metrics_listen.rpartition(":")
    return Listening(sockets=[listener], metrics=_bound(host.strip("[]"), int(port), None))


def _bound(host: str, port: int, uds: Path | None) -> socket.socket:
    """The socket, bound before anything starts, so that a taken port is one clear line."""
    try:
        if uds is not None:
            uds.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(uds))
            uds.chmod(0o666)
            listener.listen(BACKLOG)
            return listener
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"can't listen on {uds or f'{host}:{port}'}: {error}") from None
