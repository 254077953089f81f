"""What a connection may use up before it brings a request: seconds, header bytes, a place."""

import asyncio
import resource
import time
from typing import TYPE_CHECKING, Any

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.door.fastlane import FastLane
from app.errors import Rejected
from app.problems import problem

#: Of the names and values of one request's headers, with its target.
HEAD_BYTES = 64 * 1024
#: File descriptors for all that is no client: the database, logs, drafters' pipes, listeners.
OTHER_FILES = 256
LOG_PAUSE_SECONDS = 60
#: Longer than any proxy in front keeps an idle connection, or it may reuse one just closed.
KEEP_ALIVE_SECONDS = 75

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

log = structlog.get_logger(__name__)


class Lobby:
    """The connections that owe a request's head, the one that has owed it longest first.

    `most` is how many connections there may be at all. One more costs the first of these its
    place: who sends a request does so at once, who holds a socket open does not.
    """

    def __init__(
        self, *, timeout_seconds: float, most: int, idle_seconds: float = KEEP_ALIVE_SECONDS
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._idle_seconds = idle_seconds
        self._most = min(most, max(1, _files() - OTHER_FILES))
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}
        #: Answered and not ended, the one that was answered longest ago first; and since when.
        self._resting: dict[Connection, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._logged = -float(LOG_PAUSE_SECONDS)

    def enter(self, connection: "Connection") -> None:
        """From now on the connection has so many seconds to bring a whole head."""
        if connection not in self._waiting:
            self._waiting[connection] = connection.loop.call_later(
                self.timeout_seconds, connection.head_timed_out
            )

    def leave(self, connection: "Connection") -> None:
        """The head is there, or the connection is gone."""
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def rest(self, connection: "Connection") -> None:
        """It is answered, and may be idle for so many seconds from now.

        One timer does for all, where uvicorn sets and cancels one for each request.
        """
        self._resting.pop(connection, None)
        self._resting[connection] = connection.loop.time()
        if self._sweep is None:
            self._sweep = connection.loop.call_later(self._idle_seconds, self._end_idle)

    def gone(self, connection: "Connection") -> None:
        """The connection is no more."""
        self.leave(connection)
        self._resting.pop(connection, None)

    def _end_idle(self) -> None:
        """Ends those that have rested for too long, and looks again when the next one may have."""
        self._sweep = None
        while self._resting:
            connection, since = next(iter(self._resting.items()))
            ends = since + self._idle_seconds
            if ends > connection.loop.time():
                self._sweep = connection.loop.call_at(ends, self._end_idle)
                return
            del self._resting[connection]
            connection.rested()

    def make_room(self, connections: int) -> None:
        """Ends the connection that has waited longest if there are too many."""
        if connections > self._most and self._waiting:
            next(iter(self._waiting)).transport.abort()
            if time.monotonic() - self._logged >= LOG_PAUSE_SECONDS:
                self._logged = time.monotonic()
                log.warning("connections.full", most=self._most, waiting=len(self._waiting))


class Connection(FastLane):
    """uvicorn's HTTP/1.1, with an end to heads that are slow or large.

    uvicorn's own timer runs only between two requests, and its parser takes headers of any size.
    A request that comes in one piece, as nearly all do, sets no timer here.
    """

    def __init__(
        self,
        lobby: Lobby,
        config: "Config",
        server_state: "ServerState",
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._lobby = lobby
        self._in_head = False
        self._too_large = False
        #: Of the head that is arriving, without what arrives just now.
        self._head_bytes = 0
        self._arriving_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._lobby.enter(self)
        self._lobby.make_room(len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lobby.gone(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        began_before = self._in_head
        self._arriving_bytes = len(data)
        super().data_received(data)
        if self._in_head:
            # Where in its first piece a head begins is not known: that piece does not count.
            self._head_bytes += self._arriving_bytes if began_before else 1
            if self._head_bytes > HEAD_BYTES:
                self._refuse_head()
        if self._owes_a_head():
            # Whatever that was, it has stopped the timer for idle connections.
            self._lobby.enter(self)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._lobby.leave(self)
        if (self._head_bytes or self._arriving_bytes > HEAD_BYTES) and self._size() > HEAD_BYTES:
            self._too_large = True
            raise ValueError("ends the parsing, and so in send_400_response")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses is refused like everything else, as problem JSON."""
        if self._too_large:
            self._refuse_head()
        else:
            self._refuse(Rejected(400, "not-http", "This is not a request in HTTP."))

    def on_response_complete(self) -> None:
        """As uvicorn does, but without a timer for each answer."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()
            self._lobby.rest(self)

    def rested(self) -> None:
        """No answer has been given for as long as an idle connection may stay."""
        if self._owes_a_head() and not self._in_head:
            self.transport.close()

    def head_timed_out(self) -> None:
        """The head did not arrive in time."""
        if self._in_head and self._owes_a_head():
            self._refuse(Rejected(408, "headers-too-slow", "The headers took too long to arrive."))
        else:
            self.transport.close()

    def _owes_a_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse_head(self) -> None:
        limit = f"{HEAD_BYTES} bytes"
        self._refuse(Rejected(431, "headers-too-large", f"Headers may have at most {limit}."))

    def _refuse(self, rejected: Rejected) -> None:
        if self.transport.is_closing():
            return
        response = problem(rejected, headers={"Connection": "close"})
        headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        answer = (STATUS_LINE[rejected.status], headers, b"\r\n", bytes(response.body))
        self.transport.write(b"".join(answer))
        self.transport.close()


def _files() -> int:
    """How many files this process may have open, after asking for as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
