"""The console as an application of its own, below `/console`: its errors are pages too."""

import time
from collections.abc import AsyncIterator, Mapping
from functools import partial

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import operate
from app.api.access import Desk, Desked
from app.api.guard import Attempts
from app.console import access, actions, pages
from app.console.access import Form, Signed, SignedForm, SignInRequired
from app.console.render import HERE, page
from app.db.connect import DATABASE_ERRORS, reason
from app.errors import Rejected
from app.live import Shared

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not `no-referrer`: with it browsers do not say either from where a form of ours comes.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
STREAM_SECONDS = 600

log = structlog.get_logger(__name__)


class Guarded:
    """Adds to every answer what keeps browsers from doing more with it than to show it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        static = scope["path"].startswith(f"{scope['root_path']}/static/")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["Cache-Control"] = "no-cache" if static else "no-store"
            await send(message)

        await self._app(scope, receive, guarded)


def create_console(desk: Desk) -> ASGIApp:
    """The console's pages; to be mounted at `/console`."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.desk = desk
    app.state.attempts = Attempts()
    app.state.overview = Shared(partial(pages.figures, desk.pool))
    app.include_router(pages.router)
    app.include_router(actions.router)
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=HERE / "static"))
    app.add_exception_handler(SignInRequired, _sign_in_required)
    app.add_exception_handler(Rejected, _refused)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _refused)
    for error in DATABASE_ERRORS:
        app.add_exception_handler(error, _unavailable)
    return Guarded(app)


router = APIRouter(default_response_class=HTMLResponse)


@router.get("/login")
async def login_page(request: Request, next: str = "") -> HTMLResponse:
    """Where one signs in."""
    wanted = access.local(next, request.scope["root_path"])
    return page(request, "login.html", None, next=wanted, fault=None)


@router.post("/login")
async def login(request: Request, desk: Desked, form: Form) -> Response:
    """Signs in whoever has the token."""
    attempts: Attempts = request.app.state.attempts
    address = desk.guard.address(request)
    attempts.admit(address)
    wanted = access.local(form.get("next", ""), request.scope["root_path"])
    if not desk.guard.is_token(form.get("token", "")):
        attempts.failed(address)
        log.warning("console.refused", client=address)
        fault = "This is not the token."
        return page(request, "login.html", None, status_code=403, next=wanted, fault=fault)
    response = RedirectResponse(wanted, 303)
    access.sign_in(request, desk, response, form.get("name", "")[: operate.LONGEST_NAME])
    return response


@router.post("/logout")
async def logout(request: Request, form: SignedForm) -> RedirectResponse:
    """Signs out."""
    response = RedirectResponse(f"{request.scope['root_path']}/login", 303)
    access.sign_out(request, response)
    return response


async def _admit_watcher(desk: Desked, visitor: Signed) -> None:
    desk.live.admit()


@router.get("/stream", dependencies=[Depends(_admit_watcher)], response_class=EventSourceResponse)
async def stream(desk: Desked) -> AsyncIterator[ServerSentEvent]:
    """What changes, as server-sent events: after how many milliseconds to look, and the topics.

    They are separated by spaces; without topics it is a beat.

    It ends after a while: the browser comes back, and is asked again who it is.
    """
    ends_at = time.monotonic() + STREAM_SECONDS
    async for topics in desk.live.watch():
        pace = str(round(desk.live.pace_seconds * 1000))
        yield ServerSentEvent(raw_data=" ".join([pace, *sorted(topics)]), event="change")
        if time.monotonic() > ends_at:
            return


async def _sign_in_required(request: Request, _: Exception) -> Response:
    if request.method == "GET" and not request.url.path.endswith("/stream"):
        return access.to_sign_in(request)
    return _fault(request, 401, "Sign in first.")


async def _refused(request: Request, error: Exception) -> Response:
    match error:
        case Rejected():
            return _fault(request, error.status, error.detail)
        case HTTPException():
            return _fault(request, error.status_code, str(error.detail), error.headers)
        case _:
            return _fault(request, 422, "The address is not one of the console's.")


async def _unavailable(request: Request, error: Exception) -> Response:
    log.warning("request.unavailable", error=reason(error))
    return _fault(request, 503, "The database can't be used now.")


def _fault(
    request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a page; it shows nothing of what was asked for."""
    response = page(request, "fault.html", None, status_code=status, code=status, detail=detail)
    response.headers.update(headers or {})
    if status in (429, 503):
        response.headers["Retry-After"] = "60" if status == 429 else "1"
    return response
