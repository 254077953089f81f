"""What an installed agent app is sent about a change, version 2: references, not contents. No I/O.

One change may cause an observer delivery and several interactions, all under the change's id.
"""

from collections.abc import Iterable, Mapping, Sequence

from app.simulator.deliveries import Json, Outgoing, encoded, instant, missing
from app.simulator.edit import mentioned
from app.simulator.records import (
    AGENT_ID,
    INSTALLATION_ID,
    MEMBERS,
    STATES,
    URL_SLUG,
    WORKSPACE_ID,
    Change,
    Label,
    Member,
    State,
    Story,
)

#: Strings longer than this, in characters, are cut.
_LONGEST_STRING = 8_192
_SCALARS = ("name", "description", "story_type", "archived", "started", "completed")
_LISTS = {
    "label_ids": ("labels", "label"),
    "owner_ids": ("owners", "member"),
    "follower_ids": ("followers", "member"),
}


def v2(change: Change) -> list[Outgoing]:
    """The observer delivery, and the interactions unless the agent itself did it."""
    made = [_outgoing(change, "observer", {"actions": _actions(change)})]
    if change.actor.id != AGENT_ID:
        made += [_outgoing(change, str(it["type"]), {"trigger": it}) for it in _triggers(change)]
    return made


def _outgoing(change: Change, kind: str, rest: Json) -> Outgoing:
    envelope: Json = {
        "id": change.id,
        "version": "v2",
        "timestamp": instant(change.at),
        "actor": _actor(change.actor),
        "workspace2": {"id": WORKSPACE_ID, "url_slug": URL_SLUG},
        "installation_id": INSTALLATION_ID,
    }
    return Outgoing(kind=f"v2:{kind}", change_id=change.id, body=encoded(envelope | rest))


def _actor(member: Member) -> Json:
    return {
        "displayable_name": member.name,
        "member_id": member.id,
        "mention_name": member.mention_name,
    }


def _actions(change: Change) -> list[Json]:
    stories = [_story_action(change, before, after) for before, after in change.stories]
    labels: list[Json] = [
        {
            "action": "create",
            "id": label.id,
            "entity_type": "label",
            "global_id": f"v2:l:{WORKSPACE_ID}:{label.id}",
            "app_url": f"https://app.shortcut.com/{URL_SLUG}/label/{label.id}",
        }
        for label in change.new_labels
    ]
    return stories + labels


def _story_action(change: Change, before: Story | None, after: Story | None) -> Json:
    story = after or before
    assert story is not None
    verb = "create" if before is None else "delete" if after is None else "update"
    action: Json = {
        "action": verb,
        "id": story.id,
        "entity_type": "story",
        "global_id": f"v2:s:{WORKSPACE_ID}:{story.id}",
        "app_url": None if after is None else story.app_url,
    }
    if before is not None and after is not None:
        # Comments are not tracked: for them the list is there, and empty.
        action["changes"] = _changes(change, before, after)
    return action


def _changes(change: Change, before: Story, after: Story) -> list[Json]:
    lists: Iterable[Json] = (
        {
            "attribute": attribute,
            "adds": _slim(change, kind, missing(before, after, key)),
            "removes": _slim(change, kind, missing(after, before, key)),
        }
        for key, (attribute, kind) in _LISTS.items()
        if set(getattr(before, key)) != set(getattr(after, key))
    )
    return [*_scalars(before, after), *_state(change, before, after), *lists]


def _scalars(before: Story, after: Story) -> Iterable[Json]:
    for key in _SCALARS:
        old, new = getattr(before, key), getattr(after, key)
        if old == new:
            continue
        cut: Json = {"truncated": True} if _too_long(old) or _too_long(new) else {}
        yield {"attribute": key, "adds": _side(new), "removes": _side(old)} | cut


def _state(change: Change, before: Story, after: Story) -> Iterable[Json]:
    old, new = before.workflow_state_id, after.workflow_state_id
    if old != new:
        yield {
            "attribute": "workflow_state",
            "adds": _slim(change, "workflow-state", [new]),
            "removes": _slim(change, "workflow-state", [old]),
        }


def _slim(change: Change, kind: str, ids: Sequence[object]) -> list[Json]:
    named: Mapping[str, Iterable[Label | State | Member]] = {
        "label": change.labels.values(),
        "workflow-state": STATES,
        "member": MEMBERS.values(),
    }
    names: dict[object, str] = {it.id: it.name for it in named[kind]}
    return [{"id": it, "entity_type": kind, "name": names[it]} for it in ids]


def _too_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > _LONGEST_STRING


def _side(value: object) -> list[object]:
    if value in ("", None):
        return []
    return [value[:_LONGEST_STRING] if isinstance(value, str) else value]


def _triggers(change: Change) -> Iterable[Json]:
    for before, after in change.stories:
        if after is None:
            continue
        if AGENT_ID in after.owner_ids and (before is None or AGENT_ID not in before.owner_ids):
            yield _trigger("assigned", after)
        known = () if before is None else before.mention_ids
        if AGENT_ID in after.mention_ids and AGENT_ID not in known:
            yield _trigger("mentioned", after) | {"context": "description"}
        yield from _comment_triggers(change, after)


def _comment_triggers(change: Change, story: Story) -> Iterable[Json]:
    before, after = change.comment
    if after is None:
        return
    known = () if before is None else mentioned(before.text)
    if AGENT_ID in mentioned(after.text) and AGENT_ID not in known:
        trigger = _trigger("mentioned", story)
        trigger |= {"context": "comment", "comment_id": str(after.id)}
        if after.parent_id is not None:
            trigger["comment_parent_id"] = str(after.parent_id)
        yield trigger
    if before is None and change.parent is not None and change.parent.author_id == AGENT_ID:
        ids: Json = {"comment_id": str(after.id), "parent_comment_id": str(change.parent.id)}
        yield _trigger("comment-reply", story) | ids


def _trigger(kind: str, story: Story) -> Json:
    return {"type": kind, "entity_type": "story", "entity_id": str(story.id)}
