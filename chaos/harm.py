"""Does the harm that the plan asks for, and ends it in time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from app.db.connect import DATABASE_ERRORS
from app.simulator.faults import Fault as ApiFault
from app.simulator.faults import Faults as ApiFaults
from chaos import database, runs
from chaos.fleet import Fleet, Member, Postgres, Role
from chaos.history import Timing
from chaos.plan import Fault, Kind
from chaos.proxy import Proxy

#: How long to look for a worker that is drafting, before any will do.
LOOK_SECONDS, LONG_LOOK_SECONDS, LOOK_PAUSE_SECONDS = 3.0, 8.0, 0.05
#: Longer than any pause that a process makes after an error: then what went wrong is over.
CALM_SECONDS = 6.0


@dataclass(slots=True, kw_only=True)
class Harm:
    """Carries faults out; those that last do so in the background, at most a quarter minute.

    Attributes:
        dsn: of the server itself.
        slots: how many drafts a worker makes at a time.
        runs: the log of the drafters.
        tell: is told of each fault as it begins.
    """

    fleet: Fleet
    postgres: Postgres
    proxy: Proxy
    api: ApiFaults
    dsn: str
    timing: Timing
    slots: int
    runs: Path
    tell: Callable[[str], None]
    counts: Counter[Kind] = field(default_factory=Counter)
    _lasting: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, plan: Iterator[Fault], *, seconds: float) -> None:
        """Does what is planned for so many seconds; afterwards nothing of it lasts."""
        loop = asyncio.get_running_loop()
        end_at = loop.time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for fault in plan:
                if loop.time() + fault.after_seconds >= end_at:
                    break
                await asyncio.sleep(fault.after_seconds)
                self.counts[fault.kind] += 1
                self.tell(f"{fault.kind} ({fault.size:.2f})")
                await self._do(fault, tasks)
        self.proxy.drops = 0
        self.api.clear()

    async def _do(self, fault: Fault, tasks: asyncio.TaskGroup) -> None:
        if fault.kind is Kind.KILL_WORKER_IN_PEACE:
            await self._kill_in_peace()
            return
        does = _DOES[fault.kind]
        lasting = tasks.create_task(does(self, fault.size))
        self._lasting.add(lasting)
        lasting.add_done_callback(self._lasting.discard)

    async def _kill_in_peace(self) -> None:
        """Kills a worker with a drafter and does no more until its session has begun anew.

        Where sessions wait for a free slot anyway, it is a kill like any other.
        """
        if self._lasting:
            await asyncio.wait(self._lasting)
        self.proxy.drops = 0
        self.api.clear()
        await asyncio.sleep(CALM_SECONDS)
        quiet = await self._has_free_slots()
        if (worker := await self._busy_worker(LONG_LOOK_SECONDS)) is not None:
            await self.fleet.kill(worker, quiet=quiet)
        if quiet:
            bound = self.timing.lease + self.timing.poll + 2 * self.timing.retry_base
            await asyncio.sleep(bound + self.timing.allowance)

    async def _has_free_slots(self) -> bool:
        """Whether fewer sessions are ready or owned than the workers that stay can draft."""
        try:
            left = await database.ask(self.dsn, database.unrest)
        except DATABASE_ERRORS:
            return False
        return left.ready + left.owned < (len(self.fleet.of(Role.WORKER)) - 1) * self.slots

    async def _kill_worker(self, _: float) -> None:
        if (worker := await self._busy_worker()) is not None:
            await self.fleet.kill(worker)

    async def _kill_receiver(self, size: float) -> None:
        if receivers := self.fleet.of(Role.RECEIVER):
            await self.fleet.kill(_chosen(receivers, size))

    async def _stop_worker(self, size: float) -> None:
        if workers := self.fleet.of(Role.WORKER):
            await self.fleet.stop(_chosen(workers, size))

    async def _freeze_worker(self, size: float) -> None:
        if len(self.fleet.of(Role.WORKER)) < 2 or (worker := await self._busy_worker()) is None:
            return
        self.fleet.freeze(worker)
        try:
            await asyncio.sleep(self.timing.lease * (1.1 + size))
        finally:
            self.fleet.thaw(worker)

    async def _restart_postgres(self, _: float) -> None:
        await self.postgres.restart()

    async def _cut(self, _: float) -> None:
        self.proxy.cut()

    async def _drop_replies(self, size: float) -> None:
        self.proxy.drops += 1 + int(size * 6)

    async def _half_open(self, size: float) -> None:
        with self.proxy.half_open(0.2 + 0.8 * size):
            await asyncio.sleep(3 + 9 * size)

    async def _delay(self, size: float) -> None:
        with self.proxy.delayed(0.02, 0.1 + 0.4 * size):
            await asyncio.sleep(3)

    async def _api_status(self, size: float) -> None:
        status = (429, 500, 503)[int(size * 3)]
        after = "1" if status == 429 else None
        self.api.pending.append(ApiFault(status=status, retry_after=after, times=1 + int(size * 5)))

    async def _api_silence(self, size: float) -> None:
        kind = "hang" if size < 0.5 else "cut"
        fault = ApiFault(kind=kind, times=1 + int(size * 3), method="POST", path="/comments")
        self.api.pending.append(fault)

    async def _busy_worker(self, seconds: float = LOOK_SECONDS) -> Member | None:
        """A worker that is drafting; any, where none is for a while."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + seconds
        while loop.time() < give_up_at:
            busy = runs.drafting(self.runs)
            for worker in self.fleet.of(Role.WORKER):
                if worker.pid in busy:
                    return worker
            await asyncio.sleep(LOOK_PAUSE_SECONDS)
        return next(iter(self.fleet.of(Role.WORKER)), None)


def _chosen(members: list[Member], size: float) -> Member:
    return members[int(size * len(members))]


_DOES: dict[Kind, Callable[[Harm, float], Coroutine[None, None, None]]] = {
    Kind.KILL_WORKER: Harm._kill_worker,
    Kind.KILL_RECEIVER: Harm._kill_receiver,
    Kind.STOP_WORKER: Harm._stop_worker,
    Kind.FREEZE_WORKER: Harm._freeze_worker,
    Kind.RESTART_POSTGRES: Harm._restart_postgres,
    Kind.CUT: Harm._cut,
    Kind.DROP_REPLIES: Harm._drop_replies,
    Kind.HALF_OPEN: Harm._half_open,
    Kind.DELAY: Harm._delay,
    Kind.API_STATUS: Harm._api_status,
    Kind.API_SILENCE: Harm._api_silence,
}
