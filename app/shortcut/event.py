"""One event under interpretation. No I/O."""

from collections.abc import Iterable, Mapping

from app.model import Fact, FactKind, Interpretation, Known, Need, NeedKind
from app.shortcut.values import link, mappings, number, short, text

#: Well above any real event: it bounds what a senseless one costs.
MAX_FACTS = 5_000
TITLE_LENGTH = 1_000

UNKNOWN_KIND = "of a kind that is not known here"

_NAMED: Mapping[str | None, NeedKind] = {
    "label": NeedKind.LABEL,
    "workflow-state": NeedKind.STATE,
}


class Event:
    """One event under interpretation: what it holds, the names it gives, what it still needs."""

    def __init__(self, payload: Mapping[str, object], shared: Fact, known: Known) -> None:
        self.payload = payload
        self.actions = mappings(payload.get("actions"))
        self.references = mappings(payload.get("references"))
        self.nothing = "no story in it"
        self._shared = shared
        self._known = known
        self._needs: dict[Need, None] = {}
        self._names: dict[Need, str] = {}
        self._done: set[int] = set()
        for entity in (*self.references, *self.actions):
            self._learn(entity)

    def _learn(self, entity: Mapping[str, object]) -> None:
        # An id is unique among the entities of one type only.
        kind = _NAMED.get(text(entity.get("entity_type")))
        entity_id = number(entity.get("id"))
        if kind is None or entity_id is None:
            return
        name = text(entity.get("name"))
        if name:
            self._names[Need(kind, entity_id)] = name
        if kind is NeedKind.STATE and entity.get("type") == "done":
            self._done.add(entity_id)

    def story(self, sc_id: int, said: Mapping[str, object]) -> Fact:
        """That the story was touched; what else is said of it is made from this."""
        return self._shared._replace(
            sc_id=sc_id,
            title=short(said.get("name"), TITLE_LENGTH),
            app_url=link(said.get("app_url")),
        )

    def look_up(self, need: Need) -> str | None:
        """The text that was said or read; None if it is gone, or must be read first."""
        if need in self._names:
            return self._names[need]
        if need not in self._known:
            self._needs[need] = None
            return None
        return text(self._known[need])

    def is_done(self, state_id: int | None) -> bool:
        return state_id in self._done

    def told(self, facts: Iterable[Fact]) -> Interpretation:
        """Each fact once; that a story was touched only where nothing else is said of it."""
        said: dict[Fact, None] = {}
        touched: dict[int, Fact] = {}
        nothing = None
        for fact in facts:
            if len(said) + len(touched) == MAX_FACTS:
                nothing = f"only the first {MAX_FACTS} facts in it are read"
                break
            if fact.kind is FactKind.TOUCHED:
                touched.setdefault(fact.sc_id, fact)
            else:
                said[fact] = None
        if self._needs:
            return Interpretation(needs=tuple(self._needs))
        about = {fact.sc_id for fact in said}
        rest = [fact for sc_id, fact in touched.items() if sc_id not in about]
        return Interpretation(
            facts=(*said, *rest), nothing=nothing if said or rest else self.nothing
        )


def parent_comment(said: Mapping[str, object]) -> int | None:
    """The comment replied to, which goes by a name of its own in each kind of delivery."""
    names = ("parent_comment_id", "comment_parent_id", "parent_id")
    return next(filter(None, (number(said.get(name)) for name in names)), None)
