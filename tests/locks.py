"""Forcing an interleaving: waiting until one connection is held up by another's lock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.db.connect import Connection

T = TypeVar("T")
PATIENCE_SECONDS = 30
#: Whether anybody waits for a lock in this database: other tests' databases are on the same server.
WAITS = """
    select exists (select from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock')
"""


async def until(truth: Callable[[], Awaitable[bool]]) -> None:
    """Asks again and again until it is true; fails after half a minute."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await truth():
            pass


async def blocked(
    watcher: Connection, blocked_by_lock: Connection, work: Awaitable[T]
) -> asyncio.Task[T]:
    """Starts the work and returns once its connection waits for a lock."""
    pid = blocked_by_lock.get_server_pid()
    task = asyncio.ensure_future(work)

    async def waits() -> bool:
        if task.done():
            raise AssertionError(f"it did not wait for the lock, but ended with {task.result()!r}")
        return (
            await watcher.fetchval(
                "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1", pid
            )
            is True
        )

    await until(waits)
    return task
