"""`python -m benchmarks.flame`: where a receiver's time goes, as a flame graph in docs/."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from app.embedded import postgres
from benchmarks import servers
from benchmarks.bench import POSTGRES, QUICK, Bench
from benchmarks.load import wrk

SVG = servers.ROOT / "docs" / "receiver.svg"
SAMPLER = str(servers.PEERS_PYTHON.with_name("py-spy"))
SECONDS = 8
SCALE = replace(QUICK, seconds=SECONDS)
SAMPLES_PER_SECOND = 500
#: More than are sent before the sampling begins, so that no delivery is a duplicate.
FRESH = 40_000
#: What is thinner than this share is not drawn, and below this frame everything is the same.
THINNEST = 0.004
OUTERMOST = "Runner.run"
WIDTH, ROW, CHARACTER = 1200, 18, 6.4
COLOURS = (("app/", "#f2a65a"), ("asyncpg", "#8fb8de"), ("uvicorn", "#a8d5a2"), ("", "#d9d9d9"))


@dataclass(slots=True)
class Frame:
    """A function, how many samples were in it, and what it called."""

    name: str
    samples: int = 0
    calls: "dict[str, Frame]" = field(default_factory=dict)

    def add(self, stack: list[str], samples: int) -> None:
        self.samples += samples
        if stack:
            called = self.calls.setdefault(stack[0], Frame(stack[0]))
            called.add(stack[1:], samples)

    def depth(self, least: float) -> int:
        drawn = [it.depth(least) for it in self.calls.values() if it.samples >= least]
        return 1 + max(drawn, default=0)


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="draftgate-flame-"))
    home.chmod(0o755)
    try:
        with postgres(home, options=POSTGRES) as dsn:
            SVG.write_text(drawn(_stacks(Bench(scale=SCALE, server=dsn, home=home))))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _stacks(bench: Bench) -> str:
    """One line for each stack: its functions from the outermost, and how often it was seen."""
    raw = bench.home / "stacks"
    with bench.database("flame") as dsn, servers.draftgate(dsn, bench.home) as ours:
        wrk(ours.port, bench.requests(), seconds=1)  # Nothing is loaded or prepared any more.
        command = [
            SAMPLER, "record", "-p", str(ours.process.pid), "-r", str(SAMPLES_PER_SECOND),
            "-d", str(SECONDS - 2), "-f", "raw", "-o", str(raw),
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            wrk(ours.port, bench.requests(), seconds=SECONDS, skip=FRESH)
    return raw.read_text()


def drawn(stacks: str) -> str:
    """The flame graph: the outermost at the top, as wide as the share of the time in it."""
    root = Frame("the receiver's processor time")
    for line in stacks.splitlines():
        stack, _, samples = line.rpartition(" ")
        names = [re.sub(r":\d+\)$", ")", name) for name in stack.split(";")]
        inner = [number for number, name in enumerate(names) if name.startswith(OUTERMOST)]
        if inner:
            root.add(names[inner[-1] + 1 :], int(samples))
    least = root.samples * THINNEST
    height = root.depth(least) * ROW
    boxes = _boxes(root, 0.0, 0, WIDTH / root.samples, least)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' font-family="sans-serif" font-size="11">\n{"".join(boxes)}</svg>\n'
    )


def _boxes(frame: Frame, x: float, row: int, scale: float, least: float) -> list[str]:
    width, share = frame.samples * scale, frame.samples * scale / WIDTH
    colour = next(colour for part, colour in COLOURS if part in frame.name)
    shown = escape(frame.name[: int(width / CHARACTER)]) if width > 4 * CHARACTER else ""
    boxes = [
        f'<g><title>{escape(frame.name)}: {share:.1%}</title><rect x="{x:.1f}" y="{row * ROW}"'
        f' width="{width:.1f}" height="{ROW - 1}" fill="{colour}"/>'
        f'<text x="{x + 2:.1f}" y="{row * ROW + 13}">{shown}</text></g>\n'
    ]
    for called in sorted(frame.calls.values(), key=lambda it: -it.samples):
        if called.samples >= least:
            boxes += _boxes(called, x, row + 1, scale, least)
        x += called.samples * scale
    return boxes


if __name__ == "__main__":
    main()
