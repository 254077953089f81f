"""The workspace as one small page: everything on it is a form, and nothing needs JavaScript."""

from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.simulator.api import Sim
from app.simulator.deliveries import Json
from app.simulator.forms import Form, Posted, text, who
from app.simulator.page_around import install_link
from app.simulator.records import AGENT, MEMBERS, PEOPLE, STATES, STATES_BY_ID

_HERE = Path(__file__).parent
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = Environment(
    loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
).get_template("page.html")

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(sim: Sim, every: int = 0) -> HTMLResponse:
    """The page; with `every`, it loads itself again after so many seconds."""
    workspace = sim.workspace
    html = _PAGE.render(
        stories=[
            (story, workspace.comments_of(story.id))
            for story in reversed(workspace.stories.values())
        ],
        labels=workspace.labels,
        states=STATES,
        state_names={state.id: state.name for state in STATES_BY_ID.values()},
        members=MEMBERS,
        people=PEOPLE,
        agent=AGENT,
        attempts=list(sim.deliverer.attempts)[-25:][::-1],
        waiting=sim.deliverer.waiting,
        sim=sim,
        install_link=install_link(sim),
        every=min(max(every, 0), 3600),
    )
    return HTMLResponse(html, headers=_HEADERS)


@router.get("/page.css")
async def style() -> FileResponse:
    return FileResponse(_HERE / "page.css", media_type="text/css")


@router.post("/page/stories")
async def create(sim: Sim, form: Posted) -> RedirectResponse:
    name = form.get("name", "").strip()
    if not name:
        raise HTTPException(400, "a story needs a name")
    fields = {
        "name": name[:512],
        "description": text(form.get("description", "")),
        "story_type": form.get("story_type", "feature"),
    }
    story = sim.workspace.create_story(who(form), fields)
    return _back_to(story.id)


@router.post("/page/stories/{sc_id}/labels")
async def label(sim: Sim, sc_id: int, form: Posted) -> RedirectResponse:
    name = form.get("name", "").strip()[:128]
    add = [name] if name and form.get("do") != "remove" else []
    remove = [name] if form.get("do") == "remove" else []
    sim.workspace.update_stories(who(form), [sc_id], {}, labels_add=add, labels_remove=remove)
    return _back_to(sc_id)


@router.post("/page/stories/{sc_id}/assign")
async def assign(sim: Sim, sc_id: int, form: Posted) -> RedirectResponse:
    others = [owner for owner in sim.workspace.story(sc_id).owner_ids if owner != AGENT.id]
    owners = others if form.get("do") == "remove" else [*others, AGENT.id]
    return _set(sim, sc_id, form, {"owner_ids": owners})


@router.post("/page/stories/{sc_id}/state")
async def move(sim: Sim, sc_id: int, form: Posted) -> RedirectResponse:
    chosen = form.get("state", "")
    state_id = int(chosen) if chosen.isascii() and chosen.isdigit() and len(chosen) < 12 else 0
    return _set(sim, sc_id, form, {"workflow_state_id": state_id})


@router.post("/page/stories/{sc_id}/archive")
async def archive(sim: Sim, sc_id: int, form: Posted) -> RedirectResponse:
    return _set(sim, sc_id, form, {"archived": form.get("do") != "remove"})


@router.post("/page/stories/{sc_id}/comments")
async def comment(sim: Sim, sc_id: int, form: Posted) -> RedirectResponse:
    said = text(form.get("text", "")).strip()
    if form.get("mention"):
        said = f"{AGENT.mention} {said}".strip()
    if not said:
        raise HTTPException(400, "a comment needs a text")
    parent = form.get("parent", "")
    known = parent.isascii() and parent.isdigit() and len(parent) < 19
    parent_id = int(parent) if known else None
    sim.workspace.add_comment(who(form), sc_id, said, parent_id=parent_id)
    return _back_to(sc_id)


@router.post("/page/stories/{sc_id}/comments/{comment_id}")
async def change_comment(sim: Sim, sc_id: int, comment_id: int, form: Posted) -> RedirectResponse:
    """Its author gives it another text, or deletes it."""
    author = MEMBERS[sim.workspace.comment(sc_id, comment_id).author_id]
    said = text(form.get("text", "")).strip()
    if form.get("do") == "delete":
        sim.workspace.delete_comment(author, sc_id, comment_id)
    elif said:
        sim.workspace.edit_comment(author, sc_id, comment_id, said)
    return _back_to(sc_id)


@router.post("/page/stories/{sc_id}/delete")
async def delete(sim: Sim, sc_id: int, form: Posted) -> RedirectResponse:
    sim.workspace.delete_story(who(form), sc_id)
    return RedirectResponse("/", 303)


@router.post("/page/reset")
async def reset(sim: Sim, form: Posted) -> RedirectResponse:
    sim.reset()
    return RedirectResponse("/", 303)


def _set(sim: Sim, sc_id: int, form: Form, fields: Json) -> RedirectResponse:
    sim.workspace.update_stories(who(form), [sc_id], fields)
    return _back_to(sc_id)


def _back_to(sc_id: int) -> RedirectResponse:
    return RedirectResponse(f"/#story-{sc_id}", 303)
