"""Reads what changed of a story; v1 and v2 say it in forms that meet here. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from app.model import Fact, FactKind, Need, NeedKind
from app.shortcut.event import TITLE_LENGTH, Event
from app.shortcut.values import identifier, number, short, text

_MAX_ITEMS = 200


class Sides(NamedTuple):
    """What an attribute gained and lost; a single value is a sequence of one."""

    adds: Sequence[object] = ()
    removes: Sequence[object] = ()
    truncated: bool = False

    @property
    def new(self) -> object:
        return self.adds[0] if self.adds else None


_NO_SIDES = Sides()
Changes = Mapping[str, Sides]


def items(value: object) -> Sequence[object]:
    return value[:_MAX_ITEMS] if isinstance(value, list) else ()


def changed(event: Event, story: Fact, changes: Changes) -> Iterator[Fact]:
    """In the order that makes the last word count: gains after losses, endings at the end."""
    yield from _described(story, changes)
    labels = changes.get("labels", _NO_SIDES)
    yield from _named(event, story, FactKind.LABEL_REMOVED, labels.removes)
    yield from _named(event, story, FactKind.LABEL_ADDED, labels.adds)
    owners = changes.get("owners", _NO_SIDES)
    yield from _owned(story, FactKind.OWNER_REMOVED, owners.removes)
    yield from _owned(story, FactKind.OWNER_ADDED, owners.adds)
    states = changes.get("workflow_state", _NO_SIDES).adds[:1]
    yield from _named(event, story, FactKind.STATE_ENTERED, states)
    archived = changes.get("archived", _NO_SIDES).new
    if isinstance(archived, bool):
        yield story._replace(kind=FactKind.ARCHIVED if archived else FactKind.UNARCHIVED)
    completed = changes.get("completed", _NO_SIDES).new
    if any(_is_done(event, _entity(state)) for state in states) or completed is True:
        yield story._replace(kind=FactKind.COMPLETED)


def _described(story: Fact, changes: Changes) -> Iterator[Fact]:
    """A new description, an empty one, or none where only the title is new or it came cut."""
    sides = changes.get("description", _NO_SIDES)
    description = text(sides.new)
    cleared = sides.new is None and bool(sides.removes)
    title = short(changes.get("name", _NO_SIDES).new, TITLE_LENGTH)
    if description is None and title is None and not cleared:
        return
    yield story._replace(
        kind=FactKind.DESCRIBED,
        value="" if cleared else None if sides.truncated else description,
        title=story.title or title,
    )


def _named(event: Event, story: Fact, kind: FactKind, given: Sequence[object]) -> Iterator[Fact]:
    """Labels or states: v1 gives their ids, v2 the entities."""
    needed = NeedKind.STATE if kind is FactKind.STATE_ENTERED else NeedKind.LABEL
    for entity in map(_entity, given):
        name, entity_id = text(entity.get("name")) or None, number(entity.get("id"))
        if entity_id is not None:
            name = name or event.look_up(Need(needed, entity_id))
            yield story._replace(kind=kind, value=name, value_id=str(entity_id))
        elif name is not None:
            yield story._replace(kind=kind, value=name)


def _is_done(event: Event, state: Mapping[str, object]) -> bool:
    return state.get("type") == "done" or event.is_done(number(state.get("id")))


def _owned(story: Fact, kind: FactKind, given: Sequence[object]) -> Iterator[Fact]:
    for entity in map(_entity, given):
        member = identifier(entity.get("id"))
        if member is not None:
            yield story._replace(kind=kind, value=member)


def _entity(item: object) -> Mapping[str, object]:
    return item if isinstance(item, dict) else {"id": item}
