"""What the API answers with."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

from app.db.look import Page as Rows
from app.machine import Status
from app.model import EventStatus, HookStatus, InstallationStatus, OwedStatus

T = TypeVar("T")


class Problem(BaseModel):
    """An error, by RFC 9457."""

    type: str = "about:blank"
    title: str = Field(examples=["Conflict"])
    status: int = Field(examples=[409])
    detail: str = Field(examples=["sc-123 is drafted. This is for what is failed."])
    code: str = Field(examples=["not-possible"], description="Stable, to act on.")


class Page(BaseModel, Generic[T]):
    """A part of a list."""

    items: list[T]
    next: str | None = Field(examples=["1789372800000000-41"], description="`after` of the next.")

    @classmethod
    def of(cls, page: Rows) -> "Page[T]":
        return cls.model_validate({"items": page.rows, "next": page.next and str(page.next)})


class Session(BaseModel):
    """A patch session, as lists show it."""

    id: int = Field(examples=[41])
    workspace: str = Field(examples=["shortcut"])
    sc_id: int = Field(examples=[123], description="The story's public number.")
    title: str | None = Field(examples=["Export as CSV"])
    app_url: str | None = Field(examples=["https://app.shortcut.com/acme/story/123"])
    status: Status
    claim_generation: int = Field(examples=[2])
    claimed_by: str | None = Field(examples=["host:4242:1f2e3d4c"])
    claimed_at: datetime | None
    attempts: int = Field(examples=[0])
    crashes: int = Field(examples=[0])
    revision: int = Field(examples=[1], description="How many drafts were made.")
    last_error: str | None
    next_attempt_at: datetime
    created_at: datetime
    updated_at: datetime


class Told(BaseModel):
    """One entry of a session's timeline."""

    at: datetime
    move: str = Field(examples=["claim"])
    status: str = Field(examples=["drafting"])
    generation: int
    actor: str | None = Field(examples=["operator ada"])
    event_id: int | None
    reason: str | None


class Remark(BaseModel):
    """What a comment said; null once it is deleted."""

    comment_id: int
    author: str | None
    text: str | None
    said_at: datetime


class Claim(BaseModel):
    """Who owned the session, and what ended it; null while it is owned."""

    generation: int
    worker: str | None
    claimed_at: datetime
    ended_at: datetime | None
    ended_by: str | None = Field(examples=["complete"])
    reason: str | None


class Draft(BaseModel):
    """A draft."""

    revision: int
    generation: int
    summary: str
    patch: str
    cost_usd: float
    created_at: datetime


class LateResult(BaseModel):
    """What a worker made after it had lost its claim."""

    generation: int
    summary: str
    patch: str
    cost_usd: float
    created_at: datetime
    adopted_at: datetime | None


class Event(BaseModel):
    """A recorded event, as lists show it."""

    id: int = Field(examples=[7])
    source: str = Field(examples=["shortcut"])
    kind: str = Field(examples=["v1"])
    event_id: str | None = Field(examples=["6a2f0000-0000-4000-8000-000000000001"])
    status: EventStatus
    reason: str | None = Field(examples=["the label is not 'patch'"])
    attempts: int
    next_attempt_at: datetime
    occurred_at: datetime | None
    received_at: datetime
    sc_ids: list[int] = Field(examples=[[123]])


class Replay(BaseModel):
    """Who had an event interpreted again."""

    at: datetime
    actor: str


class EventDetail(Event):
    """One event with all that was kept of it."""

    headers: dict[str, str]
    body_text: str = Field(description="As UTF-8; other bytes are written as \\x…")
    body_base64: str = Field(description="The exact bytes that were signed.")
    replays: list[Replay]


class ExplainedEvent(Event):
    """An event, and what would make it go on."""

    go_on: str


class Owed(BaseModel):
    """A comment that a session owes its story."""

    id: int = Field(examples=[12])
    kind: str = Field(examples=["draft"])
    status: OwedStatus
    attempts: int
    next_attempt_at: datetime
    last_error: str | None
    comment_id: int | None = Field(description="The comment, once it is on the story.")
    created_at: datetime
    sent_at: datetime | None


class Comment(Owed):
    """An owed comment and whose it is."""

    session_id: int
    workspace: str
    sc_id: int


class ExplainedComment(Owed):
    """An owed comment, and what would make it go on."""

    go_on: str


class CommentDetail(Comment):
    """The same with its text."""

    key: str
    text: str


class SessionDetail(Session):
    """One session with the newest of all that belongs to it, oldest first."""

    description: str | None
    prior_status: Status | None
    claim_expires_at: datetime | None
    progressed_at: datetime | None
    stopping_until: datetime | None = Field(
        description="A worker that lost its claim ends its work; it is waited for until then."
    )
    muted_at: datetime | None = Field(description="Since when nothing is said on the story.")
    interruptions: int
    cost_usd: float
    decided_at: datetime
    actions: list[str] = Field(examples=[["retry", "close"]], description="What can be done now.")
    timeline: list[Told]
    conversation: list[Remark]
    claims: list[Claim]
    events: list[Event] = Field(description="The newest first.")
    outbox: list[Owed]
    drafts: list[Draft]
    late_results: list[LateResult]


class Done(BaseModel):
    """What an action does, and whether it was done."""

    plan: str = Field(examples=["sc-123 is failed. It will be drafted again, …"])
    done: bool = Field(description="False for a dry run.")


class Why(BaseModel):
    """Why nothing happened to a story, or what did."""

    sc_id: int
    verdict: str = Field(examples=["sc-123 was given up: the drafter exited with 1"])
    go_on: str = Field(examples=["Mend that, then comment `/retry`."])
    sessions: list[Session]
    comments: list[ExplainedComment] = Field(description="What the story has not been told.")
    events: list[ExplainedEvent]
    more_events: bool


class Setting(BaseModel):
    """A setting as it is in force in the process that answers."""

    variable: str = Field(examples=["DRAFTGATE_LEASE_SECONDS"])
    value: str | None = Field(
        examples=["60.0"], description="Null where it is not set; of a secret only that it is set."
    )
    default: str | None = Field(examples=["60"], description="Null where there is none.")
    origin: str = Field(examples=["the environment"], description="Where it comes from.")
    meaning: str


class InstallLink(BaseModel):
    """Where an admin of a workspace installs the agent app."""

    url: str = Field(examples=["https://api.app.shortcut.com/oauth-authorization-code-flow/code?…"])


class Hook(BaseModel):
    """A webhook that was registered from here."""

    source: str = Field(examples=["shortcut"])
    integration_id: int = Field(examples=[7], description="Its number in Shortcut.")
    retired_id: int | None = Field(description="The one before it, until it is deleted.")
    url: str = Field(examples=["https://draftgate.example/webhooks/shortcut"])
    status: HookStatus
    error: str | None = Field(description="Why it could not be looked at the last time.")
    registered_at: datetime
    checked_at: datetime | None


class Installation(BaseModel):
    """A workspace that has installed the agent app."""

    workspace: str = Field(examples=["5f2a7a4e-0b7d-4a43-9f0e-6f1f0b0c2d11"])
    slug: str = Field(examples=["acme"])
    member_id: str | None = Field(description="Who we are there.")
    scope: str | None = Field(description="What was granted, separated by spaces.")
    status: InstallationStatus
    error: str | None = Field(description="Why its token could not be refreshed the last time.")
    expires_at: datetime | None
    installed_at: datetime
    refreshed_at: datetime


class Stage(BaseModel):
    """What waits at a stage."""

    stage: str = Field(examples=["apply"])
    waiting: int = Field(description="Counted up to 10,000.")
    due_at: datetime | None = Field(description="Since when the longest-waiting one is due.")


class Bucket(BaseModel):
    """New events that came in from `start` on, by outcome; duplicates leave no row."""

    start: datetime
    pending: int
    applied: int
    ignored: int
    quarantined: int
    failed: int


class Stats(BaseModel):
    """Figures about the whole."""

    backlog: list[Stage]
    sessions: dict[Status, int] = Field(description="By status, each counted up to 10,000.")
    bucket_seconds: int
    deliveries: list[Bucket]
    counted_every: int = Field(
        examples=[1],
        description="1: all were counted. Else one of so many was and stands for all of them; what"
        " failed or is quarantined is counted all the same.",
    )


Answers = dict[int | str, dict[str, Any]]


def refusals(described: Mapping[int, str]) -> Answers:
    """Answers that are problems, for a description: FastAPI would take them for plain JSON."""
    content = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    return {status: {"description": why, "content": content} for status, why in described.items()}


UNAUTHORIZED = refusals(
    {401: "No token, or another one.", 429: "Too many wrong ones: wait for `Retry-After`."}
)
#: Answers of every route, for its description.
PROBLEMS = UNAUTHORIZED | refusals(
    {
        422: "An argument can't be used as it was sent.",
        503: "The database can't be used.",
    }
)
MISSING = refusals({404: "There is none."})
CONFLICT = refusals({409: "Not as things stand."})
