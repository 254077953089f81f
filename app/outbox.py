"""Sends what is owed to stories: at least once, and idempotent by our own marker."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus

import structlog

from app.claims import backoff
from app.db import outbox
from app.db.connect import DATABASE_ERRORS, Pool, take
from app.errors import ShortcutRefused, ShortcutUnavailable
from app.model import Owed
from app.outage import Outage
from app.workspaces import Workspaces

#: Longer than every call that one sending makes may take together.
LEASE = timedelta(seconds=60)
#: The part of the lease in which a comment may be posted: the rest is for the answer.
POSTING_PART = 0.75
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=2), timedelta(minutes=5)
#: Tries before a person has to look: with these waits, about two days.
MAX_TRIES = 600
#: A refusal that is about our token and not about the comment: a person gives us another one.
_OF_THE_TOKEN = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Posts owed comments to the API of the story's workspace."""

    name: str
    pool: Pool
    workspaces: Workspaces
    lease: timedelta = LEASE
    _token: Outage = field(default_factory=lambda: Outage("the Shortcut token"))

    async def tick(self) -> bool:
        """Sends the next owed comment; True if there was one."""
        async with take(self.pool) as conn:
            # From before the claim: the lease can't have begun earlier.
            post_by = time.monotonic() + self.lease.total_seconds() * POSTING_PART
            owed = await outbox.claim(conn, sender=self.name, lease=self.lease)
        if owed is None:
            return False
        try:
            await self._send(owed, post_by)
        except ShortcutRefused as error:
            await self._refused(owed, error)
        except ShortcutUnavailable as error:
            await self._postpone(owed, str(error), error.retry_after_seconds)
        except DATABASE_ERRORS:
            raise  # What can't be said of the row is left to its expiry.
        except Exception as error:
            log.exception("outbox.broke", story=owed.sc_id)
            await self._postpone(owed, f"an error of ours: {type(error).__name__}")
        return True

    async def expire_tick(self) -> bool:
        """Takes rows back from senders that died; True if there were any."""
        async with take(self.pool) as conn:
            return await outbox.expire(conn, limit=100) > 0

    async def _send(self, owed: Owed, post_by: float) -> None:
        comment_id = await self._post_once(owed, post_by)
        self._token.worked()
        async with take(self.pool) as conn:
            await outbox.sent(conn, owed, comment_id=comment_id)
        log.info("outbox.sent", story=owed.sc_id, comment=comment_id)

    async def _post_once(self, owed: Owed, post_by: float) -> int:
        """Posts the comment unless an earlier try did so and could not say it."""
        api = self.workspaces.api(owed.workspace)
        if api is None:
            raise ShortcutRefused("there is no token for its workspace", status=401)
        if owed.attempts > 0:
            found = await api.find_comment(owed.sc_id, owed.key)
            if found is not None:
                return found
        if time.monotonic() > post_by:
            # This process stood still: another sender may be posting, or have posted.
            raise ShortcutUnavailable("it was too late to post")
        return await api.post_comment(owed.sc_id, owed.text, owed.key)

    async def _refused(self, owed: Owed, error: ShortcutRefused) -> None:
        if error.status in _OF_THE_TOKEN:
            self._token.failed(error)
            await self._postpone(owed, str(error), LONGEST_WAIT.total_seconds())
            return
        log.error("outbox.refused", story=owed.sc_id, status=error.status)
        async with take(self.pool) as conn:
            await outbox.give_up(conn, owed, error=str(error))

    async def _postpone(
        self, owed: Owed, error: str, at_least_seconds: float | None = None
    ) -> None:
        tries = owed.attempts + 1
        delay = backoff(tries, base=FIRST_WAIT, longest=LONGEST_WAIT)
        delay = max(delay, timedelta(seconds=at_least_seconds or 0))
        log.warning("outbox.postponed", story=owed.sc_id, tries=tries)
        async with take(self.pool) as conn:
            if tries >= MAX_TRIES:
                await outbox.give_up(conn, owed, error=error)
            else:
                await outbox.postpone(conn, owed, error=error, delay=delay)
