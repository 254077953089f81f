"""Group commit: deliveries that wait at the same moment are recorded by one INSERT.

While the database is away they go to the spool, if there is one, and from there to the database.
"""

import asyncio
from collections import deque
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Protocol

import asyncpg
import structlog

from app.db import events
from app.db.connect import DATABASE_ERRORS, Database, reason
from app.db.spool import Spooled
from app.door.counts import Counts
from app.door.spool import Spool
from app.errors import SpoolError, Unrecorded
from app.model import Delivery
from app.outage import Outage
from app.shortcut import envelope
from app.wake import Bell, Ring, wait

#: Most deliveries, and about most bytes, that one statement takes.
BATCH_ROWS = 256
BATCH_BYTES = 4 * 1024 * 1024
#: Between two tries to reach a database that is away.
RETRY_SECONDS = 0.2
#: How often the spool is looked into: what is in it may be from a process that has died.
LOOK_SECONDS = 5.0
#: Of the time in which a delivery must be answered, what the database has where there is a spool,
#: which has the rest.
DATABASE_SHARE = 0.5
#: No statement will do, whatever is in it, until somebody has seen to the database.
AWAY = (*DATABASE_ERRORS, asyncpg.SyntaxOrAccessError)

log = structlog.get_logger(__name__)


class Outcome(Enum):
    """What has become of a delivery that may be acknowledged."""

    NEW = "new"
    DUPLICATE = "duplicate"
    SPOOLED = "spooled"


class Asker(Protocol):
    """Who waits to hear what has become of a delivery, as a future does."""

    def done(self) -> bool: ...

    def set_result(self, outcome: Outcome, /) -> None: ...

    def set_exception(self, error: Unrecorded, /) -> None: ...


#: A delivery, who waits for it, and since when, by the event loop's clock.
Waiting = tuple[Delivery, Asker, float]


class Recorder:
    """Commits deliveries, in batches that are simply whatever waits when the last one is done.

    The first statement that fails, or is not committed in time, makes the database count as away:
    from then on nothing waits for it. One try at a time finds out when it is back.
    """

    def __init__(
        self,
        database: Database,
        bell: Bell,
        *,
        queue_limit: int,
        queue_limit_bytes: int,
        commit_timeout_seconds: float,
        spool: Spool | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.counts = counts or Counts()
        self._database = database
        self._bell = bell
        self._queue_limit = queue_limit
        self._queue_limit_bytes = queue_limit_bytes
        self._commit_seconds = commit_timeout_seconds * (DATABASE_SHARE if spool else 1)
        self.spool = spool
        self._outage = Outage("recording")
        self._spool_outage = Outage("spool")
        self._away = False
        self._went_away = asyncio.Event()
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        #: How many of those at the head of the queue are to be recorded by themselves.
        self._singly = 0
        self._direct = _Line(database, "door")
        self._way_back = _Line(database, "spool")

    @property
    def waiting(self) -> int:
        """How many deliveries wait to be recorded."""
        return len(self._waiting)

    def put(self, delivery: Delivery, asker: Asker) -> None:
        """Queues a delivery. The asker hears of it once it is committed, or safe in the spool.

        Raises Unrecorded when too many wait already; the asker hears of one when neither can be
        done in time.
        """
        if self._away and self.spool is None:
            raise Unrecorded("the database is not available")
        if (
            len(self._waiting) >= self._queue_limit
            or self._waiting_bytes >= self._queue_limit_bytes
        ):
            raise Unrecorded("too many deliveries are waiting to be recorded")
        self._waiting.append((delivery, asker, asyncio.get_running_loop().time()))
        self._waiting_bytes += len(delivery.body)
        self.counts.waiting(len(self._waiting))
        if len(self._waiting) == 1:
            self._arrived.set()

    async def run(self) -> None:
        """Records what arrives, for ever."""
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._record())
                loops.create_task(self._recover())
        finally:
            self._direct.cut()
            self._way_back.cut()
            if self.spool is not None:
                self.spool.close()

    async def _record(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if self._away:
                await self._spare(batch)
            elif batch:
                await self._try(batch)

    async def _try(self, batch: list[Waiting]) -> None:
        try:
            # The first has waited longest, so all are answered in time.
            async with asyncio.timeout_at(batch[0][2] + self._commit_seconds):
                await self._commit(batch)
        except AWAY as error:
            self._direct.cut()
            self._lost(error)
            await self._spare(batch)
        except asyncpg.PostgresError:
            # One delivery that can't be stored must not cost the others their commit.
            log.exception("record.refused", deliveries=len(batch))
            self._put_back_one_by_one(batch)

    def _put_back_one_by_one(self, batch: list[Waiting]) -> None:
        if len(batch) == 1:
            _refuse(batch, "the delivery can't be stored")
        else:
            self._singly += len(batch)
            self._waiting.extendleft(reversed(batch))
            self._waiting_bytes += sum(len(delivery.body) for delivery, _, _ in batch)
            self._arrived.set()

    def _next_batch(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = 0
        rows = 1 if self._singly else BATCH_ROWS
        while self._waiting and len(batch) < rows and size < BATCH_BYTES:
            waiting = self._waiting.popleft()
            self._waiting_bytes -= len(waiting[0].body)
            self._singly = max(0, self._singly - 1)
            if not waiting[1].done():  # The process is ending, and has let go of its sender.
                batch.append(waiting)
                size += len(waiting[0].body)
        self.counts.waiting(len(self._waiting))
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _commit(self, batch: list[Waiting]) -> None:
        conn = await self._direct.connection()
        distinct = {(d.source, d.dedupe_key): d for d, _, _ in batch}
        new = await events.record(conn, list(distinct.values()))
        if new:
            self._bell.ring(Ring.EVENT)
        # Only after the next batch is on its way, so that the database need not wait for it.
        asyncio.get_running_loop().call_soon(_tell, batch, new)
        self._count(batch)

    def _count(self, batch: list[Waiting]) -> None:
        now = asyncio.get_running_loop().time()
        self.counts.recorded(now - since for _, _, since in batch)

    def _lost(self, error: BaseException) -> None:
        self._outage.failed(error)
        if not self._away:
            self._away = True
            self._went_away.set()

    async def _spare(self, batch: list[Waiting]) -> None:
        """Puts into the spool what the database can't take now."""
        if self.spool is None:
            _refuse(batch, "the database is not available")
            return
        try:
            await self.spool.append([_spooled(waiting) for waiting in batch])
        except SpoolError as error:
            self._spool_outage.failed(error)
            _refuse(batch, "neither the database nor the spool is available")
            return
        self._spool_outage.worked()
        for _, done, _ in batch:
            if not done.done():
                done.set_result(Outcome.SPOOLED)
        self._count(batch)

    async def _recover(self) -> None:
        """Finds out when the database is back, and brings it what is in the spool."""
        first = True
        while True:
            pause = LOOK_SECONDS
            try:
                if first and self.spool is not None:
                    await self.spool.retry_refused()
                first = False
                while await self._drain():
                    pass
            except SpoolError as error:
                self._spool_outage.failed(error)
            except AWAY as error:
                self._way_back.cut()
                self._lost(error)
                pause = RETRY_SECONDS
            await wait(self._went_away, seconds=pause)
            self._went_away.clear()

    async def _drain(self) -> bool:
        """Records the next ones from the spool; without any, asks a database that is away.

        A crash before they are removed makes duplicates of them.
        """
        batch = await self._next_spooled()
        if not batch and not self._away:
            return False
        recorded = await self._record_spooled(batch)
        self._away = False
        self._outage.worked()
        if batch and self.spool is not None:
            await self.spool.remove(recorded)
        return bool(batch)

    async def _record_spooled(self, batch: list[Spooled]) -> list[Spooled]:
        """Records them all, or one by one those that the database can store; says which."""
        # An empty statement waits for the same locks, and so is a fair question.
        distinct = {(d.source, d.dedupe_key): d for d in map(_read_again, batch)}
        try:
            async with asyncio.timeout(self._commit_seconds):
                conn = await self._way_back.connection()
                if await events.record(conn, list(distinct.values())):
                    self._bell.ring(Ring.EVENT)
            return batch
        except AWAY:
            raise
        except asyncpg.PostgresError as error:
            if len(batch) == 1:
                return await self._put_aside(batch[0], error)
            return [one for some in batch for one in await self._record_spooled([some])]

    async def _put_aside(self, one: Spooled, error: BaseException) -> list[Spooled]:
        log.error("spool.refused", spooled=one.id, exc_info=error)
        if self.spool is not None:
            await self.spool.refuse(one, reason(error))
        return []

    async def _next_spooled(self) -> list[Spooled]:
        try:
            if self.spool is not None:
                found = await self.spool.first(rows=BATCH_ROWS, size_bytes=BATCH_BYTES)
                self._spool_outage.worked()
                return found
        except SpoolError as error:
            self._spool_outage.failed(error)
        return []


class _Line:
    """A connection of one purpose's own, opened when it is needed."""

    def __init__(self, database: Database, purpose: str) -> None:
        self._database = database
        self._purpose = purpose
        self._conn: asyncpg.Connection[asyncpg.Record] | None = None

    async def connection(self) -> "asyncpg.Connection[asyncpg.Record]":
        if self._conn is None or self._conn.is_closed():
            self._conn = await self._database.connect(self._purpose)
        return self._conn

    def cut(self) -> None:
        if self._conn is not None:
            self._conn.terminate()
        self._conn = None


def _tell(batch: list[Waiting], new: set[tuple[str, bytes]]) -> None:
    """Says of each that is committed whether it is new."""
    for delivery, asker, _ in batch:
        key = (delivery.source, delivery.dedupe_key)
        if not asker.done():
            asker.set_result(Outcome.NEW if key in new else Outcome.DUPLICATE)
        # Of several copies in one batch, the first is the new one.
        new.discard(key)


def _refuse(batch: list[Waiting], why: str) -> None:
    for _, done, _ in batch:
        if not done.done():
            done.set_exception(Unrecorded(why))


def _spooled(waiting: Waiting) -> Spooled:
    delivery, _, since = waiting
    age = timedelta(seconds=asyncio.get_running_loop().time() - since)
    return Spooled(
        source=delivery.source,
        body=delivery.body,
        headers=delivery.headers,
        received_at=datetime.now(UTC) - age,
    )


def _read_again(spooled: Spooled) -> Delivery:
    """What the spool keeps is only what was sent: it is read by the code of today."""
    delivery = envelope.read(spooled.source, spooled.body, ())
    return delivery._replace(headers=spooled.headers, received_at=spooled.received_at)
