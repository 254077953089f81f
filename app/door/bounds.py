"""What everything but the webhook may use up: requests at a time, bytes and seconds of each."""

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.door.body import BodyReader, Gone
from app.errors import Rejected
from app.problems import refuse

#: Each may hold a body in memory; the webhook has a bound of its own.
MOST_AT_ONCE = 64
#: Asked by those who would restart us, or send traffic elsewhere, if they got no answer.
_ALWAYS = ("/livez", "/readyz")
_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")

log = structlog.get_logger(__name__)


class Bounds:
    """Passes requests on with their bodies read, as long as not too many are under way.

    A stream, once it is one, is not counted: it has a bound of its own. `root_path` is where a
    proxy serves the app; it may have cut it off the path or not, behind here it never has.
    """

    def __init__(self, app: ASGIApp, bodies: BodyReader, *, root_path: str) -> None:
        self._app = app
        self._bodies = bodies
        self._root_path = root_path
        self._under_way: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def passing(message: Message) -> None:
            if _STREAM in message.get("headers", ()):
                self._under_way.discard(id(scope))
            await send(message)

        self._under_way.add(id(scope))
        try:
            path = scope["path"].removeprefix(self._root_path)
            scope["root_path"], scope["path"] = self._root_path, self._root_path + path
            self._admit(path)
            body = await self._bodies.read(scope["headers"], receive)
            await self._app(scope, _again(body, receive), passing)
        except Gone:
            log.info("request.cut_off")
        except Rejected as rejected:
            await refuse(send, rejected)
        finally:
            self._under_way.discard(id(scope))

    def _admit(self, path: str) -> None:
        if len(self._under_way) > MOST_AT_ONCE and path not in _ALWAYS:
            raise Rejected(503, "busy", "Too many requests are under way.")


def _again(body: bytes, receive: Receive) -> Receive:
    """Hands out the body that was read, and then whatever comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return left.pop() if left else await receive()

    return next_message
