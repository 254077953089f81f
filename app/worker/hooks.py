"""Registers webhooks of version 1 at Shortcut, and looks whether they are alive."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from app.db import hooks
from app.db.connect import Connection
from app.errors import DraftgateError, SettingsError, WebhookUnknown
from app.model import Hook, HookStatus
from app.settings import PREFIX, Settings
from app.shortcut.client import ShortcutClient
from app.sources import SOURCE
from app.worker.workspaces import Workspaces

EVERY = timedelta(seconds=60)
#: A hook that was just registered: whoever disables each one is not asked again sooner.
FIRST_LOOK = timedelta(minutes=10)
#: From the API's description of version 3.
MAX_URL_CHARS, MAX_SECRET_CHARS = 2048, 128

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The webhooks of this service's sources.

    Attributes:
        take: gives a connection, for as long as one statement takes.
    """

    take: Callable[[], AbstractAsyncContextManager[Connection]]
    settings: Settings
    workspaces: Workspaces

    async def register(self, source: str) -> Hook:
        """Makes a webhook with the source's first secret; the one before it is deleted after.

        Raises DraftgateError for settings that don't allow it, and ShortcutError.
        """
        url, secret = address(self.settings, source), self._secret(source)
        integration_id = await self._api(source).create_webhook(url, secret)
        return await self._take_over(source, url, integration_id)

    async def adopt(self, source: str, integration_id: int) -> Hook:
        """Takes over a webhook that was made by hand."""
        if await self._api(source).webhook_disabled(integration_id) is None:
            raise DraftgateError(f"Shortcut has no webhook {integration_id}")
        return await self._take_over(source, address(self.settings, source), integration_id)

    async def _take_over(self, source: str, url: str, integration_id: int) -> Hook:
        async with self.take() as conn:
            hook = await hooks.save(
                conn, source, url=url, integration_id=integration_id, wait=FIRST_LOOK
            )
        log.info("hook.registered", source=source, integration=integration_id)
        return await self._delete_retired(hook)

    async def remove(self, hook: Hook) -> None:
        """Deletes the webhook at Shortcut, and then here."""
        hook = await self._delete_retired(hook)
        await self._api(hook.source).delete_webhook(hook.integration_id)
        async with self.take() as conn:
            await hooks.remove(conn, hook)
        log.info("hook.removed", source=hook.source, integration=hook.integration_id)

    async def look(self, hook: Hook) -> Hook:
        """The hook as Shortcut has it now; with the reason where it can't be asked."""
        seen = replace(hook, error=None)
        try:
            disabled = await self._api(hook.source).webhook_disabled(hook.integration_id)
        except DraftgateError as error:
            seen = replace(hook, error=str(error))
        else:
            states = {None: HookStatus.GONE, True: HookStatus.DISABLED, False: HookStatus.ALIVE}
            seen = replace(seen, status=states[disabled])
        async with self.take() as conn:
            await hooks.looked(conn, hook, status=seen.status, error=seen.error)
        _tell(hook, seen)
        return seen

    async def tick(self) -> bool:
        """Looks at the next hook that is due; True if there was one."""
        async with self.take() as conn:
            hook = await hooks.take_due(conn, every=EVERY)
        if hook is None:
            return False
        try:
            await self._mend(hook)
        except DraftgateError as error:
            log.warning("hook.not_mended", source=hook.source, error=str(error))
        return True

    async def _mend(self, hook: Hook) -> None:
        seen = await self.look(hook)
        if seen.error is None and seen.retired_id is not None:
            seen = await self._delete_retired(seen)
        if seen.status is not HookStatus.ALIVE and self.settings.webhook_reregister:
            try:
                await self.register(hook.source)
            except WebhookUnknown as error:
                # Another one a minute later would be as unknown, and deliver all the same.
                async with self.take() as conn:
                    await hooks.leave(conn, hook, error=str(error))
                raise

    async def _delete_retired(self, hook: Hook) -> Hook:
        if hook.retired_id in (None, hook.integration_id):
            return hook
        await self._api(hook.source).delete_webhook(hook.retired_id)
        async with self.take() as conn:
            await hooks.forget_retired(conn, hook)
        return replace(hook, retired_id=None)

    def _api(self, source: str) -> ShortcutClient:
        api = self.workspaces.api(source)
        if api is None:
            raise DraftgateError(f"the source {source!r} has no API token")
        return api

    def _secret(self, source: str) -> str:
        secrets = self.settings.secrets.get(source)
        if not secrets:
            raise DraftgateError(f"the source {source!r} has no secret")
        secret = secrets[0].decode()
        if len(secret) > MAX_SECRET_CHARS:
            raise DraftgateError(f"Shortcut takes no secret over {MAX_SECRET_CHARS} characters")
        return secret


def address(settings: Settings, source: str) -> str:
    """Where a source's webhook leads; raises SettingsError where the settings do not say."""
    if settings.public_url is None:
        raise SettingsError(f"{PREFIX}PUBLIC_URL is not set")
    url = f"{settings.public_url}/webhooks/shortcut"
    url += "" if source == SOURCE else f"/{source}"
    if len(url) > MAX_URL_CHARS:
        raise SettingsError(f"Shortcut takes no address over {MAX_URL_CHARS} characters")
    return url


def _tell(before: Hook, now: Hook) -> None:
    """Says what has changed, loudly where nothing is delivered any more."""
    if now.status is before.status:
        return
    said = {"source": now.source, "integration": now.integration_id}
    if now.status is HookStatus.ALIVE:
        log.warning("hook.alive_again", **said)
    else:
        log.error(f"hook.{now.status}", effect="Shortcut delivers nothing", **said)
