"""Holding a claim: asking for it, keeping it alive, and letting go the moment it may be lost."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar

import asyncpg
import structlog

from app.db import gate
from app.db.connect import DATABASE_ERRORS, Connection, Database, Pool, take
from app.db.gate import Bid
from app.machine import Phase
from app.model import Claim
from app.outage import Outage

T = TypeVar("T")

ASK_TRIES = 3
ASK_PAUSE_SECONDS = 0.2
#: The part of a lease that is kept as a margin for stopping what was started.
MARGIN = 0.1

NO_LIMIT = timedelta(days=365)

log = structlog.get_logger(__name__)


class End(Enum):
    """How work under a claim can end without a result of its own."""

    LOST = "the claim is lost, or may be"
    CUT_OFF = "the process is shutting down"


def backoff(attempt: int, *, base: timedelta, longest: timedelta) -> timedelta:
    """The wait after this attempt, counted from 1: doubled each time, capped, spread."""
    whole = min(longest.total_seconds(), base.total_seconds() * 2.0 ** min(attempt - 1, 30))
    return timedelta(seconds=whole * random.uniform(0.5, 1))


async def acquire(pool: Pool, phase: Phase, bid: Bid) -> Claim | None:
    """The next claim in this phase, or None when nothing is ready.

    A lost answer is not a lost claim: the bid's token finds the claim that may have been made.
    """
    for again in range(ASK_TRIES):
        try:
            async with take(pool) as conn:
                found = await gate.held(conn, bid.token) if again else None
                return found or await _claim_next(conn, phase, bid)
        except DATABASE_ERRORS as error:
            if again == ASK_TRIES - 1:
                raise
            log.warning("claim.unanswered", error=type(error).__name__)
            await asyncio.sleep(ASK_PAUSE_SECONDS)
    return None


async def _claim_next(conn: Connection, phase: Phase, bid: Bid) -> Claim | None:
    try:
        return await gate.claim_next(conn, phase, bid)
    except asyncpg.UniqueViolationError:
        # An earlier request with this token was still under way, and has made the claim since.
        return await gate.held(conn, bid.token)


class Held:
    """A claim while it is being worked under."""

    def __init__(self, claim: Claim, cut_off: asyncio.Event) -> None:
        self.claim = claim
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._progressed = False
        self._cut_off = cut_off

    def progress(self) -> None:
        """The work has shown a sign of life, which the next beat passes on."""
        self._progressed = True

    def take_progress(self) -> bool:
        """Whether there was a sign of life since this was asked last."""
        progressed, self._progressed = self._progressed, False
        return progressed

    def lose(self) -> None:
        """Called from the heart's thread."""
        self._loop.call_soon_threadsafe(self._lost.set)

    async def run(self, work: Coroutine[Any, Any, T]) -> T | End:
        """Does the work, and cancels it when the claim may be lost or the process must go."""
        task = asyncio.create_task(work)
        signals = [asyncio.create_task(event.wait()) for event in (self._lost, self._cut_off)]
        try:
            await asyncio.wait([task, *signals], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                return End.LOST if self._lost.is_set() else End.CUT_OFF
            return task.result()
        finally:
            for waiting in (task, *signals):
                waiting.cancel()
            await asyncio.wait([task, *signals])


class Heart:
    """Beats for every claim that this process holds.

    It has a thread, an event loop and a connection of its own, so that neither a blocked main
    loop nor a busy pool keeps it from beating.
    """

    def __init__(self, database: Database, *, lease: timedelta, interval: timedelta) -> None:
        self._database = database
        self._lease = lease
        self._interval_seconds = interval.total_seconds()
        self._conn: asyncpg.Connection[asyncpg.Record] | None = None
        self._outage = Outage("heartbeat")
        self._loop = asyncio.new_event_loop()
        self._one_at_a_time = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops beating and joins the thread."""
        asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @asynccontextmanager
    async def hold(
        self,
        claim: Claim,
        *,
        asked_at: float,
        cut_off: asyncio.Event,
        phase_limit: timedelta = NO_LIMIT,
    ) -> AsyncIterator[Held]:
        """Keeps the claim alive while the block runs.

        `asked_at` is this machine's monotonic time from before the claim was asked for: the lease
        can't have begun earlier, so counting from there never ends too late. No beat carries the
        claim beyond `phase_limit` from then, as in the database.
        """
        held = Held(claim, cut_off)
        beating = asyncio.run_coroutine_threadsafe(
            self._beat(held, asked_at, phase_limit), self._loop
        )
        try:
            yield held
        finally:
            beating.cancel()

    async def _beat(self, held: Held, asked_at: float, phase_limit: timedelta) -> None:
        margin = self._lease.total_seconds() * MARGIN
        phase_ends = asked_at + phase_limit.total_seconds() - margin
        ends = min(self._ends(asked_at), phase_ends)
        while True:
            await asyncio.sleep(min(self._interval_seconds, max(0, ends - time.monotonic())))
            sent = time.monotonic()
            alive = await self._try(held, seconds=ends - sent)
            if alive is False or (alive is None and time.monotonic() >= ends):
                log.warning("claim.lost", session=held.claim.session_id, known=alive is False)
                return held.lose()
            if alive:
                ends = min(self._ends(sent), phase_ends)

    def _ends(self, sent: float) -> float:
        return sent + self._lease.total_seconds() * (1 - MARGIN)

    async def _try(self, held: Held, *, seconds: float) -> bool | None:
        """One beat: True or False as the database says, None if it said nothing in time."""
        try:
            async with asyncio.timeout(max(0.0, seconds)), self._one_at_a_time:
                if self._conn is None or self._conn.is_closed():
                    self._conn = await self._database.connect("heart")
                alive = await gate.beat(
                    self._conn, held.claim, lease=self._lease, progressed=held.take_progress()
                )
                self._outage.worked()
                return alive
        except DATABASE_ERRORS as error:
            self._outage.failed(error)
            await self._disconnect()
            return None

    async def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.terminate()
        self._conn = None
