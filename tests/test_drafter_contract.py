"""The drafter contract: what a drafter is told, what it may answer."""

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.drafters import contract
from app.errors import DrafterError
from app.model import Asked, Remark
from tests.drafters import CLAIM, STORY

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def told(story=STORY, conversation=(), previous_patch=None, asked=()):
    document = contract.request(
        CLAIM,
        story,
        conversation=conversation,
        asked=asked,
        previous_patch=previous_patch,
        result_file="/run/result.json",
        timeout_seconds=60,
    )
    return json.loads(document)


def remark(text, *, comment_id=5):
    return Remark(
        comment_id=comment_id, author="ada", text=text, said_at=NOON, as_of=NOON, spoken=True
    )


def answered(**document):
    return contract.result(json.dumps(document).encode())


# --- the request -----------------------------------------------------------------------------


def test_a_drafter_is_told_the_story_and_its_place_in_the_session():
    """The whole document, as an author of a drafter sees it."""
    story = replace(STORY, labels=("patch",), tasks=("Write a test",), links=("https://x.test",))

    asked = [Asked(questions=("Which browser?",), asked_at=NOON)]

    assert told(story, [remark("Only on Safari")], "diff --git a/x b/x\n", asked) == {
        "phase": "draft",
        "session": 7,
        "generation": 3,
        "attempt": 1,
        "revision": 0,
        "workspace": "acme",
        "story": {
            "sc_id": 41,
            "title": "Fix the login",
            "description": "- It fails\n- It should not",
            "type": "feature",
            "app_url": None,
            "labels": ["patch"],
            "tasks": ["Write a test"],
            "links": ["https://x.test"],
        },
        "conversation": [
            {
                "comment_id": 5,
                "author": "ada",
                "text": "Only on Safari",
                "said_at": "2026-03-01T12:00:00+00:00",
            }
        ],
        "asked": [{"questions": ["Which browser?"], "asked_at": "2026-03-01T12:00:00+00:00"}],
        "previous_draft": {"patch": "diff --git a/x b/x\n"},
        "limits": {
            "timeout_seconds": 60,
            "patch_bytes": 5_242_880,
            "summary_chars": 20_000,
            "questions": 20,
            "question_chars": 2_000,
        },
        "result_file": "/run/result.json",
    }


def test_a_first_draft_has_no_previous_one():
    """Nothing is null, not an empty patch."""
    assert told()["previous_draft"] is None


def test_a_deleted_comment_is_not_told():
    """What people took back is not handed on."""
    said = told(conversation=[remark(None), remark("Yes", comment_id=6)])["conversation"]

    assert [entry["comment_id"] for entry in said] == [6]


def test_hostile_text_is_told_without_what_no_parser_takes():
    """NUL and lone surrogates become U+FFFD; all else arrives as it is."""
    story = replace(STORY, title="a\x00b\ud800c\U0001f600", description="é'\"$(id)" * 30_000)

    assert told(story)["story"]["title"] == "a\ufffdb\ufffdc\U0001f600"
    assert told(story)["story"]["description"] == story.description


# --- the result ------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b" \n", b"{}", b'{"summary": null, "patch": null}'])
def test_an_empty_answer_says_nothing(raw):
    """What is left out is nothing, and no error."""
    assert contract.result(raw) == contract.Result()


def test_everything_that_can_be_answered_is_taken():
    """Unknown keys are left aside; a byte order mark is no harm."""
    raw = json.dumps(
        {
            "summary": "Did it",
            "patch": "diff",
            "questions": [" Which? ", ""],
            "cost_usd": 1,
            "meta": {"model": "m", "turns": [1, 2]},
            "more": 1,
        }
    ).encode("utf-8-sig")

    assert contract.result(raw) == contract.Result(
        summary="Did it",
        patch="diff",
        questions=("Which?",),
        cost_usd=1.0,
        meta={"model": "m", "turns": [1, 2]},
    )


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"done!", "the result is not JSON: Expecting value at line 1, column 1"),
        (b'{"summary": "a', "the result is not JSON: Unterminated string"),
        (b'{"summary": "\xff"}', "the result is not JSON: it is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"cost_usd": NaN}', "the result is not usable JSON: NaN is no number"),
        (b'{"meta": {"x": 1e999}}', "the result is not usable JSON: 1e999 is no number"),
        (b'{"cost_usd": ' + b"9" * 5_000 + b"}", "the result is not usable JSON"),
        (b'["summary"]', "the result must be a JSON object"),
        (b'{"summary": 1}', "`summary` in the result must be a string"),
        (b'{"patch": ["diff"]}', "`patch` in the result must be a string"),
        (b'{"questions": "Which?"}', "`questions` in the result must be a list of strings"),
        (b'{"questions": [1]}', "`questions` in the result must be a list of strings"),
        (b'{"meta": []}', "`meta` in the result must be an object"),
        (b'{"cost_usd": -0.01}', "`cost_usd` in the result must be a number"),
        (b'{"cost_usd": "1"}', "`cost_usd` in the result must be a number"),
        (b'{"cost_usd": true}', "`cost_usd` in the result must be a number"),
        (b'{"cost_usd": 1' + b"0" * 400 + b"}", "`cost_usd` in the result must be a number"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused_with_the_reason(raw, reason):
    """The author of the drafter is told what is wrong with it."""
    with pytest.raises(DrafterError) as refused:
        contract.result(raw)

    assert reason in str(refused.value)


def test_texts_are_cut_to_what_is_kept():
    """A wordy drafter is cut short, not refused."""
    result = answered(summary="s" * 30_000, questions=["q" * 3_000] * 30)

    assert len(result.summary) == 20_000
    assert [len(question) for question in result.questions] == [2_000] * 20


def test_a_patch_that_is_too_large_is_refused():
    """Half a patch is of no use."""
    with pytest.raises(DrafterError, match="the patch is larger than 5 MiB"):
        answered(patch="é" * (5 * 2**19 + 1))


def test_meta_that_is_too_large_does_not_cost_the_draft():
    """It is replaced by a word about it."""
    result = answered(summary="Did it", meta={"log": "x" * 70_000})

    assert result.meta == {"dropped": "meta was larger than 65536 bytes"}
    assert result.summary == "Did it"


def test_answers_hold_nothing_that_postgresql_refuses():
    """NUL and lone surrogates become U+FFFD, in keys too."""
    result = contract.result(rb'{"summary": "a\u0000\ud800", "meta": {"\u0000": ["\udfff"]}}')

    assert result.summary == "a\ufffd\ufffd"
    assert result.meta == {"\ufffd": ["\ufffd"]}


# --- texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Fix the login", "fix-the-login"),
        ("Über-Größe: 50 %", "uber-grosse-50"),
        ("--upload-pack=x", "upload-pack-x"),
        ("-x", "x"),
        ("a..b", "a-b"),
        ("a.lock", "a-lock"),
        ("@{", "story"),
        (".hidden", "hidden"),
        ("a b~^:?*[", "a-b"),
        ("$(id)", "id"),
        ("`'\"\n\x00\ud800", "story"),
        ("\U0001f600", "story"),
        ("", "story"),
        ("HEAD", "head"),
        ("x" * 5_000, "x" * 40),
        ("a" * 39 + " b", "a" * 39),
    ],
)
def test_a_title_becomes_a_name_that_git_takes(title, expected):
    """Whatever people write, a branch can be named after it."""
    name = contract.slug(title)

    assert name == expected
    subprocess.run(["git", "check-ref-format", "--branch", f"sc-1/{name}"], check=True)


def test_what_a_program_printed_is_shown_without_its_colours():
    """The end of it, with nothing that a terminal or the database would act on."""
    output = b"start " * 1_000 + b"\x1b[31mError:\x1b[0m no\x00 \xff\r\n\x1b]0;title\x07file\tx\n"

    assert contract.printable(output, longest_chars=21).endswith("Error: no \ufffd\nfile\tx")
    assert len(contract.printable(output, longest_chars=21)) <= 21
