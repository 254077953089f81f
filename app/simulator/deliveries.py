"""What a workspace sends about a change, version 1: one delivery with everything in it. No I/O.

The shapes are those of captured deliveries: sides of a change that are empty are absent, a new
comment's story is known only from the sibling action, and a label made by the change is named
only by its own action.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.simulator.records import STATES_BY_ID, URL_SLUG, Change, Comment, Story

#: Attributes of a story whose changes version 1 tells, in the order in which it tells them.
_SCALARS = (
    "name",
    "description",
    "story_type",
    "archived",
    "started",
    "started_at",
    "completed",
    "completed_at",
    "workflow_state_id",
    "position",
)
_LISTS = ("owner_ids", "follower_ids", "mention_ids", "label_ids", "comment_ids")

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One delivery: `kind` is as the receiver names it, e.g. `v1` or `v2:assigned`."""

    kind: str
    change_id: str
    body: bytes


def v1(change: Change) -> list[Outgoing]:
    """The workspace webhook's delivery; none for a change that version 1 has no word for."""
    actions = _actions(change)
    if not actions:
        return []
    envelope: Json = {"id": change.id, "changed_at": instant(change.at)}
    if change.primary_id is not None:
        envelope["primary_id"] = change.primary_id
    envelope |= {"member_id": change.actor.id, "version": "v1", "actions": actions}
    references = _references(change)
    if references:
        envelope["references"] = references
    envelope["actor_name"] = change.actor.name
    owners = dict.fromkeys(
        owner for _, after in change.stories if after is not None for owner in after.owner_ids
    )
    if owners:
        envelope["owner_ids"] = list(owners)
    return [Outgoing(kind="v1", change_id=change.id, body=encoded(envelope))]


def encoded(envelope: Json) -> bytes:
    # Text from the API may hold what UTF-8 can't: that much is escaped.
    text = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(envelope, separators=(",", ":")).encode()


def instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _actions(change: Change) -> list[Json]:
    actions = [*_comment_actions(change)]
    for before, after in change.stories:
        actions += _story_actions(before, after)
    actions += [
        {"id": label.id, "entity_type": "label", "action": "create", "name": label.name}
        for label in change.new_labels
    ]
    return actions


def _comment_actions(change: Change) -> Iterable[Json]:
    before, after = change.comment
    if before is None and after is not None:
        yield {
            **_comment(after, "create"),
            "text": after.text,
            "author_id": after.author_id,
            "app_url": _comment_url(change, after),
        }
    elif before is not None and after is not None:
        yield {
            **_comment(after, "update"),
            "story_id": after.story_id,
            "text": after.text,
            "changes": {"text": {"new": after.text, "old": before.text}},
        }
    elif before is not None:
        yield _comment(before, "delete")


def _comment(comment: Comment, action: str) -> Json:
    return {"id": comment.id, "entity_type": "story-comment", "action": action}


def _comment_url(change: Change, comment: Comment) -> str:
    story = next(after for _, after in change.stories if after is not None)
    return f"{story.app_url}#activity-{comment.id}"


def _story_actions(before: Story | None, after: Story | None) -> list[Json]:
    if before is None and after is not None:
        return [{**_story(after, "create"), **_flat(after)}]
    if after is None and before is not None:
        deleted = _story(before, "delete")
        del deleted["app_url"]
        return [deleted]
    if before is None or after is None:
        return []
    changes = _changes(before, after)
    return [{**_story(after, "update"), "changes": changes}] if changes else []


def _story(story: Story, action: str) -> Json:
    return {
        "id": story.id,
        "entity_type": "story",
        "action": action,
        "name": story.name,
        "story_type": story.story_type,
        "app_url": story.app_url,
    }


def _flat(story: Story) -> Json:
    """The values of a new story, which are told as they are."""
    flat: Json = {
        "description": story.description,
        "workflow_state_id": story.workflow_state_id,
        "follower_ids": story.follower_ids,
        "requested_by_id": story.requested_by_id,
        "label_ids": story.label_ids,
        "position": story.position,
    }
    optional: Json = {
        "owner_ids": story.owner_ids,
        "mention_ids": story.mention_ids,
        "task_ids": [task.id for task in story.tasks],
        "external_links": story.external_links,
    }
    return flat | {key: value for key, value in optional.items() if value}


def _changes(before: Story, after: Story) -> Json:
    changes: Json = {}
    for key in _SCALARS:
        old, new = _plain(getattr(before, key)), _plain(getattr(after, key))
        if old != new:
            sides = {"new": new, "old": old}
            changes[key] = {side: value for side, value in sides.items() if value is not None}
    for key in _LISTS:
        sides = {"adds": missing(before, after, key), "removes": missing(after, before, key)}
        told = {side: values for side, values in sides.items() if values}
        if told:
            changes[key] = told
    return changes


def missing(one: Story, other: Story, key: str) -> list[object]:
    """What the other story's list holds and the one's does not."""
    return [item for item in getattr(other, key) if item not in getattr(one, key)]


def _plain(value: object) -> object:
    # Whole seconds, as captured deliveries have it for these.
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value


def _references(change: Change) -> list[Json]:
    if change.comment[0] is not None and change.comment[1] is not None:
        return [_story_reference(after) for _, after in change.stories if after is not None]
    label_ids: dict[object, None] = {}
    state_ids: dict[int, None] = {}
    for before, after in change.stories:
        if after is not None:
            label_ids |= dict.fromkeys(_touched(before, after))
            state_ids |= dict.fromkeys(_states(before, after))
    made = {label.id for label in change.new_labels}
    labels = (change.labels[label] for label in change.labels if label in label_ids)
    return [
        *(_state_reference(state) for state in state_ids),
        *(_label_reference(label.id, label.name) for label in labels if label.id not in made),
    ]


def _touched(before: Story | None, after: Story) -> Sequence[object]:
    if before is None:
        return after.label_ids
    return missing(before, after, "label_ids") + missing(after, before, "label_ids")


def _states(before: Story | None, after: Story) -> Sequence[int]:
    if before is None:
        return [after.workflow_state_id]
    if before.workflow_state_id == after.workflow_state_id:
        return []
    return [after.workflow_state_id, before.workflow_state_id]


def _state_reference(state_id: int) -> Json:
    state = STATES_BY_ID[state_id]
    return {
        "id": state.id,
        "entity_type": "workflow-state",
        "name": state.name,
        "type": state.type,
    }


def _label_reference(label_id: int, name: str) -> Json:
    return {
        "id": label_id,
        "entity_type": "label",
        "name": name,
        "app_url": f"https://app.shortcut.com/{URL_SLUG}/label/{label_id}",
    }


def _story_reference(story: Story) -> Json:
    reference = _story(story, "")
    del reference["action"]
    return reference
