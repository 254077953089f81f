"""What proxies, orchestrators and Prometheus ask: alive, ready for traffic, how busy."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials

from app.api.access import bearer, shown
from app.api.guard import Guard
from app.api.models import UNAUTHORIZED, refusals
from app.db.connect import DATABASE_ERRORS, Pool, take
from app.db.spool import SpoolState
from app.door.spool import Spool
from app.errors import Rejected, SchemaError, SpoolError
from app.live import Shared
from app.metrics import Metrics
from app.migrate import require_latest

READY_TIMEOUT_SECONDS = 3.0
_AWAY = "the database is not available"


def router(pool: Pool, spool: Spool | None, draining: Callable[[], bool]) -> APIRouter:
    """`/livez` and `/readyz`, for GET and HEAD."""
    routes = APIRouter(tags=["health"])
    # However many ask: they are no reason for more than one query at a time.
    database_fault = Shared(partial(_database_fault, pool), singly=True)
    look_into = Shared(partial(_look_into, spool), singly=True)

    # Described once: two methods would be two operations of one name.
    @routes.head("/livez", include_in_schema=False)
    @routes.get("/livez", operation_id="livez")
    async def livez() -> dict[str, str]:
        """The process runs and its event loop turns."""
        return {"status": "alive"}

    @routes.head("/readyz", include_in_schema=False)
    @routes.get("/readyz", operation_id="readyz", responses={503: {"description": "Not ready"}})
    async def readyz() -> JSONResponse:
        """Schema current, not shutting down, and a place for deliveries; else 503 with the fault.

        That place is the database, or the spool while it has room.
        """
        database = "shutting down" if draining() else await database_fault.get()
        spooling, has_room = await look_into.get()
        fault = "the spool is full" if has_room is False else database
        ready = fault is None or (fault == _AWAY and has_room)
        content: dict[str, object] = {"status": "ready" if ready else "not ready"}
        content |= {"fault": fault} if fault else {}
        content |= {"spool": spooling} if spooling else {}
        return JSONResponse(content, status_code=200 if ready else 503)

    return routes


def metrics_router(metrics: Metrics, guard: Guard | None, *, is_open: bool) -> APIRouter:
    """`/metrics`: for those who have the token, or for all who can reach a port of its own."""
    routes = APIRouter(tags=["health"])

    async def admit(
        request: Request,
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    ) -> None:
        if guard is None:
            raise Rejected(404, "metrics-off", "Metrics are off here: see DRAFTGATE_API_TOKEN.")
        guard.require(request, shown(given))

    off = refusals({404: "Metrics are off."})

    @routes.get(
        "/metrics",
        operation_id="metrics",
        response_class=PlainTextResponse,
        responses={} if is_open else UNAUTHORIZED | off,
        dependencies=[] if is_open else [Depends(admit)],
    )
    async def get_metrics(request: Request) -> Response:
        """Figures in Prometheus' text format."""
        page, content_type = await metrics.page(request.headers.get("accept", ""))
        return Response(page, headers={"Content-Type": content_type})

    return routes


async def _database_fault(pool: Pool) -> str | None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_SECONDS), take(pool) as conn:
            await require_latest(conn)
    except SchemaError as error:
        return str(error)
    except DATABASE_ERRORS:
        return _AWAY
    return None


async def _look_into(spool: Spool | None) -> tuple[dict[str, object], bool | None]:
    """What there is to say of the spool, and whether it has room; None where that isn't known."""
    if spool is None:
        return {}, None
    try:
        state = await spool.state()
    except SpoolError:
        return {"fault": "the spool can't be used"}, None
    return _told(state), not state.is_full


def _told(state: SpoolState) -> dict[str, object]:
    age = datetime.now(UTC) - state.oldest_at if state.oldest_at else None
    return {
        "deliveries": state.deliveries,
        "refused": state.refused,
        "used_bytes": state.used_bytes,
        "limit_bytes": state.limit_bytes,
        "oldest_seconds": round(age.total_seconds(), 1) if age else None,
    }
