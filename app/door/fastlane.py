"""The short way of a delivery that arrives whole: no scope, no task, one write.

uvicorn's own protocol parses the request and does everything else. What is in any way unusual
(not whole in one read, pipelined, refused, for another path) goes its way, to the ASGI app.
"""

from asyncio import Transport
from functools import lru_cache
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.door.body import Headers
from app.door.receive import Door
from app.door.record import Outcome
from app.errors import Rejected, Unrecorded
from app.model import Delivery
from app.problems import refusal

_JSON = ((b"content-type", b"application/json"),)
_CLOSE = ((b"connection", b"close"),)

log = structlog.get_logger(__name__)


class _Deaf:
    """uvicorn wakes the task of a request whose client has gone; here is none."""

    def set(self) -> None:
        pass


class _Pending:
    """Stands where uvicorn keeps the request that is being answered, and hears the answer.

    What it is about it has only until then: an idle connection keeps no body, and one that has
    gone is freed at once, not when cycles are looked for.
    """

    __slots__ = ("_about", "disconnected", "keep_alive", "response_complete")

    message_event = _Deaf()

    def begin(self, lane: "FastLane", delivery: Delivery, headers: Headers) -> None:
        self._about: tuple[FastLane, Delivery, Headers] | None = (lane, delivery, headers)
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True

    def done(self) -> bool:
        """It is recorded though the client may be gone: it will not hear that, but come back."""
        return False

    def set_result(self, outcome: Outcome) -> None:
        self._tell(outcome)

    def set_exception(self, error: Unrecorded) -> None:
        self._tell(error)

    def _tell(self, outcome: Outcome | Unrecorded) -> None:
        assert self._about is not None
        lane, delivery, headers = self._about
        self._about = None
        try:
            lane.tell(delivery, headers, outcome)
        except Exception:  # It must not cost the others of its batch their answers.
            log.exception("answer.broke")
            lane.transport.abort()


class FastLane(HttpToolsProtocol):
    """Gives whole deliveries to the door at once, and everything else to uvicorn's ways."""

    transport: Transport

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        app = self.config.loaded_app
        self._door = app if isinstance(app, Door) else None
        self._pending = _Pending()
        #: The body so far of what may be a whole delivery; None while there is no such request.
        self._held: bytes | None = None

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        if self._may_be_short():
            self._held = b""
        else:
            self._go_the_long_way()

    def _may_be_short(self) -> bool:
        return (
            self._door is not None
            and self.url in self._door.urls
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
        )

    def _go_the_long_way(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        held, self._held = self._held, None
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers += headers
        super().on_headers_complete()
        if held:
            super().on_body(held)

    def on_body(self, body: bytes) -> None:
        if self._held is None:
            super().on_body(body)
        else:
            self._held += body

    def on_message_complete(self) -> None:
        if self._held is not None and self._taken(self._held):
            self._held = None
            return
        if self._held is not None:
            self._go_the_long_way()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._held is not None and not self.transport.is_closing():
            self._go_the_long_way()

    def _taken(self, body: bytes) -> bool:
        assert self._door is not None
        source = self._door.urls[self.url]
        delivery = self._door.take_whole(source, body, self.headers, self._pending)
        if delivery is None:
            return False
        self._pending.begin(self, delivery, self.headers)
        self.cycle = self._pending  # type: ignore[assignment]
        return True

    def tell(self, delivery: Delivery, headers: Headers, outcome: Outcome | Unrecorded) -> None:
        """Says what has become of the delivery, if there is still somebody to hear it."""
        self._pending.response_complete = True
        assert self._door is not None
        try:
            if isinstance(outcome, Unrecorded):
                raise outcome
            headers, (status, body) = _JSON, self._door.answer(delivery, outcome)
        except (Rejected, Unrecorded) as error:
            response = refusal(self._door.refused(error, self.client, headers))
            status, body = response.status_code, bytes(response.body)
            headers = response.raw_headers
        if not self.transport.is_closing():
            self._write(status, headers, body)
            self.on_response_complete()

    def _write(self, status: int, headers: Headers, body: bytes) -> None:
        stays = self._pending.keep_alive
        everything = (*self.server_state.default_headers, *headers, *(() if stays else _CLOSE))
        self.transport.write(_head(status, everything, len(body)) + body)
        if not stays:
            self.transport.close()


# Most answers within a second have the same one.
@lru_cache(maxsize=64)
def _head(status: int, headers: tuple[tuple[bytes, bytes], ...], length: int) -> bytes:
    lines = [b"%s: %s\r\n" % header for header in headers if header[0] != b"content-length"]
    return b"%s%scontent-length: %d\r\n\r\n" % (STATUS_LINE[status], b"".join(lines), length)
