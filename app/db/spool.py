"""The spool's file: SQLite, so that several processes may share it and one may die in it.

Called from one thread of each process; everything here may wait for the disk.
"""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

#: How long one process waits for another's transaction, which is one fsync.
LOCK_SECONDS = 5.0
PAGE_BYTES = 4096

# `synchronous = full` is an fsync of the log at each commit, before anybody is told.
_OPEN = (
    f"pragma page_size = {PAGE_BYTES}",
    "pragma journal_mode = wal",
    "pragma synchronous = full",
    "pragma journal_size_limit = 0",
    """
    create table if not exists deliveries (
        id integer primary key autoincrement,
        source text not null,
        body blob not null,
        headers text not null,
        received_at text not null,
        refused text
    )
    """,
    "create index if not exists deliveries_refused on deliveries (id) where refused is not null",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A delivery in the spool: what was signed, and when it came. `id` is given by the file."""

    source: str
    body: bytes
    headers: str
    received_at: datetime
    id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolState:
    """How full the spool is.

    Attributes:
        deliveries: those that wait for the database.
        refused: those that the database can't store, ever, as far as this version knows.
        oldest_at: when the first of those that wait came.
    """

    deliveries: int
    refused: int
    used_bytes: int
    limit_bytes: int
    oldest_at: datetime | None

    @property
    def is_full(self) -> bool:
        """Whether traffic should go elsewhere: a little before nothing fits any more."""
        return self.used_bytes > 0.95 * self.limit_bytes


class SpoolFile:
    """The file, opened when it is first used and again after any error.

    Everything raises sqlite3.Error or OSError: no file, no space, no database at all.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._conn: sqlite3.Connection | None = None

    def append(self, deliveries: Sequence[Spooled]) -> None:
        """Adds them all, on disk when this returns, or none."""
        conn = self._connected()
        conn.execute("begin immediate")
        conn.executemany(
            "insert into deliveries (source, body, headers, received_at) values (?, ?, ?, ?)",
            [(d.source, d.body, d.headers, d.received_at.isoformat()) for d in deliveries],
        )
        conn.execute("commit")

    def first(self, *, rows: int, size_bytes: int) -> list[Spooled]:
        """The first ones that wait, in order: at least one, up to about so many bytes."""
        found: list[Spooled] = []
        query = """
            select id, source, body, headers, received_at from deliveries
             where refused is null order by id limit ?
        """
        with closing(self._connected().execute(query, (rows,))) as cursor:
            for number, source, body, headers, received_at in cursor:
                at = datetime.fromisoformat(received_at)
                found.append(
                    Spooled(id=number, source=source, body=body, headers=headers, received_at=at)
                )
                size_bytes -= len(body)
                if size_bytes <= 0:
                    break
        return found

    def remove(self, deliveries: Sequence[Spooled]) -> None:
        """Forgets what is recorded; another process may have done so already."""
        conn = self._connected()
        conn.execute("begin immediate")
        conn.executemany("delete from deliveries where id = ?", [(d.id,) for d in deliveries])
        conn.execute("commit")

    def refuse(self, delivery: Spooled, reason: str) -> None:
        """Puts aside what the database can't store, so that it holds up nothing."""
        self._connected().execute(
            "update deliveries set refused = ? where id = ?", (reason, delivery.id)
        )

    def retry_refused(self) -> None:
        """Lets what was put aside wait again, for a version that may do better."""
        self._connected().execute("update deliveries set refused = null where refused is not null")

    def state(self) -> SpoolState:
        """Looked up, not counted: ids have no gaps but where something was refused."""
        conn = self._connected()
        query = """
            select coalesce(last.id - first.id + 1, 0), refused.number, first.received_at
              from (select count(*) as number from deliveries where refused is not null) as refused
              left join (select id, received_at from deliveries
                          where refused is null order by id limit 1) as first
              left join (select id from deliveries
                          where refused is null order by id desc limit 1) as last
        """
        deliveries, refused, oldest = conn.execute(query).fetchone()
        pages, free = (
            conn.execute(f"pragma {name}").fetchone()[0]
            for name in ("page_count", "freelist_count")
        )
        return SpoolState(
            deliveries=deliveries,
            refused=refused,
            used_bytes=(pages - free) * PAGE_BYTES,
            limit_bytes=self._limit_bytes,
            oldest_at=datetime.fromisoformat(oldest) if oldest else None,
        )

    def close(self) -> None:
        """Ends a transaction that was not committed, too."""
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def _connected(self) -> sqlite3.Connection:
        if self._conn is None:
            # What is in it was signed and meant for nobody else on this machine.
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            conn = sqlite3.connect(self._path, timeout=LOCK_SECONDS, isolation_level=None)
            try:
                for statement in _OPEN:
                    conn.execute(statement)
                # SQLite itself refuses what would make the file larger, as if the disk were full.
                conn.execute(f"pragma max_page_count = {self._limit_bytes // PAGE_BYTES}")
            except BaseException:
                conn.close()
                raise
            self._conn = conn
        return self._conn
