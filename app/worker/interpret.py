"""Reads a recorded event as facts about stories. No I/O."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from app.model import Fact, FactKind, Interpretation, Known
from app.shortcut import v1, v2
from app.shortcut.envelope import parse
from app.shortcut.event import UNKNOWN_KIND, Event
from app.shortcut.values import identifier, mapping

#: How far a sender's clock may be ahead of ours.
_AHEAD = timedelta(minutes=5)

_NOTHING = {
    "validation": "a validation ping",
    "empty": "an empty body",
    "invalid": "a body that can't be read",
    "unknown": UNKNOWN_KIND,
    "v2:unknown": UNKNOWN_KIND,
}


def interpret(
    kind: str,
    body: bytes,
    *,
    workspace: str,
    received_at: datetime,
    occurred_at: datetime | None,
    known: Known,
) -> Interpretation:
    """What the event says of stories; `workspace` is the name where it doesn't say one itself."""
    payload = parse(body)
    if kind in _NOTHING or payload is None:
        return Interpretation(nothing=_NOTHING.get(kind, _NOTHING["invalid"]))
    if occurred_at is None or occurred_at > received_at + _AHEAD:
        occurred_at = received_at
    # No delivery of version 1 says its workspace; what was found in a history does.
    workspace = _said_workspace(payload) or workspace
    if kind == "v1":
        event = Event(payload, _shared(workspace, occurred_at, payload), known)
        return event.told(v1.facts(event))
    actor = mapping(payload.get("actor"))
    event = Event(payload, _shared(workspace, occurred_at, actor), known)
    return event.told(v2.observed(event) if kind == "v2:observer" else v2.triggered(event, kind))


def workspace_of(kind: str, body: bytes, workspace: str) -> str:
    """The workspace that the event is from; `workspace` where it doesn't say one itself."""
    payload = parse(body)
    return (payload and _said_workspace(payload)) or workspace


def _said_workspace(payload: Mapping[str, object]) -> str | None:
    return identifier(mapping(payload.get("workspace2")).get("id"))


def _shared(workspace: str, occurred_at: datetime, actor: Mapping[str, object]) -> Fact:
    """What all facts of an event have in common."""
    return Fact(
        workspace=workspace,
        sc_id=0,
        occurred_at=occurred_at,
        kind=FactKind.TOUCHED,
        actor=identifier(actor.get("member_id")),
    )
