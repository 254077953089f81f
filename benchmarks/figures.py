"""What is measured: entries with their spread, and the targets they are held against."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One figure, measured n times.

    Attributes:
        reference: the name of the entry that it was measured side by side with.
        ratio: the median, over the pairs, of this over the reference.
    """

    name: str
    unit: str
    median: float
    min: float
    max: float
    n: int
    reference: str | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure that was to be reached, and whether it was; `limit` is a lower bound or an upper."""

    key: str
    value: float
    limit: float
    at_least: bool
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(slots=True)
class Figures:
    """All that a run has found so far."""

    entries: list[Entry] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def add(
        self,
        name: str,
        unit: str,
        values: Sequence[float],
        *,
        reference: str | None = None,
        beside: Sequence[float] = (),
    ) -> float:
        """Adds an entry, in pairs with the values `beside` it; returns its median, or the ratio."""
        ratios = [a / b for a, b in zip(values, beside, strict=True)] if beside else []
        entry = Entry(
            name=name,
            unit=unit,
            median=_short(statistics.median(values)),
            min=_short(min(values)),
            max=_short(max(values)),
            n=len(values),
            reference=reference,
            ratio=round(statistics.median(ratios), 3) if ratios else None,
        )
        self.entries.append(entry)
        return entry.median if entry.ratio is None else entry.ratio

    def reach(self, key: str, value: float, *, least: float, unit: str = "") -> None:
        """The value is to be at least so much."""
        limits = {"value": _short(value), "limit": least, "at_least": True}
        self.targets.append(Target(key=key, unit=unit, **limits))  # type: ignore[arg-type]

    def stay(self, key: str, value: float, *, most: float, unit: str = "") -> None:
        """The value is to be at most so much."""
        limits = {"value": _short(value), "limit": most, "at_least": False}
        self.targets.append(Target(key=key, unit=unit, **limits))  # type: ignore[arg-type]

    def as_json(self) -> dict[str, object]:
        targets = [{**asdict(target), "met": target.met} for target in self.targets]
        return {"entries": [asdict(entry) for entry in self.entries], "targets": targets}


def _short(value: float) -> float:
    """Four significant digits: more would only look exact."""
    return float(f"{value:.4g}")
