"""The pages that are read. Each takes a connection for as long as it asks, and no longer."""

import asyncio
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app import operate
from app.api.access import After, Number
from app.console import diff, drawing
from app.console.render import Visit, Visiting
from app.db import hooks, installations, look, stats
from app.db.connect import Connection, Pool, take
from app.db.look import Row
from app.errors import Rejected
from app.live import Shared
from app.machine import Status
from app.model import EventStatus, OwedStatus
from app.operate import Action
from app.shortcut.values import story_number
from app.why import why as ask

BUCKET, BUCKETS = timedelta(minutes=30), 48
#: Rows of each list on the first page, of a list that has pages, and of each on a session's page.
FEW, PAGE, HISTORY = 5, 50, 100
#: The most bytes of a body that are shown.
SHOWN_BYTES = 128 * 1024

router = APIRouter(default_response_class=HTMLResponse)
T = TypeVar("T")
Known = TypeVar("Known", bound=StrEnum)


@router.get("/")
async def overview(visit: Visiting) -> HTMLResponse:
    """What waits for whom, and what goes wrong."""
    shared: Shared[dict[str, Any]] = visit.request.app.state.overview
    found = await shared.get()
    bars, highest = drawing.chart(found["deliveries"].buckets)
    return visit.page("overview.html", bars=bars, highest=highest, **found)


async def figures(pool: Pool) -> dict[str, Any]:
    """What the first page shows."""
    async with take(pool) as conn:
        return await _figures(conn)


async def _figures(conn: Connection) -> dict[str, Any]:
    async def some(status: Status) -> list[Row]:
        return (await look.sessions(conn, status=status, limit=FEW)).rows

    return {
        "dead_hooks": [it for it in await hooks.all_of_them(conn) if it.status != "alive"],
        "revoked": [it for it in await installations.all_of_them(conn) if it.status != "active"],
        "backlog": await stats.backlog(conn),
        "statuses": await stats.sessions_by_status(conn, list(Status)),
        "deliveries": await stats.deliveries(conn, bucket=BUCKET, buckets=BUCKETS),
        "last_received_at": await look.last_received_at(conn),
        "working": [*await some(Status.DRAFTING), *await some(Status.ASKING)],
        "asked": await some(Status.CLARIFYING),
        "failed": await some(Status.FAILED),
        "failed_events": (await look.events(conn, status=EventStatus.FAILED, limit=FEW)).rows,
        "failed_comments": (await look.outbox(conn, status=OwedStatus.FAILED, limit=FEW)).rows,
    }


@router.get("/sessions")
async def sessions(
    visit: Visiting, after: After, status: str = "", story: str = ""
) -> HTMLResponse:
    """Sessions, the last moved first; `story` is a number, a link, or words of a title."""
    chosen, sc_id = _one_of(Status, status), story_number(story)
    words = story.replace("\0", " ").strip() if sc_id is None else None
    wanted: dict[str, Any] = {"status": chosen, "sc_id": sc_id, "words": words or None}
    async with take(visit.desk.pool) as conn:
        found = await look.sessions(conn, **wanted, after=after, limit=PAGE)
    shown = {"status": chosen, "story": sc_id or words, "statuses": list(Status), "sc_id": sc_id}
    return visit.page("sessions.html", rows=found.rows, next=found.next, **shown)


@router.get("/find")
async def find(visit: Visiting, story: str = "") -> RedirectResponse:
    """Leads to the story's session, or to why it has none, or to the titles with these words."""
    sc_id, to = story_number(story), f"sessions?{urlencode({'story': story})}"
    if sc_id is not None:
        async with take(visit.desk.pool) as conn:
            rows = await look.session(conn, sc_id, workspace=None)
        to = f"sessions/{rows[0]['id']}" if len(rows) == 1 else f"why?story={sc_id}"
    return visit.to(to)


@router.get("/sessions/{number}")
async def session(
    visit: Visiting, number: Number, view: str = "unified", history: str = ""
) -> HTMLResponse:
    """One session with all that belongs to it, and its last draft."""
    limit = look.LONGEST_HISTORY if history == "all" else HISTORY
    async with take(visit.desk.pool) as conn:
        row = await session_of(conn, number)
        found = await _belongings(conn, row, limit)
    last = found["last"]
    boxes, arrows = drawing.machine(Status(row["status"]))
    return visit.page(
        "session.html",
        session=row,
        actions=[action for action in operate.possible(row) if action != Action.ADOPT],
        adoptable=Action.ADOPT in operate.possible(row),
        patch=await asyncio.to_thread(diff.read, last["patch"]) if last else None,
        view=view,
        boxes=boxes,
        arrows=arrows,
        **found,
    )


async def _belongings(conn: Connection, row: Row, limit: int) -> dict[str, Any]:
    number = row["id"]
    of_story = {"sc_id": row["sc_id"], "workspace": row["workspace"]}
    timeline = await look.timeline(conn, number, limit=limit)
    return {
        "timeline": timeline,
        "cut": len(timeline) == limit,
        "conversation": await look.conversation(conn, number, limit=limit),
        "claims": await look.claims(conn, number, limit=limit),
        "events": (await look.events(conn, **of_story, limit=PAGE)).rows,
        "outbox": await look.owed(conn, number, limit=limit),
        "drafts": await look.revisions(conn, number),
        "last": await look.draft(conn, number, row["revision"]),
        "late_results": await look.late_results(conn, number),
    }


@router.get("/sessions/{number}/drafts/{revision}")
async def draft(
    visit: Visiting, number: Number, revision: Number, view: str = "unified"
) -> HTMLResponse:
    """One draft."""
    async with take(visit.desk.pool) as conn:
        row = await session_of(conn, number)
        made = existing(await look.draft(conn, number, revision), "draft")
    patch = await asyncio.to_thread(diff.read, made["patch"])
    return visit.page("draft.html", session=row, draft=made, patch=patch, view=view)


@router.get("/sessions/{number}/drafts/{revision}/patch")
async def patch(visit: Visiting, number: Number, revision: Number) -> Response:
    """A draft's patch as a file, for `git apply`."""
    async with take(visit.desk.pool) as conn:
        row = await session_of(conn, number)
        made = existing(await look.draft(conn, number, revision), "draft")
    return _file(made["patch"].encode(), f"sc-{row['sc_id']}-{revision}.patch")


@router.get("/sessions/{number}/late/{generation}")
async def late_result(
    visit: Visiting, number: Number, generation: Number, view: str = "unified"
) -> HTMLResponse:
    """What a worker made after it had lost its claim."""
    async with take(visit.desk.pool) as conn:
        row = await session_of(conn, number)
        rows = await look.late_results(conn, number)
    made = existing(next((r for r in rows if r["generation"] == generation), None), "late result")
    patch = await asyncio.to_thread(diff.read, made["patch"])
    return visit.page("draft.html", session=row, draft=made, patch=patch, view=view)


@router.get("/events")
async def events(visit: Visiting, after: After, status: str = "", story: str = "") -> HTMLResponse:
    """Events, the newest first."""
    chosen, sc_id = _one_of(EventStatus, status), _story(story)
    async with take(visit.desk.pool) as conn:
        found = await look.events(conn, status=chosen, sc_id=sc_id, after=after, limit=PAGE)
    shown = {"status": chosen, "story": sc_id, "statuses": list(EventStatus)}
    return visit.page("events.html", rows=found.rows, next=found.next, **shown)


@router.get("/events/{number}")
async def event(visit: Visiting, number: Number) -> HTMLResponse:
    """One event: what became of it, and its exact bytes."""
    async with take(visit.desk.pool) as conn:
        row = existing(await look.event(conn, number), "event")
        about = await look.sessions_of_event(conn, number)
        replays = await look.replays(conn, number)
    text = row["body"][:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    shown = {"text": text, "cut": len(row["body"]) > SHOWN_BYTES}
    return visit.page("event.html", event=row, about=about, replays=replays, **shown)


@router.get("/events/{number}/body")
async def body(visit: Visiting, number: Number) -> Response:
    """The bytes that were signed, as a file."""
    async with take(visit.desk.pool) as conn:
        row = existing(await look.event(conn, number), "event")
    return _file(row["body"], f"event-{number}.bin")


@router.get("/outbox")
async def outbox(visit: Visiting, after: After, status: str = "") -> HTMLResponse:
    """Comments that are or were owed, the newest first."""
    chosen = _one_of(OwedStatus, status)
    async with take(visit.desk.pool) as conn:
        found = await look.outbox(conn, status=chosen, after=after, limit=PAGE)
    shown = {"status": chosen, "statuses": list(OwedStatus)}
    return visit.page("outbox.html", rows=found.rows, next=found.next, **shown)


@router.get("/outbox/{number}")
async def owed(visit: Visiting, number: Number) -> HTMLResponse:
    """One owed comment with its text."""
    async with take(visit.desk.pool) as conn:
        row = existing(await look.outbox_entry(conn, number), "comment")
    return visit.page("owed.html", entry=row)


@router.get("/why")
async def why(visit: Visiting, story: str = "") -> HTMLResponse:
    """Why did nothing happen?"""
    sc_id, answer = _story(story), None
    if sc_id is not None:
        async with take(visit.desk.pool) as conn:
            answer = await ask(conn, sc_id, visit.desk.settings)
    return visit.page("why.html", story=sc_id, answer=answer)


@router.get("/installations")
async def installs(visit: Visiting) -> HTMLResponse:
    """Webhooks that are watched, and workspaces that have installed the agent app."""
    return await shortcut(visit, link=None)


@router.get("/settings")
async def settings(visit: Visiting) -> HTMLResponse:
    """The settings in force in this process."""
    return visit.page("settings.html", settings=visit.desk.in_force)


async def shortcut(visit: Visit, *, link: str | None) -> HTMLResponse:
    """What connects us with Shortcut; with a link that begins an installation, if one was made."""
    async with take(visit.desk.pool) as conn:
        watched, installed = await hooks.all_of_them(conn), await installations.all_of_them(conn)
    has_app = visit.desk.settings.oauth_client_id is not None
    shown = {"hooks": watched, "installations": installed}
    return visit.page("installs.html", has_app=has_app, link=link, **shown)


async def session_of(conn: Connection, number: int) -> Row:
    """The session; raises Rejected where there is none."""
    return existing(await look.session_by_id(conn, number), "session")


def existing(it: T | None, what: str) -> T:
    """It; raises Rejected where there is none."""
    if it is None:
        raise Rejected(404, "not-found", f"There is no such {what}.")
    return it


def _one_of(known: type[Known], text: str) -> Known | None:
    """The chosen one; nothing for an empty field, or where none is meant."""
    try:
        return known(text) if text else None
    except ValueError:
        raise Rejected(422, "status-invalid", "There is no such status.") from None


def _story(text: str) -> int | None:
    number = story_number(text.strip()) if text.strip() else None
    if text.strip() and number is None:
        raise Rejected(422, "story-invalid", "That is no story's number or link.")
    return number


def _file(content: bytes, name: str) -> Response:
    disposition = f'attachment; filename="{name}"'
    return Response(
        content, media_type="application/octet-stream", headers={"Content-Disposition": disposition}
    )
