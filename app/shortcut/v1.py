"""Reads the workspace webhook's events, which carry what changed. No I/O."""

from collections.abc import Iterator, Mapping

from app.model import Fact, FactKind
from app.shortcut.changes import Changes, Sides, changed, items
from app.shortcut.event import Event, parent_comment
from app.shortcut.values import identifier, mapping, number, numbers, text

#: What v1 calls the attributes that matter, and what v2 does.
_ATTRIBUTES = {
    "description": "description",
    "name": "name",
    "label_ids": "labels",
    "owner_ids": "owners",
    "workflow_state_id": "workflow_state",
    "archived": "archived",
    "completed": "completed",
}
_COMMENT_KINDS: Mapping[str | None, FactKind] = {
    "create": FactKind.COMMENTED,
    "update": FactKind.COMMENT_EDITED,
    "delete": FactKind.COMMENT_DELETED,
}


def facts(event: Event) -> Iterator[Fact]:
    comments = _Comments(event)
    for action in event.actions:
        if action.get("entity_type") == "story":
            yield from _story(event, comments, action)
        elif action.get("entity_type") == "story-comment":
            yield from _comment(event, comments, action)


def _story(event: Event, comments: "_Comments", action: Mapping[str, object]) -> Iterator[Fact]:
    sc_id = number(action.get("id"))
    if sc_id is None:
        return
    story = event.story(sc_id, action)
    yield story
    verb = action.get("action")
    if verb == "create":
        yield story._replace(kind=FactKind.CREATED, value=text(action.get("description")))
        yield from changed(event, story, _born(action))
    elif verb == "update":
        changes = mapping(action.get("changes"))
        yield from changed(event, story, _changes(changes))
        # The shape of a deleted comment's own action is not documented.
        for comment_id in numbers(mapping(changes.get("comment_ids")).get("removes")):
            yield story._replace(kind=FactKind.COMMENT_DELETED, comment_id=comment_id)
    elif verb == "delete":
        yield story._replace(kind=FactKind.DELETED)


def _changes(changes: Mapping[str, object]) -> Changes:
    return {
        attribute: _sides(mapping(changes[key]))
        for key, attribute in _ATTRIBUTES.items()
        if key in changes
    }


def _sides(change: Mapping[str, object]) -> Sides:
    # A missing side of a single value means null.
    return Sides(
        adds=(change["new"],) if "new" in change else items(change.get("adds")),
        removes=(change["old"],) if "old" in change else items(change.get("removes")),
    )


def _born(action: Mapping[str, object]) -> Changes:
    """A new story's values are flat; to the rules they are gains like any other."""
    return {
        "labels": Sides(items(action.get("label_ids"))),
        "owners": Sides(items(action.get("owner_ids"))),
        "workflow_state": Sides((action.get("workflow_state_id"),)),
        "archived": Sides((action.get("archived") or None,)),
        "completed": Sides((action.get("completed"),)),
    }


def _comment(event: Event, comments: "_Comments", action: Mapping[str, object]) -> Iterator[Fact]:
    kind = _COMMENT_KINDS.get(text(action.get("action")))
    comment_id = number(action.get("id"))
    if kind is None or comment_id is None:
        return
    story = comments.story_of(comment_id, action)
    if story is None:
        event.nothing = "a comment on a story that it doesn't name"
        return
    if kind is FactKind.COMMENT_DELETED:
        yield story._replace(kind=kind, comment_id=comment_id)
        return
    # Only of a new comment is the author surely the one who acted.
    author = identifier(action.get("author_id")) if kind is FactKind.COMMENTED else None
    yield story._replace(
        kind=kind,
        actor=story.actor or author,
        value=text(action.get("text")),
        comment_id=comment_id,
        parent_comment_id=parent_comment(action),
    )


class _Comments:
    """Finds the story of a comment, which v1 says elsewhere in the event than in the comment."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self._stories: dict[int, Fact] = {}
        self._homes: dict[int, int] = {}
        for reference in event.references:
            self._meet(reference)
        referred = tuple(self._stories)
        self._only = referred[0] if len(referred) == 1 else None
        for action in event.actions:
            self._meet(action)

    def _meet(self, said: Mapping[str, object]) -> None:
        sc_id = number(said.get("id"))
        if said.get("entity_type") != "story" or sc_id is None:
            return
        story = self._event.story(sc_id, said)
        if story.title or sc_id not in self._stories:
            self._stories[sc_id] = story
        comments = mapping(mapping(said.get("changes")).get("comment_ids"))
        for comment_id in (*numbers(comments.get("adds")), *numbers(comments.get("removes"))):
            self._homes[comment_id] = sc_id

    def story_of(self, comment_id: int, action: Mapping[str, object]) -> Fact | None:
        sc_id = self._homes.get(comment_id) or number(action.get("story_id")) or self._only
        if sc_id is None:
            return None
        return self._stories.get(sc_id) or self._event.story(sc_id, {})
