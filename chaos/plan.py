"""What goes wrong, and when: made from a seed beforehand. No I/O."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """One way to do harm."""

    KILL_WORKER = "SIGKILL to a worker"
    KILL_WORKER_IN_PEACE = "SIGKILL to a worker, then quiet"
    KILL_RECEIVER = "SIGKILL to a receiver"
    STOP_WORKER = "SIGTERM to a worker"
    FREEZE_WORKER = "SIGSTOP to a worker, beyond its lease"
    RESTART_POSTGRES = "PostgreSQL restarted, immediate"
    CUT = "all connections to PostgreSQL cut"
    DROP_REPLIES = "replies of PostgreSQL dropped"
    HALF_OPEN = "connections to PostgreSQL half open"
    DELAY = "replies of PostgreSQL delayed"
    API_STATUS = "API answers 429 or 5xx"
    API_SILENCE = "API carries out and does not answer"


#: How many of each are in a deck, which is dealt out whole before it is shuffled again: even a
#: short run meets every kind.
DECK = (
    *(Kind.KILL_WORKER,) * 2,
    Kind.KILL_WORKER_IN_PEACE,
    *(Kind.KILL_RECEIVER,) * 2,
    Kind.STOP_WORKER,
    *(Kind.FREEZE_WORKER,) * 2,
    Kind.RESTART_POSTGRES,
    *(Kind.CUT,) * 2,
    *(Kind.DROP_REPLIES,) * 3,
    Kind.HALF_OPEN,
    Kind.DELAY,
    *(Kind.API_STATUS,) * 2,
    Kind.API_SILENCE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is to go wrong.

    Attributes:
        after_seconds: the wait since the one before.
        size: how much of it, from 0 to 1; what that means is the kind's own affair.
    """

    kind: Kind
    after_seconds: float
    size: float


def faults(seed: int, *, every_seconds: float) -> Iterator[Fault]:
    """Faults without end, the same ones for the same seed."""
    dice = random.Random(f"faults {seed}")
    while True:
        deck = list(DECK)
        dice.shuffle(deck)
        for kind in deck:
            gap = every_seconds * dice.uniform(0.4, 1.6)
            yield Fault(kind=kind, after_seconds=gap, size=dice.random())
