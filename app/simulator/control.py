"""Endpoints that steer the simulator and show what it was told, for scripts and tests."""

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from app.simulator import views
from app.simulator.api import Sim
from app.simulator.deliveries import Json
from app.simulator.faults import Fault
from app.simulator.records import MEMBERS
from app.simulator.simulation import Simulation

#: Open to whoever can reach the simulator.
router = APIRouter(prefix="/sim")


class Disabled(BaseModel):
    disabled: bool


@router.get("/state")
async def state(sim: Sim, latest: Annotated[int, Query(ge=1, le=20_000)] = 200) -> Json:
    """Everything that the simulator knows; of deliveries and attempts the latest."""
    workspace = sim.workspace
    return {
        "stories": [views.story(story, workspace) for story in workspace.stories.values()],
        "labels": [views.label(label) for label in workspace.labels.values()],
        "members": [views.member(member) for member in MEMBERS.values()],
        "integrations": [views.integration(it) for it in sim.integrations.values()],
        "faults": sim.faults.pending,
        "deliveries": _deliveries(sim, latest),
    }


@router.post("/reset", status_code=204)
async def reset(sim: Sim) -> None:
    sim.reset()


@router.post("/faults")
async def add_faults(sim: Sim, faults: list[Fault] | Fault) -> list[Fault]:
    """Adds to what is to go wrong, and tells all of it."""
    sim.faults.pending += faults if isinstance(faults, list) else [faults]
    return sim.faults.pending


@router.delete("/faults", status_code=204)
async def clear_faults(sim: Sim) -> None:
    sim.faults.clear()


@router.post("/deliver-now")
async def deliver_now(sim: Sim, wait_seconds: Annotated[float, Query(ge=0, le=60)] = 10.0) -> Json:
    """Cuts delays short, and answers when everything is delivered or the time is up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_seconds):
            await sim.deliverer.deliver_now()
    return _deliveries(sim, latest=200)


@router.post("/ping", status_code=202)
async def ping(sim: Sim) -> None:
    """Sends the validation ping of an agent app."""
    if not sim.ping():
        raise HTTPException(409, "there is no webhook_url to send it to")


@router.post("/revoke", status_code=204)
async def revoke(sim: Sim) -> None:
    """Uninstalls the agent app: its tokens count no more, and nothing tells it so."""
    sim.oauth.revoke()


@router.put("/integrations/{integration_id}")
async def disable(sim: Sim, integration_id: int, it: Disabled) -> Json:
    """Disables a webhook, as Shortcut may do by itself, or enables it again."""
    integration = sim.integration(integration_id)
    integration.disabled = it.disabled
    return views.integration(integration)


def _deliveries(sim: Simulation, latest: int) -> Json:
    deliverer = sim.deliverer
    return {
        "waiting": deliverer.waiting,
        "counts": dict(deliverer.counts),
        "offered": [
            {"delivery": number, "kind": it.kind, "id": it.change_id, "bytes": len(it.body)}
            for number, it in list(deliverer.offered)[-latest:]
        ],
        "attempts": [asdict(attempt) for attempt in list(deliverer.attempts)[-latest:]],
    }
