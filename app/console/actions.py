"""What an operator does: a page that says what will happen, and the form that does it."""

from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from app import operate
from app.api.access import Desked, Number, Text
from app.console.access import Signed, SignedForm
from app.console.pages import session_of, shortcut
from app.console.render import page
from app.db import look
from app.db.connect import take
from app.errors import Rejected
from app.operate import Action, Plan

router = APIRouter(default_response_class=HTMLResponse)
Generation = Annotated[Number | None, Query()]


@router.get("/sessions/{number}/{action}")
async def plan_action(
    request: Request,
    desk: Desked,
    visitor: Signed,
    number: Number,
    action: Action,
    generation: Generation = None,
) -> HTMLResponse:
    """What the action will do to the session."""
    async with take(desk.pool) as conn:
        plan = operate.plan(await session_of(conn, number), action)
    return _ask(request, visitor, plan, action, f"sessions/{number}")


@router.post("/sessions/{number}/{action}")
async def act(
    request: Request,
    desk: Desked,
    visitor: Signed,
    form: SignedForm,
    number: Number,
    action: Action,
    generation: Generation = None,
) -> RedirectResponse:
    """Does it."""
    async with take(desk.pool) as conn:
        await session_of(conn, number)
        done = await operate.act(conn, number, action, actor=visitor.actor, generation=generation)
    if not done:
        raise Rejected(409, "not-possible", "This is not possible now; nothing was changed.")
    desk.ring()
    return _back(request, f"sessions/{number}")


@router.get("/events/{number}/replay")
async def plan_replay(
    request: Request, desk: Desked, visitor: Signed, number: Number
) -> HTMLResponse:
    """What a replay will do."""
    async with take(desk.pool) as conn:
        event = await look.event(conn, number)
    if event is None:
        raise Rejected(404, "not-found", "There is no such event.")
    return _ask(request, visitor, operate.plan_replay(event), "replay", f"events/{number}")


@router.post("/events/{number}/replay")
async def replay(
    request: Request, desk: Desked, visitor: Signed, form: SignedForm, number: Number
) -> RedirectResponse:
    """Replays it, once for each time the page was asked for."""
    try:
        nonce = str(UUID(form.get("nonce", "")))
    except ValueError:
        raise Rejected(400, "form-invalid", "The form is not one of ours.") from None
    async with take(desk.pool) as conn:
        done = await operate.replay(conn, number, actor=visitor.actor, nonce=nonce)
    if done is None:
        raise Rejected(404, "not-found", "There is no such event.")
    desk.ring()
    return _back(request, f"events/{number}")


@router.get("/outbox/{number}/retry")
async def plan_resend(
    request: Request, desk: Desked, visitor: Signed, number: Number
) -> HTMLResponse:
    """What sending it again will do."""
    async with take(desk.pool) as conn:
        entry = await look.outbox_entry(conn, number)
    if entry is None:
        raise Rejected(404, "not-found", "There is no such comment.")
    return _ask(request, visitor, operate.plan_resend(entry), "send again", f"outbox/{number}")


@router.post("/outbox/{number}/retry")
async def resend(
    request: Request, desk: Desked, visitor: Signed, form: SignedForm, number: Number
) -> RedirectResponse:
    """Sends it again."""
    async with take(desk.pool) as conn:
        done = await operate.resend(conn, [number], actor=visitor.actor)
    if not done:
        raise Rejected(409, "not-possible", "This comment is not failed; nothing was changed.")
    desk.ring()
    return _back(request, f"outbox/{number}")


@router.get("/installations/disconnect")
async def plan_disconnect(
    request: Request, desk: Desked, visitor: Signed, workspace: Text
) -> HTMLResponse:
    """What disconnecting a workspace will do."""
    async with take(desk.pool) as conn:
        plan = await operate.plan_disconnect(conn, workspace)
    if plan is None:
        raise Rejected(404, "not-found", "There is no such installation.")
    return _ask(request, visitor, plan, "disconnect", "installations")


@router.post("/installations/disconnect")
async def disconnect(
    request: Request, desk: Desked, visitor: Signed, form: SignedForm, workspace: Text
) -> RedirectResponse:
    """Disconnects it."""
    async with take(desk.pool) as conn:
        done = await operate.disconnect(conn, workspace, actor=visitor.actor)
    if not done:
        raise Rejected(404, "not-found", "There is no such installation.")
    return _back(request, "installations")


@router.post("/installations/link")
async def begin(request: Request, desk: Desked, visitor: Signed, form: SignedForm) -> HTMLResponse:
    """Makes a link by which a workspace's admin installs the agent app.

    Shown, not gone to: that admin may be somebody else, and no form of ours may lead elsewhere.
    """
    return await shortcut(request, desk, visitor, link=await desk.install_link())


def _ask(
    request: Request,
    visitor: Signed,
    plan: Plan,
    action: str,
    back: str,
) -> HTMLResponse:
    shown: dict[str, Any] = {"plan": plan, "action": action, "back": back}
    return page(request, "confirm.html", visitor, nonce=str(uuid4()), **shown)


def _back(request: Request, to: str) -> RedirectResponse:
    return RedirectResponse(f"{request.scope['root_path']}/{to}", 303)
