"""What the PostgreSQL server says of itself."""

from dataclasses import dataclass
from datetime import datetime

from app.db.connect import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server as a connection finds it.

    Attributes:
        version: as the server writes it, e.g. `17.2`.
        major: the number before the point.
        pooled: something stands in between, which gives out server processes by itself.
        keeps: a commit that was answered outlives a crash of the machine.
    """

    version: str
    major: int
    pooled: bool
    in_recovery: bool
    keeps: bool
    now: datetime


async def about(conn: Connection) -> Server:
    """Asks the server."""
    row = await conn.fetchrow(
        """
        select current_setting('server_version') as version,
               current_setting('server_version_num')::int / 10000 as major,
               pg_backend_pid() <> $1 as pooled,
               pg_is_in_recovery() as in_recovery,
               current_setting('fsync') = 'on'
               and current_setting('synchronous_commit') <> 'off' as keeps,
               clock_timestamp() as now
        """,
        conn.get_server_pid(),
    )
    assert row is not None
    return Server(**row)
