"""Brings the database's schema to this version, and says whether it is there."""

from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from app.db.connect import DATABASE_ERRORS, Connection, reason
from app.errors import DraftgateError, SchemaError

if TYPE_CHECKING:
    from sqlalchemy import Connection as AlchemyConnection

#: The revision that this version of the code needs.
LATEST = "0012"
MIGRATIONS = Path(__file__).parent.parent / "migrations"
#: Any constant: all processes that migrate take the same advisory lock.
LOCK = 0x0D4AF76A7E


async def migrate(dsn: str) -> None:
    """Applies what is missing, in one transaction; many processes may do so at once.

    Goes to PostgreSQL directly: `dsn` must not lead through a transaction pooler. Raises
    SchemaError for a newer version's schema, and DraftgateError if it can't be done.
    """
    # Alembic and SQLAlchemy take 20 MB, which no process needs that only runs.
    from alembic.util import CommandError
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: asyncpg.connect(dsn, timeout=10),
        poolclass=NullPool,
    )
    try:
        async with engine.begin() as connection:
            # Held to the end of the transaction, so a killed migrator leaves nothing behind.
            await connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
            await connection.run_sync(_upgrade)
    except CommandError as error:
        raise SchemaError(f"the schema can't be brought to {LATEST}: {error}") from error
    except (SQLAlchemyError, *DATABASE_ERRORS, asyncpg.PostgresError) as error:
        raise DraftgateError(f"the schema can't be migrated: {reason(error)}") from error
    finally:
        await engine.dispose()


def _upgrade(connection: "AlchemyConnection") -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


async def require_latest(conn: Connection) -> None:
    """Raises SchemaError unless the schema is exactly this version's."""
    found = await _version(conn)
    if found is None:
        raise SchemaError("the database has no schema yet: run `draftgate migrate`")
    if found != LATEST:
        raise _mismatch(found)


def _mismatch(found: str) -> SchemaError:
    mend = "run `draftgate migrate`" if found < LATEST else "run the version that made it"
    return SchemaError(f"the schema is at {found}, this version needs {LATEST}: {mend}")


async def version(dsn: str) -> str | None:
    """Where the schema is; None: there is none yet. Raises SchemaError for a newer version's."""
    conn = await asyncpg.connect(dsn, timeout=10, statement_cache_size=0)
    try:
        found = await _version(conn)
    finally:
        await conn.close()
    if found is not None and found > LATEST:
        raise _mismatch(found)
    return found


async def _version(conn: Connection) -> str | None:
    if await conn.fetchval("select to_regclass('alembic_version')") is None:
        return None
    found: str | None = await conn.fetchval("select version_num from alembic_version")
    return found
