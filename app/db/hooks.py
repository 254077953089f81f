"""Webhooks that were registered from here, one for each source, and how they were last seen."""

from datetime import timedelta

import asyncpg

from app.db.connect import Connection
from app.model import Hook, HookStatus


async def all_of_them(conn: Connection) -> list[Hook]:
    """Every hook, by its source."""
    rows = await conn.fetch(
        """
        select source, integration_id, retired_id, url, status, error, registered_at, checked_at
          from hooks
         order by source
        """
    )
    return [_hook(row) for row in rows]


async def save(
    conn: Connection, source: str, *, url: str, integration_id: int, wait: timedelta
) -> Hook:
    """Makes this the source's hook; the one before it is retired, and has to be deleted."""
    row = await conn.fetchrow(
        """
        insert into hooks (source, url, integration_id, next_check_at)
        values ($1, $2, $3, app_clock() + $4)
        on conflict (source) do update
           set url = excluded.url, integration_id = excluded.integration_id,
               retired_id = hooks.integration_id, status = 'alive', error = null,
               registered_at = app_clock(), checked_at = null,
               next_check_at = excluded.next_check_at
        returning source, integration_id, retired_id, url, status, error, registered_at, checked_at
        """,
        source,
        url,
        integration_id,
        wait,
    )
    assert row is not None
    return _hook(row)


async def forget_retired(conn: Connection, hook: Hook) -> None:
    """The hook that was retired is deleted."""
    await conn.execute(
        "update hooks set retired_id = null where source = $1 and retired_id = $2",
        hook.source,
        hook.retired_id,
    )


async def remove(conn: Connection, hook: Hook) -> None:
    """Forgets the hook, unless another one has taken its place."""
    await conn.execute(
        "delete from hooks where source = $1 and integration_id = $2",
        hook.source,
        hook.integration_id,
    )


async def take_due(conn: Connection, *, every: timedelta) -> Hook | None:
    """The next hook to look at; nobody else is given it before so much time has passed."""
    row = await conn.fetchrow(
        """
        with next as materialized (
            select source from hooks
             where next_check_at <= app_now()
             order by next_check_at
             limit 1
               for update skip locked
        )
        update hooks
           set next_check_at = app_clock() + $1
          from next
         where hooks.source = next.source
        returning hooks.source, integration_id, retired_id, url, status, error, registered_at,
                  checked_at
        """,
        every,
    )
    return None if row is None else _hook(row)


async def looked(
    conn: Connection, hook: Hook, *, status: HookStatus, error: str | None = None
) -> None:
    """Keeps what was seen of the hook, unless another one has taken its place.

    One that was left to people and is alive is watched again.
    """
    await conn.execute(
        """
        update hooks
           set status = $3, error = $4, checked_at = app_clock(),
               next_check_at = case when $3 = 'alive' and next_check_at = 'infinity'
                                    then app_clock() else next_check_at end
         where source = $1 and integration_id = $2
        """,
        hook.source,
        hook.integration_id,
        status,
        error,
    )


async def leave(conn: Connection, hook: Hook, *, error: str) -> None:
    """The hook is left to people: nobody looks by itself until another one takes its place."""
    await conn.execute(
        """
        update hooks set error = $3, next_check_at = 'infinity'
         where source = $1 and integration_id = $2
        """,
        hook.source,
        hook.integration_id,
        error,
    )


def _hook(row: asyncpg.Record) -> Hook:
    return Hook(**{**row, "status": HookStatus(row["status"])})
