"""Every text that goes out to a story. No I/O."""

from app.errors import DraftgateError
from app.model import Draft

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


def questions(draft: Draft) -> str:
    """The comment that asks what the drafter must know before it can go on."""
    numbered = "\n".join(f"{n}. {text.strip()}" for n, text in enumerate(draft.questions, start=1))
    return f"**Before I can draft this**\n\n{numbered}\n\nReply with a comment and I will go on."


def failure(attempts: int, error: str) -> str:
    """The comment that says that drafting was given up, and how to go on."""
    return (
        f"**No draft**\n\nDrafting failed {_times(attempts)}. The last error was:\n\n"
        f"{_fenced(error)}\n\nComment `/retry` to try again."
    )


def crash(crashes: int) -> str:
    """The comment that says that drafting was given up because workers kept dying at it."""
    return (
        f"**No draft**\n\nThe worker that drafted this stopped responding {_times(crashes)}. "
        "Comment `/retry` to try again."
    )


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
    noun = "file" if files == 1 else "files"
    return f"{files} {noun} changed, {added} lines added, {removed} removed."


def _fenced(text: str) -> str:
    """The text in a code fence that nothing inside it can close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"
