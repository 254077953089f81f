"""An API that fails on purpose, and that limits the rate as the real one does."""

import asyncio
from collections import deque
from time import monotonic
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = ("/api/", "/oauth-authorization-code-flow/token")
#: How long a request that gets no answer is kept before its connection is cut, in seconds.
SILENCE_SECONDS = 60.0
#: The window of the API's rate limit, in seconds.
RATE_WINDOW_SECONDS = 60.0


class Fault(BaseModel):
    """One way to fail, for the next requests that it fits.

    Attributes:
        kind: `status` answers with an error and does nothing; `hang`, `cut` and `blank` do what was
            asked and then never answer, break off in the middle of the answer, or answer 204.
        retry_after: sent as it is, right or wrong, as the Retry-After header.
        times: for how many requests.
        method: only for this method; None for all.
        path: only where the path contains this.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["status", "hang", "cut", "blank"] = "status"
    status: int = Field(503, ge=300, le=599)
    retry_after: str | None = Field(None, pattern=r"^[ -~]*$")
    times: int = Field(1, ge=1)
    method: str | None = None
    path: str = ""

    def fits(self, scope: Scope) -> bool:
        return self.method in (None, scope["method"]) and self.path in scope["path"]


class Faults:
    """What is to go wrong next.

    Attributes:
        per_minute: requests that are answered in any 60 seconds before a 429; None for no limit.
    """

    def __init__(self, *, per_minute: int | None) -> None:
        self.per_minute = per_minute
        self.pending: list[Fault] = []
        self._recent: deque[float] = deque()

    def clear(self) -> None:
        self.pending.clear()
        self._recent.clear()

    def take(self, scope: Scope) -> Fault | None:
        """The fault for this request, if there is one, counted down."""
        if self._over_the_limit():
            return Fault(status=429)
        for fault in self.pending:
            if fault.fits(scope):
                fault.times -= 1
                self.pending = [left for left in self.pending if left.times > 0]
                return fault
        return None

    def _over_the_limit(self) -> bool:
        if self.per_minute is None:
            return False
        now = monotonic()
        while self._recent and self._recent[0] <= now - RATE_WINDOW_SECONDS:
            self._recent.popleft()
        if len(self._recent) >= self.per_minute:
            return True
        self._recent.append(now)
        return False


class FaultGate:
    """Middleware in front of the API."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self.app = app
        self.faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        of_the_api = scope["type"] == "http" and scope["path"].startswith(API)
        fault = self.faults.take(scope) if of_the_api else None
        if fault is None:
            await self.app(scope, receive, send)
        elif fault.kind == "status":
            await _refuse(fault, scope, receive, send)
        else:
            await self.app(scope, receive, _swallow)
            if fault.kind == "blank":
                await Response(status_code=204)(scope, receive, send)
                return
            if fault.kind == "hang":
                await _disconnected(receive)
            await _break_off(send)


async def _refuse(fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
    headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
    if 300 <= fault.status < 400:
        headers["Location"] = "/"
    answer: Response = JSONResponse({"message": "It fails on purpose."}, fault.status, headers)
    if fault.status == 304:  # It has no body.
        answer = Response(status_code=304, headers=headers)
    await answer(scope, receive, send)


async def _swallow(_: Message) -> None:
    """Takes an answer that nobody will get."""


async def _disconnected(receive: Receive) -> None:
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        pass


async def _break_off(send: Send) -> None:
    # More is promised than comes: the server has to close the connection.
    await send({"type": "http.response.start", "status": 200, "headers": _PROMISE})
    await send({"type": "http.response.body", "body": b'{"id": ', "more_body": True})


_PROMISE = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
