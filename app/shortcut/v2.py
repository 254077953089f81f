"""Reads an agent's events: what it observes, and what asks something of it. No I/O."""

from collections.abc import Iterator

from app.model import Fact, FactKind, Need, NeedKind
from app.shortcut.changes import Changes, Sides, changed, items
from app.shortcut.event import UNKNOWN_KIND, Event, parent_comment
from app.shortcut.values import mapping, mappings, number, text


def observed(event: Event) -> Iterator[Fact]:
    for action in event.actions:
        sc_id = number(action.get("id"))
        if action.get("entity_type") != "story" or sc_id is None:
            continue
        story = event.story(sc_id, action)
        yield story
        if action.get("action") == "create":
            yield story._replace(kind=FactKind.CREATED)
        if action.get("action") == "delete":
            yield story._replace(kind=FactKind.DELETED)
        else:
            yield from changed(event, story, _changes(action.get("changes")))


def _changes(changes: object) -> Changes:
    return {
        text(change.get("attribute")) or "": Sides(
            adds=items(change.get("adds")),
            removes=items(change.get("removes")),
            truncated=change.get("truncated") is True,
        )
        for change in mappings(changes)
    }


def triggered(event: Event, kind: str) -> Iterator[Fact]:
    trigger = mapping(event.payload.get("trigger"))
    sc_id = number(trigger.get("entity_id"))
    if trigger.get("entity_type") == "epic":
        event.nothing = "about an epic, not a story"
    if trigger.get("entity_type") != "story" or sc_id is None:
        return
    story = event.story(sc_id, {})
    comment_id = number(trigger.get("comment_id"))
    if kind == "v2:assigned":
        yield story._replace(kind=FactKind.ASSIGNED)
    elif kind == "v2:comment-reply":
        yield from _comment(event, story, FactKind.COMMENTED, comment_id)
    elif kind == "v2:mentioned" and comment_id and trigger.get("context") != "description":
        yield from _comment(event, story, FactKind.MENTIONED, comment_id)
    elif kind == "v2:mentioned":
        yield story._replace(kind=FactKind.MENTIONED)
    else:
        event.nothing = UNKNOWN_KIND


def _comment(event: Event, story: Fact, kind: FactKind, comment_id: int | None) -> Iterator[Fact]:
    """What was said in the comment, or only that the story was touched if the comment is gone."""
    yield story
    if comment_id is None:
        return
    said = event.look_up(Need(NeedKind.COMMENT, comment_id, story.sc_id))
    if said is not None:
        parent = parent_comment(mapping(event.payload.get("trigger")))
        yield story._replace(kind=kind, value=said, comment_id=comment_id, parent_comment_id=parent)
