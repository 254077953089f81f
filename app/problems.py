"""Errors as problem JSON (RFC 9457): a status, a code to act on, a sentence to read."""

from collections.abc import Mapping
from http import HTTPStatus

from fastapi.responses import JSONResponse

from app.errors import Rejected


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
