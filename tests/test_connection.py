"""Connections that bring no request, or bring it slowly, or bring too much of it."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from app.door.connection import Connection
from app.shortcut.signature import sign
from tests import shapes
from tests.locks import until
from tests.service import SECRET, receiver
from tests.stack import stack

BODY = shapes.labelled(1)
SLOW_HEAD = b"POST /webhooks/shortcut HTTP/1.1\r\nHost: x\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def request(body=BODY, *headers):
    """A signed delivery as bytes."""
    signature = sign(SECRET.encode(), body)
    lines = (
        "POST /webhooks/shortcut HTTP/1.1",
        "Host: x",
        f"Payload-Signature: {signature}",
        f"Content-Length: {len(body)}",
        *headers,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def connected(service) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader):
    """The status of the next answer, whose body is read too."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    await reader.readexactly(int(length))
    return int(head.split()[1])


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"\r\n\r\n"], ids=["nothing", "line", "lines"])
async def test_a_connection_that_brings_no_request_is_closed(database, sent):
    """Whoever only connects, or sends empty lines, is not told anything and has to go."""
    async with receiver(database, header_timeout_seconds=0.2) as service:
        assert await service.raw(sent) == b""


async def test_headers_that_arrive_too_slowly_are_a_408(database):
    """However often another header arrives, all of them together have one deadline."""
    async with (
        receiver(database, header_timeout_seconds=0.3) as service,
        connected(service) as (reader, writer),
    ):
        writer.write(SLOW_HEAD)
        answering = asyncio.create_task(answer(reader))

        async def is_refused() -> bool:
            writer.write(b"X-More: 1\r\n")
            await asyncio.wait([answering], timeout=0.05)
            return answering.done()

        await until(is_refused)

        assert (answering.result(), await reader.read()) == (408, b"")


async def test_a_second_request_has_a_deadline_of_its_own(database):
    """On a connection that has served a request, the next one's headers must arrive in time too."""
    async with (
        receiver(database, header_timeout_seconds=0.3) as service,
        connected(service) as (reader, writer),
    ):
        writer.write(LIVE)
        assert await answer(reader) == 200
        writer.write(SLOW_HEAD)

        assert await answer(reader) == 408


async def test_an_idle_connection_that_has_been_used_may_stay(database):
    """The deadline is for heads: a connection that a proxy keeps open is used again after it."""
    async with (
        receiver(database, header_timeout_seconds=0.1) as service,
        connected(service) as (reader, writer),
        connected(service) as (unused, _),
    ):
        writer.write(LIVE)
        assert await answer(reader) == 200
        assert await unused.read() == b""  # Its deadline began later, and is over.

        writer.write(request())

        assert await answer(reader) == 200


async def test_an_idle_connection_ends_in_time_but_no_delivery_does(database, connect):
    """Whoever was answered and brings no more has to go; who waits for a commit is no such one."""
    locker = await connect()
    async with (
        receiver(database, idle_seconds=0.2) as service,
        connected(service) as (reader, writer),
        connected(service) as (idle, other),
    ):
        writer.write(request())
        assert await answer(reader) == 200
        async with locker.transaction():
            await locker.execute("lock table events")
            writer.write(request(shapes.labelled(2)))
            other.write(LIVE)
            assert await answer(idle) == 200
            assert await idle.read() == b""

        assert await answer(reader) == 200
        assert await reader.read() == b""


async def test_a_body_that_nobody_reads_has_a_deadline(database):
    """What goes on arriving after the answer does not keep a connection open."""
    head = b"GET /webhooks/shortcut HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    async with (
        receiver(database, header_timeout_seconds=0.3) as service,
        connected(service) as (reader, writer),
    ):
        writer.write(head)
        assert await answer(reader) == 405
        writer.write(b"some more")

        assert await reader.read() == b""


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("pieces", [1, 2])
async def test_headers_that_are_too_large_are_a_431(database, conn, count, pieces):
    """One header of 200 kB or 200 of 1 kB, at once or in pieces: refused, and nothing is stored."""
    more = [f"X-{number}: {'a' * (200_000 // count)}" for number in range(count)]
    whole = request(BODY, *more)
    size = -(-len(whole) // pieces)
    async with receiver(database) as service, connected(service) as (reader, writer):
        for start in range(0, len(whole), size):
            writer.write(whole[start : start + size])
            await asyncio.sleep(0)
        status = await answer(reader)

    assert status == 431
    assert await conn.fetchval("select count(*) from events") == 0


async def test_headers_without_an_end_are_a_431(database):
    """A header that never ends is refused long before its deadline."""
    async with (
        receiver(database) as service,
        connected(service) as (reader, writer),
    ):
        writer.write(SLOW_HEAD + b"X-Endless: ")
        answering = asyncio.create_task(answer(reader))

        async def is_refused() -> bool:
            writer.write(b"a" * 10_000)
            await asyncio.sleep(0)
            return answering.done()

        await until(is_refused)
        assert answering.result() == 431


async def test_headers_that_are_just_not_too_large_are_taken(database):
    """A cookie jar of 60 kB is unusual, and no reason to lose a delivery."""
    async with receiver(database) as service:
        got = await service.raw(request(BODY, f"X-Large: {'a' * 60_000}", "Connection: close"))

    assert got.startswith(b"HTTP/1.1 200 ")


async def test_a_large_body_before_the_next_head_is_not_taken_for_one(database):
    """Pipelined: what ends a large body and begins the next head counts as neither's headers."""
    large = request(b'{"type":"validation"}' + b" " * 200_000)
    both = large + request()
    async with (
        receiver(database, header_timeout_seconds=5) as service,
        connected(service) as (reader, writer),
    ):
        writer.write(both[: len(large) + 20])
        assert await answer(reader) == 200
        writer.write(both[len(large) + 20 : len(large) + 40])
        writer.write(both[len(large) + 40 :])

        assert await answer(reader) == 200


async def test_pipelined_deliveries_are_answered_in_order(database):
    """Two deliveries and what is no HTTP, in one piece: 200, 200 a duplicate, 400 and the end."""
    async with receiver(database) as service, connected(service) as (reader, writer):
        writer.write(request() + request(b"{"))
        first, second = await answer(reader), await answer(reader)
        writer.write(b"what is this\r\n\r\n")
        third = await answer(reader)

        assert (first, second, third) == (200, 400, 400)
        assert await reader.read() == b""


async def test_who_waits_to_be_told_to_continue_is_told(database):
    """`Expect: 100-continue`: the body is asked for, and then has its own time."""
    whole = request(BODY, "Expect: 100-continue")
    async with (
        receiver(database, header_timeout_seconds=0.1) as service,
        connected(service) as (reader, writer),
        connected(service) as (unused, _),
    ):
        writer.write(whole[: -len(BODY)])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await unused.read() == b""  # The deadline for heads is over.
        writer.write(BODY)

        assert await answer(reader) == 200


async def test_who_only_holds_a_place_makes_room(database):
    """With every place taken by connections that send nothing, a delivery is answered."""
    async with (
        receiver(database, connection_limit=10) as service,
        AsyncExitStack() as held,
    ):
        idle = [await held.enter_async_context(connected(service)) for _ in range(30)]

        assert (await service.post(BODY)).status_code == 200
        ended = [reader for reader, _ in idle if reader.at_eof() or reader.exception()]
        assert len(ended) >= 20


async def test_bodies_that_are_arriving_are_bounded_together(database, conn):
    """Too many slow senders of large bodies: the oldest are 503, and a whole delivery is taken."""
    head = b"POST /webhooks/shortcut HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n"
    limits = {"body_limit_bytes": 100_000, "buffer_limit_bytes": 200_000}
    async with (
        receiver(database, **limits) as service,
        AsyncExitStack() as held,
    ):
        slow = [await held.enter_async_context(connected(service)) for _ in range(6)]
        answering = [asyncio.create_task(answer(reader)) for reader, _ in slow]
        for _, writer in slow:
            writer.write(head + b" " * 60_000)
        # Three times sixty thousand bytes have room.
        await until(lambda: asyncio.sleep(0, sum(task.done() for task in answering) == 3))
        refused = [task.result() for task in answering if task.done()]

        assert refused == [503] * 3
        assert (await service.post(BODY)).status_code == 200
        assert sum(not task.done() for task in answering) == 3
        for task in answering:
            task.cancel()


async def test_deliveries_that_wait_are_bounded_in_bytes(database, conn):
    """What may wait for a commit is bounded in bytes too; all that was accepted is recorded."""
    bodies = [shapes.labelled(story) + b" " * 50_000 for story in range(1, 21)]
    async with receiver(database, buffer_limit_bytes=200_000) as service:
        async with conn.transaction():
            await conn.execute("lock table events")
            answering = [asyncio.ensure_future(service.post(body)) for body in bodies]
            await until(lambda: asyncio.sleep(0, sum(task.done() for task in answering) >= 10))
            refused = {task.result().status_code for task in answering if task.done()}
        answers = await asyncio.gather(*answering)

    accepted = [got for got in answers if got.status_code == 200]
    assert refused == {503}
    assert 4 <= len(accepted) <= 10
    assert await conn.fetchval("select count(*) from events") == len(accepted)


def _connections() -> int:
    """How many connections' objects there are, in use or not."""
    return sum(isinstance(found, Connection) for found in gc.get_objects())


async def test_a_connection_that_is_gone_is_freed_at_once(database):
    """Whatever it has brought, it leaves nothing that waits for the collector of cycles."""
    body = shapes.labelled(1)
    signed = b"Payload-Signature: " + sign(SECRET.encode(), body).encode()
    wholes = [
        b"POST /webhooks/shortcut HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n\r\n%s"
        % (len(body), header, body)
        for header in (signed, b"X: y")
    ]
    begins = (b"", SLOW_HEAD, SLOW_HEAD + b"Content-Length: 50000\r\n\r\n" + b" " * 1000)
    async with receiver(database) as service:
        gc.collect()
        before = _connections()
        gc.disable()
        try:
            for sent in (*wholes, *begins):
                reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
                writer.write(sent)
                if sent in wholes:
                    await reader.readuntil(b"\r\n\r\n")
                writer.close()
            await until(lambda: asyncio.sleep(0.01, _connections() == before))
        finally:
            gc.enable()


def _resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


async def _hold(port: int, held: AsyncExitStack) -> None:
    """Opens two thousand connections that bring nothing, half a head, or part of a body."""
    begins = (b"", SLOW_HEAD, SLOW_HEAD + b"Content-Length: 50000\r\n\r\n" + b" " * 1000)
    for number in range(2000):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        held.callback(writer.close)
        writer.write(begins[number % 3])


async def test_two_thousand_idle_or_slow_sockets_cost_little(database, tmp_path):
    """A delivery is answered all the same; the process has a few kB for each, and keeps to them."""
    async with stack(database, tmp_path) as it:
        it.settings["DRAFTGATE_HEADER_TIMEOUT_SECONDS"] = "300"
        it.settings["DRAFTGATE_BODY_TIMEOUT_SECONDS"] = "300"
        process = await it.receiver()
        port = it.trial.service.getsockname()[1]
        warm = await it.send(shapes.labelled(1), copies=50, concurrency=4, port=port)
        resident = [_resident(process.pid)]
        for story in (2, 3):
            async with AsyncExitStack() as held:
                await _hold(port, held)
                report = await it.send(shapes.labelled(story), copies=20, concurrency=1, port=port)
                resident.append(_resident(process.pid))
            assert report.answers == {(200, False): 1, (200, True): 19}

    before, once, again = resident
    assert warm.ok
    # Seven kilobytes for one that waits for a head, fifteen for one in the middle of a body.
    assert once - before < 40_000_000
    # What has gone leaves its place to the next.
    assert again - once < 5_000_000
