"""The door: a plain ASGI callable in front of the FastAPI app that takes only the webhook paths.

The order is fixed: size, raw bytes, signature over the raw bytes, parse, record, and only after
the commit the answer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

import structlog

from app.errors import Rejected, Unrecorded
from app.problems import problem
from app.record import Recorder
from app.shortcut import envelope
from app.shortcut.signature import SIGNATURE_HEADER, verify

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

PATH = "/webhooks/shortcut"
_JSON = (b"content-type", b"application/json")

log = structlog.get_logger(__name__)


class _Gone(Exception):
    """The client went away before its request was whole; there is nobody to answer."""


class Door:
    """Receives deliveries; passes everything else to the app behind it.

    `secrets` maps each source, the last part of the webhook's path, to its secrets.
    """

    def __init__(
        self,
        behind: App,
        recorder: Recorder,
        *,
        secrets: Mapping[str, Sequence[bytes]],
        body_limit_bytes: int,
        body_timeout_seconds: float,
    ) -> None:
        self._behind = behind
        self._recorder = recorder
        self._secrets = secrets
        self._body_limit_bytes = body_limit_bytes
        self._body_timeout_seconds = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._behind(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path != PATH and not path.startswith(PATH + "/"):
            return await self._behind(scope, receive, send)
        try:
            status, answer = await self._receive(path, scope, receive)
            await _answer(send, status, answer)
        except _Gone:
            log.info("delivery.cut_off", path=path)
        except Rejected as rejected:
            log.info("delivery.rejected", code=rejected.code, status=rejected.status)
            await _refuse(send, rejected)
        except Unrecorded as error:
            await _refuse(send, Rejected(503, "unavailable", str(error)), retry_after=True)

    async def _receive(self, path: str, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        source = path.removeprefix(PATH).strip("/") or "shortcut"
        headers: Headers = scope["headers"]
        secrets = self._secrets.get(source)
        if secrets is None:
            raise Rejected(404, "source-unknown", "No webhook source has this name.")
        if scope["method"] != "POST":
            raise Rejected(405, "method-not-allowed", "Deliveries are sent by POST.")
        self._check_headers(headers)
        body = await self._read(receive)
        signatures = [value for name, value in headers if name == SIGNATURE_HEADER]
        if not verify(secrets, body, signatures):
            raise Rejected(401, "signature-invalid", "The signature does not match the body.")
        return await self._record(source, body, headers)

    async def _record(self, source: str, body: bytes, headers: Headers) -> tuple[int, bytes]:
        delivery = envelope.read(source, body, headers)
        new = await self._recorder.record(delivery)
        if delivery.defect is not None:
            # It was signed, so it is kept; but whoever sent it should hear that it is no use.
            raise Rejected(400, "not-json", f"The body can't be read: {delivery.defect}.")
        answer = {"event_id": delivery.event_id, "duplicate": not new}
        return 200, json.dumps(answer, separators=(",", ":")).encode()

    def _check_headers(self, headers: Headers) -> None:
        for name, value in headers:
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                raise Rejected(415, "encoding-unsupported", "Send the body without an encoding.")
            if name == b"content-length" and self._too_large(value):
                raise self._oversized()
            if name == b"upgrade":
                # httptools skips the body of such a request.
                raise Rejected(400, "upgrade-unsupported", "Send the delivery without an upgrade.")

    def _too_large(self, length: bytes) -> bool:
        # The server has parsed the header already; a number too long to parse is too large.
        digits = length.strip()
        return digits.isdigit() and (len(digits) > 18 or int(digits) > self._body_limit_bytes)

    def _oversized(self) -> Rejected:
        limit = f"{self._body_limit_bytes} bytes"
        return Rejected(413, "body-too-large", f"A delivery may have at most {limit}.")

    async def _read(self, receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(self._body_timeout_seconds):
                return await self._read_all(receive)
        except TimeoutError:
            raise Rejected(408, "body-too-slow", "The body took too long to arrive.") from None

    async def _read_all(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > self._body_limit_bytes:
                raise self._oversized()
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


async def _answer(send: Send, status: int, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length]})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send, rejected: Rejected, *, retry_after: bool = False) -> None:
    headers = {"Retry-After": "1"} if retry_after else {}
    if rejected.status == 405:
        headers["Allow"] = "POST"
    if rejected.status in (408, 413) or rejected.code == "upgrade-unsupported":
        # Part of the body may still be on its way, and must not be read as the next request.
        headers["Connection"] = "close"
    response = problem(rejected, headers=headers)
    await response({"type": "http"}, _never, send)


async def _never() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}
