"""Duplicates, answer times at half load, memory, and one story's delivery thousands of times."""

import asyncio
import statistics
import time
from collections import deque

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
        ratios, p50s, p99s = [], [], []
        for _ in range(bench.scale.rounds):
            sql(dsn, EMPTY)
            times = uvloop.run(_open_loop(ours, requests, most / 2, bench.scale.seconds))
            p50s.append(times[len(times) // 2] * 1000)
            p99s.append(times[len(times) * 99 // 100] * 1000)
            ratios.append(p99s[-1] / p50s[-1])
        bench.figures.add("ack_p50_half_load", "ms", p50s)
        bench.figures.add("ack_p99_half_load", "ms", p99s, reference="p50", beside=p50s)
        ratio = statistics.median(ratios)
        bench.figures.stay("ack_p99_half_load", ratio, most=LONGEST_RATIO, unit="× p50")


class _Sender(asyncio.Protocol):
    """One connection: what is due is sent at once, or when the answer before it is there."""

    def __init__(self, times: list[float]) -> None:
        self.times = times
        self.due: deque[tuple[float, bytes]] = deque()
        self.sent_due: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def offer(self, due: float, request: bytes) -> None:
        self.due.append((due, request))
        self._send()

    def _send(self) -> None:
        if self.sent_due is None and self.due:
            self.sent_due, request = self.due.popleft()
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200"), data[:40]
        assert self.sent_due is not None
        self.times.append(time.monotonic() - self.sent_due)
        self.sent_due = None
        self._send()


async def _open_loop(
    server: Server, requests: Requests, per_second: float, seconds: float
) -> list[float]:
    """All answer times, sorted, in seconds."""
    times: list[float] = []
    loop = asyncio.get_running_loop()
    senders = [
        (await loop.create_connection(lambda: _Sender(times), "127.0.0.1", server.port))[1]
        for _ in range(CONNECTIONS * 2)
    ]
    count, start = min(int(per_second * seconds), requests.count), time.monotonic()
    for number, request in zip(range(count), requests, strict=False):
        due = start + number / per_second
        while (early := due - time.monotonic()) > 0:
            await asyncio.sleep(early)
        senders[number % len(senders)].offer(due, request)
        if number % 8 == 0:
            await asyncio.sleep(0)
    while len(times) < count:
        await asyncio.sleep(0.01)
    for sender in senders:
        sender.transport.close()
    return sorted(times)


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
    times: list[float] = []
    loop, start = asyncio.get_running_loop(), time.monotonic()
    for number in range(HERD_CONNECTIONS):
        _, sender = await loop.create_connection(lambda: _Sender(times), "127.0.0.1", server.port)
        for _ in range(number, count, HERD_CONNECTIONS):
            sender.offer(start, request)
    while len(times) < count:
        await asyncio.sleep(0.001)
    return time.monotonic() - start
