"""What follows a delivery: interpreting it, claiming its session, starting its drafter."""

import asyncio
import os
import socket
import statistics
import subprocess
import time
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import uvloop

from app.db import gate
from app.db.connect import Connection, Database
from app.db.gate import Bid, Comment
from app.machine import Phase
from app.model import Draft
from benchmarks import payloads, servers
from benchmarks.bench import Bench
from benchmarks.database import CLIENTS, pgbench, record, sql, until_zero
from benchmarks.payloads import Make, Requests

PENDING = "select count(*) from events where status = 'pending'"
#: A drafter that says when it began, and then gives the smallest of results.
DRAFTER = """#!/bin/sh
date +%s%N >> "$BENCH_STARTED"
printf '%s\\n' '{"summary": "done", "patch": "--- /dev/null\\n+++ b/x\\n@@ -0,0 +1 @@\\n+x\\n"}'
"""
PATIENCE_SECONDS = 20
#: After a start, for its end: checking the patch, storing it, and making ready for the next.
IDLE_SECONDS = 0.3
SESSIONS = """
    insert into patch_sessions (workspace, sc_id, title, status, decided_at, heard_at)
    select 'shortcut', number, 'A story', $2, now(), now()
      from generate_series(1, $1::bigint) as number
"""
#: More than pgbench changes in a run; each of its clients has its own share.
REFERENCE_ROWS = 40_000
NEXT_ID = """
    \\set n :n + 1
    \\set id :client_id * :share + :n
"""
#: What `gate.claim_next` and `gate.complete` change in the same table; nothing told, kept or owed.
TWO_UPDATES = """
    update patch_sessions
       set status = 'drafting', prior_status = status, claim_token = gen_random_uuid(),
           claim_generation = claim_generation + 1, claimed_by = 'bench', claimed_at = now(),
           claim_expires_at = now() + interval '1 minute',
           phase_ends_at = now() + interval '1 minute', progressed_at = now(), updated_at = now()
     where id = :id and status = 'clarified';
    update patch_sessions
       set status = 'drafted', prior_status = null, claim_token = null, claimed_by = null,
           claimed_at = null, claim_expires_at = null, phase_ends_at = null, progressed_at = null,
           updated_at = now(), attempts = 0, crashes = 0, last_error = null,
           revision = revision + 1, cost_usd = cost_usd + 0
     where id = :id and status = 'drafting';
"""
PLAIN = """
    create table plain as
    select id, null::text as owner, null::timestamptz as until, 0 as n
      from generate_series(1, $1::bigint) as id
"""
#: The least that two UPDATEs can be: of a table with one index and no rule.
PLAIN_UPDATES = """
    update plain set owner = 'bench', until = now() + interval '1 minute', n = n + 1
     where id = :id and owner is null;
    update plain set owner = null, until = null where id = :id and owner = 'bench';
"""
DRAFTED = "select count(*) from patch_sessions where status = 'drafted'"
CHANGED = "select count(*) from plain where n > 0"


def interpret(bench: Bench) -> None:
    """Recorded events to their outcome, by one worker process, from their commit on."""
    scale = bench.scale
    for name, make, count, least in (
        ("interpret_irrelevant", payloads.irrelevant, scale.irrelevant, 5_000),
        ("interpret_opening", payloads.opening, scale.opening, 1_000),
    ):
        rates = [_interpreted(bench, make, count) for _ in range(scale.rounds)]
        bench.figures.add(name, "1/s", rates)
        bench.figures.reach(name, statistics.median(rates), least=least, unit="1/s")


def _interpreted(bench: Bench, make: Make, count: int) -> float:
    with bench.database("interpret") as dsn, servers.worker(dsn, bench.home):
        record(dsn, make, count, seed=3)
        start = time.monotonic()
        until_zero(dsn, PENDING)
        return count / (time.monotonic() - start)


def claims(bench: Bench) -> None:
    """Claim and complete over CLIENTS connections, beside pgbench with what they change."""
    mine, theirs, plain = [], [], []
    for _ in range(bench.scale.rounds):
        with bench.database("claims") as dsn:
            sql(dsn, SESSIONS, bench.scale.claims, "clarified")
            sql(dsn, "vacuum analyze")
            mine.append(bench.scale.claims / uvloop.run(_claim_all(dsn)))
            assert sql(dsn, DRAFTED) == bench.scale.claims
        with bench.database("updates") as dsn:
            sql(dsn, SESSIONS, REFERENCE_ROWS, "clarified")
            sql(dsn, PLAIN, REFERENCE_ROWS)
            sql(dsn, "alter table plain add primary key (id)")
            sql(dsn, "vacuum analyze")
            theirs.append(_updates(bench, dsn, TWO_UPDATES, DRAFTED))
            plain.append(_updates(bench, dsn, PLAIN_UPDATES, CHANGED))
    name = "claim_and_complete"
    ratio = bench.figures.add(name, "1/s", mine, reference="two_updates", beside=theirs)
    bench.figures.add("two_updates", "1/s", theirs)
    bench.figures.add(f"{name}/plain", "1/s", mine, reference="plain_updates", beside=plain)
    bench.figures.add("plain_updates", "1/s", plain)
    bench.figures.reach("claims_per_s", ratio, least=0.5, unit="×")


def _updates(bench: Bench, dsn: str, script: str, changed: str) -> float:
    path = bench.home / "updates.sql"
    path.write_text(NEXT_ID + script)
    variables = ["n=0", f"share={REFERENCE_ROWS // CLIENTS}"]
    per_second = pgbench(dsn, path, seconds=bench.scale.seconds, variables=variables)
    # An UPDATE that finds no row is fast, and no reference.
    assert sql(dsn, changed) > 0.9 * per_second * bench.scale.seconds
    return per_second


async def _claim_all(dsn: str) -> float:
    """Claims and completes every session; how long that took, in seconds."""
    database = Database(dsn=dsn, listen_dsn=dsn)
    conns = [await database.connect("bench") for _ in range(CLIENTS)]
    start = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for conn in conns:
            tasks.create_task(_claim_until_none(conn))
    seconds = time.monotonic() - start
    for conn in conns:
        await conn.close()
    return seconds


async def _claim_until_none(conn: Connection) -> None:
    while claim := await gate.claim_next(conn, Phase.DRAFT, bid()):
        comment = Comment(key=f"bench:{claim.token}", kind="draft", text="done")
        draft = Draft(summary="done", patch="+x", questions=(), cost_usd=0.0, meta={})
        assert await gate.complete(conn, claim, draft, comment=comment)


def bid() -> Bid:
    minute = timedelta(minutes=1)
    return Bid(token=uuid4(), worker="bench", lease=minute, phase_limit=minute)


def start_latency(bench: Bench, *, peers: bool = True) -> None:
    """From sending a delivery to the first line of its drafter, one after the other, idle."""
    started = bench.home / "started"
    with bench.database("latency") as dsn:
        ours = _median_of_ours(bench, dsn, started)
        for name in ("with_procrastinate", "with_pgqueuer") if peers else ():
            theirs = _median_of_a_peer(bench, dsn, started, name)
            against = f"start_latency_vs_{name.removeprefix('with_')}"
            bench.figures.stay(against, ours / theirs, most=1, unit="×")


def _median_of_a_peer(bench: Bench, dsn: str, started: Path, name: str) -> float:
    requests = payloads.write(
        bench.home / f"{name}-starts", payloads.irrelevant, bench.scale.starts + 1, seed=6
    )
    servers.prepare(name, dsn)
    # As ours is: with nothing else running.
    with (
        servers.peer(name, dsn, bench.home) as server,
        servers.peer_worker(name, dsn, bench.home, started),
    ):
        time.sleep(2)  # Neither says when it listens; the first job counts for nothing.
        times = _starts(server.port, requests, started)[1:]
    bench.figures.add(f"start_latency/{name}", "ms", times)
    return statistics.median(times)


def _median_of_ours(bench: Bench, dsn: str, started: Path) -> float:
    drafter = bench.home / "drafter"
    drafter.write_text(DRAFTER)
    drafter.chmod(0o755)
    settings = {
        "DRAFTGATE_DRAFTER_COMMAND": str(drafter),
        "DRAFTGATE_DRAFTER_ENVIRONMENT": "BENCH_STARTED",
        "BENCH_STARTED": str(started),
    }
    requests = payloads.write(
        bench.home / "starts", payloads.opening, bench.scale.starts + 1, seed=5
    )
    with (
        _scratch() as state,
        servers.draftgate(
            dsn, bench.home, "receiver", "worker", DRAFTGATE_STATE_DIR=state, **settings
        ) as server,
    ):
        until_zero(dsn, servers.NOT_LISTENING)
        times = _starts(server.port, requests, started)[1:]
    bench.figures.add("start_latency", "ms", times)
    bench.figures.add("start_latency/command_alone", "ms", _alone(drafter, started, len(times)))
    bench.figures.stay("start_latency_ms", statistics.median(times), most=15, unit="ms")
    return statistics.median(times)


def _scratch() -> TemporaryDirectory[str]:
    """Where drafters work: in memory, where there is such a place.

    A file system of some kinds takes a millisecond for each new file after the databases of the
    other measurements have been deleted from it.
    """
    memory = Path("/dev/shm")
    return TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


def _alone(drafter: Path, started: Path, count: int) -> list[float]:
    """How long the same command takes to begin with nothing before it, in ms.

    The peers begin by calling a function; ours is a process.
    """
    times = []
    for _ in range(count):
        started.write_text("")
        sent = time.time_ns()
        subprocess.run(
            drafter, env={"BENCH_STARTED": str(started)}, capture_output=True, check=True
        )
        times.append((_line(started, 0) - sent) / 1e6)
    return times


def _starts(port: int, requests: Requests, started: Path) -> list[float]:
    """For each request, sent when the one before has begun: the time to that, in ms."""
    started.write_text("")
    times = []
    with socket.create_connection(("127.0.0.1", port)) as conn:
        for number, request in enumerate(requests):
            sent = time.time_ns()
            conn.sendall(request)
            with HTTPResponse(conn) as answer:
                answer.begin()
                said = answer.read()
            if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
                raise RuntimeError(f"refused: {said.decode()}")
            times.append((_line(started, number) - sent) / 1e6)
            time.sleep(IDLE_SECONDS)
    return times


def _line(started: Path, number: int) -> int:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        lines = started.read_text().splitlines()
        if len(lines) > number:
            return int(lines[number])
        time.sleep(0.002)
    raise TimeoutError("no drafter began")
