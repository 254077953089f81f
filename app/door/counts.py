"""What the door counts, in memory that all processes of one `serve` share.

Whichever process is asked for its figures can tell those of all; one that dies and is started
again counts on where it was. Each writes only cells of its own, so nothing is locked.
"""

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Self

#: What a delivery can come to; a refusal is named by its code.
OUTCOMES = (
    *("new", "duplicate", "spooled"),
    *("not-json", "signature-invalid", "unavailable", "crowded", "cut-off"),
    *("body-too-large", "body-too-slow", "encoding-unsupported", "upgrade-unsupported"),
    *("method-not-allowed", "source-unknown", "other"),
)
#: Upper bounds of the histogram of answers, in seconds; one more bucket holds the rest.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_CELL_BYTES = 8
_OUTCOME = {name: cell for cell, name in enumerate(OUTCOMES)}
_OTHER = _OUTCOME["other"]
_BUCKETS = len(OUTCOMES)
_SUM = _BUCKETS + len(BOUNDS) + 1
_BATCHES = _SUM + 1
_WAITING = _BATCHES + 1
_CELLS = _WAITING + 1


class Counts:
    """The figures of one process among as many as the memory has room for."""

    def __init__(self, memory: "bytearray | mmap.mmap | None" = None, *, slot: int = 0) -> None:
        self._cells = memoryview(memory or bytearray(_CELLS * _CELL_BYTES)).cast("q")
        self._mine = self._cells[slot * _CELLS : (slot + 1) * _CELLS]
        # Whoever had the slot before has let go of what waited.
        self._mine[_WAITING] = 0

    @classmethod
    def inherited(cls, fd: int, *, slot: int) -> Self:
        """The figures of the process that was given this slot of a `room`."""
        return cls(mmap.mmap(fd, 0), slot=slot)

    def answered(self, outcome: str) -> None:
        """One more delivery has come to this."""
        self._mine[_OUTCOME.get(outcome, _OTHER)] += 1

    def recorded(self, seconds: Iterable[float]) -> None:
        """One more batch is done with; each of its deliveries has waited for so long."""
        mine, together = self._mine, 0.0
        for waited in seconds:
            mine[_BUCKETS + bisect_left(BOUNDS, waited)] += 1
            together += waited
        mine[_SUM] += round(together * 1_000_000)
        mine[_BATCHES] += 1

    def waiting(self, deliveries: int) -> None:
        """So many wait to be recorded now."""
        self._mine[_WAITING] = deliveries

    def outcomes(self) -> dict[str, int]:
        """How many deliveries came to what, in all processes."""
        return {name: self._total(cell) for name, cell in _OUTCOME.items()}

    def histogram(self) -> tuple[list[int], float]:
        """Deliveries in each bucket of `BOUNDS`, and what they waited together, in seconds."""
        buckets = [self._total(cell) for cell in range(_BUCKETS, _SUM)]
        return buckets, self._total(_SUM) / 1_000_000

    def batches(self) -> int:
        """How many batches were done with."""
        return self._total(_BATCHES)

    def all_waiting(self) -> int:
        """How many deliveries wait to be recorded, in all processes."""
        return self._total(_WAITING)

    def _total(self, cell: int) -> int:
        return sum(self._cells[cell::_CELLS])


@contextmanager
def room(processes: int) -> Iterator[int]:
    """A file without a name in which so many processes count, as long as the block runs."""
    with TemporaryFile() as file:
        file.truncate(processes * _CELLS * _CELL_BYTES)
        yield file.fileno()
