"""`draftgate simulate` and `draftgate send`: the other side of the webhook."""

import asyncio
import signal
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from fastapi import FastAPI
from rich.progress import Progress

from app.cli.common import (
    err,
    errors_as_exit_codes,
    fail,
    out,
    run,
    settings_and_logs,
)
from app.cli.show import print_json, print_table
from app.errors import SettingsError
from app.processes import die_with_parent
from app.send import Report
from app.send import send as send_all
from app.settings import Settings, load
from app.simulator.oauth import CLIENT_ID
from app.simulator.server import create_simulator
from app.web import Server

DEFAULT_URL = "http://127.0.0.1:8000/webhooks/shortcut"
FIRST_STORY = 4101


class Shape(StrEnum):
    """Which deliveries the simulator sends."""

    V1 = "v1"
    V2 = "v2"


Url = Annotated[str, typer.Option(help="Where the deliveries go.")]
Copies = Annotated[int, typer.Option(min=1, max=100, help="How often each delivery is sent.")]


async def serve_app(app: FastAPI, listener: socket.socket, stopping: asyncio.Event) -> None:
    """Serves an app, with its lifespan, until `stopping`."""
    server = Server(app, graceful_timeout_seconds=1, lifespan="on")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]))
        await stopping.wait()
        server.should_exit = True


def simulate(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8100,
    url: Url = DEFAULT_URL,
    version: Annotated[
        list[Shape] | None, typer.Option(help="Repeat for both; without it v1.")
    ] = None,
    copies: Copies = 1,
    shuffle: Annotated[bool, typer.Option(help="Mix deliveries that are close in time.")] = False,
    seed: Annotated[int, typer.Option(help="Decides what is mixed, dropped, delayed.")] = 0,
    first_story: Annotated[
        int, typer.Option(min=1, help="A receiver remembers the stories of earlier runs.")
    ] = FIRST_STORY,
    fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a simulated Shortcut workspace, with a page to click on and the REST API."""
    with errors_as_exit_codes():
        settings = settings_and_logs()
        client_secret = settings.oauth_client_secret
        die_with_parent()
        app = create_simulator(
            webhook_url=url,
            secret=first_secret(settings),
            api_token=_token(settings),
            versions=[shape.value for shape in version or [Shape.V1]],
            copies=copies,
            shuffle=shuffle,
            seed=seed,
            first_id=first_story,
            client_id=settings.oauth_client_id or CLIENT_ID,
            client_secret=client_secret.get_secret_value() if client_secret else "",
        )
        with _listening(port, fd) as listener:
            out.print(f"Simulated Shortcut: http://127.0.0.1:{listener.getsockname()[1]}/")
            run(_until_signalled(app, listener))


async def _until_signalled(app: FastAPI, listener: socket.socket) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await serve_app(app, listener, stopping)


def _listening(port: int, fd: int | None) -> socket.socket:
    if fd is not None:
        return socket.socket(fileno=fd)
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SettingsError(f"can't listen on port {port}: {error}") from None


def send(
    files: Annotated[
        list[Path], typer.Argument(exists=True, dir_okay=False, help="Bodies, as they are.")
    ],
    url: Url = DEFAULT_URL,
    repeat: Annotated[int, typer.Option(min=1, help="How often each is sent.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="How many at a time.")] = 1,
    shuffle: Annotated[bool, typer.Option(help="In random order.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Sign files and post them as deliveries."""
    with errors_as_exit_codes():
        secret = first_secret(load())
        bodies = [path.read_bytes() for path in files]
        with Progress(console=err, transient=True) as progress:
            task = progress.add_task("Sending", total=len(bodies) * repeat)
            report = run(
                send_all(
                    url,
                    bodies,
                    secret=secret.encode(),
                    repeat=repeat,
                    concurrency=concurrency,
                    shuffle=shuffle,
                    on_answer=lambda _: progress.advance(task),
                )
            )
        _show(report, as_json)
        if not report.ok:
            fail("not every delivery was accepted")


def _show(report: Report, as_json: bool) -> None:
    rows: list[dict[str, object]] = [
        {"answer": status, "duplicate": duplicate, "count": count}
        for (status, duplicate), count in sorted(report.answers.items(), key=str)
    ]
    rows += [
        {"answer": error, "duplicate": None, "count": count}
        for error, count in report.errors.items()
    ]
    if as_json:
        print_json(
            {
                "answers": rows,
                "sent": report.sent,
                "p50_milliseconds": report.p50_milliseconds,
                "p99_milliseconds": report.p99_milliseconds,
                "seconds": report.seconds,
            }
        )
        return
    print_table(rows, ("answer", "duplicate", "count"))
    p50, p99 = report.p50_milliseconds or 0, report.p99_milliseconds or 0
    out.print(
        f"{report.sent} sent in {report.seconds:.2f} s: median {p50:.1f} ms, p99 {p99:.1f} ms"
    )


def first_secret(settings: Settings) -> str:
    """The secret that deliveries are signed with."""
    if not settings.shortcut_secrets:
        raise SettingsError("DRAFTGATE_SHORTCUT_SECRETS is not set: nothing to sign with")
    return settings.shortcut_secrets[0].get_secret_value()


def _token(settings: Settings) -> str:
    if settings.shortcut_api_token is None:
        raise SettingsError("DRAFTGATE_SHORTCUT_API_TOKEN is not set: the API would let nobody in")
    return settings.shortcut_api_token.get_secret_value()
