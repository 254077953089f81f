"""Errors as problem JSON (RFC 9457): a status, a code to act on, a sentence to read."""

from collections.abc import Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import Send

from app.errors import Rejected

#: The rest of a body that was not read must not be taken for the next request.
_CLOSING = frozenset({"body-too-slow", "body-too-large", "crowded", "upgrade-unsupported"})


def problem(rejected: Rejected, *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response to a refused request; says nothing of what was sent."""
    return JSONResponse(
        {
            "type": "about:blank",
            "title": HTTPStatus(rejected.status).phrase,
            "status": rejected.status,
            "detail": rejected.detail,
            "code": rejected.code,
        },
        status_code=rejected.status,
        headers=headers,
        media_type="application/problem+json",
    )


async def refuse(send: Send, rejected: Rejected) -> None:
    """Answers outside FastAPI that a request is refused."""
    await refusal(rejected)({"type": "http"}, _never, send)


def refusal(rejected: Rejected) -> JSONResponse:
    """The problem, with the headers that go with its status."""
    headers: dict[str, str] = {}
    if rejected.status == 503:
        headers["Retry-After"] = "1"
    if rejected.status == 405:
        headers["Allow"] = "POST"
    if rejected.code in _CLOSING:
        headers["Connection"] = "close"
    return problem(rejected, headers=headers)


async def _never() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}
