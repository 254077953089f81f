"""Does what is owed to stories: at least once, and idempotent, comments by our own marker."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from http import HTTPStatus

import structlog

from app import words
from app.budget import PAUSE_SECONDS
from app.db import outbox, sessions
from app.db.connect import DATABASE_ERRORS, Pool, take
from app.db.outbox import Telling
from app.errors import ShortcutBusy, ShortcutRefused, ShortcutUnavailable
from app.machine import Status
from app.model import Marks, Owed, Rewritten
from app.outage import Outage
from app.worker.claims import backoff
from app.worker.workspaces import Workspaces

#: Longer than every call that one sending makes may take together.
LEASE = timedelta(seconds=60)
#: The part of the lease in which a comment may be posted: the rest is for the answer.
POSTING_PART = 0.75
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=2), timedelta(minutes=5)
#: Tries before a person has to look: with these waits, about two days.
MAX_TRIES = 600
#: How long a session stands still before its story is told: what goes by quickly is not.
QUIET = timedelta(seconds=3)
#: A refusal that is about our token and not about the comment: a person gives us another one.
_OF_THE_TOKEN = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

log = structlog.get_logger(__name__)


def tellings(label: str | None = None, state: str | None = None) -> tuple[Telling, ...]:
    """What a story is told in each status: in words, and by the marks of one that is drafted.

    `label` is on it as long as there is a draft; into `state` it is moved when there is one.
    """
    told = [
        Telling(kind=Rewritten.STANDING, status=status, text=words.standing(status))
        for status in Status
    ]
    if label is None and state is None:
        return tuple(told)
    labels = (label,) if label is not None else ()
    drafted, otherwise = Marks(labels_add=labels, state=state), Marks(labels_remove=labels)
    for status in Status:
        first = status is Status.DRAFTED
        text = json.dumps(asdict(drafted if first else otherwise))
        told.append(Telling(kind=Rewritten.MARKS, status=status, text=text, first=first))
    return tuple(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Does to stories what is owed to them: posts comments, rewrites one, marks.

    Attributes:
        tellings: what is owed to a story when its session has moved and stands still.
        most_an_hour: comments on one story before it is muted, which ends any loop.
    """

    name: str
    pool: Pool
    workspaces: Workspaces
    lease: timedelta = LEASE
    tellings: Sequence[Telling] = tellings()
    quiet: timedelta = QUIET
    most_an_hour: int = 20
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
        except ShortcutBusy as error:
            await self._wait(owed, error)
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

    async def tell_tick(self) -> bool:
        """Owes stories whose sessions have moved what they are to be told; True if there were any.

        Needs no lease and no order: what is owed is where the session stands, not that it moved.
        """
        async with take(self.pool) as conn:
            count = await outbox.tell(
                conn, self.tellings, workspaces=list(self.workspaces.known), quiet=self.quiet
            )
        return count > 0

    async def _send(self, owed: Owed, post_by: float) -> None:
        comment_id = await self._do_once(owed, post_by)
        self._token.worked()
        async with take(self.pool) as conn:
            await outbox.sent(conn, owed, comment_id=comment_id)
            text = words.muted(self.most_an_hour, owed.sc_id)
            if await sessions.mute(conn, owed.id, most=self.most_an_hour, text=text):
                log.error("story.muted", story=owed.sc_id, comments=self.most_an_hour)
        log.info("outbox.sent", story=owed.sc_id, kind=owed.kind, comment=comment_id)

    async def _do_once(self, owed: Owed, post_by: float) -> int | None:
        """What has no effect when it is done again, or wasn't done by an earlier try."""
        api = self.workspaces.api(owed.workspace)
        if api is None:
            raise ShortcutRefused("there is no token for its workspace", status=401)
        if owed.kind == Rewritten.MARKS:
            _require_time(post_by)
            await api.mark(owed.sc_id, Marks(**json.loads(owed.text)))
            return None
        found = owed.comment_id
        if found is None and owed.attempts > 0:
            found = await api.find_comment(owed.sc_id, owed.key)
        _require_time(post_by)
        if found is None:
            return await api.post_comment(owed.sc_id, owed.text, owed.key)
        if owed.kind == Rewritten.STANDING:
            await api.edit_comment(owed.sc_id, found, owed.text)
        return found

    async def _refused(self, owed: Owed, error: ShortcutRefused) -> None:
        if error.status in _OF_THE_TOKEN:
            self._token.failed(error)
            await self._postpone(owed, str(error), LONGEST_WAIT.total_seconds())
            return
        if 300 <= error.status < 400:
            # Something on the way answers in Shortcut's place: that is not about this row.
            await self._postpone(owed, str(error), LONGEST_WAIT.total_seconds())
            return
        if error.status == HTTPStatus.NOT_FOUND and owed.kind in set(Rewritten):
            # Somebody has deleted the comment, or the story: nobody is to be told any more.
            async with take(self.pool) as conn:
                await outbox.sent(conn, owed, comment_id=owed.comment_id, note=str(error))
            return
        log.error("outbox.refused", story=owed.sc_id, status=error.status)
        async with take(self.pool) as conn:
            await outbox.give_up(conn, owed, error=str(error))

    async def _wait(self, owed: Owed, busy: ShortcutBusy) -> None:
        """It is not this row's turn: that was no try, and is no failure of the row's."""
        delay = timedelta(seconds=busy.retry_after_seconds or PAUSE_SECONDS)
        log.warning("outbox.waits", story=owed.sc_id, seconds=round(delay.total_seconds(), 1))
        async with take(self.pool) as conn:
            await outbox.postpone(conn, owed, error=str(busy), delay=delay, tried=False)

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


def _require_time(post_by: float) -> None:
    if time.monotonic() > post_by:
        # This process stood still: another sender may be at it, or have been.
        raise ShortcutUnavailable("it was too late to send")
