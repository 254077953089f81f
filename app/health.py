"""What a proxy or an orchestrator asks: is the process alive, and may it have traffic."""

import asyncio
from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from app.db.connect import DATABASE_ERRORS, Pool, take
from app.errors import SchemaError
from app.migrate import require_latest

READY_TIMEOUT_SECONDS = 3.0


def router(pool: Pool, draining: Callable[[], bool]) -> APIRouter:
    """`/livez` and `/readyz`, for GET and HEAD."""
    routes = APIRouter(tags=["health"])

    @routes.head("/livez", include_in_schema=False)
    @routes.get("/livez", operation_id="livez")
    async def livez() -> dict[str, str]:
        """The process runs and its event loop turns."""
        return {"status": "alive"}

    @routes.head("/readyz", include_in_schema=False)
    @routes.get("/readyz", operation_id="readyz")
    async def readyz() -> JSONResponse:
        """Database reachable, schema current, not shutting down; else 503 with what is wrong."""
        fault = "shutting down" if draining() else await _fault(pool)
        content = {"status": "not ready", "fault": fault} if fault else {"status": "ready"}
        return JSONResponse(content, status_code=503 if fault else 200)

    return routes


async def _fault(pool: Pool) -> str | None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_SECONDS), take(pool) as conn:
            await require_latest(conn)
    except SchemaError as error:
        return str(error)
    except DATABASE_ERRORS:
        return "the database is not available"
    return None
