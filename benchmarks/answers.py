"""Duplicates, answer times at half load, memory, and one story's delivery thousands of times."""

import asyncio
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import uvloop

from benchmarks import payloads, servers
from benchmarks.bench import Bench
from benchmarks.database import record, sql, until_zero
from benchmarks.load import CONNECTIONS, wrk
from benchmarks.payloads import Requests
from benchmarks.receive import EMPTY, counted
from benchmarks.servers import Server

#: Few enough to be recorded before, many enough that no batch holds one twice.
KNOWN = 5_000
LONGEST_RATIO = 4
HERD_CONNECTIONS = 64
MEGABYTE = 1_000_000


def duplicates(bench: Bench) -> None:
    """What a delivery costs that was recorded before: new, duplicate, new, duplicate."""
    requests, known = bench.requests(), bench.home / "known"
    copies = payloads.write(known, payloads.irrelevant, KNOWN, seed=2)
    with bench.database("duplicates") as dsn, servers.draftgate(dsn, bench.home) as ours:
        new, again, wal = [], [], []
        for _ in range(bench.scale.rounds):
            sql(dsn, EMPTY)
            new.append(counted(bench, dsn, ours, requests, "events").per_second)
            record(dsn, payloads.irrelevant, KNOWN, seed=2)
            idle = _wal_bytes(dsn, bench.scale.seconds)
            before = sql(dsn, "select pg_current_wal_lsn() - '0/0'::pg_lsn")
            done = wrk(ours.port, copies, seconds=bench.scale.seconds)
            written = float(sql(dsn, "select pg_current_wal_lsn() - '0/0'::pg_lsn") - before)
            again.append(done.per_second)
            wal.append(max(0.0, written - idle) / done.requests)
        ratio = bench.figures.add("duplicate", "1/s", again, reference="new", beside=new)
        bench.figures.add("duplicate_wal", "bytes", wal)
        bench.figures.reach("duplicate_vs_new", ratio, least=1.2, unit="×")
        bench.figures.stay("duplicate_wal_bytes", statistics.median(wal), most=0.5, unit="bytes")


def _wal_bytes(dsn: str, seconds: float) -> float:
    """What the server writes by itself in so many seconds."""
    before = sql(dsn, "select pg_current_wal_lsn() - '0/0'::pg_lsn")
    time.sleep(seconds)
    return float(sql(dsn, "select pg_current_wal_lsn() - '0/0'::pg_lsn") - before)


def half_load(bench: Bench) -> None:
    """Answer times in an open loop at half of what the door takes at most.

    A delivery's time counts from when it was due to be sent, not from when it was.
    """
    requests = bench.requests()
    with bench.database("half") as dsn, servers.draftgate(dsn, bench.home) as ours:
        most = counted(bench, dsn, ours, requests, "events").per_second
        answers, flushes = [], []
        for _ in range(bench.scale.rounds):
            sql(dsn, EMPTY)
            with _flushing(bench.home) as meanwhile:
                load = _open_loop(ours, requests, most / 2, bench.scale.seconds)
                answers.append(uvloop.run(load))
            flushes.append(meanwhile)
        ratio = _add(bench, "ack", answers)
        _add(bench, "disk", flushes)
        bench.figures.stay("ack_p99_half_load", ratio, most=LONGEST_RATIO, unit="× p50")


def _add(bench: Bench, name: str, runs: Sequence[list[float]]) -> float:
    """Adds the runs' p50 and p99; returns the median ratio."""
    p50s = [sorted(run)[len(run) // 2] * 1000 for run in runs]
    p99s = [sorted(run)[len(run) * 99 // 100] * 1000 for run in runs]
    bench.figures.add(f"{name}_p50_half_load", "ms", p50s)
    return bench.figures.add(f"{name}_p99_half_load", "ms", p99s, reference="p50", beside=p50s)


@contextmanager
def _flushing(directory: Path) -> Iterator[list[float]]:
    """How long the disk takes meanwhile to keep a single page, every 10 ms, in seconds.

    No answer that waits for a commit can be steadier than that.
    """
    times: list[float] = []
    done = threading.Event()

    def flush() -> None:
        with (directory / "page").open("wb", buffering=0) as file:
            while not done.wait(0.01):
                file.seek(0)
                file.write(bytes(8192))
                before = time.monotonic()
                os.fdatasync(file.fileno())
                times.append(time.monotonic() - before)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield times
    finally:
        done.set()
        thread.join()


class Load:
    """Requests over connections that are kept open, each over the first that is free."""

    def __init__(self) -> None:
        #: Answer times in seconds.
        self.times: list[float] = []
        self.free: list[_Sender] = []
        self.waiting: deque[tuple[float, bytes]] = deque()
        #: What came instead of an answer.
        self.refused: str | None = None

    async def connect(self, port: int, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            await loop.create_connection(lambda: _Sender(self), "127.0.0.1", port)

    def offer(self, due: float, request: bytes) -> None:
        """Sends it now or as soon as a connection is free; its time counts from when it was due."""
        if self.free:
            self.free.pop().send(due, request)
        else:
            self.waiting.append((due, request))

    async def answered(self, count: int) -> None:
        """Waits for so many answers. Raises RuntimeError if one is none."""
        while len(self.times) < count:
            if self.refused is not None:
                raise RuntimeError(f"refused: {self.refused}")
            await asyncio.sleep(0.001)


class _Sender(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._due = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._load.free.append(self)

    def send(self, due: float, request: bytes) -> None:
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200"):
            self._load.refused = data.decode()
            return
        self._load.times.append(time.monotonic() - self._due)
        if self._load.waiting:
            self.send(*self._load.waiting.popleft())
        else:
            self._load.free.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._load.refused = self._load.refused or f"the connection ended: {error}"


async def _open_loop(
    server: Server, requests: Requests, per_second: float, seconds: float
) -> list[float]:
    """All answer times in seconds. What is due is sent every millisecond."""
    load = Load()
    await load.connect(server.port, CONNECTIONS * 2)
    ready = list(islice(requests, int(per_second * seconds)))
    start = time.monotonic()
    for number, request in enumerate(ready):
        due = start + number / per_second
        while time.monotonic() < due:
            await asyncio.sleep(0.001)
        load.offer(due, request)
    await load.answered(len(ready))
    return load.times


def memory(bench: Bench) -> None:
    """What the receiver holds after many deliveries, and whether that still grows."""
    requests, sizes, sent = bench.requests(), [], 0
    with bench.database("memory") as dsn, servers.draftgate(dsn, bench.home) as ours:
        while sent < bench.scale.deliveries:
            sql(dsn, EMPTY)
            sent += counted(bench, dsn, ours, requests, "events").requests
            sizes.append((sent, ours.rss_bytes / MEGABYTE))
    half = next(size for count, size in sizes if count >= sent / 2)
    bench.figures.add("rss", "MB", [size for _, size in sizes])
    bench.figures.stay("rss_mb", sizes[-1][1], most=90, unit="MB")
    bench.figures.stay("rss_growth_mb", sizes[-1][1] - half, most=0.5, unit="MB")


def herd(bench: Bench) -> None:
    """One story's opening delivery, thousands of times, 64 at a time: claims won, and the rate."""
    request = next(iter(payloads.write(bench.home / "herd", payloads.opening, 1)))
    count, worker = bench.scale.copies, {"DRAFTGATE_DRAFTER_COMMAND": "true"}
    with (
        bench.database("herd") as dsn,
        servers.draftgate(dsn, bench.home) as ours,
        servers.worker(dsn, bench.home, **worker),
    ):
        seconds = uvloop.run(_copies(ours, request, count))
        until_zero(dsn, NOT_YET_RELEASED)
        won = sql(dsn, "select count(*) from timeline where move = 'claim' and status = 'drafting'")
    bench.figures.add("herd", "1/s", [count / seconds])
    bench.figures.stay("herd_claims", won, most=1, unit="claims won")


#: `true` drafts nothing: its session is released after the first claim, and waits for its backoff.
NOT_YET_RELEASED = "select 1 - least(count(*), 1) from timeline where move = 'release'"


async def _copies(server: Server, request: bytes, count: int) -> float:
    """Sends one request so often; how long that took, in seconds."""
    load, start = Load(), time.monotonic()
    await load.connect(server.port, HERD_CONNECTIONS)
    for _ in range(count):
        load.offer(start, request)
    await load.answered(count)
    return time.monotonic() - start
