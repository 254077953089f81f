"""Wake-ups: NOTIFY makes the loops quick; that they also poll is what makes them right."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from uuid import uuid4

import asyncpg
import structlog

from app.db.connect import DATABASE_ERRORS, Connection, Database
from app.outage import Outage

CHANNEL = "draftgate"
#: Between two NOTIFYs, since each takes a lock that all commits on the server share.
PAUSE_SECONDS = 0.02
#: How often a listener makes sure that the server still knows of it.
CHECK_SECONDS = 10.0
RECONNECT_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Ring(StrEnum):
    """What there may be to do; as the payload of a NOTIFY."""

    #: An event was recorded: whoever applies events looks, and nobody else need.
    EVENT = "event"
    #: More events are recorded than fit into a batch: whoever helps to apply them looks.
    BACKLOG = "backlog"
    #: A session is ready: whoever claims looks, and nobody else need.
    SESSION = "session"
    #: Anything.
    WORK = ""


_NARROW = frozenset([Ring.EVENT, Ring.BACKLOG, Ring.SESSION])
#: It takes a transaction number, and so would wait for an fsync; a ring may be lost.
_NOTIFY = "select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"


class Bell:
    """Tells this process's loops, and by NOTIFY those of others, that there may be work.

    Rings are coalesced; a ring that is lost costs a poll interval and nothing else.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        #: By which it knows its own rings, which it has heeded before they come back to it.
        self._name = uuid4().hex
        self._rung = asyncio.Event()
        self._owed: set[Ring] = set()
        self._waiters: list[tuple[asyncio.Event, Ring]] = []

    def ring(self, what: Ring = Ring.WORK) -> None:
        """Says that there is work, here and to other processes."""
        self._wake(what)
        self._owed.add(what)
        self._rung.set()

    def waiter(self, what: Ring = Ring.WORK) -> asyncio.Event:
        """An event for one loop, which clears it before it looks, so that no ring is missed.

        Of what others ring for, only WORK is heard by everybody.
        """
        waiter = asyncio.Event()
        self._waiters.append((waiter, what))
        return waiter

    def _hear(self, payload: str) -> None:
        what, _, sender = payload.partition(" ")
        for one in what.split(",") if sender != self._name else ():
            self._wake(one)

    def _wake(self, rung: str = Ring.WORK) -> None:
        for waiter, what in self._waiters:
            if rung == what or rung not in _NARROW:
                waiter.set()

    async def send(self) -> None:
        """Passes rings on to other processes, for ever."""
        await _keep_connected(self._database, "bell", self._send)

    async def listen(self) -> None:
        """Takes rings from other processes, for ever."""
        await _keep_connected(self._database, "listener", self._listen)

    async def _send(self, conn: Connection) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            owed, self._owed = self._owed, set()
            what = Ring.WORK if Ring.WORK in owed else ",".join(sorted(owed))
            await conn.execute(_NOTIFY, CHANNEL, f"{what} {self._name}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _listen(self, conn: Connection) -> None:
        gone = asyncio.Event()
        conn.add_termination_listener(lambda *_: gone.set())
        await conn.add_listener(CHANNEL, lambda *heard: self._hear(heard[-1]))
        # Whatever was missed while there was no connection is found now.
        self._wake()
        while not gone.is_set():
            if not await _is_registered(conn):
                log.warning("listener.not_registered", hint="LISTEN can't go through a pooler")
            await wait(gone, seconds=CHECK_SECONDS)


async def wait(event: asyncio.Event, *, seconds: float) -> None:
    """Waits for the event, but no longer than this."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _is_registered(conn: Connection) -> bool:
    """Whether the server would notify this very session: behind a pooler it may be another's."""
    registered: bool = await conn.fetchval(
        "select exists (select from pg_listening_channels() as channel where channel = $1)",
        CHANNEL,
    )
    return registered


async def _keep_connected(
    database: Database, purpose: str, use: Callable[[Connection], Awaitable[None]]
) -> None:
    outage = Outage(purpose)
    while True:
        conn: asyncpg.Connection[asyncpg.Record] | None = None
        try:
            conn = await database.connect(purpose, listen=purpose == "listener")
            outage.worked()
            await use(conn)
        except DATABASE_ERRORS as error:
            outage.failed(error)
        finally:
            if conn is not None:
                conn.terminate()
        await asyncio.sleep(RECONNECT_SECONDS)
