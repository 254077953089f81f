"""A delivery is read as far as recording it takes, and no body makes that fail."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.model import Delivery
from app.shortcut import envelope
from app.shortcut.envelope import MAX_DEPTH, parse

SAMPLES = Path(__file__).parent / "samples" / "deliveries"
V1 = {"id": "6a10", "changed_at": "2026-09-14T08:30:02.074Z", "version": "v1", "actions": []}
OBSERVER = {"id": "6a10", "version": "v2", "installation_id": "6a58", "actions": []}
ASSIGNED = {"type": "assigned", "entity_type": "story", "entity_id": "42"}
INTERACTION = {"id": "6a10", "version": "v2", "installation_id": "6a58", "trigger": ASSIGNED}


def read(body: bytes) -> Delivery:
    return envelope.read("main", body, [])


def read_json(payload: object) -> Delivery:
    return read(json.dumps(payload).encode())


def triggered(**trigger: object) -> dict[str, Any]:
    return {**INTERACTION, "trigger": {**ASSIGNED, **trigger}}


def body_key(delivery: Delivery) -> bytes:
    return sha256(delivery.body).digest()[:16]


def key_of(canonical: bytes) -> bytes:
    return sha256(canonical).digest()[:16]


# --- what is recorded ------------------------------------------------------------------------


def test_v1() -> None:
    """A change is keyed by its id, timed by the sender, and kept byte for byte."""
    body = (SAMPLES / "v1-story-create.json").read_bytes()

    delivery = envelope.read("main", body, [(b"content-type", b"application/json")])

    assert delivery == Delivery(
        source="main",
        dedupe_key=key_of(b"v1:6a1003e9-0000-4000-8000-0000000003e9"),
        event_id="6a1003e9-0000-4000-8000-0000000003e9",
        kind="v1",
        occurred_at=datetime(2026, 9, 14, 8, 30, 1, 37_000, tzinfo=UTC),
        body=body,
        headers='{"content-type": "application/json"}',
    )


def test_v2() -> None:
    """An interaction is keyed by everything that tells it from others of the same change."""
    delivery = read((SAMPLES / "v2-mentioned-in-comment.json").read_bytes())

    pieces = '"6a100258-0000-4000-8000-000000000258", "6a1007d3-0000-4000-8000-0000000007d3", '
    pieces += '"mentioned", "story", "4202", "comment", "7103"'
    assert delivery.dedupe_key == key_of(f"v2:[{pieces}]".encode())
    assert delivery.kind == "v2:mentioned"
    assert delivery.occurred_at == datetime(2026, 9, 14, 9, 0, 3, 159_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        ("v1-batch-without-primary-id", "v1"),
        ("v2-assigned", "v2:assigned"),
        ("v2-comment-reply", "v2:comment-reply"),
        ("v2-mentioned-in-description", "v2:mentioned"),
        ("v2-observer-id-as-string-no-changes", "v2:observer"),
        ("v2-own-write", "v2:observer"),
        ("v2-validation-ping", "validation"),
    ],
)
def test_kind_of_samples(sample: str, kind: str) -> None:
    """The kind says which version and which trigger it is."""
    delivery = read((SAMPLES / f"{sample}.json").read_bytes())
    assert (delivery.kind, delivery.defect) == (kind, None)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({}, "unknown"),
        ({"version": "v3", "id": "6a10"}, "unknown"),
        ({"version": 1}, "unknown"),
        ({"version": ["v1"]}, "unknown"),
        ({"type": "validation", "challenge": "x"}, "validation"),
        ({**V1, "type": "validation"}, "v1"),
        ({**V1, "actions": None}, "v1"),
        ({**OBSERVER, "trigger": None}, "v2:observer"),
        ({**OBSERVER, "trigger": []}, "v2:observer"),
        ({**OBSERVER, "actions": {}}, "v2:unknown"),
        ({**INTERACTION, "actions": []}, "v2:assigned"),
        (triggered(type="unassigned"), "v2:unassigned"),
        (triggered(type="observer"), "v2:unknown"),
        (triggered(type="Assigned"), "v2:unknown"),
        (triggered(type="x" * 41), "v2:unknown"),
        (triggered(type="a\n"), "v2:unknown"),
        (triggered(type=None), "v2:unknown"),
        (triggered(type=["assigned"]), "v2:unknown"),
    ],
)
def test_kind_of_other_shapes(payload: object, kind: str) -> None:
    """Shapes that nobody has documented are kept under a name that says so."""
    delivery = read_json(payload)
    assert (delivery.kind, delivery.defect) == (kind, None)


@pytest.mark.parametrize("body", [b"", b" \r\n\t "])
def test_an_empty_body_is_no_defect(body: bytes) -> None:
    """Shortcut sends empty bodies; there is nothing wrong with one and nothing in it."""
    delivery = read(body)
    assert (delivery.kind, delivery.defect, delivery.event_id) == ("empty", None, None)
    assert delivery.dedupe_key == body_key(delivery)
    assert parse(body) is None


@pytest.mark.parametrize(
    ("body", "defect"),
    [
        (b'{"x":"\xff"}', "not UTF-8"),
        (b'{"x":"\xc0\xaf"}', "not UTF-8"),
        (b'{"x":"\xe9"}', "not UTF-8"),
        (b'{"x":"\xed\xa0\x80"}', "not UTF-8"),
        ('{"version":"v1"}'.encode("utf-16"), "not UTF-8"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes (character 1)"),
        (b"{} {}", "not JSON: Extra data (character 3)"),
        (b'{"x":"\x00"}', "not JSON: Invalid control character at (character 6)"),
        (b'{"x":NaN}', "not JSON: NaN"),
        (b'{"x":-Infinity}', "not JSON: -Infinity"),
        (b'{"x":' + b"1" * 4301 + b"}", "an integer with too many digits"),
        (b"[]", "an array, not an object"),
        (b"null", "null, not an object"),
        (b"true", "a boolean, not an object"),
        (b"1", "a number, not an object"),
        (b"1.5", "a number, not an object"),
        (b'"x"', "a string, not an object"),
        (b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested more than 200 deep"),
        (b"[" * 1_000_000, "nested more than 200 deep"),
        (b'{"a":' * 100_000, "nested more than 200 deep"),
    ],
)
def test_what_cannot_be_read_says_why(body: bytes, defect: str) -> None:
    """A body that can't be read is kept, and keyed by its bytes."""
    delivery = read(body)
    assert (delivery.kind, delivery.defect) == ("invalid", defect)
    assert (delivery.event_id, delivery.occurred_at) == (None, None)
    assert delivery.dedupe_key == body_key(delivery)
    assert delivery.body == body
    assert parse(body) is None


def test_a_stack_that_is_too_small_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that runs out of stack below our own limit doesn't raise either."""

    class Shallow:
        def decode(self, _: str) -> object:
            raise RecursionError

    monkeypatch.setattr(envelope, "_DECODER", Shallow())
    # The quick parser leaves a byte order mark to the exact one.
    assert read("\ufeff{}".encode()).defect == "nested too deep"


@pytest.mark.parametrize(
    "body",
    [
        b'{"version":"v1","x":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}",
        b'{"version":"v1","x":"' + b"[{" * 500 + b'"}',
        b'{"version":"v1","x":"' + b'[\\"[\\\\' * 500 + b'"}',
        b'{"version":"v1","x":[' + b"[]," * 500 + b"[]]}",
    ],
    ids=["at the limit", "in a string", "in a string with escapes", "side by side"],
)
def test_only_real_nesting_is_deep(body: bytes) -> None:
    """Brackets count only outside of strings and only while they are open."""
    assert read(body).kind == "v1"


def test_byte_order_mark() -> None:
    """A byte order mark is signed like the rest and says nothing."""
    body = b"\xef\xbb\xbf" + json.dumps(V1).encode()
    assert read(body).dedupe_key == read_json(V1).dedupe_key
    assert parse(body) == V1


def test_duplicate_keys_have_one_reading() -> None:
    """The last of two equal keys counts, at the door and later."""
    body = b'{"version":"v1","id":"A","id":"B","actions":[1],"actions":[]}'
    assert read(body).event_id == "B"
    assert read(body).dedupe_key == key_of(b"v1:B")
    assert parse(body) == {"version": "v1", "id": "B", "actions": []}


@pytest.mark.parametrize("number", ["1e131072", "1e-16384", "9223372036854775808", "1" * 4300])
def test_large_numbers_are_kept(number: str) -> None:
    """A number that no column could hold is only a number in a body."""
    assert read(b'{"version":"v1","x":' + number.encode() + b"}").defect is None


# --- the key ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_redelivery_has_the_same_key(sample: Path) -> None:
    """The same bytes have the same key, whatever unsigned headers come with them."""
    body = sample.read_bytes()
    first = envelope.read("main", body, [(b"x-request-id", b"1")])
    again = envelope.read("main", body, [(b"x-request-id", b"2"), (b"webhook-id", b"3")])
    assert again.dedupe_key == first.dedupe_key


def test_samples_have_keys_of_their_own() -> None:
    """No two samples are taken for one event, even under one audit id."""
    bodies = [path.read_bytes() for path in SAMPLES.glob("*.json")]
    assert len({read(body).dedupe_key for body in bodies}) == len(bodies)


def test_v1_is_keyed_by_its_id_alone() -> None:
    """Two deliveries of one change are one event even where their bytes differ."""
    assert read_json({**V1, "webhook_id": "1"}).dedupe_key == read_json(V1).dedupe_key
    assert read_json({**V1, "id": "6a11"}).dedupe_key != read_json(V1).dedupe_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (OBSERVER, INTERACTION),
        (OBSERVER, {**OBSERVER, "id": "6a11"}),
        (OBSERVER, {**OBSERVER, "installation_id": "6a59"}),
        (OBSERVER, {**V1, "id": OBSERVER["id"]}),
        (OBSERVER, triggered(type="observer")),
        (INTERACTION, triggered(type="mentioned")),
        (INTERACTION, triggered(entity_id="43")),
        (INTERACTION, triggered(entity_type="epic")),
        (INTERACTION, triggered(context="description")),
        (triggered(context="description"), triggered(context="comment")),
        (triggered(comment_id="1"), triggered(comment_id="2")),
        ({**INTERACTION, "installation_id": "a:b", "id": "c"}, {**INTERACTION, "id": "b:c"}),
        (triggered(type="a:b", entity_type="c"), triggered(type="a", entity_type="b:c")),
        (triggered(context="null"), triggered(context=None)),
    ],
)
def test_different_events_have_different_keys(one: object, other: object) -> None:
    """A key never hides another event, whatever its pieces contain."""
    assert read_json(one).dedupe_key != read_json(other).dedupe_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (triggered(entity_id="123"), triggered(entity_id=123)),
        (triggered(comment_id="7"), triggered(comment_id=7)),
        (triggered(context=None), INTERACTION),
        ({**V1, "id": 5}, {**V1, "id": "5"}),
        (triggered(parent_comment_id="1"), INTERACTION),
    ],
)
def test_ids_mean_the_same_as_numbers_and_as_text(one: object, other: object) -> None:
    """Shortcut sends ids in both forms, and leaves out what is null."""
    assert read_json(one).dedupe_key == read_json(other).dedupe_key


NO_IDS: list[object] = [None, "", "  ", True, 1.5, [], {}]


@pytest.mark.parametrize(
    "payload",
    [
        *({**V1, "id": wrong} for wrong in NO_IDS),
        {**V1, "actions": None},
        {"version": "v3", "id": "6a10"},
        {"type": "validation", "id": "6a10"},
        {**OBSERVER, "installation_id": None},
        {**OBSERVER, "actions": None},
        *(triggered(entity_id=wrong) for wrong in NO_IDS),
        triggered(type=None),
        triggered(entity_type={}),
        triggered(context=1.5),
        triggered(comment_id=[]),
        triggered(comment_id=""),
    ],
)
def test_without_a_usable_id_the_bytes_are_the_key(payload: object) -> None:
    """Where any piece of the key is in doubt, only equal bytes are the same event."""
    delivery = read_json(payload)
    assert delivery.dedupe_key == body_key(delivery)


@pytest.mark.parametrize("payload", [V1, OBSERVER, INTERACTION], ids=["v1", "observer", "trigger"])
@pytest.mark.parametrize(
    ("event_id", "kept"),
    [
        ("\ud83d", "\ufffd"),
        ("a\0b", "a\ufffdb"),
        ("\U0001f600", "\U0001f600"),
        ("x" * 5_000, "x" * 200),
        (10**30, "1" + "0" * 30),
        (-1, "-1"),
    ],
)
def test_event_id_can_be_stored(payload: dict[str, Any], event_id: object, kept: str) -> None:
    """An id is shown as it was sent as far as a text column can hold it; its key is whole."""
    delivery = read_json({**payload, "id": event_id})
    assert delivery.event_id == kept
    assert delivery.dedupe_key != body_key(delivery)


# --- the time --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("2026-09-14T08:30:02.074Z", datetime(2026, 9, 14, 8, 30, 2, 74_000, UTC)),
        ("2026-09-14T08:30:02Z", datetime(2026, 9, 14, 8, 30, 2, 0, UTC)),
        ("2026-09-14t08:30:02z", datetime(2026, 9, 14, 8, 30, 2, 0, UTC)),
        ("2026-09-14 08:30Z", datetime(2026, 9, 14, 8, 30, 0, 0, UTC)),
        ("2026-09-14T08:30:02.123456789Z", datetime(2026, 9, 14, 8, 30, 2, 123_456, UTC)),
        ("2026-09-14T08:30:02+02:00", datetime(2026, 9, 14, 6, 30, 2, 0, UTC)),
        ("2026-09-14T08:30:02-0230", datetime(2026, 9, 14, 11, 0, 2, 0, UTC)),
        ("2026-09-14T08:30:02+02", datetime(2026, 9, 14, 6, 30, 2, 0, UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999Z", datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
    ],
)
def test_time(sent: str, meant: datetime) -> None:
    """The sender's time is read in all the usual forms, and kept in UTC."""
    read_at = read_json({**V1, "changed_at": sent}).occurred_at
    assert read_at == meant
    assert read_at.tzinfo is UTC
    assert read_json({**OBSERVER, "timestamp": sent}).occurred_at == meant


@pytest.mark.parametrize(
    "sent",
    [
        *(None, "", "x", 1767225600, 1.5, True, [], {}, "2026-09-14", "\ud83d"),
        "2026-09-14T08:30:02",
        "9999-12-31T23:59:59-01:00",
        "0001-01-01T00:00:00+01:00",
        "10000-01-01T00:00:00Z",
        "2026-09-14T24:00:00Z",
        "2026-09-14T08:30:60Z",
        "2026-02-30T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-W10-1T00:00:00Z",
        "2026-09-14T08:30:02+99:99",
        "2026-09-14T08:30:02." + "1" * 5_000 + "Z",
        "\u0662026-09-14T08:30:02Z",
        "2026-09-14T08:30:02Z\n",
    ],
)
def test_a_time_that_cannot_be_read_is_none(sent: object) -> None:
    """An event without a usable time is an event all the same."""
    delivery = read_json({**V1, "changed_at": sent})
    assert (delivery.kind, delivery.occurred_at, delivery.defect) == ("v1", None, None)


# --- the headers -----------------------------------------------------------------------------


def test_headers_kept() -> None:
    """Only what helps to tell senders apart is kept; never the signature, never an address."""
    headers = [
        (b"host", b"hooks.example.com"),
        (b"content-type", b"application/json"),
        (b"user-agent", b"Shortcut/1"),
        (b"x-request-id", b"r-1"),
        (b"payload-signature", b"00" * 32),
        (b"x-forwarded-for", b"192.0.2.1"),
        (b"authorization", b"Bearer x"),
        (b"cookie", b"x"),
    ]
    assert json.loads(envelope.read("main", b"", headers).headers) == {
        "content-type": "application/json",
        "user-agent": "Shortcut/1",
        "x-request-id": "r-1",
    }


@pytest.mark.parametrize("value", [b"\xff" * 70_000, b'"' * 70_000, bytes(range(256)), b"\\" * 999])
def test_headers_are_short_and_printable(value: bytes) -> None:
    """Whatever is in a header, less than 1 KiB of text without control characters is kept."""
    names = [b"content-type", b"user-agent", b"x-request-id", b"user-agent"]
    kept = envelope.read("main", b"", [(name, value) for name in names]).headers
    assert len(kept.encode()) < 1024
    assert kept.isprintable() or "\xa0" in kept or "\xad" in kept
    assert set(json.loads(kept)) == {"content-type", "user-agent", "x-request-id"}


# --- anything at all -------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = ("id", "version", "type", "actions", "trigger", "installation_id", "changed_at")


def storable(delivery: Delivery) -> bool:
    texts = (delivery.kind, delivery.event_id or "", delivery.headers, delivery.defect or "")
    return all(text.encode() is not None and "\0" not in text for text in texts)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.tuples(st.binary(), st.binary()), max_size=3))
def test_read_never_raises_on_bytes(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Any bytes are a delivery that can be stored."""
    delivery = envelope.read("main", body, headers)
    assert storable(delivery)
    assert delivery.body == body
    assert (delivery.defect is None) == (delivery.kind != "invalid")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([V1, OBSERVER, INTERACTION, {}]),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
    st.dictionaries(st.sampled_from(["type", "entity_type", "entity_id", "comment_id"]), JSON),
)
def test_read_never_raises_on_json(
    payload: dict[str, Any], wrong: dict[str, Any], trigger: dict[str, Any]
) -> None:
    """A field may hold anything that JSON can, and the delivery can still be stored."""
    delivery = read_json({**payload, **wrong, "trigger": {**ASSIGNED, **trigger}})
    assert storable(delivery)
    assert read_json({**payload, **wrong}) == read_json({**payload, **wrong})


def exactly(body: bytes) -> object:
    """What the standard library reads; None for what it refuses, or what is no object."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        payload = json.loads(body.decode().removeprefix("\ufeff"), parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


DAMAGE = st.tuples(st.integers(0, 400), st.sampled_from([b"", *(bytes([n]) for n in range(256))]))
JSON_OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=500)
@given(JSON_OBJECTS, st.booleans(), st.lists(DAMAGE, max_size=3))
def test_the_quick_parser_reads_what_the_exact_one_does(payload, ascii_only, damage):
    """Whole or damaged, a body is read as the standard library reads it, or refused like there."""
    body = json.dumps(payload, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    for position, byte in damage:
        body = body[:position] + byte + body[position + 1 :]

    assert repr(parse(body)) == repr(exactly(body))


@pytest.mark.parametrize(
    "text",
    ['{"n":1e999}', '{"n":-0}', '{"n":"\\ud800"}', '{"n":1,"n":2}', '{"n":"\\u0000"}']
    + ['{"n":' + "1" * digits + "}" for digits in (19, 20, 4300, 4301)],
    ids=lambda text: text[:12] + str(len(text)),
)
def test_the_quick_parser_has_no_edges_of_its_own(text):
    """Numbers, characters and names at the limits are read as by the standard library."""
    assert repr(parse(text.encode())) == repr(exactly(text.encode()))
