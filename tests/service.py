"""The service on a real port: uvicorn, the door, the recorder."""

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Literal

import httpx
from structlog.testing import capture_logs

from app.db.connect import Database
from app.door.connection import KEEP_ALIVE_SECONDS, Lobby
from app.door.record import Recorder
from app.main import HEALTH_CONNECTIONS, desk_of, recorder_of
from app.settings import Settings
from app.shortcut.signature import sign
from app.wake import Bell
from app.web import Server, create_app

SECRET = "a secret of tests only"


@dataclass(frozen=True, slots=True)
class Service:
    """A receiver that listens on this port of the loopback."""

    port: int
    client: httpx.AsyncClient
    recorder: Recorder
    #: Answers that no request of a stranger's may cause.
    failures: list[str]

    async def post(self, body: bytes, *, path: str = "", **more: object) -> httpx.Response:
        """Sends a signed delivery."""
        headers = {"Payload-Signature": sign(SECRET.encode(), body)}
        headers.update(more.pop("headers", {}))  # type: ignore[call-overload]
        url = f"/webhooks/shortcut{path}"
        return await self.client.post(url, content=body, headers=headers, **more)  # type: ignore[arg-type]

    async def raw(self, *pieces: bytes, half_close: bool = False) -> bytes:
        """Sends these bytes as they are; what comes back until the server closes.

        A server that closes before it has read everything may cut its own answer off.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if half_close:
                writer.write_eof()
            async with asyncio.timeout(10):
                answer = await reader.read()
            self.failures.extend(re.findall(r"HTTP/1\.[01] 50[0124-9]", answer.decode("latin-1")))
            return answer
        finally:
            writer.close()


def noting(failures: list[str]) -> Callable[[httpx.Response], Awaitable[None]]:
    """Notes 5xx, except a 503 that says when to come back, or that this is no place for traffic."""

    async def note(answer: httpx.Response) -> None:
        path = answer.request.url.path
        announced = "retry-after" in answer.headers or path.endswith("/readyz")
        if answer.status_code >= 500 and not (answer.status_code == 503 and announced):
            failures.append(f"{answer.status_code} {answer.request.method} {path}")

    return note


class Errors(logging.Handler):
    """Keeps what uvicorn and asyncio say of exceptions that nobody has caught."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def no_tracebacks(allowed: Collection[str]) -> Iterator[None]:
    """Whatever runs in the block logs no exception but these events."""
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        with capture_logs() as entries:
            yield
    finally:
        logging.getLogger().removeHandler(errors)
    told = [entry["event"] for entry in entries if entry.get("exc_info")]
    assert [*errors.said, *(event for event in told if event not in allowed)] == []


@asynccontextmanager
async def receiver(
    database: Database,
    *,
    parser: Literal["httptools", "h11"] = "httptools",
    allowed: Collection[str] = (),
    idle_seconds: float = KEEP_ALIVE_SECONDS,
    **given: object,
) -> AsyncIterator[Service]:
    """Runs a receiver on a free port.

    Whatever it is sent, it answers 5xx only where it says when to come back, and its log has no
    traceback, apart from the events that are `allowed`.
    """
    given = {"shortcut_secrets": SECRET, **given}
    settings = Settings(_env_file=None, **given)  # type: ignore[arg-type]
    bell = Bell(database)
    recorder = recorder_of(settings, database, bell)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    failures: list[str] = []
    with no_tracebacks(allowed):
        async with (
            database.pool("console") as pool,
            database.pool("health", size=HEALTH_CONNECTIONS) as health,
            asyncio.TaskGroup() as tasks,
        ):
            stopping, desk = asyncio.Event(), desk_of(settings, pool, bell)
            app = create_app(
                settings, pool=health, recorder=recorder, draining=stopping.is_set, desk=desk
            )
            lobby = Lobby(
                timeout_seconds=settings.header_timeout_seconds,
                most=settings.connection_limit,
                idle_seconds=idle_seconds,
            )
            server = Server(
                app, graceful_timeout_seconds=5, lobby=lobby if parser == "httptools" else None
            )
            if parser == "h11":
                server.config.http = parser
            recording = tasks.create_task(recorder.run())
            if desk is not None:
                tasks.create_task(desk.live.run(stopping))
            serving = tasks.create_task(server.serve(sockets=[listener]))
            base = f"http://127.0.0.1:{port}"
            hooks = {"response": [noting(failures)]}
            async with httpx.AsyncClient(
                base_url=base, trust_env=False, timeout=20, event_hooks=hooks
            ) as client:
                yield Service(port, client, recorder, failures)
            stopping.set()
            server.should_exit = True
            await serving
            recording.cancel()
    assert failures == []
