"""What is around the workspace, on its page: webhooks, the agent app, and what goes wrong."""

from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode, urljoin

from fastapi import APIRouter, HTTPException
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from app.simulator.api import Sim
from app.simulator.bodies import NewIntegration
from app.simulator.deliver import Hook
from app.simulator.faults import Fault
from app.simulator.forms import Posted, filled_in, who
from app.simulator.simulation import Simulation

router = APIRouter(prefix="/page", include_in_schema=False)

Seconds = Annotated[float, Field(ge=0, le=600)]
Percent = Annotated[float, Field(ge=0, le=100)]


class Travel(BaseModel):
    """What the page can change of how deliveries travel; `Weather` explains it."""

    copies: Annotated[int, Field(ge=1, le=100)] = 1
    window_seconds: Seconds = 0.0
    delay_seconds: Seconds = 0.0
    jitter_seconds: Seconds = 0.0
    drop_percent: Percent = 0.0
    empty_percent: Percent = 0.0


@router.post("/webhooks")
async def register(sim: Sim, form: Posted) -> RedirectResponse:
    """Registers a webhook; without a secret, with the one that the simulator was given."""
    wanted = filled_in(NewIntegration, form)
    secret = wanted.secret.encode() or (sim.app_hook.secret if sim.app_hook else b"")
    sim.register(who(form), Hook(url=wanted.webhook_url, secret=secret))
    return _back_to("webhooks")


@router.post("/webhooks/{integration_id}")
async def change(sim: Sim, integration_id: int, form: Posted) -> RedirectResponse:
    """Disables a webhook, as Shortcut may do by itself, enables it again, or removes it."""
    integration = sim.integration(integration_id)
    if form.get("do") == "remove":
        del sim.integrations[integration_id]
    else:
        integration.disabled = form.get("do") == "disable"
    return _back_to("webhooks")


@router.post("/app")
async def agent_app(sim: Sim, form: Posted) -> RedirectResponse:
    """What can happen to the agent app's installation."""
    match form.get("do"):
        case "ping":
            sim.ping()
        case "expire":
            sim.oauth.expire()
        case "uninstall":
            sim.oauth.revoke()
        case "agree" | "refuse" as answer:
            sim.oauth.consents = answer == "agree"
        case _:
            raise HTTPException(400, "that can't be done to the app")
    return _back_to("app")


@router.post("/travel")
async def travel(sim: Sim, form: Posted) -> RedirectResponse:
    """How badly deliveries travel from now on."""
    chosen = filled_in(Travel, form)
    sim.deliverer.weather = replace(sim.deliverer.weather, **chosen.model_dump())
    return _back_to("travel")


@router.post("/faults")
async def fault(sim: Sim, form: Posted) -> RedirectResponse:
    """Adds a fault of the API, or takes all of them away."""
    if form.get("do") == "clear":
        sim.faults.clear()
    else:
        sim.faults.pending.append(filled_in(Fault, form))
    return _back_to("faults")


def install_link(sim: Simulation) -> str | None:
    """Begins an installation from within Shortcut, which sends a state of its own."""
    if sim.app_hook is None or not sim.oauth.client_secret:
        return None
    back = urljoin(sim.app_hook.url, "/oauth/shortcut/callback")
    query = urlencode({"client_id": sim.oauth.client_id, "redirect_uri": back, "state": "shortcut"})
    return f"/oauth-authorization-code-flow/code?{query}"


def _back_to(section: str) -> RedirectResponse:
    return RedirectResponse(f"/#{section}", 303)
