"""Bytes and requests that nobody would think of: no error of ours, and what is signed is a row.

`make fuzz SECONDS=60` goes on for as long, each time with other bytes; a failure names its seed.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, openapi
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)

from app.machine import Status
from app.shortcut.signature import sign
from tests.service import SECRET, receiver

SAMPLES = Path(__file__).parent / "samples" / "deliveries"
BODIES = [path.read_bytes() for path in sorted(SAMPLES.glob("*.json"))]
SECONDS = float(os.environ.get("DRAFTGATE_FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("DRAFTGATE_FUZZ_SEED", "1" if not SECONDS else str(time.time_ns())))
ROUNDS = 150
TOKEN = "a token of tests only"
#: Requests to each operation of the API that its description allows or forbids, in a round.
CASES = 8
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


class Admitted(requests.auth.AuthBase):
    """Signs deliveries as they will be sent, and has the token for the rest."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        request.headers["Payload-Signature"] = sign(SECRET.encode(), body)
        request.headers["Authorization"] = f"Bearer {TOKEN}"
        return request


#: Every request has what admits it; a signed delivery is never refused for what is in it; and not
#: every rule about an argument can be said in a description.
LEFT_OUT = [ignored_auth, negative_data_rejection, positive_data_acceptance]


def as_described(base: str, number: int) -> None:
    """Asks every operation of the description; raises where an answer is not as it says."""

    @seed(number)
    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        case: Case = data.draw(cases)
        case.call_and_validate(auth=Admitted(), timeout=20, excluded_checks=LEFT_OUT)

    for found in openapi.from_url(f"{base}/openapi.json").get_all_operations():
        operation = found.ok()
        takes_any = not list(operation.iter_parameters())
        modes = [GenerationMode.POSITIVE] if takes_any else list(GenerationMode)
        cases = st.one_of(operation.as_strategy(generation_mode=mode) for mode in modes)
        ask()


async def test_every_answer_is_as_described(database, ladder):
    """No 5xx, no status, type or shape that /openapi.json does not name, whatever is asked."""
    await ladder.in_status(Status.FAILED)
    began, number = time.monotonic(), SEED
    async with receiver(database, api_token=TOKEN) as service:
        base = f"http://127.0.0.1:{service.port}"
        await asyncio.to_thread(as_described, base, number)
        while time.monotonic() - began < SECONDS:
            number += 1
            await asyncio.to_thread(as_described, base, number)
