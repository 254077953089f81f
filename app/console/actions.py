"""What an operator does: a page that says what will happen, and the form that does it."""

from typing import Annotated
from uuid import UUID, uuid4

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, RedirectResponse

from app import operate
from app.api.access import Number, Text
from app.console.access import SignedForm
from app.console.pages import existing, session_of, shortcut
from app.console.render import Visit, Visiting
from app.db import look
from app.db.connect import take
from app.errors import Rejected
from app.operate import Action, Plan

router = APIRouter(default_response_class=HTMLResponse)
Generation = Annotated[Number | None, Query()]


def _signed(visit: Visiting, _: SignedForm) -> Visit:
    return visit


#: With a form that this very session was given.
Acting = Annotated[Visit, Depends(_signed)]


@router.get("/sessions/{number}/{action}")
async def plan_action(visit: Visiting, number: Number, action: Action) -> HTMLResponse:
    """What the action will do to the session."""
    async with take(visit.desk.pool) as conn:
        plan = operate.plan(await session_of(conn, number), action)
    return _ask(visit, plan, action, f"sessions/{number}")


@router.post("/sessions/{number}/{action}")
async def act(
    visit: Acting, number: Number, action: Action, generation: Generation = None
) -> RedirectResponse:
    """Does it."""
    actor = visit.visitor.actor
    async with take(visit.desk.pool) as conn:
        await session_of(conn, number)
        done = await operate.act(conn, number, action, actor=actor, generation=generation)
    if not done:
        raise Rejected(409, "not-possible", "This is not possible now; nothing was changed.")
    return _done(visit, f"sessions/{number}")


@router.get("/events/{number}/replay")
async def plan_replay(visit: Visiting, number: Number) -> HTMLResponse:
    """What a replay will do."""
    async with take(visit.desk.pool) as conn:
        event = existing(await look.event(conn, number), "event")
    return _ask(visit, operate.plan_replay(event), "replay", f"events/{number}")


@router.post("/events/{number}/replay")
async def replay(visit: Acting, form: SignedForm, number: Number) -> RedirectResponse:
    """Replays it, once for each time the page was asked for."""
    try:
        nonce = str(UUID(form.get("nonce", "")))
    except ValueError:
        raise Rejected(400, "form-invalid", "The form is not one of ours.") from None
    async with take(visit.desk.pool) as conn:
        actor = visit.visitor.actor
        existing(await operate.replay(conn, number, actor=actor, nonce=nonce), "event")
    return _done(visit, f"events/{number}")


@router.get("/outbox/{number}/retry")
async def plan_resend(visit: Visiting, number: Number) -> HTMLResponse:
    """What sending it again will do."""
    async with take(visit.desk.pool) as conn:
        entry = existing(await look.outbox_entry(conn, number), "comment")
    return _ask(visit, operate.plan_resend(entry), "send again", f"outbox/{number}")


@router.post("/outbox/{number}/retry")
async def resend(visit: Acting, number: Number) -> RedirectResponse:
    """Sends it again."""
    async with take(visit.desk.pool) as conn:
        done = await operate.resend(conn, [number], actor=visit.visitor.actor)
    if not done:
        raise Rejected(409, "not-possible", "This comment is not failed; nothing was changed.")
    return _done(visit, f"outbox/{number}")


@router.get("/installations/disconnect")
async def plan_disconnect(visit: Visiting, workspace: Text) -> HTMLResponse:
    """What disconnecting a workspace will do."""
    async with take(visit.desk.pool) as conn:
        plan = existing(await operate.plan_disconnect(conn, workspace), "installation")
    return _ask(visit, plan, "disconnect", "installations")


@router.post("/installations/disconnect")
async def disconnect(visit: Acting, workspace: Text) -> RedirectResponse:
    """Disconnects it."""
    async with take(visit.desk.pool) as conn:
        done = await operate.disconnect(conn, workspace, actor=visit.visitor.actor)
    if not done:
        raise Rejected(404, "not-found", "There is no such installation.")
    return _done(visit, "installations")


@router.post("/installations/link")
async def begin(visit: Acting) -> HTMLResponse:
    """Makes a link by which a workspace's admin installs the agent app.

    Shown, not gone to: that admin may be somebody else, and no form of ours may lead elsewhere.
    """
    return await shortcut(visit, link=await visit.desk.install_link())


def _ask(visit: Visit, plan: Plan, action: str, back: str) -> HTMLResponse:
    nonce = str(uuid4())
    return visit.page("confirm.html", plan=plan, action=action, back=back, nonce=nonce)


def _done(visit: Visit, back: str) -> RedirectResponse:
    visit.desk.ring()
    return visit.to(back)
