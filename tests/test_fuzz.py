"""Bytes that nobody would think of, at the door: no error of ours, and what is signed is a row.

`make fuzz SECONDS=60` goes on for as long, each time with other bytes; a failure names its seed.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from app.shortcut.signature import sign
from tests.service import SECRET, receiver

SAMPLES = Path(__file__).parent / "samples" / "deliveries"
BODIES = [path.read_bytes() for path in sorted(SAMPLES.glob("*.json"))]
SECONDS = float(os.environ.get("DRAFTGATE_FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("DRAFTGATE_FUZZ_SEED", "1" if not SECONDS else str(time.time_ns())))
ROUNDS = 150
PIECES = (
    *(b"\0", b"\xff", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"{", b"[", b'"', b"\\ud83d", b"\\u0000"),
    *(b"1e999", b"-1", b"NaN", b"null", b"9" * 400, b": ", b"HTTP/1.0", b"%00", b"\xe2\x80\xa8"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Upgrade: h2c\r\n"),
    *(b"Expect: 100-continue\r\n", b"Connection: upgrade, close\r\n", b"POST /livez HTTP/1.1\r\n"),
)


def mutated(chance: random.Random, body: bytes) -> bytes:
    """The same with a few places cut, doubled, overwritten, or filled with something else."""
    for _ in range(chance.randint(1, 6)):
        start = chance.randint(0, len(body))
        end = min(len(body), start + chance.choice((0, 1, 4, 40)))
        put = chance.choice((b"", body[start:end] * 2, chance.choice(PIECES), chance.randbytes(3)))
        body = body[:start] + put + body[end:]
    return body


def rounds() -> Iterator[int]:
    """So many rounds, or as many as the time allows."""
    began = time.monotonic()
    number = 0
    while number < ROUNDS or time.monotonic() - began < SECONDS:
        yield number
        number += 1


async def test_any_body_that_is_signed_is_a_row(database, conn, ladder):
    """200 or 400, the bytes as they came, and an end when it is applied."""
    chance = random.Random(SEED)
    async with receiver(database) as service:
        for number in rounds():
            body = mutated(chance, chance.choice(BODIES))
            answer = await service.post(body)
            where = f"seed {SEED}, round {number}"
            assert answer.status_code in (200, 400), where
            if not answer.json().get("duplicate"):
                kept = "select exists (select from events where body = $1)"
                assert await conn.fetchval(kept, body), where
    while await ladder.applier.tick():
        pass
    broken = "select reason from events where status = 'failed' or reason like '%rror of ours%'"
    assert await conn.fetch(broken) == []


async def test_any_bytes_on_the_wire_have_an_end(database, conn):
    """An answer below 500 or none, the service goes on, and nothing unsigned is recorded."""
    chance = random.Random(SEED)
    signed = set(BODIES)
    async with receiver(database, body_timeout_seconds=0.2, header_timeout_seconds=0.2) as service:
        for number in rounds():
            body = chance.choice(BODIES)
            lines = [
                b"POST /webhooks/shortcut HTTP/1.1\r\nHost: x\r\nConnection: close",
                b"Payload-Signature: " + sign(SECRET.encode(), body).encode(),
                b"Content-Length: %d\r\n\r\n" % len(body),
            ]
            try:
                answer = await service.raw(
                    mutated(chance, b"\r\n".join(lines)), body, half_close=True
                )
            except ConnectionError:
                answer = b""
            assert not answer or answer.startswith(b"HTTP/1."), f"seed {SEED}, round {number}"
        assert (await service.client.get("/livez")).status_code == 200

    assert {row["body"] for row in await conn.fetch("select body from events")} <= signed
