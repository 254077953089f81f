"""Sends what is owed to stories: at least once, and idempotent by our own marker."""

from dataclasses import dataclass
from datetime import timedelta

import structlog

from app.claims import backoff
from app.db import outbox
from app.db.connect import Pool, take
from app.errors import ShortcutRefused, ShortcutUnavailable
from app.model import Owed
from app.shortcut.client import ShortcutClient

#: Longer than every call that one sending makes may take together.
LEASE = timedelta(seconds=60)
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=2), timedelta(minutes=5)
#: Tries before a person has to look: with these waits, about two days.
MAX_TRIES = 600

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Posts owed comments to the story's API."""

    name: str
    pool: Pool
    shortcut: ShortcutClient

    async def tick(self) -> bool:
        """Sends the next owed comment; True if there was one."""
        async with take(self.pool) as conn:
            owed = await outbox.claim(conn, sender=self.name, lease=LEASE)
        if owed is None:
            return False
        try:
            comment_id = await self._post_once(owed)
        except ShortcutRefused as error:
            log.error("outbox.refused", story=owed.sc_id, status=error.status)
            async with take(self.pool) as conn:
                await outbox.give_up(conn, owed, error=str(error))
        except ShortcutUnavailable as error:
            await self._postpone(owed, error)
        else:
            async with take(self.pool) as conn:
                await outbox.sent(conn, owed, comment_id=comment_id)
            log.info("outbox.sent", story=owed.sc_id, comment=comment_id)
        return True

    async def expire_tick(self) -> bool:
        """Takes rows back from senders that died; True if there were any."""
        async with take(self.pool) as conn:
            return await outbox.expire(conn, limit=100) > 0

    async def _post_once(self, owed: Owed) -> int:
        """Posts the comment unless an earlier try did so and could not say it."""
        if owed.attempts > 0:
            found = await self.shortcut.find_comment(owed.sc_id, owed.key)
            if found is not None:
                return found
        return await self.shortcut.post_comment(owed.sc_id, owed.text, owed.key)

    async def _postpone(self, owed: Owed, error: ShortcutUnavailable) -> None:
        tries = owed.attempts + 1
        delay = backoff(tries, base=FIRST_WAIT, longest=LONGEST_WAIT)
        if error.retry_after_seconds is not None:
            delay = max(delay, timedelta(seconds=error.retry_after_seconds))
        log.warning("outbox.postponed", story=owed.sc_id, tries=tries)
        async with take(self.pool) as conn:
            if tries >= MAX_TRIES:
                await outbox.give_up(conn, owed, error=str(error))
            else:
                await outbox.postpone(conn, owed, error=str(error), delay=delay)
