"""The worker's loops: each calls one tick for as long as there is work, then waits for a ring."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.db.connect import DATABASE_ERRORS
from app.errors import ShortcutUnavailable
from app.machine import Phase
from app.outage import Outage
from app.wake import Bell, Ring, wait
from app.worker.apply import Applier
from app.worker.draft import Won, Workshop
from app.worker.outbox import Sender
from app.worker.reconcile import Reconciler

Tick = Callable[[], Awaitable[bool]]

#: After a tick failed for what is away: so long a pause keeps an outage from filling the log.
OUTAGE_PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Runs a worker's loops until it is told to stop.

    Attributes:
        applier: made as soon as it is known who we are; None if we were told to stop before.
        reconciler: made then, too.
        watches: look now and then at what nobody tells us of.
        stopping: set when nothing new is to be begun.
        slots: how many drafts are made at a time.
    """

    applier: Callable[[], Awaitable[Applier | None]]
    reconciler: Callable[[], Reconciler]
    workshop: Workshop
    sender: Sender | None
    watches: Sequence[Tick]
    bell: Bell
    stopping: asyncio.Event
    slots: int
    poll_seconds: float

    async def run(self) -> None:
        """Returns when all loops have come to rest; a loop that breaks ends them all."""
        ticks: list[Tick] = [self.workshop.expire_tick, self.workshop.watch_tick]
        if self.sender is not None:
            ticks += [self.sender.tick, self.sender.expire_tick, self.sender.tell_tick]
        ticks += self.watches
        async with asyncio.TaskGroup() as loops:
            turn, ring = asyncio.Lock(), self.bell.waiter(Ring.SESSION)
            outage = Outage("draft_tick")
            for _ in range(self.slots):
                loops.create_task(self._slot(turn, ring, outage))
            loops.create_task(self._loop(self.workshop.clarify_tick, Ring.SESSION))
            for tick in ticks:
                loops.create_task(self._loop(tick))
            applier = await self.applier()
            if applier is not None:
                loops.create_task(self._loop(applier.tick, Ring.EVENT))
                # Interprets a batch while the database writes another, where there are two.
                loops.create_task(self._loop(applier.tick, Ring.BACKLOG))
                for tick in (applier.read_tick, self.reconciler().tick):
                    loops.create_task(self._loop(tick))

    async def _slot(self, turn: asyncio.Lock, ring: asyncio.Event, outage: Outage) -> None:
        """Makes drafts, one at a time. Of the slots that are idle, one asks for all of them."""
        while not self.stopping.is_set():
            async with self._weathering(outage):
                async with turn:
                    won = await self._won(ring, outage)
                if won is not None:
                    await self.workshop.work(won)

    async def _won(self, ring: asyncio.Event, outage: Outage) -> Won | None:
        while not self.stopping.is_set():
            ring.clear()
            won = await self.workshop.claim(Phase.DRAFT)
            outage.worked()
            if won is not None:
                return won
            await self._rest(ring)
        return None

    async def _loop(self, tick: Tick, what: Ring = Ring.WORK) -> None:
        ring, outage = self.bell.waiter(what), Outage(tick.__name__)
        while not self.stopping.is_set():
            # Cleared before looking, so that what comes in while looking is seen too.
            ring.clear()
            busy = True
            async with self._weathering(outage):
                busy = await tick()
            if not busy:
                await self._rest(ring)

    async def _rest(self, ring: asyncio.Event) -> None:
        await wait(ring, seconds=self.poll_seconds * random.uniform(0.8, 1))

    @asynccontextmanager
    async def _weathering(self, outage: Outage) -> AsyncIterator[None]:
        """What is away for a while ends nothing: it is logged once, and costs a pause."""
        try:
            yield
            outage.worked()
        except (*DATABASE_ERRORS, ShortcutUnavailable) as error:
            outage.failed(error)
            await wait(self.stopping, seconds=_pause_seconds(error))


def _pause_seconds(error: BaseException) -> float:
    asked = error.retry_after_seconds if isinstance(error, ShortcutUnavailable) else None
    return max(OUTAGE_PAUSE_SECONDS, asked or 0)
