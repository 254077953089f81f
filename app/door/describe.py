"""The webhook in the OpenAPI description, of which FastAPI, behind the door, knows nothing."""

from typing import Any

from fastapi import FastAPI

from app.api.models import refusals
from app.door.receive import PATH

_EXAMPLE = {
    "id": "595285dc-9c43-4b9c-a1e6-0cd9aff5b084",
    "changed_at": "2026-09-14T08:30:02.074Z",
    "version": "v1",
    "actions": [
        {
            "id": 16927,
            "entity_type": "story",
            "action": "update",
            "name": "Export invoices",
            "changes": {"label_ids": {"adds": [881]}},
        }
    ],
    "references": [{"id": 881, "entity_type": "label", "name": "patch"}],
}
_ANSWER = {
    "type": "object",
    "required": ["event_id"],
    "properties": {
        "event_id": {"type": ["string", "null"], "description": "The event's own id"},
        "duplicate": {"type": "boolean", "description": "It had been recorded before"},
        "spooled": {"type": "boolean", "description": "It waits on this machine's disk"},
    },
}
_NEW = {"event_id": _EXAMPLE["id"], "duplicate": False}
_SPOOLED = {"event_id": _EXAMPLE["id"], "spooled": True}
_REFUSALS = {
    400: "Signed, but not JSON: kept in quarantine. Or it offers an upgrade",
    401: "Not exactly one signature, or a wrong one",
    408: "The body took too long to arrive",
    413: "The body is too large",
    415: "The body is encoded",
    503: "It could not be committed: come back after `Retry-After`",
}


def describe_door(api: FastAPI) -> None:
    """Adds the webhook to the description of the app behind the door."""
    described = api.openapi

    def with_door() -> dict[str, Any]:
        document = described()
        document["paths"].setdefault(PATH, {"post": _operation()})
        return document

    api.openapi = with_door  # type: ignore[method-assign]


def _operation() -> dict[str, Any]:
    responses = refusals(_REFUSALS)
    for status, why, said in ((200, "Committed", _NEW), (202, "Spooled", _SPOOLED)):
        content = {"application/json": {"schema": _ANSWER, "example": said}}
        responses[status] = {"description": why, "content": content}
    return {
        "tags": ["webhook"],
        "operationId": "deliver",
        "summary": "Deliver an event",
        "description": "For Shortcut's webhooks, version 1 and 2. Answered after the commit.",
        "parameters": [
            {
                "name": "Payload-Signature",
                "in": "header",
                "required": True,
                "description": "HMAC-SHA-256 of the raw body, in hexadecimal digits",
                "schema": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}, "example": _EXAMPLE}},
        },
        "responses": {str(status): answer for status, answer in responses.items()},
    }
