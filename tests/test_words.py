"""Every text that goes out to a story, whole."""

import pytest

from app import words
from app.clarify import Rule
from app.errors import DraftgateError
from app.machine import Phase, Status
from app.model import Answer, Draft

PATCH = """\
diff --git a/export.py b/export.py
--- a/export.py
+++ b/export.py
@@ -1,2 +1,3 @@
-old = 1
+new = 1
+newer = 2
"""


def test_a_draft():
    """What it does, how large it is, what it was made on, and the patch."""
    draft = Draft(
        summary="Adds the export.\n", patch=PATCH, meta={"base_commit": "0123456789abcdef"}
    )

    assert words.draft(2, draft) == (
        "**Draft 2**\n\n"
        "Adds the export.\n\n"
        "1 file changed, 2 lines added, 1 removed.\n\n"
        "Apply it with `git apply` on `0123456789ab`:\n\n"
        f"```\n{PATCH}```"
    )


def test_a_draft_of_a_drafter_that_says_little():
    """No summary, no base; a patch with a fence in it has a longer fence around it."""
    patch = "diff --git a/a b/a\n+```\ndiff --git a/b b/b\n"

    assert words.draft(1, Draft(summary=" ", patch=patch)) == (
        "**Draft 1**\n\n"
        "No summary was given.\n\n"
        "2 files changed, 1 line added, 0 removed.\n\n"
        "Apply it with `git apply` on the base it was made from:\n\n"
        "````\ndiff --git a/a b/a\n+```\ndiff --git a/b b/b\n````"
    )


def test_a_draft_that_is_too_long():
    """Its patch stays here, and the comment says so."""
    patch = "diff --git a/a b/a\n" + "+x\n" * words.LONGEST_COMMENT_CHARS

    assert words.draft(3, Draft(summary="Much.", patch=patch)) == (
        "**Draft 3**\n\n"
        "Much.\n\n"
        "1 file changed, 60000 lines added, 0 removed.\n\n"
        "The patch is too long for a comment; it is kept as draft 3."
    )


def test_questions():
    """All questions of a round, numbered, and how to go on."""
    asked = [words.QUESTIONS[rule] for rule in Rule]

    assert words.questions([*asked, " Which format? "]) == (
        "**Before I can draft this**\n\n"
        "1. The story has no description. What should change, and why?\n"
        "2. The description is shorter than 80 characters. What else matters?\n"
        "3. How will we know that it is done? Please list the acceptance criteria.\n"
        "4. How can the bug be seen? Please list the steps, and what is expected instead.\n"
        "5. Which format?\n\n"
        "Reply with a comment and I will go on, or say `/draft` to have it drafted as it is."
    )


STANDS = {
    Status.OPENED: "Waiting to be looked at.",
    Status.ASKING: "Being looked at for what to ask.",
    Status.CLARIFYING: "Waiting for an answer to my questions; `/draft` goes on without.",
    Status.CLARIFIED: "Waiting to be drafted.",
    Status.DRAFTING: "Being drafted; `/stop` ends that.",
    Status.DRAFTED: "A draft is there; `/revise` and what is to be different makes another.",
    Status.FAILED: "Given up; `/retry` tries again.",
    Status.CLOSED: "Closed; what opened it opens it again.",
}


@pytest.mark.parametrize("status", Status)
def test_where_a_story_stands(status):
    """In the comment that is kept up to date, and as the answer to `/status`."""
    assert words.standing(status) == (
        f"**Where this stands**\n\n{STANDS[status]}\n\n*This comment is kept up to date.*"
    )
    assert words.answer(Answer.STATUS, status, "asked") == f"**Status**\n\n{STANDS[status]}"


def test_answers():
    """A command that does not count, and work that was stopped."""
    assert words.answer(Answer.REFUSED, Status.DRAFTED, "x") == (
        "**Not done**\n\nOnly members that the settings name can give me commands."
    )
    assert words.answer(Answer.STOPPED, Status.CLOSED, "the label was removed") == (
        "**Stopped**\n\nThis is no longer being drafted: the label was removed."
    )


@pytest.mark.parametrize(
    ("phase", "attempts", "begins"),
    [
        (Phase.CLARIFY, 1, "Looking for what to ask failed once"),
        (Phase.DRAFT, 2, "Drafting failed twice"),
        (Phase.DRAFT, 5, "Drafting failed 5 times"),
    ],
)
def test_work_that_was_given_up(phase, attempts, begins):
    """How often it was tried, the last error, and how to try again."""
    assert words.failure(phase, attempts, "exit code 1\n") == (
        f"**No draft**\n\n{begins}. The last error was:\n\n```\nexit code 1\n```\n\n"
        "Comment `/retry` to try again."
    )


def test_workers_that_kept_dying():
    """The same, where nobody could say an error."""
    assert words.crash(3) == (
        "**No draft**\n\nThe worker that drafted this stopped responding 3 times. "
        "Comment `/retry` to try again."
    )


def test_a_story_that_is_muted():
    """Why it falls silent, and what an operator can do."""
    assert words.muted(20, 123) == (
        "**Silence**\n\nI have written 20 comments here within an hour, as if I was talking with a "
        "machine. I write no more, and comments move nothing, until an operator says "
        "`draftgate sessions unmute 123`."
    )


def test_errors_are_short():
    """One that says nothing goes by its name, and a long one is cut."""
    assert words.problem(DraftgateError(" it broke\n")) == "it broke"
    assert words.problem(DraftgateError("")) == "DraftgateError"
    assert len(words.problem(DraftgateError("x" * 9000))) == 2000


@pytest.mark.parametrize("text", [None, "", "Where this stands", "**Drafty**", "I say **Status**"])
def test_what_people_say_is_not_ours(text):
    """Only a text that begins as ours do is taken for ours."""
    assert not words.is_ours(text)
