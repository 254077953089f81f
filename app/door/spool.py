"""The spool: where deliveries are kept, on this machine's disk, while the database is away."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from app.db.spool import Spooled, SpoolFile, SpoolState
from app.errors import SettingsError, SpoolError

FILE = "spool.sqlite3"

T = TypeVar("T")


class Spool:
    """One thread in front of the file, so that a slow disk holds up no event loop.

    Processes of one machine may share a directory: whichever finds something in it brings it to
    the database. Everything raises SpoolError when the file can't be used, or not in time.
    """

    def __init__(self, directory: Path, *, limit_bytes: int, timeout_seconds: float) -> None:
        self._file = SpoolFile(directory / FILE, limit_bytes=limit_bytes)
        self._timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")

    async def append(self, deliveries: Sequence[Spooled]) -> None:
        """Returns once they are all on the disk."""
        await self._do(lambda: self._file.append(deliveries))

    async def first(self, *, rows: int, size_bytes: int) -> list[Spooled]:
        """The first ones that wait, in order."""
        return await self._do(lambda: self._file.first(rows=rows, size_bytes=size_bytes))

    async def remove(self, deliveries: Sequence[Spooled]) -> None:
        """Forgets what is recorded."""
        await self._do(lambda: self._file.remove(deliveries))

    async def refuse(self, delivery: Spooled, reason: str) -> None:
        """Puts aside what the database can't store."""
        await self._do(lambda: self._file.refuse(delivery, reason))

    async def retry_refused(self) -> None:
        """Lets what was put aside wait again."""
        await self._do(self._file.retry_refused)

    async def state(self) -> SpoolState:
        """How full it is."""
        return await self._do(self._file.state)

    def close(self) -> None:
        """Closes the file once what is under way is done, without waiting for it."""
        self._thread.submit(self._file.close)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[[], T]) -> T:
        def safely() -> T:
            try:
                return work()
            except BaseException:
                self._file.close()
                raise

        try:
            async with asyncio.timeout(self._timeout_seconds):
                # What has not begun by then is called off; the rest ends unheard, as a duplicate.
                return await asyncio.get_running_loop().run_in_executor(self._thread, safely)
        except TimeoutError:
            raise SpoolError("the spool's disk does not answer in time") from None
        except (sqlite3.Error, OSError, ValueError) as error:
            raise SpoolError(f"the spool can't be used: {error}") from error


def require_directory(directory: Path) -> None:
    """Raises SettingsError unless files can be made in the directory, which is made if need be."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = directory / ".draftgate"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"DRAFTGATE_SPOOL_DIR can't be written: {error}") from None
