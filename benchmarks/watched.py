"""The door while many look: pages of the console that are open, and keep themselves up to date."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import httpx
import uvloop

from benchmarks import servers
from benchmarks.bench import Bench
from benchmarks.database import sql
from benchmarks.payloads import Requests
from benchmarks.receive import EMPTY, counted
from benchmarks.servers import Server

TOKEN = "a token of the benchmark"
PAGES = 200
#: As PAUSE_MS in the page's script.
PAUSE_SECONDS = 0.5

Measure = Callable[[], tuple[float, float]]


def watched(bench: Bench) -> None:
    """Deliveries while nobody looks and while 200 do, A B A B; and how long SIGTERM then takes."""
    requests, token = bench.requests(), {"DRAFTGATE_API_TOKEN": TOKEN}
    with (
        bench.database("watched") as dsn,
        servers.draftgate(dsn, bench.home, "receiver", "console", **token) as ours,
    ):
        measure = partial(_measure, bench, dsn, ours, requests)
        measure()  # Warms up, and counts for nothing.
        pairs = [
            (measure(), uvloop.run(_while_watched(ours, measure)))
            for _ in range(bench.scale.rounds)
        ]
        seconds = uvloop.run(_shutdown(ours))
    alone, watched = zip(*pairs, strict=True)
    rates, costs = zip(*watched, strict=True)
    rates_alone, costs_alone = zip(*alone, strict=True)
    figures = bench.figures
    ratio = figures.add("watched", "1/s", rates, reference="unwatched", beside=rates_alone)
    figures.add("watched_cpu", "µs", costs, reference="unwatched", beside=costs_alone)
    figures.reach("receive_watched", ratio, least=0.95, unit="×")
    figures.stay("shutdown_watched", seconds, most=1, unit="s")


def _measure(bench: Bench, dsn: str, ours: Server, requests: Requests) -> tuple[float, float]:
    """Deliveries a second, and the receiver's processor time for each, in microseconds."""
    sql(dsn, EMPTY)
    before = ours.cpu_seconds
    done = counted(bench, dsn, ours, requests, "events")
    return done.per_second, (ours.cpu_seconds - before) / done.requests * 1e6


async def _while_watched(ours: Server, measure: Measure) -> tuple[float, float]:
    async with _open_pages(ours):
        return await asyncio.to_thread(measure)


async def _shutdown(ours: Server) -> float:
    """How long the process takes to end while all pages are open, in seconds."""
    async with _open_pages(ours):
        start = time.monotonic()
        ours.process.terminate()
        await asyncio.to_thread(ours.process.wait)
        return time.monotonic() - start


@asynccontextmanager
async def _open_pages(ours: Server) -> AsyncIterator[None]:
    """As many browsers as there are pages; raises if one of them is refused or cut off."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ours.port}") as client:
        entered = await client.post("/console/login", data={"token": TOKEN})
    cookie = entered.headers["Set-Cookie"].partition(";")[0]
    async with AsyncExitStack() as closing, asyncio.TaskGroup() as pages:
        opening = (_get(ours.port, "stream", cookie) for _ in range(PAGES))
        streams = [await closing.enter_async_context(stream) for stream in opening]
        browsers = [pages.create_task(_keep(stream, ours.port, cookie)) for stream in streams]
        yield
        for browser in browsers:
            browser.cancel()


async def _keep(stream: asyncio.StreamReader, port: int, cookie: str) -> None:
    """Keeps a page as its script does: told of a change, it waits its turn and loads again."""
    load: asyncio.Task[None] | None = None
    async with asyncio.TaskGroup() as loading:
        async for line in stream:
            if line.startswith(b"data:") and (load is None or load.done()):
                pace = float(line.split()[1]) / 1000
                load = loading.create_task(_load(port, cookie, pace))
        if load is not None:
            load.cancel()


async def _load(port: int, cookie: str, pace: float) -> None:
    await asyncio.sleep(PAUSE_SECONDS + 2 * pace * random.random())
    async with _get(port, "", cookie) as answer:
        await answer.read()


@asynccontextmanager
async def _get(port: int, path: str, cookie: str) -> AsyncIterator[asyncio.StreamReader]:
    """The answer's body, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"GET /console/{path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        writer.write(f"{head}Cookie: {cookie}\r\n\r\n".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"/console/{path} is {status!r}")
        await reader.readuntil(b"\r\n\r\n")
        yield reader
    finally:
        writer.close()
