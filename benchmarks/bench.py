"""What all measurements share: how long, how many, the database and the requests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.migrate import migrate
from benchmarks import payloads
from benchmarks.database import sql
from benchmarks.figures import Figures
from benchmarks.payloads import Requests

#: A small server's settings, the same for everybody; fsync and synchronous_commit stay on.
POSTGRES = (
    "-c shared_buffers=1GB -c min_wal_size=2GB -c max_wal_size=8GB -c max_connections=300"
    " -c maintenance_work_mem=512MB"
)
#: More than any server here answers, so that no request is sent twice.
FASTEST_PER_SECOND = 45_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long each run is, how often it is repeated, and how much there is of everything."""

    name: str
    seconds: int
    rounds: int
    stored_events: int
    stored_sessions: int
    shown_sessions: int
    deliveries: int
    copies: int
    irrelevant: int
    opening: int
    claims: int
    starts: int


FULL = Scale(
    name="full", seconds=3, rounds=5, stored_events=10_000_000, stored_sessions=1_000_000,
    deliveries=1_000_000, copies=10_000, irrelevant=20_000, opening=5_000, claims=5_000, starts=30,
    shown_sessions=100_000,
)  # fmt: skip
QUICK = Scale(
    name="quick", seconds=1, rounds=1, stored_events=200_000, stored_sessions=50_000,
    deliveries=40_000, copies=2_000, irrelevant=5_000, opening=1_000, claims=1_000, starts=5,
    shown_sessions=10_000,
)  # fmt: skip
SMOKE = Scale(
    name="smoke", seconds=1, rounds=1, stored_events=2_000, stored_sessions=2_000,
    deliveries=2_000, copies=100, irrelevant=200, opening=50, claims=50, starts=1,
    shown_sessions=500,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A run: its scale, a server to make databases on, a directory, what was found."""

    scale: Scale
    server: str
    home: Path
    figures: Figures = field(default_factory=Figures)

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """A migrated database of its own; gives its DSN."""
        sql(self.server, "checkpoint")  # Lets the log be written over.
        sql(self.server, f'create database "{name}"')
        dsn = self.server.replace("/postgres?", f"/{name}?")
        asyncio.run(migrate(dsn))
        try:
            yield dsn
        finally:
            sql(self.server, f'drop database "{name}" with (force)')

    def requests(self) -> Requests:
        """As many distinct deliveries as any server can answer in a run; written once."""
        path = self.home / "requests"
        if not path.exists():
            payloads.write(path, payloads.irrelevant, FASTEST_PER_SECOND * self.scale.seconds)
        with path.open("rb") as file:
            head = file.read(2_000).partition(b"POST ")[2]
            length = len(b"POST " + head.partition(b"POST ")[0])
        return Requests(path, path.stat().st_size // length, length)
