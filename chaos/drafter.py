"""A drafter that writes down when it runs. A script: only the standard library.

How long it takes and how it ends hangs on the seed and on its claim alone. Each line of its log is
one write to a file opened for appending, followed by fsync: whatever kills it, what it said stays.
"""

import json
import os
import random
import signal
import sys
import time

PATCH = (
    "diff --git a/note.md b/note.md\nnew file mode 100644\n--- /dev/null\n+++ b/note.md\n"
    "@@ -0,0 +1,1 @@\n+{}\n"
)


def main() -> None:
    log, seed, lease = sys.argv[1], sys.argv[2], float(sys.argv[3])
    request = json.load(sys.stdin.buffer)
    run = {"session": request["session"], "generation": request["generation"]}

    def note(what: str) -> None:
        line = {**run, "what": what, "at": time.time(), "pid": os.getpid(), "worker": _worker()}
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.fsync(descriptor)
        os.close(descriptor)

    def stopped(*_: object) -> None:
        note("stopped")
        os._exit(1)

    note("start")
    signal.signal(signal.SIGTERM, stopped)
    dice = random.Random(f"{seed} {run['session']} {run['generation']}")
    outcome, seconds = _fate(dice, lease)
    time.sleep(seconds)
    # What was said last is what counts, and from here on the result may count.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(outcome)
    if outcome == "failed":
        sys.exit("failing on purpose")
    if outcome == "crashed":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(os.environ["DRAFTGATE_RESULT_FILE"], "w") as file:
        json.dump(_answer(outcome, run), file)


def _fate(dice: random.Random, lease: float) -> tuple[str, float]:
    """How it ends, and after how many seconds."""
    chance = dice.random()
    if chance < 0.10:
        return "failed", dice.uniform(0, 0.3)
    if chance < 0.12:
        return "crashed", dice.uniform(0, 0.3)
    if chance < 0.14:
        return "asked", dice.uniform(0, 0.3)
    if chance < 0.22:
        return "made", lease * dice.uniform(1.1, 1.8)
    return "made", dice.uniform(0.2, 1.8)


def _answer(outcome: str, run: dict[str, int]) -> dict[str, object]:
    mark = f"session {run['session']} generation {run['generation']}"
    if outcome == "asked":
        return {"questions": [f"What for? ({mark})"]}
    return {"summary": mark, "patch": PATCH.format(mark), "cost_usd": 0.01}


def _worker() -> int:
    """The process that holds the claim: the parent of the supervisor, which is ours."""
    with open(f"/proc/{os.getppid()}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    main()
