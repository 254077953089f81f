"""Version 4 of the REST API, as far as the service reads it: fields, cursors, wrapped entities."""

import base64
import binascii
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request
from starlette.datastructures import QueryParams

from app.simulator import views_v4 as views
from app.simulator.api import Sim
from app.simulator.deliveries import Json
from app.simulator.records import AGENT, STATES, STATES_BY_ID, TEAM, TEAM_ID, URL_SLUG
from app.simulator.simulation import Simulation
from app.simulator.workspace import NotFound

#: A page as small as the API's own default, so that whoever reads has to follow links.
PAGE = 10

router = APIRouter(prefix="/api/v4")
Fields = Annotated[str, Query()]


async def _granted(sim: Sim, authorization: Annotated[str, Header()] = "") -> Simulation:
    if not sim.oauth.accepts(authorization):
        raise HTTPException(401, "Unauthorized")
    return sim


async def _here(slug: str, sim: Annotated[Simulation, Depends(_granted)]) -> Simulation:
    if slug != URL_SLUG:
        raise HTTPException(404, "Resource not found.")
    return sim


Granted = Annotated[Simulation, Depends(_granted)]
Here = Annotated[Simulation, Depends(_here)]


@router.get("/whoami")
async def whoami(_: Granted, fields: Fields = "") -> Json:
    return _one(views.whoami(AGENT), fields)


@router.get("/{slug}/stories/{sc_id}")
async def get_story(sim: Here, sc_id: int, fields: Fields = "") -> Json:
    return _one(views.story(sim.workspace.story(sc_id), sim.workspace), fields)


@router.get("/{slug}/stories/{sc_id}/comments")
async def list_comments(request: Request, sim: Here, sc_id: int, fields: Fields = "") -> Json:
    sim.workspace.story(sc_id)
    rows = [views.comment(it) for it in sim.workspace.comments_of(sc_id)]
    return _page(request, rows, fields)


@router.get("/{slug}/stories/{sc_id}/comments/{comment_id}")
async def get_comment(sim: Here, sc_id: int, comment_id: int, fields: Fields = "") -> Json:
    return _one(views.comment(sim.workspace.comment(sc_id, comment_id)), fields)


@router.get("/{slug}/labels")
async def list_labels(request: Request, sim: Here, fields: Fields = "") -> Json:
    return _page(request, [views.label(it) for it in sim.workspace.labels.values()], fields)


@router.get("/{slug}/labels/{label_id}")
async def get_label(sim: Here, label_id: int, fields: Fields = "") -> Json:
    return _one(views.label(sim.workspace.label(label_id)), fields)


@router.get("/{slug}/workflow-states")
async def list_states(request: Request, sim: Here, fields: Fields = "") -> Json:
    return _page(request, [views.state(it) for it in STATES], fields)


@router.get("/{slug}/workflow-states/{state_id}")
async def get_state(sim: Here, state_id: int, fields: Fields = "") -> Json:
    if state_id not in STATES_BY_ID:
        raise NotFound("state")
    return _one(views.state(STATES_BY_ID[state_id]), fields)


@router.get("/{slug}/teams/{team_id}/members")
async def list_team_members(request: Request, _: Here, team_id: str, fields: Fields = "") -> Json:
    if team_id != TEAM_ID:
        raise NotFound("team")
    return _page(request, [views.member(it) for it in TEAM], fields)


def _one(entity: Json, fields: str) -> Json:
    return {"$schema": "https://simulated.example/schema", "entity": _chosen(entity, fields)}


def _chosen(entity: Json, fields: str) -> Json:
    """These fields alone, all without any; one that is not there is a 400."""
    wanted = [name.strip() for name in fields.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in entity]
    if unknown:
        raise HTTPException(400, f"There is no field {unknown[0]}.")
    return {name: entity[name] for name in wanted} if wanted else entity


def _page(request: Request, rows: Iterable[Json], fields: str) -> Json:
    """The part that the cursor asks for; beside a cursor only `fields` may be named."""
    query = request.query_params
    if "cursor" in query and set(query) - {"cursor", "fields"}:
        raise HTTPException(400, "A cursor stands alone.")
    start, size = _position(query)
    every = [_chosen(row, fields) for row in rows]
    page: Json = {
        "$schema": "https://simulated.example/schema",
        "entities": every[start : start + size],
        "current_items": len(every[start : start + size]),
        "current_page": start // size + 1,
        "total_items": len(every),
        "total_pages": max(-(-len(every) // size), 1),
    }
    if start + size < len(every):
        cursor = base64.urlsafe_b64encode(f"{start + size}:{size}".encode()).decode()
        link = request.url.replace(query="").include_query_params(cursor=cursor)
        page["next_page_url"] = str(link.include_query_params(fields=fields) if fields else link)
    return page


def _position(query: QueryParams) -> tuple[int, int]:
    try:
        if "cursor" in query:
            start, of = base64.urlsafe_b64decode(query["cursor"]).decode().split(":")
            return max(int(start), 0), min(max(int(of), 1), 100)
        size = int(query.get("limit", PAGE))
    except (ValueError, binascii.Error):
        raise HTTPException(400, "The cursor or the limit can't be read.") from None
    if not 1 <= size <= 100:
        raise HTTPException(400, "The limit is not within 1 to 100.")
    return 0, size
