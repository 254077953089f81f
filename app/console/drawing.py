"""Drawings, as the numbers that a template makes SVG of: the state machine, and a bar chart."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.db.stats import Bucket
from app.machine import TRANSITIONS, Status

#: Where each status stands: column and row.
_PLACES = {
    Status.OPENED: (0, 1),
    Status.ASKING: (0, 0),
    Status.CLARIFYING: (1, 0),
    Status.CLARIFIED: (1, 1),
    Status.DRAFTING: (2, 1),
    Status.DRAFTED: (3, 1),
    Status.FAILED: (2, 2),
    Status.CLOSED: (3, 2),
}
_COLUMN, _ROW, _WIDTH, _HEIGHT = 190, 90, 110, 36
_OUTCOMES = ("applied", "ignored", "pending", "quarantined", "failed")
CHART_WIDTH, CHART_HEIGHT = 720, 120


@dataclass(frozen=True, slots=True)
class Box:
    """One status; `lit` if the session stands there."""

    status: Status
    x: int
    y: int
    lit: bool


@dataclass(frozen=True, slots=True)
class Arrow:
    """All moves from one status to another; `lit` if they are possible now."""

    moves: str
    path: str
    lit: bool


def machine(now: Status) -> tuple[list[Box], list[Arrow]]:
    """The state machine with the status of now lit."""
    boxes = [
        Box(status, _COLUMN * column, _ROW * row, status is now)
        for status, (column, row) in _PLACES.items()
    ]
    arrows = [
        Arrow(" or ".join(moves), _path(before, after), before is now)
        for before in TRANSITIONS
        for after in Status
        if before is not after
        and (moves := [move for move, to in TRANSITIONS[before].items() if to is after])
    ]
    return boxes, sorted(arrows, key=lambda arrow: arrow.lit)


def _path(before: Status, after: Status) -> str:
    """From edge to edge, bent a little, so that there and back do not lie on each other."""
    (x1, y1), (x2, y2) = _centre(before), _centre(after)
    dx, dy = x2 - x1, y2 - y1
    length = (dx * dx + dy * dy) ** 0.5
    bend = 8 + length * 0.16
    bend_x, bend_y = (x1 + x2) / 2 - dy / length * bend, (y1 + y2) / 2 + dx / length * bend
    from_x, from_y = _edge(x1, y1, bend_x, bend_y)
    to_x, to_y = _edge(x2, y2, bend_x, bend_y)
    return f"M{from_x:.0f} {from_y:.0f}Q{bend_x:.0f} {bend_y:.0f} {to_x:.0f} {to_y:.0f}"


def _centre(status: Status) -> tuple[float, float]:
    column, row = _PLACES[status]
    return _COLUMN * column + _WIDTH / 2, _ROW * row + _HEIGHT / 2


def _edge(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Where the way from a box's centre leaves the box."""
    dx, dy = to_x - x, to_y - y
    reach = min(
        (_WIDTH / 2 + 4) / abs(dx) if dx else float("inf"),
        (_HEIGHT / 2 + 4) / abs(dy) if dy else float("inf"),
    )
    return x + dx * reach, y + dy * reach


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a column."""

    outcome: str
    x: float
    y: float
    width: float
    height: float


def chart(buckets: Sequence[Bucket]) -> tuple[list[Bar], int]:
    """Deliveries over time as stacked bars, and how many the highest column stands for."""
    totals = [sum(getattr(bucket, name) for name in _OUTCOMES) for bucket in buckets]
    highest = max([*totals, 1])
    step = CHART_WIDTH / max(len(buckets), 1)
    bars = []
    for number, bucket in enumerate(buckets):
        y = float(CHART_HEIGHT)
        for name in _OUTCOMES:
            height = getattr(bucket, name) / highest * CHART_HEIGHT
            y -= height
            if height:
                bars.append(Bar(name, number * step + 1, y, step - 2, height))
    return bars, highest
