"""The state of a simulated workspace; every change of it is told to a listener. No I/O."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import uuid4

from app.simulator.edit import Edit, Unprocessable
from app.simulator.records import (
    STATES,
    Change,
    Comment,
    Label,
    Member,
    Story,
    Task,
)

#: Beyond 32 bits, as real positions are.
_FIRST_POSITION = 42_147_811_328
_BETWEEN_POSITIONS = 65_536
#: The newest changes, which a story's history is told from.
KEPT_CHANGES = 10_000


class NotFound(LookupError):
    """There is no such thing, or no longer."""


@dataclass(slots=True)
class Workspace:
    """Stories, comments and labels of one team, in memory.

    Attributes:
        tell: called with every change, after it was made.
        first_id: the number that the first story gets. Numbers go on after `clear`, as the ids of
            changes do, so that a receiver never meets an old number with a new meaning.
    """

    tell: Callable[[Change], None]
    first_id: int = 4101
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    stories: dict[int, Story] = field(default_factory=dict)
    comments: dict[int, Comment] = field(default_factory=dict)
    labels: dict[int, Label] = field(default_factory=dict)
    changes: "deque[Change]" = field(default_factory=lambda: deque(maxlen=KEPT_CHANGES))
    _ids: "count[int]" = field(init=False)
    _last: datetime = field(default=datetime.min.replace(tzinfo=UTC))

    def __post_init__(self) -> None:
        self._ids = count(self.first_id)

    def clear(self) -> None:
        self.stories.clear()
        self.comments.clear()
        self.labels.clear()
        self.changes.clear()

    def story(self, sc_id: int) -> Story:
        """Raises NotFound."""
        if sc_id not in self.stories:
            raise NotFound("story")
        return self.stories[sc_id]

    def label(self, label_id: int) -> Label:
        """Raises NotFound."""
        if label_id not in self.labels:
            raise NotFound("label")
        return self.labels[label_id]

    def comment(self, sc_id: int, comment_id: int) -> Comment:
        """The comment of that story, deleted or not; raises NotFound."""
        comment = self.comments.get(comment_id)
        if comment is None or comment.story_id != sc_id:
            raise NotFound("comment")
        return comment

    def comments_of(self, sc_id: int) -> list[Comment]:
        return [comment for comment in self.comments.values() if comment.story_id == sc_id]

    def history(self, sc_id: int) -> list[Change]:
        """What happened to the story, oldest first; raises NotFound."""
        self.story(sc_id)
        return [
            change
            for change in self.changes
            if any(story is not None and story.id == sc_id for _, story in change.stories)
        ]

    def create_story(
        self, actor: Member, fields: Mapping[str, object], *, tasks: Sequence[str] = ()
    ) -> Story:
        """Raises Unprocessable where a field refers to what isn't there."""
        edit = self._edit(actor)
        blank = Story(
            id=next(self._ids),
            name="",
            description="",
            story_type="feature",
            workflow_state_id=STATES[1].id,
            requested_by_id=actor.id,
            position=_FIRST_POSITION + len(self.stories) * _BETWEEN_POSITIONS,
            follower_ids=(actor.id,),
            tasks=tuple(Task(id=next(self._ids), description=text) for text in tasks),
            created_at=edit.at,
            updated_at=edit.at,
        )
        story = edit.apply(blank, fields)
        self.stories[story.id] = story
        self._finish(edit, story.id, [(None, story)])
        return story

    def update_stories(
        self,
        actor: Member,
        sc_ids: Iterable[int],
        fields: Mapping[str, object],
        *,
        labels_add: Sequence[str] = (),
        labels_remove: Sequence[str] = (),
    ) -> list[Story]:
        """Changes all of the stories at once, or none; raises NotFound and Unprocessable."""
        befores = [self.story(sc_id) for sc_id in dict.fromkeys(sc_ids)]
        edit = self._edit(actor)
        changed = []
        for before in befores:
            after = edit.apply(before, fields)
            after = edit.relabel(after, add=labels_add, remove=labels_remove)
            if after != before:
                changed.append((before, replace(after, updated_at=edit.at)))
        self.stories.update({after.id: after for _, after in changed})
        if changed:
            self._finish(edit, befores[0].id if len(befores) == 1 else None, changed)
        return [self.stories[before.id] for before in befores]

    def delete_story(self, actor: Member, sc_id: int) -> None:
        """Deletes the story and its comments; raises NotFound."""
        before = self.story(sc_id)
        del self.stories[sc_id]
        for comment in self.comments_of(sc_id):
            del self.comments[comment.id]
        self._tell(actor, self._now(), sc_id, [(before, None)])

    def add_comment(
        self,
        actor: Member,
        sc_id: int,
        text: str,
        *,
        parent_id: int | None = None,
        external_id: str | None = None,
    ) -> Comment:
        """Raises NotFound for the story and Unprocessable for the comment replied to."""
        before, at = self.story(sc_id), self._now()
        parent = None if parent_id is None else self.comments.get(parent_id)
        if parent_id is not None and (parent is None or parent.story_id != sc_id):
            raise Unprocessable("the parent comment is not on this story")
        comment = Comment(
            id=next(self._ids),
            story_id=sc_id,
            text=text,
            author_id=actor.id,
            parent_id=parent_id,
            external_id=external_id,
            created_at=at,
            updated_at=at,
        )
        after = replace(before, comment_ids=(*before.comment_ids, comment.id), updated_at=at)
        self.stories[sc_id], self.comments[comment.id] = after, comment
        self._tell(actor, at, comment.id, [(before, after)], comment=(None, comment), parent=parent)
        return comment

    def edit_comment(self, actor: Member, sc_id: int, comment_id: int, text: str) -> Comment:
        """Raises NotFound, for deleted comments too."""
        before, at = self._live(sc_id, comment_id), self._now()
        after = replace(before, text=text, updated_at=at)
        if text != before.text:
            self.comments[comment_id] = after
            story = self.stories[sc_id]
            self._tell(actor, at, comment_id, [(story, story)], comment=(before, after))
        return after

    def delete_comment(self, actor: Member, sc_id: int, comment_id: int) -> None:
        """Leaves the comment in the list, marked and without its text; raises NotFound."""
        gone, at = self._live(sc_id, comment_id), self._now()
        before = self.stories[sc_id]
        left = tuple(kept for kept in before.comment_ids if kept != comment_id)
        after = replace(before, comment_ids=left, updated_at=at)
        self.comments[comment_id] = replace(gone, text="", deleted=True, updated_at=at)
        self.stories[sc_id] = after
        self._tell(actor, at, comment_id, [(before, after)], comment=(gone, None))

    def _live(self, sc_id: int, comment_id: int) -> Comment:
        comment = self.comment(sc_id, comment_id)
        if comment.deleted:
            raise NotFound("comment")
        return comment

    def _edit(self, actor: Member) -> Edit:
        return Edit(
            actor=actor,
            at=self._now(),
            ids=self._ids,
            labels=dict(self.labels),
        )

    def _now(self) -> datetime:
        """The time in milliseconds, later for every change than for the one before."""
        now = self.clock()
        now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        self._last = max(now, self._last + timedelta(milliseconds=1))
        return self._last

    def _finish(
        self,
        edit: Edit,
        primary_id: int | None,
        stories: Sequence[tuple[Story | None, Story | None]],
    ) -> None:
        self.labels.update({label.id: label for label in edit.made})
        self._tell(edit.actor, edit.at, primary_id, stories, new_labels=edit.made)

    def _tell(
        self,
        actor: Member,
        at: datetime,
        primary_id: int | None,
        stories: Sequence[tuple[Story | None, Story | None]],
        *,
        comment: tuple[Comment | None, Comment | None] = (None, None),
        parent: Comment | None = None,
        new_labels: Sequence[Label] = (),
    ) -> None:
        change = Change(
            id=str(uuid4()),
            at=at,
            actor=actor,
            primary_id=primary_id,
            stories=tuple(stories),
            comment=comment,
            parent=parent,
            new_labels=tuple(new_labels),
            labels=dict(self.labels),
        )
        self.changes.append(change)
        self.tell(change)
