"""The database under load: statements, deliveries put in directly, pgbench, processor time."""

import asyncio
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

from app.db import events
from app.embedded import binaries
from app.shortcut import envelope
from benchmarks import payloads
from benchmarks.payloads import Make

CLIENTS = 16
#: Of 16 MB each; as many as `min_wal_size` keeps.
LOG_FILES = 120


def sql(dsn: str, statement: str, *arguments: object) -> Any:
    """Carries out one statement, and gives the first value of what it returns."""

    async def execute() -> Any:
        conn = await asyncpg.connect(dsn)
        try:
            return await conn.fetchval(statement, *arguments, timeout=1800)
        finally:
            await conn.close()

    return asyncio.run(execute())


def run_in(dsn: str) -> None:
    """Leaves the server with log files to write over, as one has that has run for a while.

    A new server makes each file, 16 MB of zeros, while some commit waits for it.
    """
    sql(dsn, "create table run_in (number int)")
    for number in range(LOG_FILES):
        sql(dsn, "insert into run_in values ($1)", number)
        sql(dsn, "select pg_switch_wal()")
    sql(dsn, "drop table run_in")
    sql(dsn, "checkpoint")
    sql(dsn, "checkpoint")  # The first one's own file is only done with at the second.


def record(dsn: str, make: Make, count: int, *, seed: int) -> None:
    """Records deliveries as the door does, all in one transaction, and rings the bell."""

    async def execute() -> None:
        dice = Random(seed)
        conn = await asyncpg.connect(dsn)
        async with conn.transaction():
            for start in range(0, count, 250):
                numbers = range(start, min(start + 250, count))
                bodies = [payloads.body(make, number, dice) for number in numbers]
                batch = [envelope.read("shortcut", body, []) for body in bodies]
                await events.record(conn, batch)
        await conn.execute("select pg_notify('draftgate', '')")
        await conn.close()

    asyncio.run(execute())


def until_zero(dsn: str, query: str, *, seconds: float = 120) -> None:
    """Waits until a count is zero. Raises TimeoutError."""

    async def wait() -> None:
        conn = await asyncpg.connect(dsn)
        async with asyncio.timeout(seconds):
            while await conn.fetchval(query):
                await asyncio.sleep(0.01)
        await conn.close()

    asyncio.run(wait())


def pgbench(dsn: str, script: Path, *, seconds: int, variables: Sequence[str] = ()) -> float:
    """Transactions a second of a prepared script, with CLIENTS clients."""
    parts = urlsplit(dsn)
    options = [word for variable in variables for word in ("-D", variable)]
    done = subprocess.run(
        [
            binaries() / "pgbench", "-n", "-M", "prepared", "-j", "1", "-c", str(CLIENTS),
            "-T", str(seconds), *options, "-f", script,
            "-h", parse_qs(parts.query)["host"][0], "-U", "postgres", parts.path.lstrip("/"),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(f"pgbench said something else: {done.stdout}")
    return float(found[1])


def database_cpu_seconds(dsn: str) -> float:
    """What the server's processes that live now have used so far."""
    data = Path(sql(dsn, "show data_directory"))
    postmaster = int((data / "postmaster.pid").read_text().split("\n")[0])
    total = 0
    for process in Path("/proc").iterdir():
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if process.name.isdigit() and int(fields[1]) == postmaster:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")
