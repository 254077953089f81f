"""Installs the agent app into workspaces, and keeps the tokens that they grant."""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import structlog

from app.db import installations
from app.db.connect import DATABASE_ERRORS, Connection
from app.db.installations import Fresh, Sealed
from app.errors import (
    DraftgateError,
    GrantRevoked,
    Rejected,
    ShortcutRefused,
    ShortcutUnavailable,
    VaultError,
)
from app.model import InstallationStatus
from app.settings import Settings
from app.shortcut.oauth import OAuthApp, Tokens
from app.vault import Vault

CALLBACK = "/oauth/shortcut/callback"
#: How long a link that begins an installation may be followed.
LINK_LIFETIME = timedelta(minutes=10)
#: How long the one who refreshes has, and others wait for it, before somebody else may try.
REFRESH_LEASE = timedelta(seconds=30)
WAIT_SECONDS, PAUSE_SECONDS = 8.0, 0.1
#: A token that ends sooner is refreshed before it is used.
EARLY = timedelta(minutes=5)
#: What our `state` begins with: Shortcut sends one of its own where it began the installation.
_OURS = "draftgate."

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installs:
    """The agent app and the workspaces that have installed it.

    Attributes:
        take: gives a connection, for as long as one statement takes.
        allowed: workspaces, by id or slug, that may install it without a link from here.
    """

    take: Callable[[], AbstractAsyncContextManager[Connection]]
    app: OAuthApp
    vault: Vault
    allowed: frozenset[str]
    _refreshing: set["asyncio.Task[tuple[str, int]]"] = field(default_factory=set)

    async def begin(self) -> str:
        """A link by which a workspace's admin installs the app; good once, for ten minutes."""
        state, verifier = _OURS + secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        async with self.take() as conn:
            sealed = self.vault.seal(verifier)
            await installations.begin(conn, _hash(state), sealed, lifetime=LINK_LIFETIME)
        return self.app.link(state, verifier)

    async def finish(self, code: str, state: str) -> str:
        """Installs the app by the code with which somebody came back; says what came of it.

        Raises Rejected, and ShortcutUnavailable.
        """
        verifier = await self._verifier(state) if state.startswith(_OURS) else None
        try:
            tokens = await self.app.exchange(code, verifier)
        except ShortcutRefused as refused:
            log.warning("installation.refused", error=str(refused))
            raise Rejected(400, "code-refused", "Shortcut does not take this code.") from None
        if tokens.workspace is None:
            raise Rejected(400, "workspace-unknown", "Shortcut does not say which workspace it is.")
        if verifier is None and not self.allowed & {tokens.workspace, tokens.slug}:
            log.warning("installation.not_allowed", workspace=tokens.workspace)
            raise Rejected(403, "workspace-not-allowed", "This workspace may not install the app.")
        slug = tokens.slug or tokens.workspace
        async with self.take() as conn:
            await installations.install(
                conn,
                tokens.workspace,
                slug=slug,
                member_id=tokens.member_id,
                fresh=self._sealed(tokens),
            )
        log.info("installation.made", workspace=tokens.workspace, scope=tokens.scope)
        return slug

    async def _verifier(self, state: str) -> str:
        async with self.take() as conn:
            sealed = await installations.come_back(conn, _hash(state), lifetime=LINK_LIFETIME)
        if sealed is None:
            raise Rejected(400, "state-invalid", "The link was followed before, or is too old.")
        return self.vault.open(sealed)

    async def token(self, workspace: str, refused: int | None) -> tuple[str, int]:
        """An access token and its generation, of another generation than the one just refused.

        Refreshed by one process at a time, and stored before anybody uses it. Raises
        ShortcutRefused (401) where somebody has to install the app again, and ShortcutUnavailable.
        """
        give_up_at = time.monotonic() + WAIT_SECONDS
        while True:
            async with self.take() as conn:
                it = await installations.tokens(conn, workspace)
            if it is None or it.status == InstallationStatus.REVOKED:
                raise ShortcutRefused("the app's installation does not count any more", status=401)
            if it.generation != refused and not it.due:
                return self._opened(it.access), it.generation
            async with self.take() as conn:
                ours = await installations.claim_refresh(conn, it, lease=REFRESH_LEASE)
            if ours:
                return await self._refresh_whole(it)
            if time.monotonic() > give_up_at:
                raise ShortcutUnavailable("the token is being refreshed elsewhere")
            await asyncio.sleep(PAUSE_SECONDS)

    async def settle(self) -> None:
        """Waits for refreshes that are under way: an answer that nobody stores is lost."""
        if self._refreshing:
            await asyncio.wait(self._refreshing, timeout=REFRESH_LEASE.total_seconds())

    async def _refresh_whole(self, it: Sealed) -> tuple[str, int]:
        """Refreshes, whatever becomes of the one who asked for it."""
        task = asyncio.create_task(self._refresh(it))
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)
        return await asyncio.shield(task)

    async def _refresh(self, it: Sealed) -> tuple[str, int]:
        try:
            if it.refresh is None:
                raise GrantRevoked("there is no refresh token", status=401)
            tokens = await self.app.refresh(self._opened(it.refresh))
        except GrantRevoked as error:
            await self._revoke(it, error)
            raise ShortcutRefused("the app's installation was revoked", status=401) from None
        except DraftgateError as error:
            async with self.take() as conn:
                await installations.give_back(conn, it, error=str(error))
            if isinstance(error, ShortcutUnavailable):
                raise
            raise ShortcutRefused(str(error), status=401) from None
        return tokens.access, await self._store(it, self._sealed(tokens))

    async def _store(self, it: Sealed, fresh: Fresh) -> int:
        """Stores what took the place of these tokens, for as long as nobody else can try."""
        give_up_at = time.monotonic() + REFRESH_LEASE.total_seconds()
        while True:
            try:
                async with self.take() as conn:
                    generation = await installations.refreshed(conn, it, fresh)
            except DATABASE_ERRORS as error:
                log.warning("installation.not_stored", workspace=it.workspace)
                if time.monotonic() > give_up_at:
                    raise ShortcutUnavailable(f"not stored: {type(error).__name__}") from None
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if generation is None:
                raise ShortcutUnavailable("the app was installed anew meanwhile, or disconnected")
            log.info("installation.refreshed", workspace=it.workspace, generation=generation)
            return generation

    async def _revoke(self, it: Sealed, error: GrantRevoked) -> None:
        async with self.take() as conn:
            if await installations.revoked(conn, it, error=str(error)):
                effect = "what is owed there waits until the app is installed again"
                log.error("installation.revoked", workspace=it.workspace, effect=effect)

    def _sealed(self, tokens: Tokens) -> Fresh:
        return Fresh(
            access=self.vault.seal(tokens.access),
            refresh=self.vault.seal(tokens.refresh) if tokens.refresh else None,
            expires_at=tokens.expires_at,
            refresh_in=_refresh_in(tokens.expires_at),
            scope=tokens.scope,
        )

    def _opened(self, sealed: bytes) -> str:
        try:
            return self.vault.open(sealed)
        except VaultError as error:
            raise ShortcutRefused(str(error), status=401) from None


def _refresh_in(expires_at: datetime | None) -> timedelta | None:
    if expires_at is None:
        return None
    left = expires_at - datetime.now(UTC)
    return max(left - EARLY, left / 2, timedelta(0))


def _hash(state: str) -> bytes:
    return sha256(state.encode()).digest()


def installs_of(
    settings: Settings, take: Callable[[], AbstractAsyncContextManager[Connection]]
) -> Installs | None:
    """The agent app that these settings name; None where they name none."""
    secret, keys = settings.oauth_client_secret, settings.oauth_token_keys
    if settings.oauth_client_id is None or secret is None or settings.public_url is None:
        return None
    app = OAuthApp(
        url=settings.oauth_url.rstrip("/"),
        client_id=settings.oauth_client_id,
        client_secret=secret,
        redirect_uri=settings.public_url + CALLBACK,
    )
    vault = Vault([key.get_secret_value() for key in keys])
    allowed = frozenset(settings.oauth_workspaces)
    return Installs(take=take, app=app, vault=vault, allowed=allowed)
