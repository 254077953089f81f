"""Real PostgreSQL for every test: one server, a migrated template, a clone for each test."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
import structlog
from _pytest.runner import runtestprotocol

from app.db.connect import Connection, Database, Pool
from app.embedded import postgres
from app.migrate import migrate
from tests.ladder import Ladder
from tests.ladder import ladder as make_ladder
from tests.office import Office, office_of
from tests.pgbouncer import Pooler, pgbouncer, through

# Not the tracebacks with all variables in them, which take a second each.
structlog.configure(
    processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
)

#: Tests want speed and lose nothing by a crash of the machine.
FAST = (
    "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=300"
    " -c max_wal_size=256MB"
)
ROOM_BYTES = 4 * 1024**3


def quick_directory() -> Path:
    """Where a server of the tests has its files: in memory, if there is room.

    Each test's database is some three hundred small ones.
    """
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM_BYTES
    return memory if roomy else Path(tempfile.gettempdir())


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The DSN of a server's maintenance database; shared by all test processes of a run."""
    given = os.environ.get("DRAFTGATE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)
    home = quick_directory() / f"draftgate-tests-{run}"
    with postgres(home, options=FAST) as dsn:
        yield dsn
    if not (home / "postgres" / "postmaster.pid").exists():
        shutil.rmtree(home, ignore_errors=True)


def with_name(dsn: str, name: str) -> str:
    """The same server, another database."""
    before, _, query = dsn.partition("?")
    return f"{before.rpartition('/')[0]}/{name}?{query}"


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """The name of a migrated database that nobody is connected to."""
    name = f"template_{uuid4().hex}"

    async def make() -> None:
        await _admin(server, f'create database "{name}"')
        await migrate(with_name(server, name))

    asyncio.run(make())
    yield name
    asyncio.run(_admin(server, f'drop database "{name}" with (force)'))


@pytest.fixture
async def dsn(server: str, template: str) -> AsyncIterator[str]:
    """The DSN of a fresh, migrated database of the test's own."""
    name = f"test_{uuid4().hex}"
    await _admin(server, f'create database "{name}" template "{template}"')
    yield with_name(server, name)
    await _admin(server, f'drop database "{name}" with (force)')


async def _admin(server: str, statement: str) -> None:
    conn = await asyncpg.connect(server)
    try:
        await conn.execute(statement)
    finally:
        await conn.close()


@pytest.fixture(scope="session")
def pooler(server: str) -> Iterator[Pooler | None]:
    """PgBouncer in transaction mode, when the tests are told to go through it."""
    if os.environ.get("DRAFTGATE_TEST_PGBOUNCER") != "1":
        yield None
        return
    with pgbouncer(server) as pooler:
        poolers.append(pooler)
        yield pooler


#: The PgBouncer of this test process, if it has one.
poolers: list[Pooler] = []


#: What takes longest begins first, or the last process to end would be alone with it.
LONGEST = ("test_model.py", "test_chaos.py", "test_stateful.py", "test_order.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Through PgBouncer goes what comes to a database; nothing else can differ there."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if os.environ.get("DRAFTGATE_TEST_PGBOUNCER") != "1":
        return
    left = [item for item in items if "server" not in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def pytest_runtest_protocol(item: pytest.Function, nextitem: pytest.Item | None) -> bool | None:
    """Runs a test again, once, if PgBouncer crashed under it; any other failure stands."""
    if not poolers:
        return None
    crashes = poolers[0].crashes
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if poolers[0].crashes > crashes and any(report.failed for report in reports):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def database(dsn: str, pooler: Pooler | None) -> Database:
    """The fresh database, as the service is told of it."""
    if pooler is None:
        return Database(dsn=dsn, listen_dsn=dsn)
    return Database(dsn=through(pooler.directory, dsn), listen_dsn=dsn, statement_cache_size=0)


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    """A pool on the fresh database."""
    async with database.pool("test") as pool:
        yield pool


Connect = Callable[[], Awaitable[Connection]]


@pytest.fixture
async def connect(dsn: str) -> AsyncIterator[Connect]:
    """Opens independent connections to the server itself; they are closed when the test ends."""
    opened: list[Connection] = []

    async def open_one() -> Connection:
        conn = await Database(dsn=dsn, listen_dsn=dsn).connect("test")
        opened.append(conn)
        return conn

    yield open_one
    for conn in opened:
        conn.terminate()


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    """One connection of the test's own."""
    return await connect()


@pytest.fixture
def require_tool() -> Callable[[str], str]:
    """The path of a program; without it the test skips here, and fails where all is required."""

    def find(name: str) -> str:
        path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if path is None:
            missing = f"{name} is not installed"
            if os.environ.get("DRAFTGATE_REQUIRE_TOOLS") == "1":
                pytest.fail(missing)
            pytest.skip(missing)
        return path

    return find


@pytest.fixture
def ladder(database: Database, pool: Pool, conn: Connection) -> Ladder:
    """Brings sessions to where a test begins."""
    return make_ladder(database, pool, conn)


@pytest.fixture
async def office(ladder: Ladder, pool: Pool) -> AsyncIterator[Office]:
    """A sender with a draft that is owed to a story that exists."""
    async with office_of(ladder, pool) as made:
        yield made
