"""Deliveries made before the clock runs: signed, distinct, and each as long as the others."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from app.shortcut.signature import sign

SECRET = "a secret of benchmarks only"
PATH = "/webhooks/shortcut"
BODY_BYTES = 1_000
FIRST_STORY = 1_000_000

#: From these changes nothing follows.
CHANGES: dict[str, object] = {
    "estimate": {"new": 3, "old": 1},
    "deadline": {"new": "2026-10-01T16:00:00Z", "old": None},
    "follower_ids": {"adds": ["6a100001-0000-4000-8000-000000000001"]},
    "iteration_id": {"new": 4711, "old": 4699},
}
ESTIMATED: dict[str, object] = {"action": "update", "changes": CHANGES}
LABELLED: dict[str, object] = {"action": "update", "changes": {"label_ids": {"adds": [882]}}}
LABEL: dict[str, object] = {"id": 882, "entity_type": "label", "action": "create", "name": "patch"}
TEXT = b"The cart is empty and the page breaks. "

Make = Callable[[int, UUID], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Requests:
    """A file of HTTP requests, `length` bytes each."""

    path: Path
    count: int
    length: int

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while request := file.read(self.length):
                yield request


def irrelevant(number: int, event_id: UUID) -> dict[str, object]:
    """A change of an estimate: a delivery as most are, from which nothing follows."""
    return _v1(
        number, event_id, {"action": "update", "changes": {"estimate": {"new": 3, "old": 1}}}
    )


def opening(number: int, event_id: UUID) -> dict[str, object]:
    """A story of its own gets the label that opens a session."""
    label: dict[str, object] = {
        "id": 882,
        "entity_type": "label",
        "action": "create",
        "name": "patch",
    }
    change: dict[str, object] = {"action": "update", "changes": {"label_ids": {"adds": [882]}}}
    return _v1(number, event_id, change, label)


def body(make: Make, number: int, dice: random.Random) -> bytes:
    """One payload, padded to BODY_BYTES where it is shorter."""
    payload = make(FIRST_STORY + number, UUID(int=dice.getrandbits(128), version=4))
    text = json.dumps(payload, separators=(",", ":")).encode()
    padding = (TEXT * 40)[: BODY_BYTES - len(text) + 1]
    return text.replace(b'"%"', b'"' + padding + b'"', 1)


def write(path: Path, make: Make, count: int, *, seed: int = 1, url_path: str = PATH) -> Requests:
    """Writes `count` requests; the same seed makes the same deliveries."""
    dice, length = random.Random(seed), 0
    with path.open("wb") as file:
        for number in range(count):
            request = as_request(body(make, number, dice), url_path)
            length = length or len(request)
            assert len(request) == length, "every request is as long as the first"
            file.write(request)
    return Requests(path, count, length)


def as_request(payload: bytes, url_path: str = PATH) -> bytes:
    head = (
        f"POST {url_path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Payload-Signature: {sign(SECRET.encode(), payload)}\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def _v1(number: int, event_id: UUID, *actions: dict[str, object]) -> dict[str, object]:
    story = {
        "id": number,
        "entity_type": "story",
        "name": "%",
        "story_type": "bug",
        "app_url": f"https://app.shortcut.com/acme/story/{number}",
        **actions[0],
    }
    return {
        "id": str(event_id),
        "changed_at": "2026-09-14T08:30:03.111Z",
        "primary_id": number,
        "member_id": "6a100001-0000-4000-8000-000000000001",
        "version": "v1",
        "actions": [story, *actions[1:]],
    }
