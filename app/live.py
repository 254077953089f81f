"""What has changed, for those who look at it: one look a second for all of them together."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from app.db import stats
from app.db.connect import DATABASE_ERRORS, Pool, take
from app.db.stats import Marks
from app.errors import Rejected
from app.outage import Outage
from app.wake import wait

Value = TypeVar("Value")

LOOK_SECONDS = 1.0
#: Less than PAUSE_MS in the page's script.
SHARED_SECONDS = 0.4
#: Without news for so long, watchers are woken all the same: they look again, whatever was missed.
BEAT_SECONDS = 15.0
MOST_WATCHERS = 500
#: Pages that all watchers together load in a second, so that many of them keep no delivery waiting.
LOADS_PER_SECOND = 20
#: Topics that one watcher is told of at a time; with more, everything may have changed.
MOST_TOPICS = 100
EVERYTHING = "everything"


class Live:
    """Tells watchers which topics have changed: `sessions`, `session-7`, `events`, `outbox`.

    As long as nobody watches, the database is not asked.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._watchers: set[_Watcher] = set()
        self._marks: Marks | None = None
        self._closed = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Looks, until the process stops; then all watchers are sent away at once."""
        outage = Outage("live")
        while not stopping.is_set():
            if self._watchers:
                try:
                    await self.look()
                    outage.worked()
                except DATABASE_ERRORS as error:
                    outage.failed(error)
            # Who waits for its turn to load needs no further news.
            await wait(stopping, seconds=max(LOOK_SECONDS, self.pace_seconds / 4))
        self._closed = True
        for watcher in self._watchers:
            watcher.news.set()

    async def look(self) -> None:
        """Looks once, and tells what has changed since the last time."""
        before = self._marks
        async with take(self._pool) as conn:
            self._marks = await stats.marks(conn, since=before.moved if before else None)
        topics = self._marks.changed_since(before) if before else set()
        for watcher in self._watchers:
            watcher.tell(topics)

    async def watch(self) -> AsyncIterator[set[str]]:
        """What changes; an empty set is a beat. Ends when the process stops.

        The first one comes after the first look: whatever changes after it, is told.
        """
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            while True:
                await wait(watcher.news, seconds=BEAT_SECONDS)
                if self._closed:
                    return
                yield watcher.take()
        finally:
            self._watchers.discard(watcher)

    @property
    def pace_seconds(self) -> float:
        """How long a watcher is to wait, on average, before it loads its page again."""
        return len(self._watchers) / LOADS_PER_SECOND

    def admit(self) -> None:
        """Raises Rejected where there are too many watchers, or the process is about to stop."""
        if self._closed or len(self._watchers) >= MOST_WATCHERS:
            raise Rejected(503, "busy", "Too many pages are being watched.")


class Shared(Generic[Value]):
    """What is asked for by many at once, read once for all of them.

    Shared for less than a page waits between hearing of a change and loading itself again: what one
    gets then is never from before the change. `singly`, one waits for what is being read already,
    however long ago that was begun: a database that hangs is asked one thing at a time.
    """

    def __init__(self, read: Callable[[], Awaitable[Value]], *, singly: bool = False) -> None:
        self._read = read
        self._singly = singly
        self._reading: asyncio.Future[Value] | None = None
        self._began = 0.0

    async def get(self) -> Value:
        """What was begun to be read a moment ago, or else now."""
        if self._reading is None or (self._is_old() and (self._reading.done() or not self._singly)):
            self._began = time.monotonic()
            self._reading = asyncio.ensure_future(self._read())
        # Who goes away takes it from nobody else.
        return await asyncio.shield(self._reading)

    def _is_old(self) -> bool:
        return time.monotonic() - self._began > SHARED_SECONDS


class _Watcher:
    """One who watches, and what it has not been told yet."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._greeted = False
        self._topics: set[str] = set()

    def tell(self, topics: set[str]) -> None:
        self._topics |= topics
        if len(self._topics) > MOST_TOPICS:
            self._topics = {EVERYTHING}
        if topics or not self._greeted:
            self._greeted = True
            self.news.set()

    def take(self) -> set[str]:
        topics, self._topics = self._topics, set()
        self.news.clear()
        return topics
