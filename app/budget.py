"""Keeps all processes together below the API's limit of requests."""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from app.db import budgets
from app.db.connect import DATABASE_ERRORS, Pool, take
from app.errors import ShortcutBusy, ShortcutUnavailable

#: The longest that a call waits for its turn, in seconds: leases count on calls that end.
LONGEST_WAIT_SECONDS = 2.0
#: How long all wait after a 429 that doesn't say it, in seconds. Shortcut counts the last minute.
PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The requests of one API token, counted in the database.

    In no 60 seconds there are more than `a_minute`: a tenth of them may come at once.
    """

    pool: Pool
    name: str
    a_minute: int

    async def turn(self) -> None:
        """Waits shortly for a request's turn. Raises ShortcutBusy where that would take longer."""
        give_up_at = time.monotonic() + LONGEST_WAIT_SECONDS
        while (seconds := await self._spend()) > 0:
            if time.monotonic() + seconds > give_up_at:
                raise ShortcutBusy("too many requests", retry_after_seconds=seconds)
            await asyncio.sleep(seconds)

    async def close(self, seconds: float | None) -> None:
        """The API has answered 429: nobody asks it before its time."""
        until = timedelta(seconds=PAUSE_SECONDS if seconds is None else seconds)
        try:
            async with take(self.pool) as conn:
                await budgets.close(conn, self.name, until=until)
        except DATABASE_ERRORS:
            return  # Whoever asks next is told it by the API.

    async def _spend(self) -> float:
        burst = max(1, self.a_minute // 10)
        per_second = (self.a_minute - burst) / 60
        try:
            async with take(self.pool) as conn:
                return await budgets.spend(conn, self.name, burst=burst, per_second=per_second)
        except DATABASE_ERRORS as error:
            problem = f"the budget of requests can't be asked: {type(error).__name__}"
            raise ShortcutUnavailable(problem) from None


def name_of(token: str) -> str:
    """What a token's budget goes by, which tells nothing of the token."""
    return sha256(b"budget " + token.encode()).hexdigest()[:16]
