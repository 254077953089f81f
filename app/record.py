"""Group commit: deliveries that wait at the same moment are recorded by one INSERT."""

import asyncio
from collections import deque
from itertools import chain

import asyncpg
import structlog

from app.db import events
from app.db.connect import DATABASE_ERRORS, Database
from app.errors import Unrecorded
from app.model import Delivery
from app.outage import Outage
from app.wake import Bell

#: Most deliveries, and about most bytes, that one statement takes.
BATCH_ROWS = 256
BATCH_BYTES = 4 * 1024 * 1024
RECONNECT_SECONDS = 0.2

log = structlog.get_logger(__name__)

#: A delivery, what is told of it, and by when, in the loop's time.
Waiting = tuple[Delivery, "asyncio.Future[bool]", float]


class Recorder:
    """Commits deliveries, in batches that are simply whatever waits when the last one is done."""

    def __init__(
        self, database: Database, bell: Bell, *, queue_limit: int, commit_timeout_seconds: float
    ) -> None:
        self._database = database
        self._bell = bell
        self._queue_limit = queue_limit
        self._commit_timeout_seconds = commit_timeout_seconds
        self._outage = Outage("recording")
        self._waiting: deque[Waiting] = deque()
        self._batch: list[Waiting] = []
        self._watch: asyncio.TimerHandle | None = None
        self._arrived = asyncio.Event()
        #: How many of those at the head of the queue are to be recorded by themselves.
        self._singly = 0
        self._conn: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def waiting(self) -> int:
        """How many deliveries wait to be recorded."""
        return len(self._waiting)

    def put(self, delivery: Delivery) -> "asyncio.Future[bool]":
        """Queues a delivery. Once it is committed the result is there: True if it is new.

        Raises Unrecorded when too many wait already; so does the future, when it can't be
        committed in time.
        """
        if self.waiting >= self._queue_limit:
            raise Unrecorded("too many deliveries are waiting to be recorded")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        late_at = loop.time() + self._commit_timeout_seconds
        self._waiting.append((delivery, done, late_at))
        self._arrived.set()
        if self._watch is None:
            self._watch = loop.call_at(late_at, self._give_up_what_is_late)
        return done

    def _give_up_what_is_late(self) -> None:
        # One timer for all: the queue is in the order of arrival.
        self._watch = None
        loop = asyncio.get_running_loop()
        for _, done, late_at in chain(self._batch, self._waiting):
            if done.done():
                continue
            if late_at > loop.time():
                self._watch = loop.call_at(late_at, self._give_up_what_is_late)
                return
            done.set_exception(Unrecorded("the database did not commit in time"))

    async def run(self) -> None:
        """Records what arrives, for ever."""
        try:
            while True:
                await self._arrived.wait()
                batch = self._batch = self._next_batch()
                try:
                    await self._commit(batch)
                    self._outage.worked()
                except DATABASE_ERRORS as error:
                    self._outage.failed(error)
                    _refuse(batch)
                    self._disconnect()
                    await asyncio.sleep(RECONNECT_SECONDS)
                except asyncpg.PostgresError:
                    # One delivery that can't be stored must not cost the others their commit.
                    log.exception("record.refused", deliveries=len(batch))
                    self._put_back_one_by_one(batch)
        finally:
            self._disconnect()
            if self._watch is not None:
                self._watch.cancel()

    def _put_back_one_by_one(self, batch: list[Waiting]) -> None:
        if len(batch) == 1:
            _refuse(batch)
        else:
            self._singly += len(batch)
            self._waiting.extendleft(reversed(batch))
            self._arrived.set()

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.terminate()
        self._conn = None

    def _next_batch(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = 0
        rows = 1 if self._singly else BATCH_ROWS
        while self._waiting and len(batch) < rows and size < BATCH_BYTES:
            waiting = self._waiting.popleft()
            self._singly = max(0, self._singly - 1)
            if not waiting[1].done():  # Its sender may have gone, or been told to come back.
                batch.append(waiting)
                size += len(waiting[0].body)
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _commit(self, batch: list[Waiting]) -> None:
        if self._conn is None or self._conn.is_closed():
            self._conn = await self._database.connect("door")
        distinct = {(d.source, d.dedupe_key): d for d, _, _ in batch}
        new = await events.record(self._conn, list(distinct.values()))
        if new:
            self._bell.ring()
        for delivery, done, _ in batch:
            key = (delivery.source, delivery.dedupe_key)
            if not done.done():
                done.set_result(key in new)
            # Of several copies in one batch, the first is the new one.
            new.discard(key)


def _refuse(batch: list[Waiting]) -> None:
    for _, done, _ in batch:
        if not done.done():
            done.set_exception(Unrecorded("the database is not available"))
