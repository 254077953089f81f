"""Connections: where to, and with which limits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    Connection = (
        asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    )
    Pool = asyncpg.Pool[asyncpg.Record]
else:
    Connection = asyncpg.Connection
    Pool = asyncpg.Pool

#: What is raised when the server, the network or the pool is in trouble, and the same statement
#: may do later. A statement that can never do (a value that is refused, a constraint that is
#: violated) is another asyncpg.PostgresError. asyncpg.InterfaceError is none at all.
DATABASE_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.TransactionRollbackError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    # A statement that was prepared before a migration.
    asyncpg.InvalidCachedStatementError,
    asyncpg.InterfaceError,
    # A connection that the server ends at the very moment at which a statement is begun.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
#: The server ends a transaction in which it has heard nothing for so long: a process that stands
#: still, or whose machine is gone, must not keep its locks until TCP finds out.
IDLE_SECONDS = 5
#: The most that a transaction may take, which PostgreSQL bounds from version 17 on. It ends one
#: whose process stands still between the two messages of a statement, too: that is not idle.
TRANSACTION_SECONDS = 60

#: A plan is kept with its prepared statement, and one that was made when a table was empty would
#: read all of it when it has grown, until an ANALYZE. Each of our statements has an index to go
#: by, so they are planned as if tables were large, and once, for any values. Making each plan anew
#: is right as well, and doubles the time of a claim; without prepared statements, behind a pooler,
#: that is done anyway.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # A scan that can't be avoided is made to look costly enough for being compiled.
    "jit": "off",
}

#: For asyncpg, how long a statement stays prepared: what happens rarely finds it ready, too.
FOR_EVER = 0

#: asyncpg asks the server what an array is, for each connection and type, by a statement of some
#: ten milliseconds. They are asked for when the connection is made, not when an event is waiting;
#: but not through a pooler, which may have no server to ask while it gives a connection.
_ARRAYS = ("bigint", "boolean", "bytea", "int", "timestamptz", "uuid")
_KNOW_ARRAYS = "select " + ", ".join(f"${n}::{of}[]" for n, of in enumerate(_ARRAYS, 1))


def reason(error: BaseException) -> str:
    """What a database error says, on one line."""
    first = str(error).strip().splitlines()[:1]
    return first[0][:200] if first else type(error).__name__


class _Pooled(asyncpg.Connection):
    """Goes back to its pool without a query: nothing of ours leaves anything in a session.

    A transaction that is still open is rolled back all the same.
    """

    def get_reset_query(self) -> str:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A PostgreSQL to connect to.

    Attributes:
        listen_dsn: leads to the server itself, never through a transaction pooler.
        statement_cache_size: prepared statements per connection; 0 behind such a pooler.
    """

    dsn: str
    listen_dsn: str
    statement_cache_size: int = 100
    pool_size: int = 5
    connect_timeout_seconds: float = 5
    command_timeout_seconds: float = 10

    async def connect(self, purpose: str, *, listen: bool = False) -> asyncpg.Connection:
        """Opens one connection that belongs to nobody else."""
        return await asyncpg.connect(
            self.listen_dsn if listen else self.dsn,
            timeout=self.connect_timeout_seconds,
            command_timeout=self.command_timeout_seconds,
            statement_cache_size=self.statement_cache_size,
            max_cached_statement_lifetime=FOR_EVER,
            server_settings=self._server_settings(purpose),
        )

    def _server_settings(self, purpose: str) -> dict[str, str]:
        settings = {"application_name": f"draftgate {purpose}"}
        if self.statement_cache_size:
            settings |= PLANS
        return settings

    def pool(self, purpose: str, *, size: int | None = None) -> "Pool":
        """A pool that is opened by `async with`; take from it with `take`."""
        return asyncpg.create_pool(
            self.dsn,
            connection_class=_Pooled,
            min_size=0,
            max_size=size or self.pool_size,
            timeout=self.connect_timeout_seconds,
            command_timeout=self.command_timeout_seconds,
            statement_cache_size=self.statement_cache_size,
            max_cached_statement_lifetime=FOR_EVER,
            init=_know_arrays if self.statement_cache_size else None,
            server_settings=self._server_settings(purpose),
        )


async def _know_arrays(conn: "Connection") -> None:
    await conn.fetchrow(_KNOW_ARRAYS, *[None] * len(_ARRAYS))


@asynccontextmanager
async def take(pool: "Pool", *, timeout_seconds: float = 10) -> AsyncIterator["Connection"]:
    """A connection from the pool. Without a timeout `acquire` would wait for ever."""
    async with pool.acquire(timeout=timeout_seconds) as conn:
        yield conn


@asynccontextmanager
async def redoable(pool: "Pool") -> AsyncIterator["Connection"]:
    """A connection in a transaction that nothing is lost with: what it does would be done again.

    READ COMMITTED whatever the server's default is. Its commit waits for no fsync: the log is
    written in order, so the next commit that does wait, a claim's for one, makes this one durable
    first. See docs/decisions/0012-commits-that-wait-for-no-disk.md.
    """
    async with take(pool) as conn:
        try:
            await conn.execute(_begin(conn))
            yield conn
        except BaseException:
            # Where it can't be, the connection is given up, and the server rolls it back.
            with suppress(*DATABASE_ERRORS):
                await conn.execute("rollback")
            raise
        await conn.execute("commit;")


def _begin(conn: "Connection") -> str:
    """All in one message; LOCAL, so that it holds behind a transaction pooler too."""
    begin = (
        "begin isolation level read committed; set local synchronous_commit = off;"
        f" set local idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
    )
    if conn.get_server_version() >= (17,):
        begin += f"; set local transaction_timeout = '{TRANSACTION_SECONDS}s'"
    return begin
