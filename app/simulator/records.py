"""What a simulated workspace is made of, and what a change of it is. No I/O."""

from dataclasses import dataclass
from datetime import datetime

WORKSPACE_ID = "d0000000-0000-4000-8000-000000000001"
INSTALLATION_ID = "d0000000-0000-4000-8000-000000000002"
AGENT_ID = "d0000000-0000-4000-8000-0000000000a1"
URL_SLUG = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    id: str
    name: str
    mention_name: str
    role: str = "member"

    @property
    def mention(self) -> str:
        """The form in which a mention is stored."""
        return f"[@{self.mention_name}](shortcutapp://members/{self.id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    id: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A workflow state; its type is one of backlog, unstarted, started, done."""

    id: int
    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: int
    description: str
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    id: int
    story_id: int
    text: str
    author_id: str
    parent_id: int | None
    external_id: str | None
    created_at: datetime
    updated_at: datetime
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    id: int
    name: str
    description: str
    story_type: str
    workflow_state_id: int
    requested_by_id: str
    position: int
    created_at: datetime
    updated_at: datetime
    archived: bool = False
    started: bool = False
    started_at: datetime | None = None
    completed: bool = False
    completed_at: datetime | None = None
    owner_ids: tuple[str, ...] = ()
    follower_ids: tuple[str, ...] = ()
    label_ids: tuple[int, ...] = ()
    comment_ids: tuple[int, ...] = ()
    mention_ids: tuple[str, ...] = ()
    external_links: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()

    @property
    def app_url(self) -> str:
        return f"https://app.shortcut.com/{URL_SLUG}/story/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transaction: each thing as it was and as it is, None where it was or is not there.

    Attributes:
        id: the audit id, which every delivery about this change carries.
        primary_id: what it is about; None for a change of several stories at once.
        new_labels: the labels that it made.
        labels: all there are, to name what is referred to.
    """

    id: str
    at: datetime
    actor: Member
    primary_id: int | None
    stories: tuple[tuple[Story | None, Story | None], ...]
    comment: tuple[Comment | None, Comment | None] = (None, None)
    parent: Comment | None = None
    new_labels: tuple[Label, ...] = ()
    labels: dict[int, Label]


AGENT = Member(id=AGENT_ID, name="Patch bot", mention_name="patch-bot", role="agent")
PEOPLE = tuple(
    Member(id=f"d0000000-0000-4000-8000-0000000000{n}", name=name, mention_name=mention)
    for n, name, mention in (
        ("b1", "Product owner", "product-owner"),
        ("b2", "Developer", "developer"),
        ("b3", "Reviewer", "reviewer"),
    )
)
STATES = tuple(
    State(id=500_000_006 + n, name=name, type=kind)
    for n, (name, kind) in enumerate(
        (
            ("Backlog", "backlog"),
            ("To do", "unstarted"),
            ("In development", "started"),
            ("In review", "started"),
            ("Done", "done"),
        )
    )
)
WORKFLOW_ID = 500_000_005

# A workspace has these and no others, so that nothing needs to say which.
#: The one team: everybody but the reviewer.
TEAM_ID = "d0000000-0000-4000-8000-0000000000c1"
TEAM = PEOPLE[:2]
MEMBERS = {member.id: member for member in (AGENT, *PEOPLE)}
STATES_BY_ID = {state.id: state for state in STATES}
