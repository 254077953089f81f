"""The proxies in front, as their configurations are shipped: no delivery is lost or doubled."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx
import pytest

from app.cli.trial import listen
from app.door.connection import KEEP_ALIVE_SECONDS
from app.settings import Settings
from app.shortcut.signature import sign
from tests import shapes
from tests.locks import until
from tests.stack import DEPLOY, Stack, stack

TOKEN = "a token of tests only"
WAITS = """
    select exists (select from pg_stat_activity
     where datname = current_database() and wait_event_type = 'Lock')
"""


@dataclass(frozen=True, slots=True)
class Front:
    """A proxy with TLS before two receivers, and a client of it."""

    it: Stack
    port: int
    client: httpx.AsyncClient
    trust: ssl.SSLContext

    async def post(self, body: bytes, **headers: str) -> httpx.Response:
        """Sends a signed delivery."""
        return await self.client.post(
            "/webhooks/shortcut", content=body, headers=self.signed(body, **headers)
        )

    def signed(self, body: bytes, **headers: str) -> dict[str, str]:
        """The headers of a delivery."""
        return {"Payload-Signature": sign(self.it.trial.secret.encode(), body), **headers}

    async def ready(self) -> bool:
        """Whether a receiver answers behind the proxy."""
        try:
            return (await self.client.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False


async def nginx(it: Stack, tool: Callable[[str], str], ports: list[int]) -> tuple[int, Path]:
    """nginx, and the certificate that it shows."""
    certificate, key = it.home / "certificate.pem", it.home / "key.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(key), "-out", str(certificate))
    made = await it.run(tool("openssl"), *command.split(), *name, *files)
    assert await made.wait() == 0
    tls = f"listen 80 ssl;\n    ssl_certificate {certificate};\n    ssl_certificate_key {key};"
    port = await it.nginx(tool("nginx"), ports, lambda site: site.replace("listen 80;", tls))
    return port, certificate


async def caddy(it: Stack, tool: Callable[[str], str], ports: list[int]) -> tuple[int, Path]:
    """Caddy, and the certificate of its own authority."""
    port = await it.caddy(tool("caddy"), ports)
    root = it.home / "caddy/pki/authorities/local/root.crt"
    await until(lambda: asyncio.sleep(0, root.exists() and root.stat().st_size > 0))
    return port, root


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
async def front(request, database, tmp_path, require_tool) -> AsyncIterator[Front]:
    """Either proxy in front of two receivers."""
    async with stack(database, tmp_path) as it:
        it.settings |= {"DRAFTGATE_LOG_FORMAT": "json", "DRAFTGATE_TRUSTED_PROXIES": "127.0.0.1"}
        it.settings["DRAFTGATE_API_TOKEN"] = TOKEN
        listeners = [listen(0), listen(0)]
        for listener in listeners:
            fd = listener.fileno()
            roles = ("--role", "receiver", "--role", "console")
            await it.start("serve", *roles, "--fd", str(fd), fd=fd)
        ports = [listener.getsockname()[1] for listener in listeners]
        port, authority = await request.param(it, require_tool, ports)
        trust = ssl.create_default_context(cafile=str(authority))
        base = f"https://localhost:{port}"
        async with httpx.AsyncClient(
            base_url=base, verify=trust, timeout=60, trust_env=False
        ) as client:
            front = Front(it, port, client, trust)
            await until(front.ready)
            yield front
        for listener in listeners:
            listener.close()


async def test_what_the_service_takes_comes_through(front, conn):
    """1.1 MB, and the limit itself, byte for byte; what is larger is refused by the service."""
    limit = Settings(_env_file=None).body_limit_bytes
    bodies = [shapes.labelled(1) + b" " * 1_100_000, shapes.labelled(2)]
    bodies[1] += b" " * (limit - len(bodies[1]))

    answers = [await front.post(body) for body in bodies]
    too_large = await front.post(b" " * (limit + 1))

    assert [answer.status_code for answer in answers] == [200, 200]
    kept = await conn.fetch("select body from events order by id")
    assert [row["body"] for row in kept] == bodies
    assert (too_large.status_code, too_large.json()["code"]) == (413, "body-too-large")


async def test_a_client_can_not_choose_its_address(front):
    """What a client says of itself does not come through; the log has its address."""
    await front.post(shapes.labelled(1), **{"X-Forwarded-For": "6.6.6.6", "Payload-Signature": "0"})

    lines = [json.loads(line) for line in front.it.log().splitlines() if line.startswith('{"')]
    refusals = [line["client"] for line in lines if line.get("event") == "delivery.rejected"]
    assert refusals in (["127.0.0.1"], ["::1"])


async def test_open_pages_are_told_at_once(front):
    """The first thing that an open page is told comes through while the stream stays open."""
    entered = await front.client.post("/console/login", data={"token": TOKEN})
    assert entered.status_code == 303
    # Buffered, it would come with what fills the buffer, or when the stream ends after minutes.
    async with front.client.stream("GET", "/console/stream", timeout=30) as answer:
        assert answer.status_code == 200
        assert "event: change" in await anext(answer.aiter_lines())


async def test_a_sender_that_hangs_up_early_is_heard_once(front, conn, connect):
    """Whole deliveries, and nobody who waits for an answer: each is recorded, and once."""
    bodies = [shapes.labelled(story) for story in range(1, 11)]
    locker = await connect()
    for number, body in enumerate(bodies, 1):
        async with locker.transaction():
            await locker.execute("lock table events")
            sender = await _send(front, body)
            await until(lambda: conn.fetchval(WAITS))
            sender.transport.abort()
        await until(lambda number=number: _recorded(conn, number))

    again = [await front.post(body) for body in bodies]

    assert [answer.json()["duplicate"] for answer in again] == [True] * len(bodies)
    assert await _recorded(conn, len(bodies))


async def _send(front: Front, body: bytes) -> asyncio.StreamWriter:
    lines = [f"{name}: {value}" for name, value in front.signed(body).items()]
    lines += ["Host: localhost", f"Content-Length: {len(body)}"]
    head = "\r\n".join(["POST /webhooks/shortcut HTTP/1.1", *lines, "", ""])
    _, writer = await asyncio.open_connection("localhost", front.port, ssl=front.trust)
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


async def _recorded(conn, number: int) -> bool:
    return await conn.fetchval("select count(*) from events") == number


async def test_pages_have_a_rate_and_deliveries_have_none(front, request):
    """nginx turns a flood of pages away with 429; as many deliveries all come through."""
    pages = await asyncio.gather(*(front.client.get("/livez") for _ in range(120)))
    answers = await asyncio.gather(*(front.post(shapes.labelled(1)) for _ in range(120)))

    statuses = {answer.status_code for answer in pages}
    assert statuses == ({200, 429} if "nginx" in request.node.name else {200})
    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize("repeats", [False, True])
async def test_an_answer_that_a_proxy_loses_makes_no_second_event(
    database, conn, tmp_path, require_tool, repeats
):
    """A receiver records and its answer is lost: 502; or, where nginx is told to repeat POSTs, a
    duplicate. Either way there is one row."""
    async with stack(database, tmp_path) as it:
        await it.receiver()
        target = it.trial.service.getsockname()[1]
        async with forgetful(target) as ports:
            port = await it.nginx(require_tool("nginx"), ports, repeating if repeats else as_it_is)
            base = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
                front = Front(it, port, client, ssl.create_default_context())
                await until(front.ready)
                first = await front.post(shapes.labelled(1))
                second = await front.post(shapes.labelled(1))

    assert first.status_code == (200 if repeats else 502)
    assert second.json()["duplicate"] is True
    assert await _recorded(conn, 1)


def as_it_is(site: str) -> str:
    """The configuration that is shipped."""
    return site


def repeating(site: str) -> str:
    """The configuration that it warns of."""
    return site.replace("error timeout;", "error timeout non_idempotent;")


@asynccontextmanager
async def forgetful(target: int) -> AsyncIterator[list[int]]:
    """Two ports before a receiver; of all answers to deliveries, the first one is lost."""
    lost: list[bool] = []

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes]
    ) -> None:
        while said := await reader.read(65536):
            if said.startswith(b"HTTP/") and any(b"POST " in part for part in asked) and not lost:
                lost.append(True)
                return
            asked.append(said)
            writer.write(said)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", target)
        asked: list[bytes] = []
        with closing(writer), closing(to_writer):
            pumps = [pump(reader, to_writer, asked), pump(to_reader, writer, asked)]
            tasks = [asyncio.ensure_future(each) for each in pumps]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

    async with AsyncExitStack() as closing_all:
        servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(2)]
        for server in servers:
            await closing_all.enter_async_context(server)
        yield [server.sockets[0].getsockname()[1] for server in servers]


@pytest.mark.parametrize(
    ("file", "idle"),
    [
        ("nginx/upstream.conf", r"keepalive_timeout (\d+)s"),
        ("caddy/Caddyfile", r"keepalive (\d+)s"),
    ],
)
def test_the_proxy_is_the_one_that_closes_idle_connections(file, idle):
    """A proxy that keeps a connection longer than we do sends a POST into one just closed."""
    (seconds,) = re.findall(idle, (DEPLOY / file).read_text())

    assert int(seconds) < KEEP_ALIVE_SECONDS


KILLS = 3
BETWEEN_KILLS = 50
SENDERS = 8


async def test_receivers_killed_under_load_lose_nothing_and_double_nothing(
    database, conn, tmp_path, require_tool
):
    """One of two receivers is killed again and again: what was acknowledged is recorded, once."""
    async with stack(database, tmp_path) as it:
        listeners = [listen(0), listen(0)]
        processes = [await it.receiver_on(listener) for listener in listeners]
        ports = [listener.getsockname()[1] for listener in listeners]
        port = await it.nginx(require_tool("nginx"), ports)
        acknowledged: dict[str, bytes] = {}
        progress: asyncio.Queue[None] = asyncio.Queue()
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
            front = Front(it, port, client, ssl.create_default_context())
            await until(front.ready)
            numbers = count(1)
            senders = [
                asyncio.create_task(_keep_sending(front, numbers, acknowledged, progress))
                for _ in range(SENDERS)
            ]
            for kill in range(KILLS):
                for _ in range(BETWEEN_KILLS):
                    await asyncio.wait_for(progress.get(), 60)
                processes[kill % 2].kill()
                await processes[kill % 2].wait()
                processes[kill % 2] = await it.receiver_on(listeners[kill % 2])
            for sender in senders:
                sender.cancel()
            await asyncio.wait(senders)
        for listener in listeners:
            listener.close()

    rows = await conn.fetch("select event_id, body from events")
    recorded = {row["event_id"]: row["body"] for row in rows}
    assert len(acknowledged) >= KILLS * BETWEEN_KILLS
    assert acknowledged.items() <= recorded.items()
    assert len(rows) == len(recorded)


async def _keep_sending(
    front: Front,
    numbers: Iterator[int],
    acknowledged: dict[str, bytes],
    progress: asyncio.Queue[None],
) -> None:
    """Sends one story after the other, each until it is acknowledged, as Shortcut does."""
    for number in numbers:
        body = shapes.labelled(number)
        while True:
            with suppress(httpx.TransportError):
                if (await front.post(body)).status_code == 200:
                    break
        acknowledged[json.loads(body)["id"]] = body
        progress.put_nowait(None)
