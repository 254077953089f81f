"""The HTTP application: the door in front, FastAPI behind it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import structlog
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from app import callback, health
from app.api import routes
from app.api.access import Desk, guard_of
from app.console.server import create_console
from app.db.connect import DATABASE_ERRORS, Pool, reason, take
from app.door.body import BodyReader
from app.door.bounds import Bounds
from app.door.connection import KEEP_ALIVE_SECONDS, Connection, Lobby
from app.door.describe import describe_door
from app.door.receive import Door
from app.door.record import Recorder
from app.errors import Rejected
from app.installs import installs_of
from app.metrics import Metrics
from app.problems import problem
from app.settings import Settings

VERSION = "0.1.0"

#: What goes with a refusal of this status.
_SAYS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "60"},
    503: {"Retry-After": "5"},
}

log = structlog.get_logger(__name__)


class Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the whole process is stopped, not just HTTP.

    With a lobby, connections that bring no request do not stay.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        graceful_timeout_seconds: float,
        lobby: Lobby | None = None,
        lifespan: Literal["on", "off"] = "off",
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                # All that is asked of the protocol's class is to be called.
                http=partial(Connection, lobby) if lobby else "httptools",  # type: ignore[arg-type]
                ws="none",
                lifespan=lifespan,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(graceful_timeout_seconds),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def create_app(
    settings: Settings,
    *,
    pool: Pool,
    recorder: Recorder | None,
    draining: Callable[[], bool],
    desk: Desk | None = None,
) -> ASGIApp:
    """The whole application; health and figures take their connections from the pool.

    Without a recorder this process receives no deliveries; without a desk it has no operators' API
    and no console.
    """
    api = FastAPI(
        title="Draftgate", version=VERSION, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    api.include_router(health.router(pool, recorder.spool if recorder else None, draining))
    metrics, guard = Metrics(pool, recorder), guard_of(settings)
    api.include_router(health.metrics_router(metrics, guard, is_open=False))
    if installs := installs_of(settings, partial(take, pool)):
        api.include_router(callback.router(installs))
    if desk is not None:
        api.state.desk = desk
        api.include_router(routes.router)
        api.mount("/console", create_console(desk))
    api.add_api_route("/console", _console, include_in_schema=False)
    api.add_api_route("/console/{path:path}", _no_console, include_in_schema=False)
    _answer_with_problems(api)
    bodies = _bodies(settings)
    bounded = Bounds(api, bodies, root_path=settings.root_path)
    if recorder is None:
        return bounded
    describe_door(api)
    return Door(
        bounded,
        recorder,
        bodies,
        secrets=settings.secrets,
        root_path=settings.root_path,
        proxies=settings.proxies,
    )


def create_metrics_app(settings: Settings, pool: Pool, recorder: Recorder | None) -> ASGIApp:
    """`/metrics` alone, without a token: for a port that only Prometheus can reach."""
    api = FastAPI(openapi_url=None, redirect_slashes=False)
    metrics = Metrics(pool, recorder)
    api.include_router(health.metrics_router(metrics, None, is_open=True))
    _answer_with_problems(api)
    return Bounds(api, _bodies(settings), root_path="")


def _bodies(settings: Settings) -> BodyReader:
    return BodyReader(
        limit_bytes=settings.body_limit_bytes,
        all_limit_bytes=settings.buffer_limit_bytes,
        timeout_seconds=settings.body_timeout_seconds,
    )


async def _console(request: Request) -> RedirectResponse:
    return RedirectResponse(f"{request.scope['root_path']}/console/", 303)


async def _no_console() -> None:
    raise Rejected(
        404, "console-off", "The console is not on here: see DRAFTGATE_API_TOKEN, and the role."
    )


def _answer_with_problems(api: FastAPI) -> None:
    api.add_exception_handler(HTTPException, _http_problem)
    api.add_exception_handler(RequestValidationError, _validation_problem)
    api.add_exception_handler(Rejected, _refusal)
    api.add_exception_handler(Exception, _broken)
    for error in DATABASE_ERRORS:
        api.add_exception_handler(error, _unavailable)


async def _http_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "refused")
    return problem(Rejected(error.status_code, code, str(error.detail)), headers=error.headers)


async def _validation_problem(_: Request, error: Exception) -> JSONResponse:
    return problem(Rejected(422, "parameters-invalid", "A parameter can't be used as it was sent."))


async def _refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Rejected)
    return problem(error, headers=_SAYS.get(error.status))


async def _broken(_: Request, error: Exception) -> JSONResponse:
    # The error itself goes on from here, to the log.
    return problem(Rejected(500, "internal", "An error of ours; it is in the log."))


async def _unavailable(_: Request, error: Exception) -> JSONResponse:
    log.warning("request.unavailable", error=reason(error))
    refused = Rejected(503, "unavailable", "The database can't be used now.")
    return problem(refused, headers={"Retry-After": "1"})
