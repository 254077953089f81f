"""Why did nothing happen? All that was delivered about a story, what came of it, and what now."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.db import look
from app.db.connect import Connection
from app.db.look import Row
from app.machine import Move, Status
from app.model import EventStatus, OwedStatus
from app.settings import Settings

#: The newest events about a story that are shown.
MOST_EVENTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known of a story.

    Attributes:
        verdict: where it stands, and whether the story was told of it.
        go_on: what would make it go on.
        sessions: one at most, unless workspaces share the number.
        comments: what the story was to be told and has not been, each with its own `go_on`.
        events: the newest first, each with its own `go_on`.
        more_events: there are older ones that are not among them.
    """

    sc_id: int
    verdict: str
    go_on: str
    sessions: list[Row]
    comments: list[Row]
    events: list[Row]
    more_events: bool


async def why(conn: Connection, sc_id: int, settings: Settings) -> Answer:
    """Everything that was delivered about the story, with outcome, reason and what helps.

    Events that could not be read, or have not been yet, are found by the number in their text.
    """
    sessions = await look.session(conn, sc_id, workspace=None)
    page = await look.events(conn, sc_id=sc_id, limit=MOST_EVENTS)
    unread = await look.mentions(conn, sc_id)
    events = sorted([*unread, *page.rows], key=lambda row: -row["id"])
    comments: list[Row] = []
    if sessions:
        session = sessions[-1]
        moves = await look.timeline(conn, session["id"])
        closings = [it["reason"] for it in moves if it["move"] == Move.CLOSE]
        verdict, go_on = of_session(session, closings[-1] if closings else None)
        owed = await look.owed(conn, session["id"])
        unsent = [it for it in owed if it["status"] != OwedStatus.SENT]
        comments = [{**it, "go_on": of_comment(it, muted=session["muted_at"])} for it in unsent]
        verdict = _with_the_unsent(verdict, comments)
    else:
        verdict, go_on = _without_session(sc_id, events, await look.last_received_at(conn))
        go_on = f"{go_on} {triggers(settings)}"
    return Answer(
        sc_id=sc_id,
        verdict=verdict,
        go_on=go_on,
        sessions=sessions,
        comments=comments,
        events=[{**event, "go_on": of_event(event, opened=bool(sessions))} for event in events],
        more_events=page.next is not None,
    )


def of_session(session: Mapping[str, Any], closing: str | None) -> tuple[str, str]:
    """Where a session stands, and what would make it go on; the closing's reason is its last."""
    story = f"sc-{session['sc_id']}"
    if session["muted_at"]:
        said = f"{story} is muted since {_time(session['muted_at'])}: too many comments in an hour."
        return said, "See whom they answered, then use `draftgate sessions unmute`."
    return _of_status(session, story, closing)


def _of_status(session: Mapping[str, Any], story: str, closing: str | None) -> tuple[str, str]:
    match Status(session["status"]):
        case Status.OPENED:
            return f"{story} waits for a worker to read it.", _waiting(session)
        case Status.ASKING | Status.DRAFTING:
            since = _time(session["claimed_at"])
            said = f"A worker, {session['claimed_by']}, has been at {story} since {since}."
            return said, "Nothing to do; if it hangs, `draftgate sessions release` takes it away."
        case Status.CLARIFYING:
            return f"Questions were asked on {story}.", "Answer them with a comment on the story."
        case Status.CLARIFIED:
            return f"{story} waits for a worker to draft it.", _waiting(session)
        case Status.DRAFTED:
            said = f"Draft {session['revision']} of {story} was made; see its outbox."
            return said, "Reply to the draft, or comment `/revise`, to have it drafted again."
        case Status.FAILED:
            said = f"{story} was given up: {session['last_error']}"
            return said, "Mend that, then comment `/retry`, or use `draftgate sessions retry`."
        case Status.CLOSED:
            said = f"{story} was closed: {closing or 'by an operator'}."
            return said, "Ask for it again on the story, or use `draftgate sessions reopen`."


def of_comment(comment: Mapping[str, Any], *, muted: datetime | None) -> str:
    """What would make an owed comment go on."""
    match OwedStatus(comment["status"]):
        case OwedStatus.FAILED:
            return f"Mend the reason, then `draftgate outbox retry {comment['id']}`."
        case OwedStatus.PENDING if muted and comment["kind"] != "muted":
            return "It is posted once the story is unmuted."
        case OwedStatus.PENDING if comment["last_error"]:
            return f"It is tried again at {_time(comment['next_attempt_at'])}."
        case OwedStatus.PENDING:
            return "A worker with the API token posts it; if none does, none is running."
        case OwedStatus.SENDING | OwedStatus.SENT:
            return ""


def _with_the_unsent(verdict: str, comments: list[Row]) -> str:
    """The verdict, and that the story was not told of it."""
    given_up = [it for it in comments if it["status"] == OwedStatus.FAILED]
    if given_up:
        kinds = ", ".join(f"{it['kind']} (outbox {it['id']})" for it in given_up)
        return f"{verdict} The story could not be told: {kinds}. {given_up[-1]['go_on']}"
    waiting = [it for it in comments if it["last_error"]]
    if waiting:
        return f"{verdict} The story could not be told of it yet: {waiting[-1]['last_error']}."
    return verdict


def _waiting(session: Mapping[str, Any]) -> str:
    if session["stopping_until"]:
        until = _time(session["stopping_until"])
        return f"Its last worker is ending its work; the next may begin then, or at {until}."
    if session["last_error"]:
        next_at = _time(session["next_attempt_at"])
        return f"It is tried again at {next_at}; the last error was: {session['last_error']}"
    what = "a drafter" if session["status"] == Status.CLARIFIED else "the API token"
    return f"A worker with {what} must run: `draftgate doctor` says what is missing."


def _without_session(
    sc_id: int, events: list[Row], last_received_at: datetime | None
) -> tuple[str, str]:
    if events:
        return f"None of what was delivered about sc-{sc_id} has opened a session.", ""
    if last_received_at is None:
        said = "Nothing has ever been delivered."
    else:
        said = (
            f"Nothing about sc-{sc_id} was delivered; the last event about anything came at "
            f"{_time(last_received_at)}."
        )
    return said, "Look whether Shortcut's webhook is enabled and leads here."


def triggers(settings: Settings) -> str:
    """What opens a session, by the settings."""
    ways = [
        settings.trigger_label and f"gets the label {settings.trigger_label!r}",
        settings.trigger_owner and f"gets the owner {settings.trigger_owner}",
        settings.trigger_state and f"enters the state {settings.trigger_state!r}",
        settings.trigger_assigned and "has the agent assigned",
        settings.trigger_mentioned and "mentions the agent",
    ]
    named = [way for way in ways if way]
    if not named:
        return "By the settings, nothing opens a session: see DRAFTGATE_TRIGGER_LABEL."
    return f"A session opens when the story {' or '.join(named)}."


def of_event(event: Mapping[str, Any], *, opened: bool) -> str:
    """What would make this event go on; empty where there is nothing to be done."""
    match EventStatus(event["status"]):
        case EventStatus.PENDING if event["attempts"] > 0:
            return f"It is tried again at {_time(event['next_attempt_at'])}."
        case EventStatus.PENDING:
            return "A worker applies it; if none does, none is running."
        case EventStatus.FAILED:
            return f"Mend the reason, then `draftgate events replay {event['id']}`."
        case EventStatus.QUARANTINED:
            return "It can't be read, so whoever sent it must send something else."
        case EventStatus.IGNORED if not opened:
            return "It is nothing that opens a session by the settings."
        case EventStatus.APPLIED | EventStatus.IGNORED:
            return ""


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(" ", "seconds")
