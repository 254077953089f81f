"""What an operator does: a page that says what will happen, and the form that does it."""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from app import operate
from app.api.access import Desk, Desked, Number, Text
from app.console.access import Signed, SignedForm, Visitor
from app.console.pages import found, session_of, shortcut
from app.console.render import page
from app.db import look
from app.db.connect import take
from app.errors import Rejected
from app.operate import Action, Plan

router = APIRouter(default_response_class=HTMLResponse)
Generation = Annotated[Number | None, Query()]


@dataclass(frozen=True, slots=True)
class Operator:
    """Who wants something done, and how they are answered; `back` is a page of the console."""

    request: Request
    desk: Desk
    visitor: Visitor

    def ask(self, plan: Plan, action: str, back: str) -> HTMLResponse:
        """The page that says what will happen."""
        shown: dict[str, Any] = {"plan": plan, "action": action, "back": back}
        return page(self.request, "confirm.html", self.visitor, nonce=str(uuid4()), **shown)

    def done(self, back: str) -> RedirectResponse:
        """Has it noticed, and leads there."""
        self.desk.ring()
        return RedirectResponse(f"{self.request.scope['root_path']}/{back}", 303)


def _asking(request: Request, desk: Desked, visitor: Signed) -> Operator:
    return Operator(request, desk, visitor)


Asking = Annotated[Operator, Depends(_asking)]


def _acting(operator: Asking, _: SignedForm) -> Operator:
    return operator


#: With a form that this session was given.
Acting = Annotated[Operator, Depends(_acting)]


@router.get("/sessions/{number}/{action}")
async def plan_action(operator: Asking, number: Number, action: Action) -> HTMLResponse:
    """What the action will do to the session."""
    async with take(operator.desk.pool) as conn:
        plan = operate.plan(await session_of(conn, number), action)
    return operator.ask(plan, action, f"sessions/{number}")


@router.post("/sessions/{number}/{action}")
async def act(
    operator: Acting, number: Number, action: Action, generation: Generation = None
) -> RedirectResponse:
    """Does it."""
    actor = operator.visitor.actor
    async with take(operator.desk.pool) as conn:
        await session_of(conn, number)
        done = await operate.act(conn, number, action, actor=actor, generation=generation)
    if not done:
        raise Rejected(409, "not-possible", "This is not possible now; nothing was changed.")
    return operator.done(f"sessions/{number}")


@router.get("/events/{number}/replay")
async def plan_replay(operator: Asking, number: Number) -> HTMLResponse:
    """What a replay will do."""
    async with take(operator.desk.pool) as conn:
        event = found(await look.event(conn, number), "event")
    return operator.ask(operate.plan_replay(event), "replay", f"events/{number}")


@router.post("/events/{number}/replay")
async def replay(operator: Acting, form: SignedForm, number: Number) -> RedirectResponse:
    """Replays it, once for each time the page was asked for."""
    try:
        nonce = str(UUID(form.get("nonce", "")))
    except ValueError:
        raise Rejected(400, "form-invalid", "The form is not one of ours.") from None
    async with take(operator.desk.pool) as conn:
        actor = operator.visitor.actor
        found(await operate.replay(conn, number, actor=actor, nonce=nonce), "event")
    return operator.done(f"events/{number}")


@router.get("/outbox/{number}/retry")
async def plan_resend(operator: Asking, number: Number) -> HTMLResponse:
    """What sending it again will do."""
    async with take(operator.desk.pool) as conn:
        entry = found(await look.outbox_entry(conn, number), "comment")
    return operator.ask(operate.plan_resend(entry), "send again", f"outbox/{number}")


@router.post("/outbox/{number}/retry")
async def resend(operator: Acting, number: Number) -> RedirectResponse:
    """Sends it again."""
    async with take(operator.desk.pool) as conn:
        done = await operate.resend(conn, [number], actor=operator.visitor.actor)
    if not done:
        raise Rejected(409, "not-possible", "This comment is not failed; nothing was changed.")
    return operator.done(f"outbox/{number}")


@router.get("/installations/disconnect")
async def plan_disconnect(operator: Asking, workspace: Text) -> HTMLResponse:
    """What disconnecting a workspace will do."""
    async with take(operator.desk.pool) as conn:
        plan = found(await operate.plan_disconnect(conn, workspace), "installation")
    return operator.ask(plan, "disconnect", "installations")


@router.post("/installations/disconnect")
async def disconnect(operator: Acting, workspace: Text) -> RedirectResponse:
    """Disconnects it."""
    async with take(operator.desk.pool) as conn:
        done = await operate.disconnect(conn, workspace, actor=operator.visitor.actor)
    if not done:
        raise Rejected(404, "not-found", "There is no such installation.")
    return operator.done("installations")


@router.post("/installations/link")
async def begin(operator: Acting) -> HTMLResponse:
    """Makes a link by which a workspace's admin installs the agent app.

    Shown, not gone to: that admin may be somebody else, and no form of ours may lead elsewhere.
    """
    desk, link = operator.desk, await operator.desk.install_link()
    return await shortcut(operator.request, desk, operator.visitor, link=link)
