"""The state machine of a patch session: everything about which move leads where is in this file.

The drawing in docs/design.md is made from it, and tests hold the SQL in app/db against it.
"""

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    """Where a session stands. The values are those of `patch_sessions.status`."""

    OPENED = "opened"
    ASKING = "asking"
    CLARIFYING = "clarifying"
    CLARIFIED = "clarified"
    DRAFTING = "drafting"
    DRAFTED = "drafted"
    FAILED = "failed"
    CLOSED = "closed"


class Move(StrEnum):
    """What can happen to a session. The values are those of `timeline.move`."""

    OPEN = "open"
    ASK = "ask"
    QUESTION = "question"
    ANSWER = "answer"
    CLEAR = "clear"
    CLAIM = "claim"
    COMPLETE = "complete"
    RELEASE = "release"
    EXPIRE = "expire"
    FAIL = "fail"
    REVISE = "revise"
    ADOPT = "adopt"
    RETRY = "retry"
    CLOSE = "close"


class Phase(StrEnum):
    """Work that is done under a claim."""

    CLARIFY = "clarify"
    DRAFT = "draft"


TRANSITIONS: Mapping[Status, Mapping[Move, Status]] = {
    Status.OPENED: {
        Move.ASK: Status.ASKING,
        Move.CLEAR: Status.CLARIFIED,
        Move.CLOSE: Status.CLOSED,
    },
    Status.ASKING: {
        Move.QUESTION: Status.CLARIFYING,
        Move.CLEAR: Status.CLARIFIED,
        Move.RELEASE: Status.OPENED,
        Move.EXPIRE: Status.OPENED,
        Move.FAIL: Status.FAILED,
        Move.CLOSE: Status.CLOSED,
    },
    Status.CLARIFYING: {
        Move.ANSWER: Status.OPENED,
        Move.CLEAR: Status.CLARIFIED,
        Move.CLOSE: Status.CLOSED,
    },
    Status.CLARIFIED: {
        Move.CLAIM: Status.DRAFTING,
        Move.ADOPT: Status.DRAFTED,
        Move.CLOSE: Status.CLOSED,
    },
    Status.DRAFTING: {
        Move.COMPLETE: Status.DRAFTED,
        Move.QUESTION: Status.CLARIFYING,
        Move.RELEASE: Status.CLARIFIED,
        Move.EXPIRE: Status.CLARIFIED,
        Move.FAIL: Status.FAILED,
        Move.CLOSE: Status.CLOSED,
    },
    Status.DRAFTED: {
        Move.REVISE: Status.CLARIFIED,
        Move.ADOPT: Status.DRAFTED,
        Move.CLOSE: Status.CLOSED,
    },
    Status.FAILED: {
        Move.RETRY: Status.CLARIFIED,
        Move.ADOPT: Status.DRAFTED,
        Move.CLOSE: Status.CLOSED,
    },
    Status.CLOSED: {
        Move.OPEN: Status.OPENED,
    },
}

#: What a phase claims, and what the row is while the claim is held.
READY: Mapping[Phase, Status] = {Phase.CLARIFY: Status.OPENED, Phase.DRAFT: Status.CLARIFIED}
OWNED: Mapping[Phase, Status] = {Phase.CLARIFY: Status.ASKING, Phase.DRAFT: Status.DRAFTING}


def as_mermaid() -> str:
    """The machine as a Mermaid state diagram."""
    arrows = [
        f"    {before} --> {after}: {move}"
        for before, moves in TRANSITIONS.items()
        for move, after in moves.items()
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Status.OPENED}: {Move.OPEN}", *arrows])
