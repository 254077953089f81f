"""Delivery bodies in the shapes that Shortcut sends, for stories and times of a test's choosing."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

START = datetime(2026, 9, 14, 8, 0, tzinfo=UTC)
MEMBER = "6a100001-0000-4000-8000-000000000001"
BOT = "6a100009-0000-4000-8000-000000000009"
LABEL_ID = 881


def _v1(minute: float, what: str, actions: list[dict[str, Any]], **more: Any) -> bytes:
    at = START + timedelta(minutes=minute)
    change = {
        "id": str(uuid5(NAMESPACE_URL, f"{what} {minute} {json.dumps(actions)}")),
        "changed_at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "member_id": MEMBER,
        "version": "v1",
        "actions": actions,
        **more,
    }
    return json.dumps(change).encode()


def _story(story: int, **more: Any) -> dict[str, Any]:
    return {
        "id": story,
        "entity_type": "story",
        "action": "update",
        "name": f"Story {story}",
        "story_type": "feature",
        "app_url": f"https://app.shortcut.com/acme/story/{story}",
        **more,
    }


def labelled(story: int, *, minute: float = 1, label: str = "patch", **more: Any) -> bytes:
    """The story got the label."""
    action = _story(story, changes={"label_ids": {"adds": [LABEL_ID]}}, **more)
    reference = {"id": LABEL_ID, "entity_type": "label", "name": label}
    return _v1(minute, "labelled", [action], references=[reference])


def unlabelled(story: int, *, minute: float, label: str = "patch") -> bytes:
    """The story lost the label."""
    action = _story(story, changes={"label_ids": {"removes": [LABEL_ID]}})
    reference = {"id": LABEL_ID, "entity_type": "label", "name": label}
    return _v1(minute, "unlabelled", [action], references=[reference])


def archived(story: int, *, minute: float) -> bytes:
    """The story was archived."""
    return _v1(minute, "archived", [_story(story, changes={"archived": {"new": True}})])


def completed(story: int, *, minute: float) -> bytes:
    """The story was done."""
    return _v1(minute, "completed", [_story(story, changes={"completed": {"new": True}})])


def disowned(story: int, *, minute: float, owner: str = BOT) -> bytes:
    """Somebody is no longer an owner of the story."""
    action = _story(story, changes={"owner_ids": {"removes": [owner]}})
    return _v1(minute, "disowned", [action])


def deleted(story: int, *, minute: float) -> bytes:
    """The story was deleted."""
    return _v1(minute, "deleted", [_story(story, action="delete")])


def created(story: int, *, minute: float, description: str) -> bytes:
    """The story was made."""
    action = _story(story, action="create", description=description, label_ids=[])
    return _v1(minute, "created", [action])


def described(story: int, *, minute: float, description: str) -> bytes:
    """The story got another description."""
    change = {"description": {"new": description, "old": ""}}
    return _v1(minute, "described", [_story(story, changes=change)])


def renamed(story: int, *, minute: float, title: str) -> bytes:
    """The story got another title."""
    action = _story(story, name=title, changes={"name": {"new": title, "old": "before"}})
    return _v1(minute, "renamed", [action])


def commented(
    story: int,
    *,
    minute: float,
    text: str,
    comment: int,
    author: str = MEMBER,
    title: str | None = None,
) -> bytes:
    """Somebody commented on the story."""
    actions = [
        {
            "id": comment,
            "entity_type": "story-comment",
            "action": "create",
            "text": text,
            "author_id": author,
        },
        _story(
            story,
            changes={"comment_ids": {"adds": [comment]}},
            **({} if title is None else {"name": title}),
        ),
    ]
    return _v1(minute, "commented", actions, member_id=author, primary_id=comment)


def comment_edited(
    story: int, *, minute: float, text: str, comment: int, editor: str = MEMBER
) -> bytes:
    """Somebody changed a comment."""
    action = {
        "id": comment,
        "entity_type": "story-comment",
        "action": "update",
        "story_id": story,
        "text": text,
        "changes": {"text": {"new": text, "old": "before"}},
    }
    return _v1(minute, "edited", [action], member_id=editor)


def comment_deleted(story: int, *, minute: float, comment: int) -> bytes:
    """Somebody deleted a comment."""
    action = _story(story, changes={"comment_ids": {"removes": [comment]}})
    return _v1(minute, "deleted", [action])


def triggered(
    kind: str, story: int, *, minute: float, comment: int, parent: int | None = None
) -> bytes:
    """An agent's delivery about a comment, `comment-reply` or `mentioned`; it has no text."""
    trigger = {
        "type": kind,
        "context": "comment",
        "entity_type": "story",
        "entity_id": str(story),
        "comment_id": str(comment),
        **({} if parent is None else {"parent_comment_id": str(parent)}),
    }
    event = {
        "id": str(uuid5(NAMESPACE_URL, f"{kind} {minute} {story} {comment}")),
        "version": "v2",
        "timestamp": (START + timedelta(minutes=minute)).isoformat(),
        "actor": {"member_id": MEMBER},
        "workspace2": {"id": "shortcut"},
        "installation_id": "6a100258-0000-4000-8000-000000000258",
        "trigger": trigger,
    }
    return json.dumps(event).encode()
