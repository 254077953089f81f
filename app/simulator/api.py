"""Version 3 of the REST API, as far as the service and its tests use it."""

import hmac
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from app.simulator import views
from app.simulator.bodies import (
    Bulk,
    CommentText,
    NewComment,
    NewIntegration,
    NewStory,
    Search,
    StoryFields,
)
from app.simulator.deliver import Hook
from app.simulator.deliveries import Json
from app.simulator.edit import Unprocessable
from app.simulator.records import AGENT, MEMBERS, TEAM, TEAM_ID, Member
from app.simulator.simulation import Simulation
from app.simulator.workspace import NotFound

router = APIRouter(prefix="/api/v3")


async def simulation_of(request: Request) -> Simulation:
    found: Simulation = request.app.state.simulation
    return found


Sim = Annotated[Simulation, Depends(simulation_of)]


async def _actor(
    sim: Sim,
    shortcut_token: Annotated[str | None, Header()] = None,
    authorization: Annotated[str, Header()] = "",
    sim_member: Annotated[str, Header()] = AGENT.id,
) -> Member:
    """Who asks: the agent, whose token it is, or whom the header `Sim-Member` names instead.

    A wrong `Shortcut-Token` is refused, even beside an access token that counts.
    """
    if shortcut_token is None and sim.oauth.accepts(authorization):
        return _member(sim_member)
    shortcut_token = shortcut_token or ""
    if not hmac.compare_digest(shortcut_token.encode(), sim.api_token.encode()):
        raise HTTPException(401, "Unauthorized")
    return _member(sim_member)


Actor = Annotated[Member, Depends(_actor)]


def install(app: FastAPI) -> None:
    """Adds the API and its way of saying that something is wrong."""
    app.include_router(router)
    app.add_exception_handler(NotFound, _not_found)
    app.add_exception_handler(Unprocessable, _unprocessable)
    app.add_exception_handler(RequestValidationError, _mismatch)
    app.add_exception_handler(StarletteHTTPException, _refused)


@router.post("/stories", status_code=201)
async def create_story(sim: Sim, actor: Actor, story: NewStory) -> Json:
    tasks = [task.description for task in story.tasks]
    made = sim.workspace.create_story(actor, story.chosen(), tasks=tasks)
    return views.story(made, sim.workspace)


@router.post("/stories/search", status_code=201)
async def search_stories(sim: Sim, actor: Actor, search: Search) -> list[Json]:
    stories = sim.workspace.stories.values()
    found = (it for it in stories if it.updated_at >= search.updated_at_start)
    return [views.slim(it, sim.workspace) for it in found]


@router.get("/stories/{sc_id}/history")
async def get_history(sim: Sim, actor: Actor, sc_id: int) -> list[Json]:
    return views.history(sim.workspace.history(sc_id))


@router.put("/stories/bulk")
async def update_stories(sim: Sim, actor: Actor, bulk: Bulk) -> list[Json]:
    stories = sim.workspace.update_stories(
        actor,
        bulk.story_ids,
        bulk.chosen(),
        labels_add=[label.name for label in bulk.labels_add],
        labels_remove=[label.name for label in bulk.labels_remove],
    )
    return [views.story(story, sim.workspace) for story in stories]


@router.get("/stories/{sc_id}")
async def get_story(sim: Sim, actor: Actor, sc_id: int) -> Json:
    return views.story(sim.workspace.story(sc_id), sim.workspace)


@router.put("/stories/{sc_id}")
async def update_story(sim: Sim, actor: Actor, sc_id: int, fields: StoryFields) -> Json:
    [story] = sim.workspace.update_stories(actor, [sc_id], fields.chosen())
    return views.story(story, sim.workspace)


@router.delete("/stories/{sc_id}", status_code=204)
async def delete_story(sim: Sim, actor: Actor, sc_id: int) -> None:
    sim.workspace.delete_story(actor, sc_id)


@router.get("/stories/{sc_id}/comments")
async def list_comments(sim: Sim, actor: Actor, sc_id: int) -> list[Json]:
    sim.workspace.story(sc_id)
    return [views.comment(comment) for comment in sim.workspace.comments_of(sc_id)]


@router.post("/stories/{sc_id}/comments", status_code=201)
async def create_comment(sim: Sim, actor: Actor, sc_id: int, comment: NewComment) -> Json:
    made = sim.workspace.add_comment(
        actor if comment.author_id is None else _member(comment.author_id),
        sc_id,
        comment.text,
        parent_id=comment.parent_id,
        external_id=comment.external_id,
    )
    return views.comment(made)


@router.get("/stories/{sc_id}/comments/{comment_id}")
async def get_comment(sim: Sim, actor: Actor, sc_id: int, comment_id: int) -> Json:
    return views.comment(sim.workspace.comment(sc_id, comment_id))


@router.put("/stories/{sc_id}/comments/{comment_id}")
async def update_comment(
    sim: Sim, actor: Actor, sc_id: int, comment_id: int, comment: CommentText
) -> Json:
    return views.comment(sim.workspace.edit_comment(actor, sc_id, comment_id, comment.text))


@router.delete("/stories/{sc_id}/comments/{comment_id}", status_code=204)
async def delete_comment(sim: Sim, actor: Actor, sc_id: int, comment_id: int) -> None:
    sim.workspace.delete_comment(actor, sc_id, comment_id)


@router.get("/labels")
async def list_labels(sim: Sim, actor: Actor) -> list[Json]:
    return [views.label(label) for label in sim.workspace.labels.values()]


@router.get("/labels/{label_id}")
async def get_label(sim: Sim, actor: Actor, label_id: int) -> Json:
    return views.label(sim.workspace.label(label_id))


@router.get("/workflows")
async def list_workflows(actor: Actor) -> list[Json]:
    return [views.workflow()]


@router.get("/member")
async def get_current_member(actor: Actor) -> Json:
    return views.current_member(actor)


@router.get("/members")
async def list_members(actor: Actor) -> list[Json]:
    return [views.member(member) for member in MEMBERS.values()]


@router.get("/groups/{group_id}")
async def get_group(actor: Actor, group_id: str) -> Json:
    if group_id != TEAM_ID:
        raise NotFound("group")
    return views.group(TEAM_ID, TEAM)


@router.post("/integrations/webhook", status_code=201)
async def create_integration(sim: Sim, actor: Actor, it: NewIntegration) -> Json:
    hook = Hook(url=it.webhook_url, secret=it.secret.encode())
    return views.integration(sim.register(actor, hook))


@router.get("/integrations/webhook/{integration_id}")
async def get_integration(sim: Sim, actor: Actor, integration_id: int) -> Json:
    return views.integration(sim.integration(integration_id))


@router.delete("/integrations/webhook/{integration_id}", status_code=204)
async def delete_integration(sim: Sim, actor: Actor, integration_id: int) -> None:
    del sim.integrations[sim.integration(integration_id).id]


def _member(member_id: str) -> Member:
    if member_id not in MEMBERS:
        raise Unprocessable("there is no such member")
    return MEMBERS[member_id]


async def _not_found(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"message": "Resource not found."}, 404)


async def _unprocessable(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"message": str(error)}, 422)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"message": error.detail}, error.status_code, error.headers)


async def _mismatch(_: Request, error: Exception) -> JSONResponse:
    """A body of the wrong shape, which version 3 answers with 400."""
    assert isinstance(error, RequestValidationError)
    wrong = [".".join(map(str, problem["loc"])) for problem in error.errors()]
    return JSONResponse({"message": "The request doesn't match.", "errors": wrong}, 400)
