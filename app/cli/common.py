"""What all commands share: settings, the database, errors."""

import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import asyncpg
import structlog
import uvloop
from rich.console import Console
from rich.markup import escape

from app import logs
from app.db.connect import DATABASE_ERRORS, Connection, Database, Pool, reason, take
from app.embedded import postgres
from app.errors import DraftgateError, SchemaError, SettingsError
from app.migrate import require_latest
from app.settings import Settings, load, strangers

T = TypeVar("T")

#: Exit codes, as README.md lists them.
FAILED, WRONG_SETTING, WRONG_SCHEMA = 1, 2, 3

#: Errors that a person is told in one line.
EXPECTED = (DraftgateError, asyncpg.PostgresError, *DATABASE_ERRORS)

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

log = structlog.get_logger(__name__)


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """An error is one line on stderr and an exit code, never a traceback."""
    try:
        yield
    except (*EXPECTED, ExceptionGroup) as error:
        expected = _first_expected(error)
        if expected is None:
            raise
        fail(*_told(expected))


def _first_expected(error: Exception) -> Exception | None:
    """The error itself, or the first one in a group that has a line of its own."""
    if not isinstance(error, ExceptionGroup):
        return error if isinstance(error, EXPECTED) else None
    found = (_first_expected(inner) for inner in error.exceptions)
    return next((inner for inner in found if inner is not None), None)


def _told(error: Exception) -> tuple[str, int]:
    match error:
        case SettingsError():
            return str(error), WRONG_SETTING
        case SchemaError():
            return str(error), WRONG_SCHEMA
        case DraftgateError():
            return str(error), FAILED
        case _:
            return f"the database can't be used: {reason(error)}", FAILED


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Says what is wrong and exits."""
    err.print(f"draftgate: {escape(message)}", soft_wrap=True)
    sys.exit(code)


def settings_and_logs(**overrides: Any) -> Settings:
    """The settings, with logging set up by them."""
    settings = load(**overrides)
    logs.configure(log_format=settings.log_format, level=settings.log_level)
    for name, meant in strangers(os.environ).items():
        log.warning("settings.unknown", variable=name, meant=meant)
    return settings


@contextmanager
def dsn_of(settings: Settings) -> Iterator[str]:
    """The DSN: the setting's, or that of the embedded server, which runs while the block does."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
    else:
        with postgres(settings.state_dir) as dsn:
            yield dsn


def run(main: Awaitable[T]) -> T:
    """Runs it on uvloop."""

    async def waited() -> T:
        return await main

    # What is loaded by now stays. Looking through it for garbage takes tens of milliseconds, which
    # somebody would wait for.
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(waited())


def ask_database(question: Callable[[Connection], Awaitable[T]]) -> T:
    """Opens one connection, asks, and closes it."""

    async def asked(dsn: str) -> T:
        conn = await asyncpg.connect(dsn, timeout=5, command_timeout=30, statement_cache_size=0)
        try:
            await require_latest(conn)
            return await question(conn)
        finally:
            await conn.close()

    return _with_dsn(asked)


def ask_with_pool(question: Callable[[Pool], Awaitable[T]]) -> T:
    """The same with connections as they are needed, for what asks Shortcut, too."""

    async def asked(dsn: str) -> T:
        database = Database(dsn=dsn, listen_dsn=dsn, statement_cache_size=0)
        async with database.pool("command") as pool:
            async with take(pool) as conn:
                await require_latest(conn)
            return await question(pool)

    return _with_dsn(asked)


def _with_dsn(asked: Callable[[str], Awaitable[T]]) -> T:
    settings = load()
    if settings.database_url is None and not (settings.state_dir / "postgres").is_dir():
        where = settings.state_dir
        raise SettingsError(f"DRAFTGATE_DATABASE_URL is not set, and {where} has no database")
    with dsn_of(settings) as dsn:
        return run(asked(dsn))
