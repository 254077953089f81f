"""Decides what a fact does to a session. No I/O: session, fact and rules in, a decision out."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from app.machine import OWNED, TRANSITIONS, Move, Status
from app.model import Answer, Decision, Fact, FactKind, Glimpse, Remark, Session
from app.words import is_ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What opens a session and whom we ignore; from the settings.

    Attributes:
        bots: our own member ids, in all workspaces; what they did is never reacted to.
        commanders: the members whose commands count; None: everybody's.
        shared: our account is a person's own, so that of what it does only our comments are ours.
        clarify: whether a worker looks at a session before it is drafted, for what to ask.
    """

    label: str | None = None
    owner: str | None = None
    state: str | None = None
    assigned: bool = True
    mentioned: bool = True
    bots: frozenset[str] = frozenset()
    commanders: frozenset[str] | None = None
    shared: bool = False
    clarify: bool = False


def decide(
    session: Session | None,
    facts: Sequence[Fact],
    rules: Rules,
    *,
    spoken: Collection[int] = (),
) -> list[Decision]:
    """What each of these facts, oldest first, does to the session when its turn comes.

    `spoken` are the comments whose words the session has heard already.
    """
    story, heard = _Text(), set(spoken)
    steps: list[Decision] = []
    for fact in facts:
        story = story.after(fact)
        step = _step(session, fact, story, rules, again=fact.comment_id in heard)
        heard.update(remark.comment_id for remark in step.remarks if remark.spoken)
        session = step.session
        steps.append(step)
    return steps


def hangs_on_the_past(
    session: Session | None, facts: Sequence[Fact], steps: Sequence[Decision]
) -> bool:
    """Whether the order of arrival could matter for what was decided about these facts.

    Then all that is recorded of the story is decided anew from nothing, in its own order, so
    that any order of arrival ends the same. Once a worker has acted, the past is closed.
    """
    if session is None:
        return any(step.session is not None for step in steps)
    if session.worked or session.muted:
        return False
    return any(fact.occurred_at <= session.heard_at for fact in facts)


def _step(
    session: Session | None, fact: Fact, story: "_Text", rules: Rules, *, again: bool
) -> Decision:
    if fact.actor in rules.bots and (not rules.shared or is_ours(fact.value)):
        return _ignored(session, "our own change")
    if session is None:
        if not _opens(fact, rules):
            return _ignored(None, _why_not(fact, rules))
        return _opened(fact, story, rules)
    if session.muted and not _closes(fact, rules) and not _asks_to_stop(fact, rules):
        return replace(_ignored(session, "the story is muted"), remarks=_remarks(fact))
    heard = replace(_describe(session, fact), heard_at=max(session.heard_at, fact.occurred_at))
    if fact.comment_id is None:
        return _control(heard, fact, rules)
    return _comment(heard, fact, rules, again=again)


class _Text(NamedTuple):
    """What has been said of a story so far."""

    title: str | None = None
    description: str | None = None
    app_url: str | None = None
    title_at: datetime | None = None
    description_at: datetime | None = None

    def after(self, fact: Fact) -> "_Text":
        """The newest word counts, in whichever order they come."""
        at = fact.occurred_at
        text = self._replace(app_url=fact.app_url) if fact.app_url else self
        if fact.title and (self.title_at is None or at >= self.title_at):
            text = text._replace(title=fact.title, title_at=at)
        if _describes(fact) and (self.description_at is None or at >= self.description_at):
            text = text._replace(description=fact.value, description_at=at)
        return text

    def put_into(self, session: Session) -> Session:
        return replace(session, **self._asdict())


_ENDINGS = {
    FactKind.ARCHIVED: "the story was archived",
    FactKind.DELETED: "the story was deleted",
    FactKind.COMPLETED: "the story was completed",
}
_STATUS = "/status"
_STOP = "/stop"
_COMMANDS = {
    "/draft": (Move.CLEAR, "asked to draft"),
    "/retry": (Move.RETRY, "asked to try again"),
    "/revise": (Move.REVISE, "asked to revise the draft"),
    _STOP: (Move.CLOSE, "asked to stop"),
}
#: What a line may begin with before its command.
_MENTIONS = re.compile(r"(?:\s*(?:\[@[^\]]*\]\([^)]*\)|@\S+))*")
#: What is told of a comment's own words; not of an edit's, which are heard by nobody.
_WORDS = (FactKind.COMMENTED, FactKind.MENTIONED)


def _opens(fact: Fact, rules: Rules) -> bool:
    match fact.kind:
        case FactKind.LABEL_ADDED:
            return _is_label(fact, rules)
        case FactKind.OWNER_ADDED:
            ours = _is_assignment(rules) and fact.value in rules.bots
            return ours or (fact.value is not None and fact.value == rules.owner)
        case FactKind.STATE_ENTERED:
            return bool(rules.state) and rules.state in (fact.value, fact.value_id)
        case FactKind.ASSIGNED:
            return rules.assigned
        case FactKind.MENTIONED:
            return rules.mentioned and _command(fact) not in (_STOP, _STATUS)
        case _:
            return False


def may_have_opened(story: Glimpse, rules: Rules) -> bool:
    """Whether the story shows something that opens a session; a state's name it does not show."""
    label = rules.label.casefold() if rules.label else None
    owners = {rules.owner} | (rules.bots if _is_assignment(rules) else set())
    return (
        label in {name.casefold() for name in story.labels}
        or not owners.isdisjoint(story.owners)
        or rules.state is not None
    )


def _is_assignment(rules: Rules) -> bool:
    """Whether giving a story to us asks for a patch; a person has stories of that person's own."""
    return rules.assigned and not rules.shared


def _closes(fact: Fact, rules: Rules) -> str | None:
    if fact.kind in _ENDINGS:
        return _ENDINGS[fact.kind]
    if fact.kind is FactKind.LABEL_REMOVED and _is_label(fact, rules):
        return "the label was removed"
    if fact.kind is FactKind.OWNER_REMOVED and fact.value in {*rules.bots, rules.owner} - {None}:
        return "the owner was removed"
    return None


def _asks_to_stop(fact: Fact, rules: Rules) -> bool:
    return fact.kind in _WORDS and _command(fact) == _STOP and _may_command(fact, rules)


def _may_command(fact: Fact, rules: Rules) -> bool:
    return rules.commanders is None or fact.actor in rules.commanders


def _is_label(fact: Fact, rules: Rules) -> bool:
    if not rules.label:
        return False
    # Shortcut treats label names as equal whatever their case.
    return fact.value is not None and fact.value.casefold() == rules.label.casefold()


def _opened(fact: Fact, story: _Text, rules: Rules) -> Decision:
    session = Session(
        workspace=fact.workspace,
        sc_id=fact.sc_id,
        status=Status.OPENED,
        decided_at=fact.occurred_at,
        heard_at=fact.occurred_at,
    )
    return _reopened(story.put_into(session), fact, rules)


def _reopened(session: Session, fact: Fact, rules: Rules) -> Decision:
    session = replace(session, status=Status.OPENED, decided_at=fact.occurred_at)
    # A mention in a comment is both: it opens a session, and its words may ask for a draft.
    asked = _command(fact) == "/draft" and _may_command(fact, rules)
    opened = _go_on(session, ((Move.OPEN, Status.OPENED),), rules, asked=asked)
    return replace(opened, remarks=_remarks(fact))


def _control(session: Session, fact: Fact, rules: Rules) -> Decision:
    closing = _closes(fact, rules)
    opening = _opens(fact, rules)
    if (closing or opening) and session.worked and fact.occurred_at < session.decided_at:
        return _ignored(session, "older than the last decision")
    if closing or opening or _asks_to_stop(fact, rules):
        # Also where it only says what is already so: what is older must not undo it later.
        session = replace(session, decided_at=max(session.decided_at, fact.occurred_at))
    if closing:
        return _closed(session, fact, closing)
    if opening and session.status is Status.CLOSED:
        return _reopened(session, fact, rules)
    if opening or session.status is Status.CLOSED:
        return _ignored(session, f"the session is {session.status}")
    if _describes(fact):
        return _described(session, fact, rules)
    return _ignored(session, "changes nothing that matters here")


def _described(session: Session, fact: Fact, rules: Rules) -> Decision:
    """A description that is written while questions are open answers them."""
    is_new = fact.kind is FactKind.DESCRIBED and fact.occurred_at >= session.decided_at
    if session.status is Status.CLARIFYING and is_new:
        return _go_on(*_made(session, fact, Move.ANSWER), rules)
    return _go_on(session, (), rules)


def _comment(session: Session, fact: Fact, rules: Rules, *, again: bool) -> Decision:
    """Every comment joins the conversation; a new one's words may also move the session, once.

    One comment comes in several deliveries: in both versions, as a reply and as a mention.
    """
    said = Decision(session=session, reason="added to the conversation")
    remarks = _remarks(fact)
    controls = _opens(fact, rules) or _asks_to_stop(fact, rules)
    if session.status is Status.CLOSED and controls:
        said = _control(session, fact, rules)
    elif fact.kind in _WORDS and not again:
        heard = _spoken(session, fact, rules)
        said = heard or said
        # Version 1 does not say that a comment is a reply, so it may mean more when that is told.
        if heard is None and fact.parent_comment_id is None:
            remarks = tuple(replace(remark, spoken=False) for remark in remarks)
    return replace(said, remarks=remarks, applied=True)


def _spoken(session: Session, fact: Fact, rules: Rules) -> Decision | None:
    command = _command(fact)
    if command is not None and not _may_command(fact, rules):
        reason = f"{command} by a member whose commands do not count"
        return Decision(session=session, reason=reason, answer=Answer.REFUSED)
    if command == _STATUS:
        return Decision(session=session, reason="asked for the status", answer=Answer.STATUS)
    if fact.occurred_at < session.decided_at:
        return None
    if command == _STOP:
        return replace(_moved(session, fact, *_COMMANDS[_STOP]), answer=Answer.STOPPED)
    if command is not None:
        return _moved(session, fact, *_COMMANDS[command])
    if session.status is Status.CLARIFYING:
        return _go_on(*_made(session, fact, Move.ANSWER), rules)
    if session.status is Status.DRAFTED and fact.parent_comment_id is not None:
        return _moved(session, fact, Move.REVISE, "a reply to the draft")
    return None


def _command(fact: Fact) -> str | None:
    """The first command in a comment: the first word of a line, mentions aside."""
    lines = (fact.value or "").splitlines() if fact.comment_id is not None else []
    words = (_MENTIONS.sub("", line, count=1).split(maxsplit=1) for line in lines)
    known = (word[0].lower() for word in words if word)
    return next((word for word in known if word in _COMMANDS or word == _STATUS), None)


def _remarks(fact: Fact) -> tuple[Remark, ...]:
    if fact.comment_id is None:
        return ()
    remark = Remark(
        comment_id=fact.comment_id,
        author=fact.actor,
        text=None if fact.kind is FactKind.COMMENT_DELETED else fact.value,
        said_at=fact.occurred_at,
        as_of=fact.occurred_at,
        spoken=fact.kind in _WORDS,
    )
    return (remark,)


def _describes(fact: Fact) -> bool:
    return fact.kind in (FactKind.CREATED, FactKind.DESCRIBED) and fact.value is not None


def _as_of(session: Session, known: str | None, at: datetime | None) -> datetime | None:
    """What a worker has read of the story is as new as what had been heard by then."""
    return at or (session.heard_at if known else None)


def _describe(session: Session, fact: Fact) -> Session:
    """Takes title, link and description from the fact, where nothing newer was said of them."""
    known = _Text(
        session.title,
        session.description,
        session.app_url,
        _as_of(session, session.title, session.title_at),
        _as_of(session, session.description, session.description_at),
    )
    told = known.after(fact)
    if fact.occurred_at < session.heard_at:
        told = told._replace(app_url=known.app_url or told.app_url)
    return told.put_into(session)


def _made(
    session: Session, fact: Fact, move: Move
) -> tuple[Session, tuple[tuple[Move, Status], ...]]:
    status = TRANSITIONS[session.status][move]
    # An answer decides nothing that an older closing, which comes late, has to yield to.
    decided_at = session.decided_at if move is Move.ANSWER else fact.occurred_at
    return replace(session, status=status, decided_at=decided_at), ((move, status),)


def _closed(session: Session, fact: Fact, reason: str) -> Decision:
    """What is being worked on is stopped, and the story is told so, if it is still there."""
    told = session.status in OWNED.values() and fact.kind is not FactKind.DELETED
    closed = _moved(session, fact, Move.CLOSE, reason)
    return replace(closed, answer=Answer.STOPPED if told else None)


def _moved(session: Session, fact: Fact, move: Move, reason: str) -> Decision:
    if move not in TRANSITIONS[session.status]:
        return _ignored(session, f"{reason}, but the session is {session.status}")
    after, moves = _made(session, fact, move)
    return Decision(session=after, moves=moves, reason=reason, applied=True)


def _go_on(
    session: Session,
    moves: tuple[tuple[Move, Status], ...],
    rules: Rules,
    *,
    asked: bool = False,
) -> Decision:
    """Where nobody looks for questions, a session goes on as soon as its story has any text."""
    clear = asked or (not rules.clarify and (session.title or session.description))
    if session.status is Status.OPENED and clear:
        session = replace(session, status=Status.CLARIFIED)
        moves = (*moves, (Move.CLEAR, Status.CLARIFIED))
    said = ", then ".join(f"{move} to {status}" for move, status in moves)
    return Decision(session=session, moves=moves, reason=said or "noted", applied=True)


def _ignored(session: Session | None, reason: str) -> Decision:
    return Decision(session=session, reason=reason)


def _why_not(fact: Fact, rules: Rules) -> str:
    if fact.kind is FactKind.LABEL_ADDED:
        return f"the label is not {rules.label!r}" if rules.label else "no label opens a session"
    return f"{fact.kind.replace('_', ' ')}, which opens no session"
