"""`python -m benchmarks`: measures, says each figure as it comes, and writes results/."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from app.embedded import postgres
from benchmarks import answers, growth, pages, receive, report, servers, watched, work
from benchmarks.bench import FULL, POSTGRES, QUICK, SMOKE, Bench
from benchmarks.database import run_in, sql
from benchmarks.figures import Figures

RESULTS = Path(__file__).with_name("results")
DOCUMENTS = [servers.ROOT / name for name in ("README.md", "docs/performance.md", "docs/scale.md")]

err = Console(stderr=True, highlight=False)

Measure = Callable[[Bench], None]


def main() -> int:
    options = _options()
    scale = {"full": FULL, "quick": QUICK, "smoke": SMOKE}[options.scale]
    home = Path(tempfile.mkdtemp(prefix="draftgate-bench-"))
    # The server runs as another user where this is run by root.
    home.chmod(0o755)
    try:
        with postgres(home, options=POSTGRES) as dsn:
            if scale is not SMOKE:
                run_in(dsn)
            bench = Bench(scale=scale, server=dsn, home=home)
            failed = _measure(bench, options)
            results = _results(bench)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if options.write and not failed:
        _write(results)
    if options.json:
        json.dump(results, sys.stdout, indent=1)
    return 1 if failed else 0


def _measure(bench: Bench, options: argparse.Namespace) -> list[str]:
    """Makes all measurements, or those asked for; returns the names of those that broke."""
    failed = []
    for name, measure in _measures(peers=not options.no_peers).items():
        if options.only and name not in options.only:
            continue
        start, figures = time.monotonic(), bench.figures
        entries, targets = len(figures.entries), len(figures.targets)
        try:
            measure(bench)
        except Exception as error:
            failed.append(name)
            err.print(f"{name}: {type(error).__name__}: {error}", style="bold red", markup=False)
        _say(figures, entries, targets)
        err.print(f"[dim]{name} took {time.monotonic() - start:.0f} s[/]")
    return failed


def _measures(*, peers: bool) -> dict[str, Measure]:
    return {
        "receive": partial(receive.run, peers=peers),
        "duplicates": answers.duplicates,
        "half_load": answers.half_load,
        "start_latency": partial(work.start_latency, peers=peers),
        "interpret": work.interpret,
        "claims": work.claims,
        "watched": watched.watched,
        "herd": answers.herd,
        "growth_claim": growth.claim,
        "growth_receive": growth.receive,
        "pages": pages.run,
        "memory": answers.memory,
    }


def _say(figures: Figures, entries: int, targets: int) -> None:
    for entry in figures.entries[entries:]:
        spread = f"{report.number(entry.min)} to {report.number(entry.max)}, n={entry.n}"
        over = f", {entry.ratio:.2f} × {entry.reference}" if entry.ratio is not None else ""
        err.print(f"  {entry.name}: {report.number(entry.median)} {entry.unit} ({spread}){over}")
    for target in figures.targets[targets:]:
        colour, sign = "green" if target.met else "red", "≥" if target.at_least else "≤"
        found = f"{report.number(target.value)} {target.unit}"
        err.print(f"  [{colour}]{target.key}: {found} ({sign} {report.number(target.limit)})[/]")


def _results(bench: Bench) -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=servers.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    machine = {
        "cores": os.cpu_count(),
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "postgresql": sql(bench.server, "show server_version"),
        "fsync": sql(bench.server, "show fsync"),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }
    return {"scale": bench.scale.name, "machine": machine, **bench.figures.as_json()}


def _write(results: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (RESULTS / "latest.md").write_text(report.markdown(results))
    (RESULTS / "receive.svg").write_text(report.chart(results))
    for document in DOCUMENTS:
        document.write_text(report.replaced(document.read_text(), results))
    err.print(f"Written to {RESULTS.relative_to(servers.ROOT)} and the documents")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--scale", choices=["full", "quick", "smoke"], default="full")
    parser.add_argument("--only", action="append", help="this measurement alone; repeatable")
    parser.add_argument("--no-peers", action="store_true", help="without what .venv-bench holds")
    parser.add_argument("--write", action="store_true", help="write results/ and the documents")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
