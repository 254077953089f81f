"""The door: a plain ASGI callable in front of the FastAPI app that takes only the webhook paths.

The order is fixed: size, raw bytes, signature over the raw bytes, parse, record, and only after
the commit the answer.
"""

from asyncio import Future, get_running_loop
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from app.door.body import BodyReader, Gone, Headers
from app.door.record import Asker, Outcome, Recorder
from app.errors import Rejected, Unrecorded
from app.forwarded import Proxies
from app.model import Delivery
from app.problems import refuse
from app.shortcut import envelope
from app.shortcut.signature import SIGNATURE_HEADER, verify
from app.sources import SOURCE

PATH = "/webhooks/shortcut"
_JSON = (b"content-type", b"application/json")

_SAID = {
    Outcome.NEW: (200, '"duplicate":false'),
    Outcome.DUPLICATE: (200, '"duplicate":true'),
    Outcome.SPOOLED: (202, '"spooled":true'),
}

log = structlog.get_logger(__name__)


class Door:
    """Receives deliveries; passes everything else to the app behind it.

    `secrets` maps each source, the last part of the webhook's path, to its secrets. `root_path`
    is what a proxy may have left before the path. `proxies` only say who is in the log.
    """

    def __init__(
        self,
        behind: ASGIApp,
        recorder: Recorder,
        bodies: BodyReader,
        *,
        secrets: Mapping[str, Sequence[bytes]],
        root_path: str,
        proxies: Proxies,
    ) -> None:
        self._behind = behind
        self._recorder = recorder
        self._counts = recorder.counts
        self._secrets = secrets
        self._bodies = bodies
        self._root_path = root_path
        self._proxies = proxies
        #: Where deliveries may be taken whole, and whose they are.
        self.urls = {
            f"{root}{PATH}{'' if source == SOURCE else f'/{source}'}".encode(): source
            for root in ("", root_path)
            for source in secrets
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._behind(scope, receive, send)
        path = scope["path"].removeprefix(self._root_path)
        if path != PATH and not path.startswith(PATH + "/"):
            return await self._behind(scope, receive, send)
        try:
            await _answer(send, *await self._receive(path, scope, receive))
        except Gone:
            self._counts.answered("cut-off")
            log.info("delivery.cut_off", client=self._client(scope.get("client"), scope["headers"]))
        except (Rejected, Unrecorded) as error:
            await refuse(send, self.refused(error, scope.get("client"), scope["headers"]))

    def refused(
        self, error: Rejected | Unrecorded, peer: tuple[str, int] | None, headers: Headers
    ) -> Rejected:
        """What the sender is told; a line in the log says who it was."""
        if isinstance(error, Unrecorded):
            error = Rejected(503, "unavailable", str(error))
        self._counts.answered(error.code)
        if error.code == "unavailable":
            return error  # The recorder has said it, once for all of them.
        client = self._client(peer, headers)
        log.info("delivery.rejected", code=error.code, status=error.status, client=client)
        return error

    def _client(self, peer: tuple[str, int] | None, headers: Headers) -> str | None:
        address = self._proxies.client(peer and peer[0], headers)
        return None if address is None else str(address)

    async def _receive(self, path: str, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        source = path.removeprefix(PATH).strip("/") or SOURCE
        headers: Headers = scope["headers"]
        if source not in self._secrets:
            raise Rejected(404, "source-unknown", "No webhook source has this name.")
        if scope["method"] != "POST":
            raise Rejected(405, "method-not-allowed", "Deliveries are sent by POST.")
        _check(headers)
        body = await self._bodies.read(headers, receive)
        recorded: Future[Outcome] = get_running_loop().create_future()
        delivery = self._take(source, body, headers, recorded)
        return self.answer(delivery, await recorded)

    def take_whole(
        self, source: str, body: bytes, headers: Headers, asker: Asker
    ) -> Delivery | None:
        """Takes a delivery that has arrived, without waiting for anything.

        None where it can't be taken: `__call__` then says why.
        """
        try:
            _check(headers)
            if self._bodies.allow(body):
                return self._take(source, body, headers, asker)
        except (Rejected, Unrecorded):
            pass
        return None

    def _take(self, source: str, body: bytes, headers: Headers, asker: Asker) -> Delivery:
        signatures = [value for name, value in headers if name == SIGNATURE_HEADER]
        if not verify(self._secrets[source], body, signatures):
            raise Rejected(401, "signature-invalid", "The signature does not match the body.")
        delivery = envelope.read(source, body, headers)
        self._recorder.put(delivery, asker)
        return delivery

    def answer(self, delivery: Delivery, outcome: Outcome) -> tuple[int, bytes]:
        """What the sender of a delivery is told that is committed, or safe in the spool.

        Raises Rejected for what can't be read.
        """
        if delivery.defect is not None:
            # It was signed, so it is kept; but whoever sent it should hear that it is no use.
            raise Rejected(400, "not-json", f"The body can't be read: {delivery.defect}.")
        event_id = "null" if delivery.event_id is None else _quoted(delivery.event_id)
        self._counts.answered(outcome.value)
        status, said = _SAID[outcome]
        return status, f'{{"event_id":{event_id},{said}}}'.encode()


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
