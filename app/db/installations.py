"""Installations of the agent app: one for each workspace, its tokens sealed."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from app.db.connect import Connection
from app.model import Installation, InstallationStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A workspace's tokens, as they are stored.

    Attributes:
        generation: grows with every other pair of tokens.
        due: whether the access token had better be refreshed before it is used.
    """

    workspace: str
    generation: int
    status: str
    access: bytes
    refresh: bytes | None
    due: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Tokens to be stored, and when they had better be refreshed."""

    access: bytes
    refresh: bytes | None
    expires_at: datetime | None
    refresh_in: timedelta | None
    scope: str | None


async def all_of_them(conn: Connection) -> list[Installation]:
    """Every installation, by its slug; without its tokens."""
    rows = await conn.fetch(
        """
        select workspace, slug, member_id, scope, status, error, expires_at, installed_at,
               refreshed_at
          from installations
         order by slug, workspace
        """
    )
    return [Installation(**{**row, "status": InstallationStatus(row["status"])}) for row in rows]


async def members(conn: Connection) -> set[str]:
    """Who we are in the workspaces that have installed us."""
    rows = await conn.fetch("select member_id from installations where member_id is not null")
    return {row["member_id"] for row in rows}


async def begin(
    conn: Connection, state_hash: bytes, verifier: bytes, *, lifetime: timedelta
) -> None:
    """Remembers a link that was given to an operator, and forgets those that are too old."""
    await conn.execute(
        "delete from oauth_states where created_at < app_now() - $1::interval", lifetime
    )
    await conn.execute(
        "insert into oauth_states (hash, verifier) values ($1, $2)", state_hash, verifier
    )


async def come_back(conn: Connection, state_hash: bytes, *, lifetime: timedelta) -> bytes | None:
    """What was remembered of a link by which somebody comes back; once, and not too late."""
    verifier: bytes | None = await conn.fetchval(
        "delete from oauth_states where hash = $1 and created_at >= app_now() - $2::interval"
        " returning verifier",
        state_hash,
        lifetime,
    )
    return verifier


async def install(
    conn: Connection, workspace: str, *, slug: str, member_id: str | None, fresh: Fresh
) -> None:
    """none or any -> active, with these tokens."""
    await conn.execute(
        """
        insert into installations as it
            (workspace, slug, member_id, access, refresh, expires_at, refresh_at, scope)
        values ($1, $2, $3, $4, $5, $6, app_clock() + $7, $8)
        on conflict (workspace) do update
           set slug = excluded.slug, member_id = coalesce(excluded.member_id, it.member_id),
               access = excluded.access, refresh = excluded.refresh,
               expires_at = excluded.expires_at, refresh_at = excluded.refresh_at,
               scope = excluded.scope, generation = it.generation + 1, status = 'active',
               error = null, refreshing_until = '-infinity', installed_at = app_clock(),
               refreshed_at = app_clock()
        """,
        workspace,
        slug,
        member_id,
        fresh.access,
        fresh.refresh,
        fresh.expires_at,
        fresh.refresh_in,
        fresh.scope,
    )


async def tokens(conn: Connection, workspace: str) -> Sealed | None:
    """The tokens as they are stored; None if the app is not installed there."""
    row = await conn.fetchrow(
        """
        select workspace, generation, status, access, refresh,
               coalesce(refresh_at <= app_now(), false) as due
          from installations
         where workspace = $1
        """,
        workspace,
    )
    return None if row is None else Sealed(**row)


async def claim_refresh(conn: Connection, it: Sealed, *, lease: timedelta) -> bool:
    """Whether we are the one who refreshes these tokens; nobody else is, before the lease ends."""
    found = await conn.fetchval(
        """
        update installations set refreshing_until = app_clock() + $3
         where workspace = $1 and generation = $2 and status = 'active'
           and refreshing_until <= app_now()
        returning workspace
        """,
        it.workspace,
        it.generation,
        lease,
    )
    return found is not None


async def give_back(conn: Connection, it: Sealed, *, error: str) -> None:
    """The tokens could not be refreshed now: anybody may try again."""
    await conn.execute(
        """
        update installations set refreshing_until = '-infinity', error = $3
         where workspace = $1 and generation = $2
        """,
        it.workspace,
        it.generation,
        error,
    )


async def refreshed(conn: Connection, it: Sealed, fresh: Fresh) -> int | None:
    """Stores the tokens that took the place of these; their generation, None if they came late."""
    generation: int | None = await conn.fetchval(
        """
        update installations
           set access = $3, refresh = coalesce($4, refresh), expires_at = $5,
               refresh_at = app_clock() + $6, scope = coalesce($7, scope),
               generation = generation + 1, refreshing_until = '-infinity', error = null,
               refreshed_at = app_clock()
         where workspace = $1 and generation = $2
        returning generation
        """,
        it.workspace,
        it.generation,
        fresh.access,
        fresh.refresh,
        fresh.expires_at,
        fresh.refresh_in,
        fresh.scope,
    )
    return generation


async def revoked(conn: Connection, it: Sealed, *, error: str) -> bool:
    """active -> revoked, if these tokens are still the last ones."""
    found = await conn.fetchval(
        """
        update installations
           set status = 'revoked', error = $3, refreshing_until = '-infinity'
         where workspace = $1 and generation = $2 and status = 'active'
        returning workspace
        """,
        it.workspace,
        it.generation,
        error,
    )
    return found is not None


async def disconnect(conn: Connection, workspace: str) -> bool:
    """Forgets an installation and its tokens; False if there is none."""
    found = await conn.fetchval(
        "delete from installations where workspace = $1 returning workspace", workspace
    )
    return found is not None
