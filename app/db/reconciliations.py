"""Reconciliations: up to when each workspace has been compared with what Shortcut says."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.db.connect import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a workspace is reconciled.

    Attributes:
        through: what has happened before is known.
        read_up_to: of what has happened since, stories that changed last before this were read.
        looked_up_to: sessions up to this id have had their turn, and it was seen whether their
            stories are still there.
    """

    through: datetime
    read_up_to: datetime | None = None
    looked_up_to: int = 0


async def take(conn: Connection, workspace: str, *, every: timedelta) -> Mark | None:
    """How far the workspace is reconciled, if its turn has come; nobody else is told it now.

    A workspace that never was is reconciled up to now: what was before it is none of ours.
    """
    row = await conn.fetchrow(
        """
        insert into reconciliations as done (workspace, through, next_run_at)
        values ($1, app_now(), app_clock() + $2::interval)
        on conflict (workspace) do update set next_run_at = app_clock() + $2
         where done.next_run_at <= app_clock()
        returning through, read_up_to, looked_up_to
        """,
        workspace,
        every,
    )
    return None if row is None else Mark(**row)


async def mark(conn: Connection, workspace: str) -> Mark | None:
    """How far the workspace is reconciled; None if it never was."""
    row = await conn.fetchrow(
        "select through, read_up_to, looked_up_to from reconciliations where workspace = $1",
        workspace,
    )
    return None if row is None else Mark(**row)


async def now(conn: Connection) -> datetime:
    """The database's time, before a run begins to ask."""
    found: datetime = await conn.fetchval("select app_clock()")
    return found


async def done(conn: Connection, workspace: str, mark: Mark) -> None:
    """The workspace is reconciled so far, never less far; due now if there is more to read."""
    await conn.execute(
        """
        insert into reconciliations as done
            (workspace, through, read_up_to, looked_up_to, next_run_at)
        values ($1, $2, $3, $4, app_clock())
        on conflict (workspace) do update
           set through = excluded.through, read_up_to = excluded.read_up_to,
               looked_up_to = excluded.looked_up_to,
               next_run_at = case when $3::timestamptz is null
                                  then done.next_run_at else app_clock() end
         where done.through <= excluded.through
        """,
        workspace,
        mark.through,
        mark.read_up_to,
        mark.looked_up_to,
    )


async def open_after(
    conn: Connection, workspace: str, looked_up_to: int, *, limit: int
) -> list[tuple[int, int]]:
    """The next sessions that are not closed, by id: each id, and the number of its story."""
    rows = await conn.fetch(
        """
        select id, sc_id from patch_sessions
         where workspace = $1 and id > $2 and status <> 'closed'
         order by id
         limit $3
        """,
        workspace,
        looked_up_to,
        limit,
    )
    return [(row["id"], row["sc_id"]) for row in rows]


async def with_session(conn: Connection, workspace: str, sc_ids: Sequence[int]) -> set[int]:
    """Which of these stories have a session."""
    rows = await conn.fetch(
        "select sc_id from patch_sessions where workspace = $1 and sc_id = any($2::bigint[])",
        workspace,
        sc_ids,
    )
    return {row["sc_id"] for row in rows}
