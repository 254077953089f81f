"""The sender of deliveries, against a real server that checks what it gets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from app.send import Answer, send
from app.shortcut.signature import sign

SECRET = b"a secret of some length"
BODIES = [b'{"id": "a"}', b'{"id":\t"b" }', b"", b"not JSON \xff"]


@dataclass
class Receiver:
    """Answers 401 to a wrong signature, else 200, and knows what it has seen before."""

    status: int = 200
    cuts_off: bool = False
    expect_at_once: int = 1
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    waiting: int = 0
    all_here: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.waiting += 1
        if self.waiting >= self.expect_at_once:
            self.all_here.set()
        await self.all_here.wait()
        known = body in self.bodies
        self.bodies.append(body)
        if self.cuts_off:
            raise ConnectionResetError
        right = headers["payload-signature"] == sign(SECRET, body)
        said = json.dumps({"duplicate": known}).encode()
        status = self.status if right and headers["content-type"] == "application/json" else 401
        writer.write(b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n" % (status, len(said)))
        writer.write(said)
        await writer.drain()


@asynccontextmanager
async def receiver(
    *, status: int = 200, cuts_off: bool = False, expect_at_once: int = 1
) -> AsyncIterator[Receiver]:
    it = Receiver(status=status, cuts_off=cuts_off, expect_at_once=expect_at_once)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/webhooks/shortcut"
    try:
        yield it
    finally:
        server.close()


async def test_bodies_arrive_byte_for_byte_and_signed() -> None:
    """What is sent is what was given, signed as it is, over one connection."""
    async with receiver() as door:
        report = await send(door.url, BODIES, secret=SECRET)

    assert door.bodies == BODIES
    assert door.connections == 1
    assert report.answers == {(200, False): 4}
    assert report.ok


async def test_a_repetition_is_told_apart() -> None:
    """Answers are counted by status and by what the receiver says of duplicates."""
    seen: list[Answer] = []
    async with receiver() as door:
        report = await send(door.url, BODIES, secret=SECRET, repeat=3, on_answer=seen.append)

    assert report.answers == {(200, False): 4, (200, True): 8}
    assert [answer.index for answer in seen] == [0, 1, 2, 3] * 3
    assert report.sent == 12
    assert report.p50_milliseconds is not None
    assert report.p99_milliseconds is not None
    assert report.p50_milliseconds <= report.p99_milliseconds <= report.seconds * 1000


async def test_no_more_than_asked_are_under_way() -> None:
    """With a concurrency of eight, eight arrive before one is answered, on eight connections."""
    async with receiver(expect_at_once=8) as door, asyncio.timeout(10):
        report = await send(door.url, BODIES, secret=SECRET, repeat=50, concurrency=8)

    assert report.sent == 200
    assert door.connections == 8


async def test_a_seed_repeats_the_order() -> None:
    """The same seed gives the same order, and it is another one than as given."""
    bodies = [b"%d" % n for n in range(20)]
    orders = []
    for seed in (7, 7, 8):
        async with receiver() as door:
            await send(door.url, bodies, secret=SECRET, repeat=2, shuffle=True, seed=seed)
        orders.append(door.bodies)

    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(bodies * 2)
    assert orders[0] != bodies * 2


async def test_what_goes_wrong_is_counted() -> None:
    """Refusals are answers; lost connections, and a host that is not there, are errors."""
    async with receiver(status=503) as door:
        refused = await send(door.url, BODIES, secret=SECRET)
        wrong = await send(door.url, BODIES, secret=b"another secret")
    async with receiver(cuts_off=True) as door:
        lost = await send(door.url, BODIES, secret=SECRET, concurrency=2)
    gone = await send(door.url, BODIES, secret=SECRET, repeat=2)

    assert refused.answers == {(503, False): 4}
    assert wrong.answers == {(401, True): 4}
    assert sum(lost.errors.values()) == 4
    assert gone.errors == {"ConnectError": 8}
    assert gone.p50_milliseconds is None
    assert not any(report.ok for report in (refused, wrong, lost, gone))


async def test_nothing_to_send_is_nothing_sent() -> None:
    """An empty list is a report of nothing."""
    report = await send("http://127.0.0.1:1/", [], secret=SECRET)

    assert report.sent == 0


@pytest.mark.parametrize(
    ("repeat", "concurrency"), [(0, 1), (-1, 1), (1, 0), (1, 1_001), (10_000_000, 1)]
)
async def test_numbers_have_bounds(repeat: int, concurrency: int) -> None:
    """Nothing is sent if a number is out of its bounds."""
    with pytest.raises(ValueError, match=r"repeat|concurrency|deliveries"):
        await send(
            "http://127.0.0.1:1/", BODIES, secret=SECRET, repeat=repeat, concurrency=concurrency
        )
