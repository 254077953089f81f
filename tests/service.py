"""The service on a real port: uvicorn, the door, the recorder."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from app.db.connect import Database
from app.record import Recorder
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

    async def post(self, body: bytes, *, path: str = "", **more: object) -> httpx.Response:
        """Sends a signed delivery."""
        headers = {"Payload-Signature": sign(SECRET.encode(), body)}
        headers.update(more.pop("headers", {}))  # type: ignore[call-overload]
        url = f"/webhooks/shortcut{path}"
        return await self.client.post(url, content=body, headers=headers, **more)  # type: ignore[arg-type]

    async def raw(self, *pieces: bytes, half_close: bool = False) -> bytes:
        """Sends these bytes as they are; what comes back until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if half_close:
                writer.write_eof()
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def receiver(database: Database, **given: object) -> AsyncIterator[Service]:
    """Runs a receiver on a free port."""
    settings = Settings(shortcut_secrets=SECRET, _env_file=None, **given)  # type: ignore[arg-type]
    recorder = Recorder(
        database,
        Bell(database),
        queue_limit=settings.queue_limit,
        commit_timeout_seconds=settings.commit_timeout_seconds,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with database.pool("test") as pool, asyncio.TaskGroup() as tasks:
        app = create_app(settings, pool=pool, recorder=recorder, draining=lambda: False)
        server = Server(app, graceful_timeout_seconds=5)
        recording = tasks.create_task(recorder.run())
        serving = tasks.create_task(server.serve(sockets=[listener]))
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=20) as client:
            yield Service(port, client, recorder)
        server.should_exit = True
        await serving
        recording.cancel()
