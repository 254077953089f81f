"""Nothing that strangers do to the rest of the service takes the webhook's place."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from app.door.bounds import MOST_AT_ONCE
from tests import shapes
from tests.locks import until
from tests.service import Service, receiver

HALF = b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"


async def held(service: Service, closing: AsyncExitStack) -> None:
    """A request that is under way until its connection is closed."""
    _, writer = await asyncio.open_connection("127.0.0.1", service.port)
    closing.callback(writer.close)
    writer.write(HALF)
    await writer.drain()


async def answers(service: Service, status: int) -> bool:
    """Whether a page of no importance is answered so by now."""
    return (await service.client.get("/openapi.json")).status_code == status


async def test_requests_at_a_time_are_bounded(database):
    """Beyond the bound: 503, come back. Deliveries and health are answered all the same."""
    async with receiver(database) as service:
        async with AsyncExitStack() as closing:
            for _ in range(MOST_AT_ONCE):
                await held(service, closing)
            await until(lambda: answers(service, 503))
            busy = await service.client.get("/openapi.json")
            assert (busy.json()["code"], busy.headers["retry-after"]) == ("busy", "1")
            assert (await service.client.get("/livez")).status_code == 200
            assert (await service.client.get("/readyz")).status_code == 200
            assert (await service.post(shapes.labelled(1))).status_code == 200

        await until(lambda: answers(service, 200))


@pytest.mark.parametrize("path", ["/livez", "/nothing"])
async def test_every_body_is_bounded(database, path):
    """Announced or not, a body over the limit is 413 wherever it goes; it is a problem."""

    async def pieces():
        yield b"x" * 1000
        yield b"x" * 1000

    async with receiver(database, body_limit_bytes=1024) as service:
        announced = await service.client.post(path, content=b"x" * 1025)
        chunked = await service.client.post(path, content=pieces())

    for answer in (announced, chunked):
        assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


async def test_every_body_has_a_deadline(database):
    """A body that does not come is 408 at every path."""
    async with receiver(database, body_timeout_seconds=0.2) as service:
        answer = await service.raw(HALF)

    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(("path", "status"), [("/livez", 405), ("/nothing", 404)])
async def test_errors_of_fastapi_are_problems(database, path, status):
    """What the framework refuses is problem JSON too."""
    async with receiver(database) as service:
        answer = await service.client.post(path, content=b"{")

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
