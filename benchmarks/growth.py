"""Whether it stays as fast when there is much of everything."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import uvloop

from app.db import gate
from app.db.connect import Database
from app.machine import Phase
from benchmarks import servers
from benchmarks.bench import Bench
from benchmarks.database import sql
from benchmarks.receive import EMPTY, counted
from benchmarks.work import SESSIONS, bid

FEW_SESSIONS = 1_000
CLAIMS = 150
#: In pieces, each a transaction; the bodies are short, since none is read.
FILL = """
    insert into events (source, dedupe_key, event_id, kind, body, status, reason, received_at,
                        next_attempt_at)
    select 'shortcut', gen_random_uuid(), number::text, 'v1', $2, 'ignored', 'filler', now(), now()
      from generate_series(1, $1::bigint) as number
"""
FILLER_BYTES = 100
PIECE = 500_000
FILLERS = 2
#: What would make a fill take many times as long, and is made again after it.
UNIQUE = "events_are_recorded_once"


def receive(bench: Bench) -> None:
    """The door's rate with many stored events, and with none: A B A B on two databases."""
    requests = bench.requests()
    with ExitStack() as running:
        full = running.enter_context(bench.database("full"))
        empty = running.enter_context(bench.database("empty"))
        _fill(full, bench.scale.stored_events)
        mine = [running.enter_context(servers.draftgate(dsn, bench.home)) for dsn in (full, empty)]
        grown, fresh = [], []
        for _ in range(bench.scale.rounds):
            grown.append(counted(bench, full, mine[0], requests, "events").per_second)
            sql(full, "delete from events where status = 'pending'")
            sql(empty, EMPTY)
            fresh.append(counted(bench, empty, mine[1], requests, "events").per_second)
    ratio = bench.figures.add("receive_when_full", "1/s", grown, reference="empty", beside=fresh)
    bench.figures.reach("growth_receive", ratio, least=0.85, unit="×")


def _fill(dsn: str, count: int) -> None:
    sql(dsn, f"alter table events drop constraint {UNIQUE}")
    pieces = [min(PIECE, count - start) for start in range(0, count, PIECE)]
    with ThreadPoolExecutor(FILLERS) as fillers:
        list(fillers.map(lambda rows: sql(dsn, FILL, rows, b"x" * FILLER_BYTES), pieces))
    # After the rows and before their index, whose pages are then in the log since this checkpoint:
    # it is measured as between two checkpoints, not in the first seconds after one.
    sql(dsn, "checkpoint")
    sql(dsn, f"alter table events add constraint {UNIQUE} unique (source, dedupe_key)")
    sql(dsn, "vacuum analyze events")


def claim(bench: Bench) -> None:
    """How long a claim takes with many sessions, over how long it takes with a thousand."""
    with bench.database("many") as many, bench.database("few") as few:
        for dsn, count in ((many, bench.scale.stored_sessions), (few, FEW_SESSIONS)):
            sql(dsn, SESSIONS, count, "clarified")
            sql(dsn, "vacuum analyze patch_sessions")
        pairs = [
            (uvloop.run(_claim_ms(many)), uvloop.run(_claim_ms(few)))
            for _ in range(bench.scale.rounds)
        ]
    mine, beside = [a for a, _ in pairs], [b for _, b in pairs]
    ratio = bench.figures.add("claim_when_full", "ms", mine, reference="few", beside=beside)
    bench.figures.stay("growth_claim", ratio, most=1.3, unit="×")


async def _claim_ms(dsn: str) -> float:
    """The median time of a claim, in milliseconds."""
    conn = await Database(dsn=dsn, listen_dsn=dsn).connect("bench")
    times = []
    for _ in range(CLAIMS):
        start = time.perf_counter()
        assert await gate.claim_next(conn, Phase.DRAFT, bid())
        times.append((time.perf_counter() - start) * 1000)
    await conn.close()
    return statistics.median(times)
