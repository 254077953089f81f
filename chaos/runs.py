"""What the drafters have written down."""

import json
from pathlib import Path

from chaos.history import Run


def read(log: Path) -> list[Run]:
    """The runs of the drafter, from what they have written down."""
    runs: dict[tuple[int, int, int], Run] = {}
    lines = log.read_text().splitlines() if log.exists() else []
    for line in map(json.loads, lines):
        key = (line["session"], line["generation"], line["pid"])
        if line["what"] == "start":
            runs[key] = Run(
                session=line["session"],
                generation=line["generation"],
                worker=line["worker"],
                started_at=line["at"],
            )
        else:
            begun = runs[key]
            runs[key] = Run(
                session=begun.session,
                generation=begun.generation,
                worker=begun.worker,
                started_at=begun.started_at,
                ended_at=line["at"],
                outcome=line["what"],
            )
    return list(runs.values())


def drafting(log: Path) -> set[int]:
    """The process ids of the workers whose drafters run, and of some that have died with theirs."""
    return {run.worker for run in read(log) if run.ended_at is None}
