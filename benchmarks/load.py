"""Where the load comes from: wrk, with every request made before."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.payloads import Requests

CONNECTIONS = 32
SCRIPT = Path(__file__).with_name("post.lua")


@dataclass(frozen=True, slots=True)
class Run:
    """What wrk saw: answers that were 2xx, and how long it took."""

    requests: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def wrk(
    port: int,
    requests: Requests,
    *,
    seconds: float,
    skip: int = 0,
    connections: int = CONNECTIONS,
) -> Run:
    """As many requests as are answered in the time. Raises where any answer is not a success."""
    done = subprocess.run(
        [
            "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "20s",
            "-s", SCRIPT, f"http://127.0.0.1:{port}/",
            "--", requests.path, str(requests.length), str(skip),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    complaint = re.search(r"(Non-2xx.*|Socket errors.*)", done.stdout)
    if complaint:
        raise RuntimeError(f"wrk: {complaint[1]}")
    found = re.search(r"(\d+) requests in ([\d.]+)(ms|s|m)", done.stdout)
    if found is None:
        raise RuntimeError(f"wrk said something else: {done.stdout}")
    unit = {"ms": 0.001, "s": 1.0, "m": 60.0}[found[3]]
    return Run(int(found[1]), float(found[2]) * unit)
