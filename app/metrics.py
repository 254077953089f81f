"""Figures for Prometheus: what the door counts, what waits, and what it waits for."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.db import hooks, installations, look, stats
from app.db.connect import DATABASE_ERRORS, Pool, take
from app.db.spool import SpoolState
from app.db.stats import Backlog
from app.door.counts import BOUNDS, Counts
from app.door.record import Recorder
from app.door.spool import Spool
from app.errors import SpoolError
from app.live import Shared
from app.machine import Status

TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the database told."""

    backlog: list[Backlog]
    sessions: Mapping[str, int]
    failed: Mapping[str, int]
    connections: Mapping[tuple[str, str], int]
    last_received_at: datetime | None
    hooks: Mapping[str, bool]
    installations: Mapping[str, bool]


class Metrics:
    """All figures, looked up once for all who ask at a time.

    What can't be had now is left out, and `draftgate_database_up` or `draftgate_spool_up` is 0.
    """

    def __init__(self, pool: Pool, recorder: Recorder | None) -> None:
        self._pool = pool
        self._counts = recorder.counts if recorder else None
        self._spool = recorder.spool if recorder else None
        self._figures = Shared(self._look, singly=True)

    async def page(self, accept: str) -> tuple[bytes, str]:
        """The figures in the format that is asked for, and its content type."""
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry()
        registry.register(_Told(await self._figures.get()))
        return encode(registry), content_type

    async def _look(self) -> list[Metric]:
        return [
            *(_of_door(self._counts) if self._counts else ()),
            *(_of_spool(await _state(self._spool)) if self._spool else ()),
            *_of_database(await _found(self._pool)),
        ]


class _Told(Collector):
    """Hands out what was looked up; the library asks without waiting."""

    def __init__(self, figures: list[Metric]) -> None:
        self._figures = figures

    def collect(self) -> list[Metric]:
        return self._figures


async def _state(spool: Spool) -> SpoolState | None:
    try:
        return await spool.state()
    except SpoolError:
        return None


async def _found(pool: Pool) -> Found | None:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), take(pool) as conn:
            return Found(
                backlog=await stats.backlog(conn),
                sessions=await stats.sessions_by_status(conn, list(Status)),
                failed=await stats.failures(conn),
                connections=await stats.connections(conn),
                last_received_at=await look.last_received_at(conn),
                hooks={it.source: it.status == "alive" for it in await hooks.all_of_them(conn)},
                installations={
                    it.slug: it.status == "active" for it in await installations.all_of_them(conn)
                },
            )
    except DATABASE_ERRORS:
        return None


def _of_door(counts: Counts) -> Iterator[Metric]:
    yield _labelled(
        CounterMetricFamily("draftgate_deliveries", "Deliveries by answer.", labels=["outcome"]),
        counts.outcomes(),
    )
    buckets, together = counts.histogram()
    bounds = [*map(str, BOUNDS), "+Inf"]
    answers = HistogramMetricFamily(
        "draftgate_delivery_seconds", "From a delivery's right signature to its answer."
    )
    answers.add_metric([], list(zip(bounds, accumulate(buckets), strict=True)), together)
    yield answers
    yield CounterMetricFamily(
        "draftgate_delivery_batches", "Commits that deliveries shared.", value=counts.batches()
    )
    yield _gauge("deliveries_waiting", "Deliveries that wait for a commit.", counts.all_waiting())


def _of_spool(state: SpoolState | None) -> Iterator[Metric]:
    yield _gauge("spool_up", "Whether the spool can be used.", state is not None)
    if state is None:
        return
    yield _gauge("spool_deliveries", "Deliveries in the spool.", state.deliveries)
    yield _gauge("spool_refused", "Those that the database can't store.", state.refused)
    yield _gauge("spool_used_bytes", "What the spool holds.", state.used_bytes)
    yield _gauge("spool_limit_bytes", "What it may hold.", state.limit_bytes)
    oldest = _age(state.oldest_at) if state.oldest_at else 0
    yield _gauge("spool_oldest_seconds", "How long the first one has been in it.", oldest)


def _of_database(found: Found | None) -> Iterator[Metric]:
    yield _gauge("database_up", "Whether the database answers.", found is not None)
    if found is None:
        return
    sessions = GaugeMetricFamily("draftgate_sessions", "Sessions.", labels=["status"])
    yield _labelled(sessions, found.sessions)
    waiting = GaugeMetricFamily("draftgate_backlog", "What waits at a stage.", labels=["stage"])
    yield _labelled(waiting, {stage.stage: stage.waiting for stage in found.backlog})
    lag = GaugeMetricFamily(
        "draftgate_backlog_seconds", "How long the first could have been taken.", labels=["stage"]
    )
    due = {stage.stage: _age(stage.due_at) if stage.due_at else 0 for stage in found.backlog}
    yield _labelled(lag, due)
    yield from _of_shortcut(found)
    failed = GaugeMetricFamily("draftgate_failed", "What was given up.", labels=["what"])
    yield _labelled(failed, found.failed)
    connections = GaugeMetricFamily(
        "draftgate_database_connections",
        "Connections of all processes.",
        labels=["purpose", "state"],
    )
    for (purpose, state), number in found.connections.items():
        connections.add_metric([purpose, state], number)
    yield connections
    if found.last_received_at is not None:
        at = found.last_received_at.timestamp()
        yield _gauge("last_event_timestamp_seconds", "When the newest event came in.", at)


def _of_shortcut(found: Found) -> Iterator[Metric]:
    said = "Whether a webhook was alive when it was last seen."
    yield _labelled(GaugeMetricFamily("draftgate_hook_alive", said, labels=["source"]), found.hooks)
    active = GaugeMetricFamily(
        "draftgate_installation_active", "Whether its tokens still count.", labels=["workspace"]
    )
    yield _labelled(active, found.installations)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"draftgate_{name}", documentation, value=float(value))


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _age(at: datetime) -> float:
    return max(0.0, (datetime.now(UTC) - at).total_seconds())
