"""Sends deliveries as Shortcut does, and badly: several times, late, out of order, again."""

import asyncio
import random
from asyncio import TimerHandle
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from app.send import post
from app.shortcut.signature import sign
from chaos.history import Told
from chaos.traffic import Parcel

SENDERS = 24
TIMEOUT_SECONDS = 12.0
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.2, 3.0
#: How many copies there are of a delivery: from one to four, two and a half on average.
COPIES = (1, 2, 2, 3, 3, 4)
#: Most copies are only mixed with their neighbours; one in so many comes much later.
JITTER_SECONDS, LATE_SECONDS, LATE_ONE_IN = 1.5, 15.0, 20
AGAIN_ONE_IN = 5


class Sender:
    """Posts parcels until each copy is acknowledged, and knows which were.

    Attributes:
        copies: how many are on their way, or have been.
        answers: how many answers there were of each HTTP status.
        errors: how many times none came, by kind.
    """

    def __init__(self, url: str, secret: bytes, *, seed: int) -> None:
        self._url = url
        self._secret = secret
        self._dice = random.Random(f"sender {seed}")
        self._parcels: dict[str, Parcel] = {}
        self._keys: list[str] = []
        self._acknowledged: Counter[str] = Counter()
        self._due: asyncio.Queue[tuple[Parcel, int]] = asyncio.Queue()
        self._timers: set[TimerHandle] = set()
        self._open = 0
        self.copies = 0
        self.duplicates = 0
        self.answers: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()

    def offer(self, parcel: Parcel) -> None:
        """Takes a delivery, to be sent a few times and perhaps late."""
        self._parcels[parcel.key] = parcel
        self._keys.append(parcel.key)
        for _ in range(self._dice.choice(COPIES)):
            late = self._dice.randrange(LATE_ONE_IN) == 0
            self._schedule(parcel, self._dice.uniform(0, LATE_SECONDS if late else JITTER_SECONDS))

    def perhaps_repeat(self) -> None:
        """Now and then sends one that was sent before, however long ago that was."""
        if self._keys and self._dice.randrange(AGAIN_ONE_IN) == 0:
            self._schedule(self._parcels[self._dice.choice(self._keys)], 0)

    @property
    def waiting(self) -> int:
        """How many copies have no acknowledgement yet."""
        return self._open

    @property
    def acknowledged(self) -> int:
        """How many copies were acknowledged."""
        return self._acknowledged.total()

    def told(self) -> list[Told]:
        """What was sent, for the history."""
        return [
            Told(key=it.key, said=it.said, acknowledged=it.key in self._acknowledged)
            for it in self._parcels.values()
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            posting = [tasks.create_task(self._post()) for _ in range(SENDERS)]
            try:
                yield
            finally:
                for timer in self._timers:
                    timer.cancel()
                for task in posting:
                    task.cancel()

    def _schedule(self, parcel: Parcel, seconds: float) -> None:
        self._open += 1
        self.copies += 1
        self._wait(parcel, 1, seconds)

    def _wait(self, parcel: Parcel, attempt: int, seconds: float) -> None:
        def arrive() -> None:
            self._timers.discard(timer)
            self._due.put_nowait((parcel, attempt))

        timer = asyncio.get_running_loop().call_later(seconds, arrive)
        self._timers.add(timer)

    async def _post(self) -> None:
        tls = httpx.create_ssl_context(trust_env=False)
        async with httpx.AsyncClient(verify=tls, trust_env=False) as http:
            while True:
                parcel, attempt = await self._due.get()
                answer = await post(
                    http,
                    self._url,
                    parcel.body,
                    signature=sign(self._secret, parcel.body),
                    timeout_seconds=TIMEOUT_SECONDS,
                )
                if answer.status is None:
                    self.errors[answer.error or "unknown"] += 1
                else:
                    self.answers[answer.status] += 1
                if answer.status is not None and 200 <= answer.status < 300:
                    self._acknowledged[parcel.key] += 1
                    self.duplicates += answer.duplicate is True
                    self._open -= 1
                else:
                    doubled = FIRST_BACKOFF_SECONDS * 2 ** min(attempt - 1, 10)
                    self._wait(parcel, attempt + 1, min(doubled, LONGEST_BACKOFF_SECONDS))
