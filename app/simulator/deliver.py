"""Delivers what a workspace says, and badly on purpose: several times, late, shuffled, or not."""

import asyncio
import random
from asyncio import TimerHandle
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from ssl import SSLContext

import httpx

from app.send import Answer, post
from app.shortcut.signature import sign
from app.simulator.deliveries import Outgoing

#: Deliveries that may wait; more are dropped, and counted.
MAX_WAITING = 100_000
#: The newest attempts and deliveries that are remembered.
MAX_ATTEMPTS = 20_000
MAX_REMEMBERED = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How badly deliveries travel.

    Attributes:
        copies: how often each is sent.
        window_seconds: what happens within it is collected, with all copies, and then mixed.
        delay_seconds, jitter_seconds: what each copy waits, and what it may wait beyond that.
        drop_percent: how many in a hundred copies are never sent.
        empty_percent: after how many in a hundred copies a POST without a body follows.
        senders: how many are sent at a time.
        max_tries: after a 429, a 5xx, or no answer, a copy is sent again, so often in all.
        first_backoff_seconds, longest_backoff_seconds: the wait doubles from the one to the other.
    """

    copies: int = 1
    window_seconds: float = 0.0
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    drop_percent: float = 0.0
    empty_percent: float = 0.0
    senders: int = 4
    max_tries: int = 12
    first_backoff_seconds: float = 0.25
    longest_backoff_seconds: float = 5.0
    timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Where deliveries go; the secret signs them, and without one nothing does."""

    url: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One POST and its answer.

    Attributes:
        delivery: which delivery, counted from 1.
        copy, attempt: which copy of it and which try at that, from 1.
        status: None where no answer came.
        error: why none came, or `dropped`.
        duplicate: what the receiver said, if it said.
    """

    delivery: int
    kind: str
    copy: int
    attempt: int
    at: datetime
    milliseconds: float = 0.0
    status: int | None = None
    error: str | None = None
    duplicate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parcel:
    """One copy on its way."""

    number: int
    copy: int
    attempt: int
    outgoing: Outgoing
    hook: Hook


class Deliverer:
    """Sends what it is offered while `running()`; what is offered before waits until then."""

    def __init__(self, weather: Weather, *, seed: int) -> None:
        self.weather = weather
        self.attempts: deque[Attempt] = deque(maxlen=MAX_ATTEMPTS)
        self.offered: deque[tuple[int, Outgoing]] = deque(maxlen=MAX_REMEMBERED)
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._dice = random.Random(seed)
        self._numbers = count(1)
        self._mixing: list[_Parcel] = []
        self._mix_timer: TimerHandle | None = None
        self._later: dict[_Parcel, TimerHandle] = {}
        self._due: asyncio.Queue[_Parcel] = asyncio.Queue()
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def offer(self, outgoing: Outgoing, hook: Hook) -> None:
        """Takes a delivery; must be called in a running event loop."""
        number = next(self._numbers)
        self.offered.append((number, outgoing))
        self.counts["offered"] += 1
        for copy in range(1, self.weather.copies + 1):
            parcel = _Parcel(number=number, copy=copy, attempt=1, outgoing=outgoing, hook=hook)
            self._schedule_or_drop(parcel)
            if self._chance(self.weather.empty_percent):
                nothing = Outgoing(kind="empty", change_id=outgoing.change_id, body=b"")
                empty = _Parcel(number=number, copy=copy, attempt=1, outgoing=nothing, hook=hook)
                self._schedule(empty)

    async def deliver_now(self) -> None:
        """Cuts short what waits now, and returns when nothing is under way any more."""
        self._mix()
        for parcel, timer in list(self._later.items()):
            timer.cancel()
            self._arrive(parcel)
        await self.idle()

    async def idle(self) -> None:
        """Returns when everything that was offered has its last answer."""
        await self._idle.wait()

    def forget(self) -> None:
        """Drops what waits and the log; what is being sent is not called back."""
        self._cancel_timers()
        self._closed(len(self._later) + len(self._mixing))
        self._later.clear()
        self._mixing.clear()
        while not self._due.empty():
            self._due.get_nowait()
            self._closed(1)
        self.attempts.clear()
        self.offered.clear()
        self.counts.clear()
        self._dice.seed(self._seed)

    @property
    def waiting(self) -> int:
        """How many copies are not done with."""
        return self._open

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tls = httpx.create_ssl_context(trust_env=False)
        async with asyncio.TaskGroup() as tasks:
            senders = [tasks.create_task(self._send(tls)) for _ in range(self.weather.senders)]
            try:
                yield
            finally:
                self._cancel_timers()
                for sender in senders:
                    sender.cancel()

    def _schedule_or_drop(self, parcel: _Parcel) -> None:
        if self._chance(self.weather.drop_percent):
            self._note(parcel, _never_sent("dropped"))
        elif self._open >= MAX_WAITING:
            self._note(parcel, _never_sent("too many wait"))
        else:
            self._schedule(parcel)

    def _schedule(self, parcel: _Parcel) -> None:
        self._open += 1
        self._idle.clear()
        if self.weather.window_seconds <= 0:
            self._wait(parcel, self._travel_seconds())
            return
        self._mixing.append(parcel)
        if self._mix_timer is None:
            loop = asyncio.get_running_loop()
            self._mix_timer = loop.call_later(self.weather.window_seconds, self._mix)

    def _mix(self) -> None:
        """Sends off what the window has collected, in any order but its own."""
        if self._mix_timer is not None:
            self._mix_timer.cancel()
            self._mix_timer = None
        mixed, self._mixing = self._mixing, []
        self._dice.shuffle(mixed)
        for parcel in mixed:
            self._wait(parcel, self._travel_seconds())

    def _cancel_timers(self) -> None:
        if self._mix_timer is not None:
            self._mix_timer.cancel()
            self._mix_timer = None
        for timer in self._later.values():
            timer.cancel()

    def _wait(self, parcel: _Parcel, seconds: float) -> None:
        if seconds <= 0:
            self._due.put_nowait(parcel)
            return
        loop = asyncio.get_running_loop()
        self._later[parcel] = loop.call_later(seconds, self._arrive, parcel)

    def _arrive(self, parcel: _Parcel) -> None:
        del self._later[parcel]
        self._due.put_nowait(parcel)

    def _closed(self, parcels: int) -> None:
        self._open -= parcels
        if self._open == 0:
            self._idle.set()

    async def _send(self, tls: SSLContext) -> None:
        async with httpx.AsyncClient(verify=tls, trust_env=False) as http:
            while True:
                parcel = await self._due.get()
                body, secret = parcel.outgoing.body, parcel.hook.secret
                answer = await post(
                    http,
                    parcel.hook.url,
                    body,
                    signature=sign(secret, body) if secret else None,
                    timeout_seconds=self.weather.timeout_seconds,
                )
                self._note(parcel, answer)
                self._finish_or_repeat(parcel, answer)

    def _finish_or_repeat(self, parcel: _Parcel, answer: Answer) -> None:
        lost = answer.status is None or answer.status == 429 or answer.status >= 500
        if not lost or parcel.attempt >= self.weather.max_tries:
            self._closed(1)
            return
        doubled = self.weather.first_backoff_seconds * 2 ** (parcel.attempt - 1)
        again = replace(parcel, attempt=parcel.attempt + 1)
        self._wait(again, min(doubled, self.weather.longest_backoff_seconds))

    def _note(self, parcel: _Parcel, answer: Answer) -> None:
        self.counts[str(answer.status or answer.error)] += 1
        self.attempts.append(
            Attempt(
                delivery=parcel.number,
                kind=parcel.outgoing.kind,
                copy=parcel.copy,
                attempt=parcel.attempt,
                at=datetime.now(UTC),
                milliseconds=answer.milliseconds,
                status=answer.status,
                error=answer.error,
                duplicate=answer.duplicate,
            )
        )

    def _travel_seconds(self) -> float:
        return self.weather.delay_seconds + self._dice.uniform(0, self.weather.jitter_seconds)

    def _chance(self, percent: float) -> bool:
        return self._dice.uniform(0, 100) < percent


def _never_sent(error: str) -> Answer:
    return Answer(index=0, status=None, duplicate=None, error=error, milliseconds=0.0)
