"""Bodies of requests, whole or not at all: no more bytes, and no more time, than the limits."""

import asyncio
from collections.abc import Sequence

from starlette.types import Receive

from app.errors import Rejected

Headers = Sequence[tuple[bytes, bytes]]

#: A deadline that has always been over.
_NOW = 0.0


class Gone(Exception):
    """The client went away before its request was whole; there is nobody to answer."""


class BodyReader:
    """Reads bodies up to a size and a time, and all that are arriving up to another size."""

    def __init__(self, *, limit_bytes: int, all_limit_bytes: int, timeout_seconds: float) -> None:
        self._limit_bytes = limit_bytes
        self._all_limit_bytes = max(limit_bytes, all_limit_bytes)
        self._timeout_seconds = timeout_seconds
        #: How much there is of each body that is not whole, the one that began first in front.
        self._arriving: dict[asyncio.Timeout, int] = {}
        self._arriving_bytes = 0

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body.

        Raises Rejected when it is too large, too slow, or the slowest of too many; Gone when
        the client does not finish it.
        What is a little too large is read to its end first: a proxy that is still sending when
        the connection closes may not pass our answer on.
        """
        if any(name == b"content-length" and self._far_too_large(size) for name, size in headers):
            raise self._oversized()
        try:
            async with asyncio.timeout(self._timeout_seconds) as deadline:
                return await self._read_all(receive, deadline)
        except TimeoutError:
            if deadline.when() == _NOW:
                raise Rejected(503, "crowded", "Too much is arriving at once.") from None
            raise Rejected(408, "body-too-slow", "The body took too long to arrive.") from None

    def allow(self, body: bytes) -> bool:
        """Whether a body that is whole is within the size."""
        return len(body) <= self._limit_bytes

    def _far_too_large(self, length: bytes) -> bool:
        # The server has parsed the header already; a number too long to parse is too large.
        digits = length.strip()
        return digits.isdigit() and (len(digits) > 18 or int(digits) > 2 * self._limit_bytes)

    def _oversized(self) -> Rejected:
        return Rejected(
            413, "body-too-large", f"A body may have at most {self._limit_bytes} bytes."
        )

    async def _read_all(self, receive: Receive, deadline: asyncio.Timeout) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size <= self._limit_bytes:
                    chunks.append(chunk)
                more = message.get("more_body", False)
                if size > (2 if more else 1) * self._limit_bytes:
                    raise self._oversized()
                if not more:
                    return b"".join(chunks)
                self._hold(deadline, len(chunk))
        finally:
            self._arriving_bytes -= self._arriving.pop(deadline, 0)

    def _hold(self, deadline: asyncio.Timeout, size: int) -> None:
        self._arriving[deadline] = self._arriving.get(deadline, 0) + size
        self._arriving_bytes += size
        while self._arriving_bytes > self._all_limit_bytes:
            # Whoever sends an honest body is done long before it is the oldest.
            oldest = next(iter(self._arriving))
            self._arriving_bytes -= self._arriving.pop(oldest)
            if not oldest.expired():
                oldest.reschedule(_NOW)
