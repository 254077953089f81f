"""The values that travel through the pipeline, in its order. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from app.machine import Move, Phase, Status

# --- receive ---------------------------------------------------------------------------------


class EventStatus(StrEnum):
    """How far an event has come. The values are those of `events.status`."""

    PENDING = "pending"
    APPLIED = "applied"
    IGNORED = "ignored"
    QUARANTINED = "quarantined"
    FAILED = "failed"


class Delivery(NamedTuple):
    """One delivery whose signature was right, as far as the door reads it.

    A tuple, because the door makes one for each request, and in the order in which it is recorded.

    Attributes:
        source: the name of the webhook it came in by.
        dedupe_key: the first 16 bytes of the SHA-256 of the canonical key.
        event_id: the id as sent, cut to 200 characters; None where there is none.
        kind: `v1`, `v2:observer`, `v2:assigned`, …; `validation`, `empty`, `unknown`, or `invalid`.
        occurred_at: the sender's time; None where it can't be read or stored.
        body: the exact bytes that were signed.
        defect: why the body can't be read at all; such an event is quarantined.
        received_at: when it came, where that was not just now; by the receiver's clock.
    """

    source: str
    dedupe_key: bytes
    event_id: str | None
    kind: str
    occurred_at: datetime | None
    body: bytes
    headers: str
    defect: str | None = None
    received_at: datetime | None = None


# --- interpret -------------------------------------------------------------------------------


class FactKind(StrEnum):
    """What can have happened to a story. The values are those of `facts.kind`."""

    CREATED = "created"
    DESCRIBED = "described"
    LABEL_ADDED = "label_added"
    LABEL_REMOVED = "label_removed"
    OWNER_ADDED = "owner_added"
    OWNER_REMOVED = "owner_removed"
    STATE_ENTERED = "state_entered"
    ASSIGNED = "assigned"
    MENTIONED = "mentioned"
    COMMENTED = "commented"
    COMMENT_EDITED = "comment_edited"
    COMMENT_DELETED = "comment_deleted"
    ARCHIVED = "archived"
    UNARCHIVED = "unarchived"
    COMPLETED = "completed"
    DELETED = "deleted"
    TOUCHED = "touched"


class Fact(NamedTuple):
    """One thing that happened to one story. A tuple, since many are made from one another.

    Attributes:
        workspace: v2: the workspace's id; v1: the name that the source's settings give it.
        sc_id: the story's public number.
        actor: id of the member who did it; None for automations and version control.
        value: what it is about, by kind: the label's or state's name, the owner's member id,
            the text of a comment, the description.
        value_id: the label's or state's id as text, for rules that name ids.
        comment_id: for comments and for mentions in one.
        parent_comment_id: the comment that it replies to, where the sender says so.
        title: the story's name where the delivery carries it.
    """

    workspace: str
    sc_id: int
    occurred_at: datetime
    kind: FactKind
    actor: str | None = None
    value: str | None = None
    value_id: str | None = None
    comment_id: int | None = None
    parent_comment_id: int | None = None
    title: str | None = None
    app_url: str | None = None


class NeedKind(StrEnum):
    """What a delivery may refer to without carrying it."""

    LABEL = "label"
    STATE = "state"
    COMMENT = "comment"
    TEAMS = "teams"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that must be read from the API before the delivery can be interpreted.

    `sc_id` is 0 except for comments, which are read by story, and `id` is 0 for the teams that the
    settings name.
    """

    kind: NeedKind
    id: int = 0
    sc_id: int = 0


#: What was read: the label's or state's name, the comment's text. None: it no longer exists.
Known = Mapping[Need, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpretation:
    """What a delivery says: facts, or what must be read first, or why there is nothing in it."""

    facts: tuple[Fact, ...] = ()
    needs: tuple[Need, ...] = ()
    nothing: str | None = None


# --- decide ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One entry of a session's conversation, keyed by the comment that said it.

    Attributes:
        text: None once the comment is deleted.
        as_of: when this version of the text was written; the newest version counts.
        spoken: the session has heard the comment itself, not only that it was edited or deleted;
            what did nothing, and may be a reply, is heard once that is told.
    """

    comment_id: int
    author: str | None
    text: str | None
    said_at: datetime
    as_of: datetime
    spoken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A patch session as the deciding code sees it.

    Attributes:
        decided_at: the sender's time of the newest fact that decided something.
        heard_at: the sender's time of the newest fact of any kind.
        title_at: the sender's time of the fact that the title is from, if it is from one.
        description_at: the same of the description.
        worked: a worker has held it since it was opened, so its past is no longer
            open to facts that come late.
        muted: the story was written to too often; only an operator lets it go on.
    """

    workspace: str
    sc_id: int
    status: Status
    decided_at: datetime
    heard_at: datetime
    title: str | None = None
    app_url: str | None = None
    description: str | None = None
    title_at: datetime | None = None
    description_at: datetime | None = None
    worked: bool = False
    muted: bool = False


class Answer(StrEnum):
    """What is said on the story about a fact at once. The values are those of `outbox.kind`."""

    STATUS = "status"
    REFUSED = "refused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a fact does to a session, and why, for a person to read.

    Attributes:
        session: the session afterwards; None where there is none.
        moves: the moves that lead there, each with where it led.
        remarks: what is added to the conversation.
        answer: what the story is told of it.
        applied: whether anything came of the fact.
    """

    session: Session | None
    moves: tuple[tuple[Move, Status], ...] = ()
    remarks: tuple[Remark, ...] = ()
    reason: str
    answer: Answer | None = None
    applied: bool = False


# --- claims ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Ownership of one session for one phase. `(session_id, generation)` is what a worker shows.

    Attributes:
        generation: the fencing token: grows with every change of ownership.
        rounds: how often questions were asked since the session was opened.
        attempt: which try at this phase this is, from 1.
    """

    session_id: int
    generation: int
    token: UUID
    phase: Phase
    worker: str
    workspace: str
    sc_id: int
    title: str | None
    app_url: str | None
    description: str | None
    revision: int
    rounds: int
    attempt: int


# --- draft -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A story as a drafter is told it."""

    sc_id: int
    title: str
    description: str
    story_type: str = "feature"
    app_url: str | None = None
    labels: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    archived: bool = False
    completed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """As much of a story as a search tells.

    Attributes:
        labels: by name.
        owners: member ids.
        state_id: the id of its workflow state, as text.
    """

    sc_id: int
    updated_at: datetime
    labels: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    state_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a drafter made: a patch with a summary, or questions that must be answered first.

    Attributes:
        patch: a unified diff as `git apply` takes it; may hold binary hunks. UTF-8 text.
        cost_usd: what the run cost, as the drafter reports it, in US dollars.
        meta: whatever else the drafter reported, as JSON values.
    """

    summary: str
    patch: str
    questions: tuple[str, ...] = ()
    cost_usd: float = 0.0
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One round of questions that was put to the story."""

    questions: tuple[str, ...]
    asked_at: datetime


# --- outbox ----------------------------------------------------------------------------------


class OwedStatus(StrEnum):
    """What became of a comment that is owed. The values are those of `outbox.status`."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"


class Rewritten(StrEnum):
    """What a story is told in one row of the outbox, whose newest text counts."""

    #: The comment that says where its session stands.
    STANDING = "standing"
    #: Its labels and its workflow state, which follow its session.
    MARKS = "marks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is changed about a story itself; everything else on it is left alone.

    Attributes:
        state: a workflow state, by name or id.
    """

    labels_add: tuple[str, ...] = ()
    labels_remove: tuple[str, ...] = ()
    state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What is owed to a story, claimed by a sender: a comment, or a change of the story.

    Attributes:
        key: the stable marker, sent as the comment's `external_id`; at most 128 characters.
        edition: which text this is; it grows when the row is rewritten.
        comment_id: the comment that has said an earlier edition.
        attempts: sends tried before this one; more than 0 means look for the marker first.
    """

    id: int
    generation: int
    key: str
    kind: str
    workspace: str
    sc_id: int
    text: str
    edition: int
    comment_id: int | None
    attempts: int


# --- webhooks --------------------------------------------------------------------------------


class HookStatus(StrEnum):
    """How a webhook was last seen. The values are those of `hooks.status`."""

    ALIVE = "alive"
    #: Shortcut sends nothing to it any more.
    DISABLED = "disabled"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A webhook of version 1 that was registered from here.

    Attributes:
        integration_id: its number in Shortcut, which tells it only when it is made.
        retired_id: the one before it, as long as it isn't deleted.
        error: why it could not be looked at the last time; `status` is then from before.
    """

    source: str
    integration_id: int
    retired_id: int | None
    url: str
    status: HookStatus
    error: str | None
    registered_at: datetime
    checked_at: datetime | None


# --- installations ---------------------------------------------------------------------------


class InstallationStatus(StrEnum):
    """Whether tokens still count. The values are those of `installations.status`."""

    ACTIVE = "active"
    #: Shortcut has refused to refresh them: the app was uninstalled there, or tokens were lost.
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A workspace that has installed the agent app, without its tokens.

    Attributes:
        member_id: who we are there.
        scope: what was granted, separated by spaces; None where Shortcut did not say.
        error: why tokens could not be refreshed the last time.
    """

    workspace: str
    slug: str
    member_id: str | None
    scope: str | None
    status: InstallationStatus
    error: str | None
    expires_at: datetime | None
    installed_at: datetime
    refreshed_at: datetime

    @property
    def missing_scopes(self) -> list[str]:
        """What we need and were not granted: on the consent page comments may be left out."""
        if self.scope is None:
            return []
        return [scope for scope in ("read", "comment-write") if scope not in self.scope.split()]
