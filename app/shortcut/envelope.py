"""Reads as much of a delivery as recording it takes. No I/O, and no body makes it raise."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from typing import NoReturn

from pydantic_core import from_json

from app.model import Delivery
from app.shortcut.values import clean, mapping

#: Far more than Shortcut nests and far less than any parser's stack.
MAX_DEPTH = 200
_EVENT_ID_LENGTH = 200

# With Latin-1, at most two bytes a character: three of these stay below 1 KiB.
_KEPT_HEADERS = frozenset({b"content-type", b"user-agent", b"x-request-id"})
_HEADER_LENGTH = 150
_CONTROLS = {code: " " for code in (*range(32), *range(127, 160))}

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - set(_STEPS))
_WORD = re.compile("[a-z][a-z-]{0,39}")
_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ](?!24)\d\d:\d\d(?::\d\d(?:\.\d{1,18})?)?(?:[Zz]|[+-]\d\d(?::?\d\d)?)",
    re.ASCII,
)
_TYPES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def read(source: str, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Delivery:
    """The delivery as it is recorded; header names in lower case, as ASGI gives them."""
    defect = None
    try:
        payload = _load(body)
        kind = _kind(payload)
    except _Unreadable as unreadable:
        payload = {}
        kind, defect = "invalid", str(unreadable)
    if defect and (not body or body.isspace()):
        kind, defect = "empty", None
    event_id = _id(payload.get("id"))
    canonical = None if event_id is None else _canonical(kind, event_id, payload)
    return Delivery(
        source=source,
        dedupe_key=sha256(body if canonical is None else canonical).digest()[:16],
        event_id=None if event_id is None else clean(event_id[:_EVENT_ID_LENGTH]),
        kind=kind,
        occurred_at=instant(payload.get("changed_at" if kind == "v1" else "timestamp")),
        body=body,
        headers=_kept(headers),
        defect=defect,
    )


def parse(body: bytes) -> dict[str, object] | None:
    """The same reading of a body that recorded it, or None if it can't be read."""
    try:
        return _load(body)
    except _Unreadable:
        return None


class _Unreadable(Exception):
    """The text says why, in a few words."""


def _load(body: bytes) -> dict[str, object]:
    try:
        payload: object = from_json(body, allow_inf_nan=False)
    except ValueError:
        # Faster, and stricter in places: what it refuses, the exact one takes, or says why not.
        payload = _decode(_text(body))
    if not isinstance(payload, dict):
        raise _Unreadable(f"{_TYPES.get(type(payload), 'a number')}, not an object")
    return payload


def _text(body: bytes) -> str:
    try:
        text = body.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise _Unreadable("not UTF-8") from None
    # How deep a parser can go depends on the Python and on the caller's stack: the limit doesn't.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise _Unreadable(f"nested more than {MAX_DEPTH} deep")
    return text


def _decode(decoded: str) -> object:
    try:
        payload: object = _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        raise _Unreadable(f"not JSON: {error.msg} (character {error.pos})") from None
    except ValueError:
        raise _Unreadable("an integer with too many digits") from None
    except RecursionError:
        raise _Unreadable("nested too deep") from None
    return payload


def _depth(body: bytes) -> int:
    # Without its escapes, every other piece between quotes is outside a string.
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    brackets = b"".join(pieces[::2]).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _refuse(constant: str) -> NoReturn:
    raise _Unreadable(f"not JSON: {constant}")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_ENCODE = json.JSONEncoder(ensure_ascii=False).encode


def _kind(payload: dict[str, object]) -> str:
    version = payload.get("version")
    if version == "v1":
        return "v1"
    if version == "v2":
        return _v2_kind(payload)
    return "validation" if payload.get("type") == "validation" else "unknown"


def _v2_kind(payload: dict[str, object]) -> str:
    trigger = payload.get("trigger")
    if isinstance(trigger, dict):
        word = trigger.get("type")
        usable = isinstance(word, str) and _WORD.fullmatch(word) and word != "observer"
        return f"v2:{word}" if usable else "v2:unknown"
    return "v2:observer" if isinstance(payload.get("actions"), list) else "v2:unknown"


def _id(value: object) -> str | None:
    """An id as text; 123 and "123" are the same one."""
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value.strip() else None


def _canonical(kind: str, event_id: str, payload: dict[str, object]) -> bytes | None:
    """What identifies the event; None where only its bytes do, so that no key hides other work."""
    if kind == "v1":
        known = isinstance(payload.get("actions"), list)
        return f"v1:{event_id}".encode("utf-8", "surrogatepass") if known else None
    installation = _id(payload.get("installation_id"))
    if not kind.startswith("v2:") or installation is None:
        return None
    if isinstance(payload.get("trigger"), dict):
        rest = _trigger(mapping(payload.get("trigger")))
    else:
        rest = ("observer",) if kind == "v2:observer" else None
    # JSON keeps the pieces apart, whatever they contain.
    return None if rest is None else f"v2:{json.dumps((installation, event_id, *rest))}".encode()


def _trigger(trigger: dict[str, object]) -> tuple[str | None, ...] | None:
    """What tells the deliveries of one change apart; None if any of it can't be understood."""
    required = [_id(trigger.get(key)) for key in ("type", "entity_type", "entity_id")]
    optional = [trigger.get(key) for key in ("context", "comment_id")]
    understood = all(value is None or _id(value) for value in optional)
    return (*required, *map(_id, optional)) if understood and all(required) else None


def instant(value: object) -> datetime | None:
    """A time as Shortcut writes it; None where it is none."""
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _kept(headers: Sequence[tuple[bytes, bytes]]) -> str:
    kept = [(name, value[:_HEADER_LENGTH]) for name, value in headers if name in _KEPT_HEADERS]
    return _encoded(tuple(kept))


# Most deliveries have the same ones.
@lru_cache(maxsize=64)
def _encoded(headers: tuple[tuple[bytes, bytes], ...]) -> str:
    kept = {name.decode(): value.decode("latin-1").translate(_CONTROLS) for name, value in headers}
    return _ENCODE(kept)
