"""What people do in the simulated workspace, and the deliveries that it makes of that."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.simulator.deliveries import v1
from app.simulator.records import AGENT, PEOPLE, STATES, Change, Comment, Member, Story
from app.simulator.workspace import Workspace
from chaos.history import Said

LABEL = "patch"
#: The newest stories, which people still work on.
LIVELY = 40
FIRST_STORIES = 15
_DONE = STATES[-1].id


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One delivery, before it is sent."""

    key: str
    body: bytes
    said: tuple[tuple[float, int, Said], ...]


def parcels(change: Change) -> list[Parcel]:
    """The deliveries of a change, with what they say about stories."""
    at = change.at.timestamp()
    said = [
        (at, story.id, what)
        for before, story in change.stories
        if story is not None
        for what in _said(change, before, story)
    ]
    return [Parcel(key=it.change_id, body=it.body, said=tuple(said)) for it in v1(change)]


def _said(change: Change, before: Story | None, after: Story) -> list[Said]:
    if change.actor == AGENT:
        return []
    had = _labels(change, before) if before is not None else set()
    has = _labels(change, after)
    said = [Said.OTHER]
    if LABEL in has - had:
        said.append(Said.OPEN)
    if LABEL in had - has:
        said.append(Said.CLOSE)
    if before is not None and (after.archived, after.completed) > (before.archived, False):
        said.append(Said.ARCHIVE)
    if change.comment[0] is None and change.comment[1] is not None:
        said.append(_command(change.comment[1]))
    return said


def _labels(change: Change, story: Story) -> set[str]:
    return {change.labels[label].name for label in story.label_ids}


def _command(comment: Comment) -> Said:
    if comment.text.startswith("/stop"):
        return Said.STOP
    return Said.COMMAND if comment.text.startswith("/") or comment.parent_id else Said.OTHER


@dataclass(slots=True)
class People:
    """Does one thing after another in a workspace, the same ones for the same seed."""

    workspace: Workspace
    seed: int
    stories: list[int] = field(default_factory=list)
    _dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(f"people {self.seed}")

    def act(self) -> None:
        """One change of the workspace."""
        if len(self.stories) < FIRST_STORIES or self._dice.random() < 0.07:
            self._create()
            return
        story = self.workspace.story(self._dice.choice(self.stories[-LIVELY:]))
        actions, weights = zip(*_ACTIONS, strict=True)
        action: Callable[[People, Story], None] = self._dice.choices(actions, weights)[0]
        action(self, story)

    def _create(self) -> None:
        number = len(self.stories) + 1
        described = {"description": f"Write down story {number}."}
        fields: dict[str, object] = {"name": f"Story {number}", **described}
        if self._dice.random() < 0.3:
            fields = {"name": f"Story {number}"}
        if self._dice.random() < 0.5:
            fields["labels"] = [LABEL]
        self.stories.append(self.workspace.create_story(self._who(), fields).id)

    def label(self, story: Story) -> None:
        """Asks for a patch, where that is not asked already."""
        if not (story.archived or story.completed):
            self._relabel(story, add=[LABEL])

    def unlabel(self, story: Story) -> None:
        self._relabel(story, remove=[LABEL])

    def relabel(self, story: Story) -> None:
        """Takes the label away and puts it back at once."""
        self.unlabel(story)
        self.label(self.workspace.story(story.id))

    def other_label(self, story: Story) -> None:
        self._relabel(story, add=[f"area {self._dice.randrange(5)}"])

    def archive(self, story: Story) -> None:
        self._set(story, archived=True)

    def bring_back(self, story: Story) -> None:
        if story.archived:
            self._set(story, archived=False)

    def complete(self, story: Story) -> None:
        self._set(story, workflow_state_id=_DONE)

    def move(self, story: Story) -> None:
        self._set(story, workflow_state_id=self._dice.choice(STATES[:-1]).id)

    def rename(self, story: Story) -> None:
        self._set(story, name=f"Story {story.id}, version {self._dice.randrange(1000)}")

    def describe(self, story: Story) -> None:
        self._set(story, description=f"Text {self._dice.randrange(1000)}\n- [ ] do it")

    def own(self, story: Story) -> None:
        self._set(story, owner_ids=[self._who().id])

    def say(self, story: Story) -> None:
        self._comment(story, f"What about case {self._dice.randrange(1000)}?")

    def command(self, story: Story) -> None:
        self._comment(story, self._dice.choice(["/draft", "/retry", "/revise shorter", "/stop"]))

    def reply(self, story: Story) -> None:
        """Answers what the bot has said last."""
        ours = [c for c in self.workspace.comments_of(story.id) if c.author_id == AGENT.id]
        if ours:
            text = f"Not quite, see {self._dice.randrange(1000)}."
            self.workspace.add_comment(self._who(), story.id, text, parent_id=ours[-1].id)

    def edit(self, story: Story) -> None:
        """Changes a comment of a person, or takes it back."""
        live = [c for c in self.workspace.comments_of(story.id) if not c.deleted]
        theirs = [c for c in live if c.author_id != AGENT.id]
        if not theirs:
            return
        comment = self._dice.choice(theirs)
        if self._dice.random() < 0.3:
            self.workspace.delete_comment(self._who(), story.id, comment.id)
        else:
            text = f"{comment.text}, better"
            self.workspace.edit_comment(self._who(), story.id, comment.id, text)

    def _relabel(
        self, story: Story, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        self.workspace.update_stories(
            self._who(), [story.id], {}, labels_add=add, labels_remove=remove
        )

    def _set(self, story: Story, **fields: object) -> None:
        self.workspace.update_stories(self._who(), [story.id], fields)

    def _comment(self, story: Story, text: str) -> None:
        self.workspace.add_comment(self._who(), story.id, text)

    def _who(self) -> Member:
        return self._dice.choice(PEOPLE)


_ACTIONS = (
    (People.label, 14),
    (People.unlabel, 2),
    (People.relabel, 3),
    (People.other_label, 6),
    (People.archive, 1.5),
    (People.bring_back, 6),
    (People.complete, 1),
    (People.move, 6),
    (People.rename, 14),
    (People.describe, 8),
    (People.own, 8),
    (People.say, 14),
    (People.command, 4),
    (People.reply, 3),
    (People.edit, 6),
)
