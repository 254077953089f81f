"""A proxy in front of PostgreSQL's socket that loses, holds, delays and cuts what passes.

It reads the protocol just far enough to know which statement a client executes, so that a test
can say *which* answer is lost, and knows that the server had carried the statement out before.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from urllib.parse import parse_qs, urlencode, urlsplit

from app.db.connect import Database

PORT = 5432
CHUNK_BYTES = 65536


class Catch:
    """One statement that the proxy waits for, and what becomes of its answer.

    Attributes:
        seen: the statement has been sent; it has not reached the server where requests are caught.
        executed: the server has carried it out, committed it if it commits by itself, and said so.
    """

    def __init__(self, statement: str, *, request: bool = False) -> None:
        self.statement = statement
        self.request = request
        self.seen = asyncio.Event()
        self.executed = asyncio.Event()
        self._decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def deliver(self) -> None:
        """Lets what was caught go on its way."""
        if not self._decided.done():
            self._decided.set_result(True)

    def lose(self) -> None:
        """Drops what was caught, and the client's connection with it."""
        if not self._decided.done():
            self._decided.set_result(False)

    async def delivered(self) -> bool:
        """Waits for the decision: whether it goes on its way."""
        return await asyncio.shield(self._decided)


class Proxy:
    """Listens on a Unix socket in a directory of its own, and passes on to the server."""

    def __init__(self, dsn: str, directory: str) -> None:
        self._upstream = _address(dsn)
        self.dsn = _through(dsn, directory)
        self._path = f"{directory}/.s.PGSQL.{PORT}"
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.catches: list[Catch] = []
        self.delay_seconds = 0.0
        self.bytes_left: int | None = None
        self.refusing = False

    def through(self, database: Database) -> Database:
        """The same database by way of this proxy; LISTEN keeps its own way."""
        return replace(database, dsn=self.dsn)

    def catch(self, statement: str) -> Catch:
        """Holds the answer to the next statement with these words until the test decides."""
        self.catches.append(Catch(statement))
        return self.catches[-1]

    def catch_request(self, statement: str) -> Catch:
        """Holds the next statement with these words before it reaches the server."""
        self.catches.append(Catch(statement, request=True))
        return self.catches[-1]

    def lose_reply(self, statement: str) -> Catch:
        """The server carries the next such statement out; its answer never arrives."""
        catch = self.catch(statement)
        catch.lose()
        return catch

    def lose_request(self, statement: str) -> Catch:
        """The next such statement never arrives at the server."""
        catch = self.catch_request(statement)
        catch.lose()
        return catch

    def freeze(self) -> None:
        """Nothing passes any more, and nobody is told: both ends think that they are connected."""
        self.thawed.clear()

    def thaw(self) -> None:
        """What was held up arrives, late."""
        self.thawed.set()

    def delay(self, seconds: float) -> None:
        """The end of every answer arrives so much later."""
        self.delay_seconds = seconds

    def cut_after(self, count: int) -> None:
        """The connection over which the server says its next `count` bytes breaks right there."""
        self.bytes_left = count

    def refuse(self) -> None:
        """As if the server were down: what is connected breaks, what connects is turned away."""
        self.refusing = True
        self.cut()

    def accept(self) -> None:
        """The server is up again."""
        self.refusing = False

    def cut(self) -> None:
        """Every connection breaks now, between two statements or within one."""
        for link in list(self._links):
            link.cut()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.thaw()
        await asyncio.gather(*(link.ended.wait() for link in list(self._links)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            if not self.refusing:
                await link.run(await self._upstream())
        except OSError:
            pass
        finally:
            link.cut()
            link.ended.set()
            self._links.discard(link)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection, and the one to the server that serves it."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client = reader, writer
        self._server: Streams | None = None
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, bytes] = {}
        self._caught: Catch | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self.ended = asyncio.Event()

    def cut(self) -> None:
        for streams in (self._client, self._server):
            if streams is not None:
                streams[1].transport.abort()
        for pump in self._pumps:
            pump.cancel()

    async def run(self, server: Streams) -> None:
        self._server = server
        self._pumps = [
            asyncio.create_task(self._ask(self._client[0], server[1])),
            asyncio.create_task(self._answer(server[0], self._client[1])),
        ]
        await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        # Over as soon as either end is gone; but while frozen, neither is told of the other.
        await self._proxy.thawed.wait()
        self.cut()
        for pump in self._pumps:
            with suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                await pump

    async def _ask(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        await self._start(client, server)
        while True:
            kind, rest = await _message(client)
            catch = self._wanted(kind, rest)
            if catch is not None:
                catch.seen.set()
                if not catch.request:
                    self._caught = catch
                elif not await catch.delivered():
                    return
            await self._proxy.thawed.wait()
            server.write(kind + rest)
            await server.drain()

    async def _start(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """The first message has no kind; a request to cancel is one too, and the only one."""
        length = await client.readexactly(4)
        rest = await client.readexactly(int.from_bytes(length, "big") - 4)
        await self._proxy.thawed.wait()
        server.write(length + rest)
        await server.drain()

    def _wanted(self, kind: bytes, rest: bytes) -> Catch | None:
        """The catch that waits for what this message executes."""
        text = self._executes(kind, rest[4:])
        for catch in self._proxy.catches:
            if text is not None and catch.statement in text:
                self._proxy.catches.remove(catch)
                return catch
        return None

    def _executes(self, kind: bytes, body: bytes) -> str | None:
        words = body.split(b"\0", 2)
        if kind == b"P":
            self._statements[words[0]] = words[1].decode()
        elif kind == b"B":
            self._portals[words[0]] = words[1]
        elif kind == b"E":
            return self._statements.get(self._portals.get(words[0], b""), "")
        elif kind == b"Q":
            return words[0].decode()
        return None

    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while True:
            kind, rest = await _message(server)
            caught = self._caught
            if caught is not None:
                held = kind + rest
                while kind != b"Z":  # Until the server is ready for the next statement.
                    kind, rest = await _message(server)
                    held += kind + rest
                caught.executed.set()
                self._caught = None
                if not await caught.delivered():
                    return
                kind, rest = b"", held
            if kind == b"Z":
                await asyncio.sleep(self._proxy.delay_seconds)
            await self._proxy.thawed.wait()
            if not await self._say(client, kind + rest):
                return

    async def _say(self, client: asyncio.StreamWriter, what: bytes) -> bool:
        left = self._proxy.bytes_left
        if left is not None and left <= len(what):
            self._proxy.bytes_left = None
            client.write(what[:left])
            await client.drain()
            return False
        if left is not None:
            self._proxy.bytes_left = left - len(what)
        client.write(what)
        await client.drain()
        return True


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One message: its kind, and its length with its body."""
    kind = await reader.readexactly(1)
    length = await reader.readexactly(4)
    return kind, length + await reader.readexactly(int.from_bytes(length, "big") - 4)


def _address(dsn: str) -> Callable[[], Awaitable[Streams]]:
    """How to connect to the server of a DSN."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    host = query["host"][0] if "host" in query else parts.hostname or "localhost"
    port = int(query["port"][0]) if "port" in query else parts.port or PORT
    if host.startswith("/"):
        return lambda: asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return lambda: asyncio.open_connection(host, port)


def _through(dsn: str, directory: str) -> str:
    """The DSN with this directory's socket as its host."""
    parts = urlsplit(dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    query |= {"host": directory, "port": str(PORT)}
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{user}{parts.path}?{urlencode(query)}"


@asynccontextmanager
async def proxy_to(dsn: str) -> AsyncIterator[Proxy]:
    """Runs a proxy in front of the server of this DSN."""
    with tempfile.TemporaryDirectory(prefix="draftgate-proxy-") as directory:
        proxy = Proxy(dsn, directory)
        await proxy.open()
        try:
            yield proxy
        finally:
            await proxy.close()
