"""What strangers and broken senders put into a delivery: no error of ours, nothing signed lost."""

import gzip
import json
import random
from itertools import count

import httpx
import pytest

from app.errors import SettingsError
from app.settings import load
from app.shortcut.signature import sign
from tests import shapes
from tests.service import SECRET, receiver
from tests.stack import stack

BODY = shapes.labelled(1)


NUMBERS = count()


def v1(**more: object) -> bytes:
    """A change with these things in it, under an id of its own."""
    given = {"id": f"e{next(NUMBERS)}", "version": "v1", "actions": [], **more}
    return json.dumps(given).encode()


def story(**more: object) -> bytes:
    """A change of a story with these things in it."""
    action = {"id": 7, "entity_type": "story", "action": "update", "name": "Story", **more}
    return v1(actions=[action])


def v2(**more: object) -> bytes:
    """An interaction with these things in it, under an id of its own."""
    trigger = {"type": "assigned", "entity_type": "story", "entity_id": "7"}
    given = {
        "id": f"e{next(NUMBERS)}",
        "version": "v2",
        "installation_id": "i",
        "trigger": trigger,
        **more,
    }
    return json.dumps(given).encode()


CHANCE = random.Random(7)
NOISE = "".join(CHANCE.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=5000))
EMOJI = "".join(chr(CHANCE.randrange(0x1F300, 0x1F9FF)) for _ in range(700))
TIMES = (
    *("9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00", "10000-01-01T00:00:00Z"),
    *("2026-01-01T24:00:00Z", "2026-01-01T00:00:60Z", "2026-02-30T00:00:00Z"),
    *("2026-01-01t00:00:00z", 1767225600, None, "", "2026-01-01T00:00:00.123456789Z"),
    "2026-01-01T00:00:00+99:99",
)
WRONG_PARTS = (None, {}, "x", [None], [[]], [{}], 1, True)

#: Every one of these is legal JSON that somebody's receiver has broken on.
READABLE = {
    "NUL in a value": story(name="a\0b"),
    "NUL in a key": v1(**{"a\0": 1}),
    "half a character": story(name="\ud83d \udc00x"),
    "half a character in an id": v1(id="\ud83d"),
    "a number too large for a column": v1(x=10).replace(b"10", b"1e131072"),
    "a number too small for a column": v1(x=10).replace(b"10", b"1e-16384"),
    "an id beyond 64 bits": story(id=1 << 63),
    "an entity id beyond 64 bits": v2(trigger={"type": "assigned", "entity_id": 1 << 63}),
    "a key twice": b'{"id":"A","id":"B","version":"v1","actions":[1],"actions":[]}',
    "ten thousand actions": v1(actions=[{"id": 1, "entity_type": "story"}] * 10_000),
    "a long random id": v1(id=NOISE),
    "a long random id of four-byte characters": v1(id=EMOJI),
    "a title of a megabyte": story(name=NOISE * 200),
    "another version": v1(version="v3"),
    "another entity": v1(actions=[{"id": 7, "entity_type": "galaxy", "action": "explode"}]),
    "another trigger": v2(trigger={"type": "summoned"}),
    "500 further keys": v1(**{f"key{n}": n for n in range(500)}),
    "a byte order mark": b"\xef\xbb\xbf" + v1(),
    **{f"{at!r} as a time": v1(changed_at=at) for at in TIMES},
    **{f"{part!r} for actions": v1(actions=part) for part in WRONG_PARTS},
    **{f"{part!r} for an actor": v2(actor=part) for part in WRONG_PARTS},
    **{f"{part!r} for a workspace": v2(workspace2=part) for part in WRONG_PARTS},
    **{f"{part!r} for a trigger": v2(trigger=part) for part in WRONG_PARTS},
    "nothing": b"",
    "blanks": b" \r\n ",
}
UNREADABLE = {
    "no UTF-8": b'{"x":"\xff"}',
    "UTF-8 that is too long": b'{"x":"\xc0\xaf"}',
    "Latin-1": b'{"x":"\xe9"}',
    "not a number": b'{"id":"e","x":NaN}',
    "infinity": b'{"id":"e","x":-Infinity}',
    "an integer of 4,301 digits": b'{"x":' + b"1" * 4301 + b"}",
    "20,000 brackets": b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "20,000 braces": b'{"x":' * 20_000,
    "an array": b"[]",
    "null": b"null",
    "true": b"true",
    "a number": b"1",
    "a string": b'"x"',
    "half an object": b'{"id":',
}


async def test_whatever_is_signed_is_kept_and_comes_to_an_end(database, conn, ladder):
    """Each is answered 200, or 400 if it can't be read; each is a row, and none of them fails."""
    async with receiver(database) as service:
        for case, body in (READABLE | UNREADABLE).items():
            answer = await service.post(body)
            assert answer.status_code == (200 if case in READABLE else 400), case
            kept = await conn.fetchrow("select * from events order by id desc limit 1")
            assert kept["body"] == body, case
    while await ladder.applier.tick():
        pass

    left = "select reason from events where status not in ('applied', 'ignored', 'quarantined')"
    assert await conn.fetch(left) == []
    assert await conn.fetchval("select bool_and(reason <> '') from events") is True
    quarantined = "select count(*) from events where status = 'quarantined'"
    assert await conn.fetchval(quarantined) == len(UNREADABLE)


async def test_the_bytes_are_kept_as_they_came(database, conn):
    """Odd spacing, order and notation of numbers: signed as sent, and kept as sent."""
    body = b'{ "z":1,\n "version" : "v1","a" : 2.0, "t":"caf\\u00e9", "n":1e2 }'
    async with receiver(database) as service:
        answer = await service.post(body)

    assert answer.status_code == 200
    assert await conn.fetchval("select body from events") == body


async def test_no_variable_switches_the_signature_off(database, conn, tmp_path):
    """Whatever the environment says of development, what is not signed is refused."""
    switches = ("DEV", "DEBUG", "ALLOW_UNSIGNED", "DRAFTGATE_DEV", "DRAFTGATE_ALLOW_UNSIGNED")
    async with stack(database, tmp_path) as it:
        it.settings |= {name: "1" for name in switches} | {"ENV": "dev", "DRAFTGATE_ENV": "dev"}
        await it.receiver()
        port = it.trial.service.getsockname()[1]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            url = f"http://127.0.0.1:{port}/webhooks/shortcut"
            answers = [
                await client.post(url, content=BODY, headers=headers)
                for headers in ({}, {"Payload-Signature": "0" * 64})
            ]

    assert [answer.status_code for answer in answers] == [401, 401]
    assert await conn.fetchval("select count(*) from events") == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 401),
        (b"[" * 100_000, 401),
        (b'{"type":"validation"}', 401),
        (b"", 401),
        (b" " * (2 * 1024 * 1024 + 1), 413),
    ],
)
async def test_nothing_unsigned_is_looked_at(database, conn, body, status):
    """Whatever is wrong with an unsigned body, that it is unsigned is all that is said of it."""
    async with receiver(database) as service:
        answer = await service.client.post("/webhooks/shortcut", content=body)

    assert answer.status_code == status
    assert await conn.fetchval("select count(*) from events") == 0


async def test_unsigned_headers_change_nothing(database, conn):
    """A copy under another delivery id, from another agent, of another type is a duplicate."""
    variants = [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=utf-8"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"X-Request-Id": "1", "X-Delivery-Id": "1", "Webhook-Id": "1", "Idempotency-Key": "1"},
        {"X-Request-Id": "2", "X-Delivery-Id": "2", "Webhook-Id": "2", "Idempotency-Key": "2"},
        {"X-Request-Id": "x" * 5000, "User-Agent": "\x85\u00a0é".encode("latin-1")},
    ]
    async with receiver(database) as service:
        answers = [await service.post(BODY, headers=headers) for headers in variants]

    assert [answer.status_code for answer in answers] == [200] * len(variants)
    assert [answer.json()["duplicate"] for answer in answers] == [False, *[True] * 7]
    assert await conn.fetchval("select count(*) from events") == 1


async def test_what_is_packed_is_not_unpacked(database, conn):
    """A bomb of 128 MiB: 415, whichever form of it was signed."""
    packed = gzip.compress(bytes(128 * 1024 * 1024), compresslevel=1)
    async with receiver(database) as service:
        for signed in (packed, bytes(10)):
            headers = {"Payload-Signature": sign(SECRET.encode(), signed)}
            headers["Content-Encoding"] = "gzip"
            answer = await service.post(packed, headers=headers)
            assert answer.status_code == 415

    assert await conn.fetchval("select count(*) from events") == 0


@pytest.mark.parametrize("secrets", [",", "a secret of tests only,", "short", " , "])
def test_a_secret_that_everybody_knows_is_a_wrong_setting(secrets):
    """An empty secret, or a short one, is refused before anything starts, and not quoted."""
    with pytest.raises(SettingsError) as refusal:
        load(shortcut_secrets=secrets, _env_file=None)

    assert "SHORTCUT_SECRETS" in str(refusal.value)
    assert "short," not in str(refusal.value)
    assert "tests only" not in str(refusal.value)
