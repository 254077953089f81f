"""What an operator may do, by hand, over the API or in the console: what it will do, and doing it.

Each action is one guarded statement that tells the timeline who did it; what the database's state
does not allow is not done, however it looked when the operator chose it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

import structlog

from app import words
from app.db import events, gate, installations, look, outbox, sessions
from app.db.connect import Connection
from app.db.events import Replay
from app.db.gate import Comment
from app.machine import OWNED, TRANSITIONS, Move, Status
from app.model import Draft, EventStatus, OwedStatus
from app.shortcut import envelope

#: The most characters of an operator's name that are kept.
LONGEST_NAME = 100

log = structlog.get_logger(__name__)


class Action(StrEnum):
    """What can be done to a session."""

    RETRY = "retry"
    RELEASE = "release"
    CLOSE = "close"
    REOPEN = "reopen"
    ADOPT = "adopt"
    UNMUTE = "unmute"


@dataclass(frozen=True, slots=True)
class Plan:
    """What an action will do, as a sentence; or, where it is not possible, why not."""

    text: str
    possible: bool


_MOVES: Mapping[Action, Move] = {
    Action.RETRY: Move.RETRY,
    Action.RELEASE: Move.RELEASE,
    Action.CLOSE: Move.CLOSE,
    Action.REOPEN: Move.OPEN,
    Action.ADOPT: Move.ADOPT,
}
_WILL: Mapping[Action, str] = {
    Action.RETRY: "It will be drafted again, with fresh attempts.",
    Action.RELEASE: "It will be taken from its worker, whose result will count for nothing, and "
    "another one will start over.",
    Action.CLOSE: "It will be closed until its story asks for a patch again.",
    Action.REOPEN: "It will be opened again and drafted, unless its story is gone or done.",
    Action.ADOPT: "The late result will become its next draft and be posted on the story.",
}


def actor(name: str) -> str:
    """An operator, as timelines name one."""
    kept = "".join(c if c.isprintable() else " " for c in name).strip()[:LONGEST_NAME]
    return f"operator {kept}" if kept else "operator"


def allows(action: Action) -> Collection[Status]:
    """Where a session must stand for the action; anywhere, for one that is no move."""
    if action not in _MOVES:
        return set(Status)
    return {status for status, moves in TRANSITIONS.items() if _MOVES[action] in moves}


def possible(session: Mapping[str, Any]) -> list[Action]:
    """What can be done to a session, as it was read."""
    return [action for action in Action if _is_possible(session, action)]


def _is_possible(session: Mapping[str, Any], action: Action) -> bool:
    if action is Action.UNMUTE:
        return session["muted_at"] is not None
    return session["status"] in allows(action)


def plan(session: Mapping[str, Any], action: Action) -> Plan:
    """What the action will do to a session, as it was read."""
    stands = f"sc-{session['sc_id']} is {session['status']}."
    if action is Action.UNMUTE:
        return _plan_unmute(session)
    if session["status"] not in allows(action):
        wanted = " or ".join(sorted(allows(action)))
        return Plan(f"{stands} This is for what is {wanted}.", False)
    will = _WILL[action]
    if action is Action.CLOSE and session["status"] in OWNED.values():
        will = f"Its worker, {session['claimed_by']}, will be stopped. {will}"
    return Plan(f"{stands} {will}", True)


def _plan_unmute(session: Mapping[str, Any]) -> Plan:
    story = f"sc-{session['sc_id']}"
    if session["muted_at"] is None:
        return Plan(f"{story} is not muted.", False)
    return Plan(f"{story} is muted. What is owed to it will be sent; comments count again.", True)


async def act(
    conn: Connection,
    session_id: int,
    action: Action,
    *,
    actor: str,
    generation: int | None = None,
) -> bool:
    """Does it; False: the session does not allow it now. `generation` names a late result."""
    match action:
        case Action.RETRY:
            return await sessions.retry(conn, session_id, actor=actor)
        case Action.RELEASE:
            return await sessions.take_away(conn, session_id, actor=actor)
        case Action.CLOSE:
            return await sessions.close(conn, session_id, actor=actor)
        case Action.REOPEN:
            return await sessions.reopen(conn, session_id, actor=actor)
        case Action.ADOPT:
            return await _adopt(conn, session_id, generation, actor=actor)
        case Action.UNMUTE:
            return await sessions.unmute(conn, session_id, actor=actor)


async def _adopt(conn: Connection, session_id: int, generation: int | None, *, actor: str) -> bool:
    rows = await look.late_results(conn, session_id)
    result = next((row for row in rows if row["generation"] == generation), None)
    session = await look.session_by_id(conn, session_id)
    if result is None or session is None or generation is None:
        return False
    draft = Draft(summary=result["summary"], patch=result["patch"])
    key = f"draftgate:adopted:{uuid4()}:g{generation}"
    text = words.draft(session["revision"] + 1, draft)
    owed = Comment(key=key, kind="draft", text=text)
    return await gate.adopt(conn, session_id, generation, actor=actor, comment=owed)


def plan_replay(event: Mapping[str, Any]) -> Plan:
    """What a replay will do to an event, as it was read."""
    if event["status"] == EventStatus.PENDING:
        return Plan(f"Event {event['id']} is pending: it will be interpreted anyway.", False)
    defect = envelope.read(event["source"], event["body"], ()).defect
    if defect is not None:
        return Plan(f"Event {event['id']} can't be read by this version either: {defect}.", False)
    about = ", ".join(f"sc-{number}" for number in event["sc_ids"]) or "no story that is known"
    return Plan(
        f"Event {event['id']} was {event['status']}: {event['reason']}. It is about {about}. It "
        "will be interpreted again with the settings of now; what is older than a session's last "
        "decision, or done already, changes nothing.",
        True,
    )


async def replay(
    conn: Connection, event_id: int, *, actor: str, nonce: str | None = None
) -> Replay | None:
    """Has an event interpreted again; None: there is no such event.

    A nonce of 1 to 128 characters makes a request that is sent twice one replay. A new request
    runs, however often the event ran before; a redelivery stays a duplicate.
    """
    row = await look.event(conn, event_id)
    if row is not None and row["status"] == EventStatus.QUARANTINED:
        await events.read_anew(conn, event_id, envelope.read(row["source"], row["body"], ()))
    return await events.replay(conn, event_id, nonce=nonce or str(uuid4()), actor=actor)


async def plan_disconnect(conn: Connection, workspace: str) -> Plan | None:
    """What forgetting an installation will do; None if the app is not installed there."""
    found = [it for it in await installations.all_of_them(conn) if it.workspace == workspace]
    if not found:
        return None
    will = "Its tokens will be forgotten: nothing is read or written there any more."
    return Plan(f"{found[0].slug}: {will} Uninstall the app in Shortcut, too.", True)


async def disconnect(conn: Connection, workspace: str, *, actor: str) -> bool:
    """Forgets an installation; False if the app is not installed there."""
    done = await installations.disconnect(conn, workspace)
    if done:
        log.warning("installation.disconnected", workspace=workspace, actor=actor)
    return done


def plan_resend(entry: Mapping[str, Any]) -> Plan:
    """What a retry will do to an owed comment, as it was read."""
    stands = f"Comment {entry['id']} for sc-{entry['sc_id']} is {entry['status']}."
    if entry["status"] != OwedStatus.FAILED:
        return Plan(f"{stands} This is for what is failed.", False)
    will = "It will be sent again, unless it is on the story already."
    return Plan(f"{stands} {will} The last error was: {entry['last_error']}", True)


async def resend(conn: Connection, numbers: Sequence[int], *, actor: str) -> list[int]:
    """Has comments that were given up sent again; those that were not failed are left out."""
    return await outbox.retry(conn, numbers, actor=actor)
