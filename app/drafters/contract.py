"""What a drafter is told and what it answers: one JSON document each way. No I/O."""

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.errors import DrafterError
from app.model import Asked, Claim, Remark, Story

LONGEST_SUMMARY_CHARS = 20_000
LONGEST_QUESTION_CHARS = 2_000
MOST_QUESTIONS = 20
LARGEST_PATCH_BYTES = 5 * 1024 * 1024
LARGEST_META_BYTES = 64 * 1024
#: A patch may be a third longer in JSON than it is, and there is more than the patch.
LARGEST_RESULT_BYTES = 8 * 1024 * 1024
LONGEST_SLUG_CHARS = 40

#: What PostgreSQL's text can't hold, and what can't be encoded.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a drafter answered; what it did not say has the value of nothing."""

    summary: str = ""
    patch: str | None = None
    questions: tuple[str, ...] = ()
    cost_usd: float = 0.0
    meta: Mapping[str, object] = field(default_factory=dict)


def request(
    claim: Claim,
    story: Story,
    *,
    conversation: Sequence[Remark],
    asked: Sequence[Asked],
    previous_patch: str | None,
    result_file: str,
    timeout_seconds: float,
) -> bytes:
    """The document that a drafter reads."""
    document = {
        "phase": str(claim.phase),
        "session": claim.session_id,
        "generation": claim.generation,
        "attempt": claim.attempt,
        "revision": claim.revision,
        "workspace": claim.workspace,
        "story": _story(story),
        "conversation": [_remark(remark) for remark in conversation if remark.text is not None],
        "asked": [_round(it) for it in asked],
        "previous_draft": None if previous_patch is None else {"patch": previous_patch},
        "limits": {
            "timeout_seconds": timeout_seconds,
            "patch_bytes": LARGEST_PATCH_BYTES,
            "summary_chars": LONGEST_SUMMARY_CHARS,
            "questions": MOST_QUESTIONS,
            "question_chars": LONGEST_QUESTION_CHARS,
        },
        "result_file": result_file,
    }
    # Readable as it stands: some drafters hand it to a language model as text.
    return json.dumps(_storable(document), ensure_ascii=False, indent=2).encode()


def result(raw: bytes) -> Result:
    """What the document says; raises DrafterError with a sentence for the drafter's author."""
    if not raw.strip():
        return Result()
    try:
        document = _storable(_parsed(raw))
    except RecursionError:
        raise DrafterError("the result is not usable JSON: nested too deeply") from None
    if not isinstance(document, dict):
        raise DrafterError("the result must be a JSON object")
    return Result(
        summary=_cut(_text(document, "summary") or "", LONGEST_SUMMARY_CHARS),
        patch=patch_within_limits(_text(document, "patch")),
        questions=_questions(document.get("questions")),
        cost_usd=_cost(document.get("cost_usd")),
        meta=_meta(document.get("meta")),
    )


def patch_within_limits(patch: str | None) -> str | None:
    """The patch, if it is not too large: half a patch is of no use."""
    if patch is not None and len(patch.encode()) > LARGEST_PATCH_BYTES:
        raise DrafterError(f"the patch is larger than {LARGEST_PATCH_BYTES // 2**20} MiB")
    return patch


def printable(output: bytes, *, longest_chars: int) -> str:
    """The end of what a program printed, for a person: no colours, no control characters."""
    # Cut before and after: the patterns need not run over megabytes.
    text = output[-longest_chars * 8 :].decode(errors="replace").replace("\r\n", "\n")
    text = _CONTROL.sub("", _ANSI.sub("", text)).strip()
    return text if len(text) <= longest_chars else "…" + text[1 - longest_chars :]


def slug(title: str) -> str:
    """The title as a part of a branch's or directory's name: `[a-z0-9-]`, never empty."""
    plain = unicodedata.normalize("NFKD", title[:1000].casefold()).encode("ascii", "ignore")
    words = re.sub(r"[^a-z0-9]+", "-", plain.decode()).strip("-")
    return words[:LONGEST_SLUG_CHARS].rstrip("-") or "story"


def _story(story: Story) -> dict[str, object]:
    return {
        "sc_id": story.sc_id,
        "title": story.title,
        "description": story.description,
        "type": story.story_type,
        "app_url": story.app_url,
        "labels": list(story.labels),
        "tasks": list(story.tasks),
        "links": list(story.links),
    }


def _remark(remark: Remark) -> dict[str, object]:
    return {
        "comment_id": remark.comment_id,
        "author": remark.author,
        "text": remark.text,
        "said_at": remark.said_at.isoformat(),
    }


def _round(asked: Asked) -> dict[str, object]:
    return {"questions": list(asked.questions), "asked_at": asked.asked_at.isoformat()}


def _parsed(raw: bytes) -> object:
    try:
        return json.loads(
            raw.decode("utf-8-sig"), parse_constant=_refuse_number, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DrafterError(f"the result is not JSON: {error.msg} at {where}") from None
    except UnicodeDecodeError:
        raise DrafterError("the result is not JSON: it is not UTF-8") from None
    except ValueError as error:
        raise DrafterError(f"the result is not usable JSON: {error}") from None


def _refuse_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_number(digits[:40])


def _storable(value: object) -> object:
    """The same value with nothing in its texts that PostgreSQL or UTF-8 refuses."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_storable(key): _storable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_storable(entry) for entry in value]
    return value


def _text(document: Mapping[str, object], key: str) -> str | None:
    value = document.get(key)
    if value is None or isinstance(value, str):
        return value
    raise DrafterError(f"`{key}` in the result must be a string")


def _questions(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise DrafterError("`questions` in the result must be a list of strings")
    asked = [entry.strip() for entry in value if entry.strip()]
    return tuple(_cut(entry, LONGEST_QUESTION_CHARS) for entry in asked[:MOST_QUESTIONS])


def _cost(value: object) -> float:
    if value is None:
        return 0.0
    # A bool is an int to Python, and an int may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise DrafterError("`cost_usd` in the result must be a number of US dollars, 0 or more")
    return float(value)


def _meta(value: object) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DrafterError("`meta` in the result must be an object")
    if len(json.dumps(value)) > LARGEST_META_BYTES:
        return {"dropped": f"meta was larger than {LARGEST_META_BYTES} bytes"}
    return value


def _cut(text: str, longest_chars: int) -> str:
    return text if len(text) <= longest_chars else text[: longest_chars - 1] + "…"
