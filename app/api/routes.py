"""The routes. Each reads, or does one thing that `app.operate` knows."""

import base64
import json
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, Header, Query, Response

from app import operate
from app import why as ask
from app.api import models
from app.api.access import (
    Actor,
    After,
    Conn,
    Desked,
    DryRun,
    Limit,
    Number,
    OfStory,
    Text,
    require_token,
)
from app.api.models import CONFLICT, MISSING, PROBLEMS, Done, Page
from app.db import hooks, installations, look, stats
from app.db.connect import Connection
from app.db.events import Replay
from app.errors import Rejected
from app.machine import Status
from app.model import EventStatus, OwedStatus
from app.operate import Action, Plan

router = APIRouter(
    prefix="/api/v1", dependencies=[Depends(require_token)], responses=PROBLEMS, tags=["operators"]
)
DOES = MISSING | CONFLICT


class Bytes(Response):
    """What is to be kept, not looked at."""

    media_type = "application/octet-stream"


class Window(StrEnum):
    """How far back figures go."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


_BUCKETS = {
    Window.HOUR: (timedelta(minutes=1), 60),
    Window.DAY: (timedelta(hours=1), 24),
    Window.WEEK: (timedelta(hours=6), 28),
}


@router.get("/sessions", operation_id="list_sessions")
async def list_sessions(
    conn: Conn,
    after: After,
    story: OfStory,
    status: Status | None = None,
    workspace: Text | None = None,
    words: Annotated[
        Text | None, Query(description="Words of the title, or their beginnings.")
    ] = None,
    limit: Limit = 50,
) -> Page[models.Session]:
    """Sessions, the last moved first."""
    wanted: dict[str, Any] = {
        "status": status,
        "sc_id": story,
        "workspace": workspace,
        "words": words,
    }
    page = await look.sessions(conn, after=after, limit=limit, **wanted)
    return Page[models.Session].of(page)


@router.get("/sessions/{session_id}", operation_id="get_session", responses=MISSING)
async def get_session(conn: Conn, session_id: Number) -> models.SessionDetail:
    """One session with all that belongs to it."""
    row = await _session(conn, session_id)
    of_story = {"sc_id": row["sc_id"], "workspace": row["workspace"]}
    return models.SessionDetail(
        **row,
        actions=operate.possible(row),
        timeline=await look.timeline(conn, session_id),
        conversation=await look.conversation(conn, session_id),
        claims=await look.claims(conn, session_id),
        events=(await look.events(conn, **of_story)).rows,
        outbox=await look.owed(conn, session_id),
        drafts=await look.drafts(conn, session_id),
        late_results=await look.late_results(conn, session_id),
    )


@router.post("/sessions/{session_id}/{action}", operation_id="act_on_session", responses=DOES)
async def act_on_session(
    conn: Conn,
    at: Desked,
    who: Actor,
    session_id: Number,
    action: Action,
    generation: Annotated[Number | None, Query(description="`adopt`: which late result.")] = None,
    dry_run: DryRun = False,
) -> Done:
    """Retry, release, close or reopen a session, or adopt a late result as its draft."""
    plan = operate.plan(await _session(conn, session_id), action)
    if _only_planned(plan, dry_run=dry_run):
        return Done(plan=plan.text, done=False)
    if not await operate.act(conn, session_id, action, actor=who, generation=generation):
        _conflict("There is nothing of the kind now; nothing was changed.")
    at.ring()
    return Done(plan=plan.text, done=True)


@router.get("/events", operation_id="list_events")
async def list_events(
    conn: Conn,
    after: After,
    story: OfStory,
    status: EventStatus | None = None,
    workspace: Text | None = None,
    limit: Limit = 50,
) -> Page[models.Event]:
    """Events, the newest first; `workspace` counts together with `story`."""
    page = await look.events(
        conn, status=status, sc_id=story, workspace=workspace, after=after, limit=limit
    )
    return Page[models.Event].of(page)


@router.get("/events/{event_id}", operation_id="get_event", responses=MISSING)
async def get_event(conn: Conn, event_id: Number) -> models.EventDetail:
    """One event with its outcome, its headers and its exact bytes."""
    row = await _event(conn, event_id)
    body: bytes = row.pop("body")
    return models.EventDetail(
        **{**row, "headers": json.loads(row["headers"])},
        body_text=body.decode(errors="backslashreplace"),
        body_base64=base64.b64encode(body).decode(),
        replays=await look.replays(conn, event_id),
    )


@router.get(
    "/events/{event_id}/body",
    operation_id="get_event_body",
    response_class=Bytes,
    responses=MISSING,
)
async def get_event_body(conn: Conn, event_id: Number) -> Response:
    """The exact bytes that were signed."""
    row = await _event(conn, event_id)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return Bytes(row["body"], headers=headers)


@router.post("/events/{event_id}/replay", operation_id="replay_event", responses=DOES)
async def replay_event(
    conn: Conn,
    at: Desked,
    who: Actor,
    event_id: Number,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=128, description="Makes a request sent twice one replay."),
    ] = None,
    dry_run: DryRun = False,
) -> Done:
    """Have an event interpreted again, as if it had just come in."""
    row = await _event(conn, event_id)
    plan = operate.plan_replay(row)
    # What is pending may be so by this very request, sent before: its key tells.
    is_pending = row["status"] == EventStatus.PENDING
    if (dry_run or not is_pending) and _only_planned(plan, dry_run=dry_run):
        return Done(plan=plan.text, done=False)
    done = await operate.replay(conn, event_id, actor=who, nonce=idempotency_key)
    if done is Replay.PENDING:
        _conflict(f"Event {event_id} is pending: it will be interpreted anyway.")
    at.ring()
    return Done(plan=plan.text, done=True)


@router.get("/outbox", operation_id="list_outbox")
async def list_outbox(
    conn: Conn, after: After, status: OwedStatus | None = None, limit: Limit = 50
) -> Page[models.Comment]:
    """Comments that are or were owed to stories, the newest first."""
    page = await look.outbox(conn, status=status, after=after, limit=limit)
    return Page[models.Comment].of(page)


@router.get("/outbox/{comment}", operation_id="get_outbox", responses=MISSING)
async def get_outbox(conn: Conn, comment: Number) -> models.CommentDetail:
    """One owed comment with its text."""
    return models.CommentDetail(**await _owed(conn, comment))


@router.post("/outbox/{comment}/retry", operation_id="retry_outbox", responses=DOES)
async def retry_outbox(
    conn: Conn, at: Desked, who: Actor, comment: Number, dry_run: DryRun = False
) -> Done:
    """Send a comment that was given up; none is ever posted twice."""
    plan = operate.plan_resend(await _owed(conn, comment))
    if _only_planned(plan, dry_run=dry_run):
        return Done(plan=plan.text, done=False)
    if not await operate.resend(conn, [comment], actor=who):
        _conflict("It is not failed now; nothing was changed.")
    at.ring()
    return Done(plan=plan.text, done=True)


@router.get("/stats", operation_id="stats")
async def get_stats(conn: Conn, window: Window = Window.DAY) -> models.Stats:
    """What waits at each stage, where sessions stand, and what came in over time."""
    bucket, buckets = _BUCKETS[window]
    deliveries = await stats.deliveries(conn, bucket=bucket, buckets=buckets)
    return models.Stats.model_validate(
        {
            "backlog": [asdict(stage) for stage in await stats.backlog(conn)],
            "sessions": await stats.sessions_by_status(conn, list(Status)),
            "bucket_seconds": bucket.total_seconds(),
            "deliveries": [asdict(counted) for counted in deliveries.buckets],
            "counted_every": deliveries.every,
        }
    )


@router.get("/settings", operation_id="list_settings")
async def list_settings(at: Desked) -> list[models.Setting]:
    """The settings in force in this process, and where each comes from; no secret is shown."""
    return [models.Setting.model_validate(asdict(setting)) for setting in at.in_force]


@router.get("/hooks", operation_id="list_hooks")
async def list_hooks(conn: Conn) -> list[models.Hook]:
    """Webhooks that were registered from here, and how they were last seen."""
    return [models.Hook.model_validate(asdict(it)) for it in await hooks.all_of_them(conn)]


@router.get("/installations", operation_id="list_installations")
async def list_installations(conn: Conn) -> list[models.Installation]:
    """Workspaces that have installed the agent app; no token is shown."""
    found = await installations.all_of_them(conn)
    return [models.Installation.model_validate(asdict(it)) for it in found]


@router.post("/installations/link", operation_id="make_install_link", responses=MISSING)
async def make_install_link(at: Desked) -> models.InstallLink:
    """A link by which a workspace's admin installs the agent app; good once, for ten minutes."""
    return models.InstallLink(url=await at.install_link())


@router.post("/installations/disconnect", operation_id="disconnect", responses=MISSING)
async def disconnect(conn: Conn, who: Actor, workspace: Text, dry_run: DryRun = False) -> Done:
    """Forget a workspace's tokens: nothing is read or written there any more."""
    plan = await operate.plan_disconnect(conn, workspace)
    done = plan is not None and not dry_run
    if plan is None or (done and not await operate.disconnect(conn, workspace, actor=who)):
        raise Rejected(404, "not-found", "There is no such installation.")
    return Done(plan=plan.text, done=done)


@router.get("/why", operation_id="why")
async def get_why(conn: Conn, at: Desked, story: OfStory) -> models.Why:
    """Why did nothing happen? All that was delivered about a story, and what now."""
    if story is None:
        raise Rejected(422, "story-invalid", "`story` is missing: its number or link.")
    return models.Why.model_validate(asdict(await ask.why(conn, story, at.settings)))


def _only_planned(plan: Plan, *, dry_run: bool) -> bool:
    if not plan.possible:
        _conflict(plan.text)
    return dry_run


def _conflict(detail: str) -> NoReturn:
    raise Rejected(409, "not-possible", detail)


def _found(row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None:
        raise Rejected(404, "not-found", "There is none with this number.")
    return row


async def _session(conn: Connection, session_id: int) -> dict[str, Any]:
    return _found(await look.session_by_id(conn, session_id))


async def _event(conn: Connection, event_id: int) -> dict[str, Any]:
    return _found(await look.event(conn, event_id))


async def _owed(conn: Connection, comment: int) -> dict[str, Any]:
    return _found(await look.outbox_entry(conn, comment))
