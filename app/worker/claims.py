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

#: The part of a lease for which a claim whose answer is lost is asked for again.
ASKING_PART = 0.5
ASK_PAUSE_SECONDS = 0.2
#: The part of a lease that is kept as a margin for stopping what was started.
MARGIN = 0.1

NO_LIMIT = timedelta(days=365)

log = structlog.get_logger(__name__)


class End(Enum):
    """How work under a claim can end without a result of its own."""

    LOST = "the claim is lost, or may be"
    OVER = "its phase has taken too long"
    CUT_OFF = "the process is shutting down"


def backoff(attempt: int, *, base: timedelta, longest: timedelta) -> timedelta:
    """The wait after this attempt, counted from 1: doubled each time, capped, spread."""
    whole = min(longest.total_seconds(), base.total_seconds() * 2.0 ** min(attempt - 1, 30))
    return timedelta(seconds=whole * random.uniform(0.5, 1))


async def acquire(pool: Pool, phase: Phase, bid: Bid) -> Claim | None:
    """The next claim in this phase, or None when nothing is ready.

    A lost answer is not a lost claim: the bid's token finds the claim that may have been made. It
    is asked for as long as it would have much of its lease left; then the database's error is
    raised, and a claim that was made runs out.
    """
    give_up_at = time.monotonic() + bid.lease.total_seconds() * ASKING_PART
    in_doubt = False
    while True:
        try:
            async with take(pool) as conn:
                found = await gate.held(conn, bid.token) if in_doubt else None
                if found is None:
                    in_doubt = True
                    found = await _claim_next(conn, phase, bid)
                return found
        except DATABASE_ERRORS as error:
            # Before anything was asked, nothing can have been claimed.
            if not in_doubt or time.monotonic() >= give_up_at:
                raise
            log.warning("claim.unanswered", error=type(error).__name__)
            await asyncio.sleep(ASK_PAUSE_SECONDS)


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
        self._how = End.LOST
        self._progressed = False
        self._cut_off = cut_off

    def progress(self) -> None:
        """The work has shown a sign of life, which the next beat passes on."""
        self._progressed = True

    def take_progress(self) -> bool:
        """Whether there was a sign of life since this was asked last."""
        progressed, self._progressed = self._progressed, False
        return progressed

    def lose(self, how: End = End.LOST) -> None:
        """Ends the work. Called from the heart's thread, too."""
        self._how = how
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
                return self._how if self._lost.is_set() else End.CUT_OFF
            return task.result()
        finally:
            for waiting in (task, *signals):
                waiting.cancel()
            await asyncio.wait([task, *signals])


class Pulse:
    """The beats of one claim.

    They have a connection of their own: what one of them waits for, a row that is locked or a
    server that is silent, costs no other claim anything.
    """

    def __init__(
        self, database: Database, held: Held, *, lease: timedelta, interval: timedelta
    ) -> None:
        self._database = database
        self._held = held
        self._lease = lease
        self._interval_seconds = interval.total_seconds()
        self._conn: asyncpg.Connection[asyncpg.Record] | None = None
        self._outage = Outage("heartbeat")

    async def run(self, asked_at: float, phase_limit: timedelta) -> None:
        """Beats until it is cancelled, or the claim is or may be lost, which ends the work."""
        how = End.LOST
        try:
            how = await self._beat(asked_at, phase_limit)
        except Exception:
            log.exception("heart.broke")  # Nothing else would tell that it beats no more.
        finally:
            self.disconnect()
        self._held.lose(how)

    async def _beat(self, asked_at: float, phase_limit: timedelta) -> End:
        margin = self._lease.total_seconds() * MARGIN
        phase_ends = asked_at + phase_limit.total_seconds() - margin
        ends = min(self._ends(asked_at), phase_ends)
        sent = asked_at
        while True:
            due = min(sent + self._interval_seconds, ends)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent = time.monotonic()
            alive = await self.once(seconds=ends - sent)
            if alive:
                ends = min(self._ends(sent), phase_ends)
            elif alive is False or time.monotonic() >= ends:
                session = self._held.claim.session_id
                log.warning("claim.lost", session=session, known=alive is False)
                return End.OVER if time.monotonic() >= phase_ends else End.LOST

    def _ends(self, sent: float) -> float:
        return sent + self._lease.total_seconds() * (1 - MARGIN)

    async def once(self, *, seconds: float) -> bool | None:
        """One beat: True or False as the database says, None if it said nothing in time.

        It is given up when the next one is due, so that there is a next one.
        """
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                if self._conn is None or self._conn.is_closed():
                    self._conn = await self._database.connect("heart")
                async with asyncio.timeout(self._interval_seconds):
                    alive = await gate.beat(
                        self._conn,
                        self._held.claim,
                        lease=self._lease,
                        progressed=self._held.take_progress(),
                    )
        except DATABASE_ERRORS as error:
            self._outage.failed(error)
            self.disconnect()
            return None
        self._outage.worked()
        return alive

    def disconnect(self) -> None:
        """Ends the connection at once; the next beat opens another."""
        if self._conn is not None:
            self._conn.terminate()
        self._conn = None


class Heart:
    """Beats for every claim that this process holds.

    It has a thread and an event loop of its own, so that neither a blocked main loop nor a busy
    pool keeps it from beating.
    """

    def __init__(self, database: Database, *, lease: timedelta, interval: timedelta) -> None:
        self._database = database
        self._lease = lease
        self._interval = interval
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops beating and joins the thread."""
        asyncio.run_coroutine_threadsafe(_end_the_others(), self._loop).result()
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
        pulse = Pulse(self._database, held, lease=self._lease, interval=self._interval)
        beating = asyncio.run_coroutine_threadsafe(pulse.run(asked_at, phase_limit), self._loop)
        try:
            yield held
        finally:
            beating.cancel()


async def _end_the_others() -> None:
    """Cancels whatever else runs on this loop, and waits for it to end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
