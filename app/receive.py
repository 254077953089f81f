"""The door: a plain ASGI callable in front of the FastAPI app that takes only the webhook paths.

The order is fixed: size, raw bytes, signature over the raw bytes, parse, record, and only after
the commit the answer.
"""

import json
from collections.abc import Mapping, Sequence

import structlog

from app.body import App, BodyReader, Gone, Headers, Receive, Scope, Send
from app.errors import Rejected, Unrecorded
from app.forwarded import Proxies
from app.problems import refuse
from app.record import Recorder
from app.shortcut import envelope
from app.shortcut.signature import SIGNATURE_HEADER, verify

PATH = "/webhooks/shortcut"
_JSON = (b"content-type", b"application/json")

log = structlog.get_logger(__name__)


class Door:
    """Receives deliveries; passes everything else to the app behind it.

    `secrets` maps each source, the last part of the webhook's path, to its secrets. `root_path`
    is what a proxy may have left before the path. `proxies` only say who is in the log.
    """

    def __init__(
        self,
        behind: App,
        recorder: Recorder,
        bodies: BodyReader,
        *,
        secrets: Mapping[str, Sequence[bytes]],
        root_path: str,
        proxies: Proxies,
    ) -> None:
        self._behind = behind
        self._recorder = recorder
        self._secrets = secrets
        self._bodies = bodies
        self._root_path = root_path
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._behind(scope, receive, send)
        path = scope["path"].removeprefix(self._root_path)
        if path != PATH and not path.startswith(PATH + "/"):
            return await self._behind(scope, receive, send)
        try:
            status, answer = await self._receive(path, scope, receive)
            await _answer(send, status, answer)
        except Gone:
            log.info("delivery.cut_off", client=self._client(scope))
        except Rejected as rejected:
            code, status = rejected.code, rejected.status
            log.info("delivery.rejected", code=code, status=status, client=self._client(scope))
            await refuse(send, rejected)
        except Unrecorded as error:
            await refuse(send, Rejected(503, "unavailable", str(error)))

    def _client(self, scope: Scope) -> str | None:
        peer = scope.get("client")
        address = self._proxies.client(peer and peer[0], scope["headers"])
        return None if address is None else str(address)

    async def _receive(self, path: str, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        source = path.removeprefix(PATH).strip("/") or "shortcut"
        headers: Headers = scope["headers"]
        secrets = self._secrets.get(source)
        if secrets is None:
            raise Rejected(404, "source-unknown", "No webhook source has this name.")
        if scope["method"] != "POST":
            raise Rejected(405, "method-not-allowed", "Deliveries are sent by POST.")
        _check(headers)
        body = await self._bodies.read(headers, receive)
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


def _check(headers: Headers) -> None:
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise Rejected(415, "encoding-unsupported", "Send the body without an encoding.")
        if name == b"upgrade":
            # httptools skips the body of such a request.
            raise Rejected(400, "upgrade-unsupported", "Send the delivery without an upgrade.")


async def _answer(send: Send, status: int, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length]})
    await send({"type": "http.response.body", "body": body})
