"""`python -m chaos`: one run, its figures, and exit code 0 only if every promise was kept."""

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.check import Violation, check
from chaos.report import Figures, figures
from chaos.run import Options, run

#: As many violations as anybody reads.
SHOWN = 40

err = Console(stderr=True, highlight=False)


def main() -> int:
    options = _options()
    # The simulated API breaks off answers on purpose.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    replay = f"make chaos SECONDS={options.seconds:g} SEED={options.seed}"
    err.print(f"Seed {options.seed}; again with: {replay}")
    home = Path(tempfile.mkdtemp(prefix="draftgate-chaos-"))
    # The server runs as another user where this is run by root.
    home.chmod(0o755)
    kept = True
    try:
        outcome = run(_run_options(options, home), _saying())
        violations = check(outcome.history)
        found = figures(outcome, violations, seed=options.seed)
        _show(found, violations, as_json=options.json)
        kept = bool(violations)
    except (KeyboardInterrupt, asyncio.CancelledError):
        err.print("Interrupted")
        return 130
    finally:
        if kept:
            err.print(f"Logs, trace and data are in {home}; again with: {replay}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return 1 if violations else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long things go wrong")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--per-second", type=float, default=45, help="deliveries, with copies")
    parser.add_argument("--fault-every", type=float, default=1.7, help="seconds, on average")
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    return parser.parse_args()


def _run_options(options: argparse.Namespace, home: Path) -> Options:
    return Options(
        seconds=options.seconds,
        seed=options.seed,
        per_second=options.per_second,
        fault_every_seconds=options.fault_every,
        home=home,
    )


def _saying() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda what: err.print(f"{time.monotonic() - began:7.1f} s  {what}")


def _show(found: Figures, violations: list[Violation], *, as_json: bool) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in asdict(found).items():
        for part, shown in value.items() if isinstance(value, dict) else [("", value)]:
            label = f"{name.replace('_', ' ')}: {part}" if part else name.replace("_", " ")
            table.add_row(label, "" if shown is None else str(shown))
    (err if as_json else Console(highlight=False)).print(table)
    for violation in violations[:SHOWN]:
        err.print(f"VIOLATION {violation}", style="red", soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
