"""A proxy in front of PostgreSQL that can lose, delay and withhold what it should pass on."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

#: The message with which PostgreSQL says that a statement was carried out, by its first word.
_DONE = re.compile(rb"C\0\0\0.(?:INSERT|UPDATE|DELETE|SELECT|COMMIT)", re.DOTALL)


class Proxy:
    """Passes connections to a Unix socket on to another one.

    Attributes:
        drops: so many of the next replies are lost, each with its connection, after the server
            has carried out what was asked.
    """

    def __init__(self, upstream: Path, *, seed: int) -> None:
        self.upstream = upstream
        self.drops = 0
        self.counts: Counter[str] = Counter()
        self._dice = random.Random(f"proxy {seed}")
        self._links: set[_Link] = set()
        self._delay_seconds = (0.0, 0.0)
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Link(self).client, str(path))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Closes every connection."""
        for link in list(self._links):
            self.counts["cut"] += 1
            link.close()

    @contextmanager
    def delayed(self, low: float, high: float) -> Iterator[None]:
        """Each reply comes so many seconds later while the block runs."""
        self._delay_seconds = (low, high)
        try:
            yield
        finally:
            self._delay_seconds = (0.0, 0.0)

    @contextmanager
    def half_open(self, share: float) -> Iterator[None]:
        """Nothing passes through this share of the connections any more, but they stay open."""
        links = sorted(self._links, key=lambda link: link.number)
        chosen = self._dice.sample(links, max(1, round(len(links) * share))) if links else []
        for link in chosen:
            self.counts["half open"] += 1
            link.silent = True
        try:
            yield
        finally:
            for link in chosen:
                link.close()

    def loses(self, reply: bytes) -> bool:
        """Whether this reply is to be lost; counts it."""
        if self.drops <= 0 or not _DONE.search(reply):
            return False
        self.drops -= 1
        self.counts["replies dropped"] += 1
        return True

    def delay(self) -> float:
        low, high = self._delay_seconds
        return self._dice.uniform(low, high) if high else 0.0

    def opened(self, link: "_Link") -> int:
        self._links.add(link)
        self.counts["connections"] += 1
        return self.counts["connections"]

    def closed(self, link: "_Link") -> None:
        self._links.discard(link)


class _Link:
    """One connection: the client's side, the server's, and what lies between them."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.number = 0
        self.silent = False
        self.client = _Side(self, is_client=True)
        self.server = _Side(self, is_client=False)
        self._early: list[bytes] = []
        self._last_due = 0.0
        self._connecting: asyncio.Task[None] | None = None

    def accepted(self) -> None:
        self.number = self.proxy.opened(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: self.server, str(self.proxy.upstream))
        except OSError:
            self.close()
            return
        for data in self._early:
            self.server.write(data)
        self._early.clear()

    def asked(self, data: bytes) -> None:
        if self.silent:
            return
        if self.server.transport is None:
            self._early.append(data)
        else:
            self.server.write(data)

    def answered(self, data: bytes) -> None:
        if self.silent:
            return
        if self.proxy.loses(data):
            self.close()
            return
        loop = asyncio.get_running_loop()
        # Never before what came earlier.
        due = max(self._last_due, loop.time() + self.proxy.delay())
        if due <= loop.time():
            self.client.write(data)
        else:
            self._last_due = due
            loop.call_at(due, self.client.write, data)

    def ended(self, *, by_client: bool) -> None:
        """One side has closed: so does the other, unless nobody is to hear of it."""
        if by_client or not self.silent:
            self.close()

    def close(self) -> None:
        self.proxy.closed(self)
        for side in (self.client, self.server):
            side.close()


class _Side(asyncio.Protocol):
    def __init__(self, link: _Link, *, is_client: bool) -> None:
        self.link = link
        self.is_client = is_client
        self.transport: asyncio.Transport | None = None
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._closed:
            self.transport.abort()
        elif self.is_client:
            self.link.accepted()

    def data_received(self, data: bytes) -> None:
        if self.is_client:
            self.link.asked(data)
        else:
            self.link.answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.ended(by_client=self.is_client)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self._closed:
            self.transport.write(data)

    def close(self) -> None:
        self._closed = True
        if self.transport is not None:
            self.transport.abort()
