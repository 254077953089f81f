"""One change of stories while it is put together. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from app.simulator.records import MEMBERS, STATES_BY_ID, Label, Member, State, Story

_MENTION = re.compile(r"shortcutapp://members/([0-9a-fA-F-]{36})")


class Unprocessable(ValueError):
    """The request refers to something that isn't there. The text says what."""


@dataclass(slots=True, kw_only=True)
class Edit:
    """What one member changes at one moment; nothing of it counts before all of it is right.

    Attributes:
        labels: the workspace's labels and those that this edit makes.
    """

    actor: Member
    at: datetime
    ids: Iterator[int]
    labels: dict[int, Label]
    made: list[Label] = field(default_factory=list)

    def apply(self, story: Story, fields: Mapping[str, object]) -> Story:
        """The story with the fields set; raises Unprocessable."""
        for key, value in fields.items():
            story = self._with(story, key, value)
        return story

    def relabel(self, story: Story, *, add: Sequence[str], remove: Sequence[str]) -> Story:
        """The story with labels added and removed by name; missing ones are made."""
        kept = [label for label in story.label_ids if self.labels[label].name not in remove]
        return replace(story, label_ids=tuple(dict.fromkeys((*kept, *map(self._label, add)))))

    def _with(self, story: Story, key: str, value: object) -> Story:
        match key, value:
            case "name", str():
                return replace(story, name=value)
            case "story_type", str():
                return replace(story, story_type=value)
            case "description", str():
                return replace(story, description=value, mention_ids=mentioned(value))
            case "archived", bool():
                return replace(story, archived=value)
            case "workflow_state_id", int():
                return self._moved(story, value)
            case _, list() | tuple():
                return self._with_several(story, key, [str(item) for item in value])
        raise Unprocessable(f"{key} can't be set to this")

    def _with_several(self, story: Story, key: str, values: Sequence[str]) -> Story:
        match key:
            case "owner_ids":
                return replace(story, owner_ids=self._checked(values))
            case "follower_ids":
                return replace(story, follower_ids=self._checked(values))
            case "external_links":
                return replace(story, external_links=tuple(values))
            case "labels":
                return replace(story, label_ids=tuple(map(self._label, dict.fromkeys(values))))
        raise Unprocessable(f"{key} can't be set to this")

    def _moved(self, story: Story, state_id: int) -> Story:
        state = STATES_BY_ID.get(state_id)
        if state is None:
            raise Unprocessable("there is no such workflow state")
        return story if state_id == story.workflow_state_id else self._entered(story, state)

    def _entered(self, story: Story, state: State) -> Story:
        """The story in another state, with what such a move brings about by itself."""
        started = state.type in ("started", "done")
        completed = state.type == "done"
        # The workflow's auto_assign_owner: who starts a story that nobody owns comes to own it.
        takes = started and not story.started and not story.owner_ids
        return replace(
            story,
            workflow_state_id=state.id,
            position=story.position + 1,
            started=started,
            started_at=(story.started_at or self.at) if started else None,
            completed=completed,
            completed_at=(story.completed_at or self.at) if completed else None,
            owner_ids=(self.actor.id,) if takes else story.owner_ids,
        )

    def _checked(self, ids: Sequence[str]) -> tuple[str, ...]:
        if not all(member in MEMBERS for member in ids):
            raise Unprocessable("there is no such member")
        return tuple(dict.fromkeys(ids))

    def _label(self, name: str) -> int:
        for label in self.labels.values():
            if label.name == name:
                return label.id
        made = Label(id=next(self.ids), name=name)
        self.labels[made.id] = made
        self.made.append(made)
        return made.id


def mentioned(text: str) -> tuple[str, ...]:
    """Who is mentioned in a text, in the form in which mentions are stored."""
    ids = (found.lower() for found in _MENTION.findall(text))
    return tuple(member for member in dict.fromkeys(ids) if member in MEMBERS)
