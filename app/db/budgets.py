"""Request budgets: how many requests an API token has left, shared by all processes.

The table's `closed_until` is for processes of the version before, which may still run.
"""

from datetime import timedelta

from app.db.connect import Connection


async def spend(conn: Connection, name: str, *, burst: float, per_second: float) -> float:
    """Takes one request from the budget: 0. Otherwise in how many seconds there may be one.

    The budget fills up to `burst` by `per_second`. The row's lock is the queue: the time is taken
    when it was won.
    """
    seconds: float = await conn.fetchval(
        """
        with spent as (
            insert into request_budgets as budget (name, remaining, as_of)
            values ($1, $2::float8 - 1, app_clock())
            on conflict (name) do update
               set as_of = app_clock(),
                   remaining = least($2, budget.remaining + $3::float8
                       * extract(epoch from app_clock() - budget.as_of)::float8) - 1
             where budget.remaining + $3
                   * extract(epoch from app_clock() - budget.as_of)::float8 >= 1
            returning name
        )
        select case when exists (select from spent) then 0::float8 else coalesce((
            select greatest(
                       (1 - remaining) / $3 - extract(epoch from app_clock() - as_of), 0.01)
              from request_budgets where name = $1), 0.01)::float8 end
        """,
        name,
        burst,
        per_second,
    )
    return seconds


async def close(conn: Connection, name: str, *, until: timedelta) -> None:
    """Nobody gets a request from the budget for so long, and then not all at once.

    It is empty, and begins to fill up only then.
    """
    await conn.execute(
        """
        insert into request_budgets as budget (name, remaining, as_of)
        values ($1, 0, app_clock() + $2::interval)
        on conflict (name) do update
           set as_of = greatest(budget.as_of, excluded.as_of), remaining = 0
        """,
        name,
        until,
    )
