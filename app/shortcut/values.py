"""Reads values out of JSON that may hold anything: what has the wrong type is absent. No I/O."""

import re

# PostgreSQL's text holds no NUL, and UTF-8 no surrogate; JSON can escape both.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_LINK = re.compile("https?://[!-~\u00a1-\ud7ff\ue000-\U0010ffff]{1,490}", re.IGNORECASE)
_STORY = re.compile(
    r"#?([0-9]{1,19})|(?:https?://\S+/story/|sc-)([0-9]{1,19})(?:[/?#]\S*)?", re.IGNORECASE
)
_MOST_DIGITS = 19
_ID_LENGTH = 200


def clean(value: str) -> str:
    """The text with whatever can't be stored replaced."""
    if value.isascii() and "\0" not in value:
        return value
    return _UNSTORABLE.sub("\ufffd", value)


def text(value: object) -> str | None:
    return clean(value) if isinstance(value, str) else None


def short(value: object, limit: int) -> str | None:
    """Text that is not empty, cut to the limit."""
    return clean(value[:limit]) if isinstance(value, str) and value else None


def identifier(value: object) -> str | None:
    """An id that is a word of the sender's, as a member's or a workspace's is."""
    return short(value, _ID_LENGTH)


def link(value: object) -> str | None:
    """An address that a page may link to."""
    return value if isinstance(value, str) and _LINK.fullmatch(value) else None


def number(value: object) -> int | None:
    """A public number, as int or in decimal digits: positive and within 64 bits."""
    if isinstance(value, str) and len(value) <= _MOST_DIGITS and value.isascii():
        value = int(value) if value.isdigit() else None
    # A bool is an int to isinstance.
    if type(value) is int and 0 < value < 1 << 63:
        return value
    return None


def story_number(words: str) -> int | None:
    """The story that a person means: 123, #123, sc-123, sc-123/a-branch, or the story's address."""
    found = _STORY.fullmatch(words.strip())
    return number(found[1] or found[2]) if found else None


def numbers(value: object) -> list[int]:
    found = map(number, value) if isinstance(value, list) else ()
    return [item for item in found if item is not None]


def mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
