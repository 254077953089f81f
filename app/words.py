"""Every text that goes out to a story. No I/O."""

import re
from collections.abc import Mapping, Sequence

from app.clarify import SHORT_CHARS, Rule
from app.errors import DraftgateError
from app.machine import Phase, Status
from app.model import Answer, Draft

#: The largest comment that is sent, in characters; Shortcut takes 100,000.
LONGEST_COMMENT_CHARS = 60_000


def draft(revision: int, draft: Draft) -> str:
    """The comment that hands a draft back."""
    summary = draft.summary.strip() or "No summary was given."
    head = f"**Draft {revision}**\n\n{summary}\n\n{_stat(draft.patch)}"
    base = draft.meta.get("base_commit")
    made_on = f"on `{str(base)[:12]}`" if base else "on the base it was made from"
    apply = f"Apply it with `git apply` {made_on}:\n\n{_fenced(draft.patch)}"
    whole = f"{head}\n\n{apply}"
    if len(whole) <= LONGEST_COMMENT_CHARS:
        return whole
    return f"{head}\n\nThe patch is too long for a comment; it is kept as draft {revision}."


#: What is asked of a story that does not keep a rule.
QUESTIONS: Mapping[Rule, str] = {
    Rule.DESCRIPTION: "The story has no description. What should change, and why?",
    Rule.LENGTH: f"The description is shorter than {SHORT_CHARS} characters. What else matters?",
    Rule.CRITERIA: "How will we know that it is done? Please list the acceptance criteria.",
    Rule.STEPS: "How can the bug be seen? Please list the steps, and what is expected instead.",
}


def questions(asked: Sequence[str]) -> str:
    """The comment that asks what must be known before the story can be drafted."""
    numbered = "\n".join(f"{n}. {text.strip()}" for n, text in enumerate(asked, start=1))
    return (
        f"**Before I can draft this**\n\n{numbered}\n\n"
        "Reply with a comment and I will go on, or say `/draft` to have it drafted as it is."
    )


#: Where a session stands, and what can be done about it.
STATUS: Mapping[Status, str] = {
    Status.OPENED: "Waiting to be looked at.",
    Status.ASKING: "Being looked at for what to ask.",
    Status.CLARIFYING: "Waiting for an answer to my questions; `/draft` goes on without.",
    Status.CLARIFIED: "Waiting to be drafted.",
    Status.DRAFTING: "Being drafted; `/stop` ends that.",
    Status.DRAFTED: "A draft is there; `/revise` and what is to be different makes another.",
    Status.FAILED: "Given up; `/retry` tries again.",
    Status.CLOSED: "Closed; what opened it opens it again.",
}


def standing(status: Status) -> str:
    """The one comment of a story that is rewritten whenever its session has moved."""
    return f"**Where this stands**\n\n{STATUS[status]}\n\n*This comment is kept up to date.*"


def answer(kind: Answer, status: Status, reason: str) -> str:
    """The comment that answers somebody at once."""
    match kind:
        case Answer.STATUS:
            return f"**Status**\n\n{STATUS[status]}"
        case Answer.REFUSED:
            return "**Not done**\n\nOnly members that the settings name can give me commands."
        case Answer.STOPPED:
            return f"**Stopped**\n\nThis is no longer being drafted: {reason}."


def failure(phase: Phase, attempts: int, error: str) -> str:
    """The comment that says that the work was given up, and how to go on."""
    what = {Phase.CLARIFY: "Looking for what to ask", Phase.DRAFT: "Drafting"}[phase]
    return (
        f"**No draft**\n\n{what} failed {_times(attempts)}. The last error was:\n\n"
        f"{_fenced(error)}\n\nComment `/retry` to try again."
    )


def crash(crashes: int) -> str:
    """The comment that says that drafting was given up because workers kept dying at it."""
    return (
        f"**No draft**\n\nThe worker that drafted this stopped responding {_times(crashes)}. "
        "Comment `/retry` to try again."
    )


def muted(count: int, sc_id: int) -> str:
    """The last comment on a story that was written to too often."""
    return (
        f"**Silence**\n\nI have written {count} comments here within an hour, as if I was talking "
        "with a machine. I write no more, and comments move nothing, until an operator says "
        f"`draftgate sessions unmute {sc_id}`."
    )


#: How each of these texts begins.
_HEADS = re.compile(
    r"\*\*(Draft \d+|Before I can draft this|Where this stands|Status|Not done|Stopped|No draft"
    r"|Silence)\*\*(\n|$)"
)


def is_ours(text: str | None) -> bool:
    """Whether a comment by our own account is one of these texts, and not a person's."""
    return text is not None and _HEADS.match(text) is not None


def problem(error: DraftgateError) -> str:
    """An error as one line of at most 2,000 characters, for a row's `last_error`."""
    return str(error).strip()[:2000] or type(error).__name__


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _stat(patch: str) -> str:
    lines = patch.splitlines()
    files = sum(line.startswith("diff --git ") for line in lines)
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return f"{_many(files, 'file')} changed, {_many(added, 'line')} added, {removed} removed."


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _fenced(text: str) -> str:
    """The text in a code fence that nothing inside it can close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"
