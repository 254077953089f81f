"""`python -m chaos.outage`: PostgreSQL stands still, and then is stopped, under steady deliveries.

Every delivery must be acknowledged, and be in `events` once afterwards.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from app.cli.trial import listen
from app.db.connect import Connection
from app.embedded import postgres
from app.migrate import migrate
from app.processes import argv
from app.shortcut.signature import sign
from chaos.database import ask

SECRET = "a secret of this run alone"
ANSWER_SECONDS = 60.0
DRAIN_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long the database is away, half of it frozen and half of it stopped, and the rest."""

    seconds: float = 60
    per_second: float = 200
    receivers: int = 2
    spool: bool = True
    commit_timeout_seconds: float = 10


@dataclass(slots=True, kw_only=True)
class Figures:
    """What came of it; `late_seconds` is how long after the outage the last one was recorded."""

    sent: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    p50_milliseconds: float = 0
    p99_milliseconds: float = 0
    longest_milliseconds: float = 0
    recorded: int = 0
    acknowledged_but_missing: int = 0
    recorded_twice: int = 0
    late_seconds: float = 0

    @property
    def all_acknowledged(self) -> bool:
        return sum(n for status, n in self.answers.items() if status[:1] == "2") == self.sent

    @property
    def kept(self) -> bool:
        """Nothing that was acknowledged is missing, and nothing is there twice."""
        return self.acknowledged_but_missing == 0 and self.recorded_twice == 0


class _Sender:
    """Sends a new delivery at every tick, on a connection of its own, whatever became of others."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.Task[None]] = set()
        self.answers: dict[str, str] = {}
        self.seconds: list[float] = []
        self.acknowledged = asyncio.Event()

    async def run(self, per_second: float, over: asyncio.Event) -> None:
        start, sent = time.monotonic(), 0
        while not over.is_set():
            task = asyncio.create_task(self._send(str(uuid4())))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            sent += 1
            await asyncio.sleep(max(0.0, start + sent / per_second - time.monotonic()))
        await asyncio.gather(*self._open)

    async def _send(self, key: str) -> None:
        document = {"id": key, "version": "v1", "changed_at": "2026-01-01T00:00:00Z", "actions": []}
        body = json.dumps(document).encode()
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self.answers[key] = await self._status(body)
        except (OSError, EOFError, TimeoutError) as error:
            self.answers[key] = type(error).__name__
        self.seconds.append(time.monotonic() - began)
        if self.answers[key] == "200":
            self.acknowledged.set()

    async def _status(self, body: bytes) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = (
                f"POST /webhooks/shortcut HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
                f"Payload-Signature: {sign(SECRET.encode(), body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            line = await reader.readuntil(b"\r\n")
            return line.split()[1].decode()
        finally:
            writer.close()


async def run(options: Options, home: Path) -> Figures:
    """One run; its server's data, its logs and its spool are in `home`."""
    async with AsyncExitStack() as closing:
        dsn = closing.enter_context(postgres(home))
        await migrate(dsn)
        listener = closing.enter_context(listen(0))
        for _ in range(options.receivers):
            closing.push_async_callback(_end, await _receiver(options, home, dsn, listener))
        await _started(home, options.receivers)
        sender, over = _Sender(listener.getsockname()[1]), asyncio.Event()
        sending = asyncio.create_task(sender.run(options.per_second, over))
        await sender.acknowledged.wait()
        await _freeze(home, options.seconds / 2)
        await asyncio.sleep(min(5, options.seconds / 4))
        await _stop(home, options.seconds / 2)
        await asyncio.to_thread(closing.enter_context, postgres(home))
        back_at = time.monotonic()
        await asyncio.sleep(min(5, options.seconds / 4))
        over.set()
        await sending
        figures = await _recorded(dsn, sender)
        figures.late_seconds = round(time.monotonic() - back_at, 1)
        return figures


async def _receiver(
    options: Options, home: Path, dsn: str, listener: socket.socket
) -> asyncio.subprocess.Process:
    environment = {
        "DRAFTGATE_LOG_FORMAT": "json",
        "DRAFTGATE_DATABASE_URL": dsn,
        "DRAFTGATE_SHORTCUT_SECRETS": SECRET,
        "DRAFTGATE_SPOOL_DIR": str(home / "spool") if options.spool else "",
        "DRAFTGATE_COMMIT_TIMEOUT_SECONDS": str(options.commit_timeout_seconds),
    }
    with (home / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *argv(["serve", "--role", "receiver", "--fd", str(listener.fileno())]),
            env={**os.environ, **environment},
            pass_fds=[listener.fileno()],
            stdout=log,
            stderr=log,
        )


async def _started(home: Path, receivers: int) -> None:
    """All of them listen: what waits for a process to start tells nothing of an outage."""
    async with asyncio.timeout(ANSWER_SECONDS):
        while (home / "log").read_text().count("process.started") < receivers:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    await process.wait()


def _server(home: Path) -> list[int]:
    """The server's processes, its first one in front."""
    first = int((home / "postgres" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return [first, *map(int, children)]


async def _freeze(home: Path, seconds: float) -> None:
    """Nothing answers, and nobody is told: as with a stuck disk, or a network that drops."""
    frozen = _server(home)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


async def _stop(home: Path, seconds: float) -> None:
    """The server ends at once, without a clean shutdown, and stays away."""
    os.kill(_server(home)[0], signal.SIGQUIT)
    await asyncio.sleep(seconds)


async def _recorded(dsn: str, sender: _Sender) -> Figures:
    """Waits until the spool is empty, for as long as that brings anything."""
    acknowledged = {key for key, status in sender.answers.items() if status[:1] == "2"}
    until = time.monotonic() + DRAIN_SECONDS
    counts = await ask(dsn, _events)
    while not acknowledged <= counts.keys() and time.monotonic() < until:
        await asyncio.sleep(0.2)
        counts = await ask(dsn, _events)
    seconds = sorted(sender.seconds)
    return Figures(
        sent=len(sender.answers),
        answers=dict(Counter(sender.answers.values())),
        p50_milliseconds=round(1000 * seconds[len(seconds) // 2], 1),
        p99_milliseconds=round(1000 * seconds[len(seconds) * 99 // 100], 1),
        longest_milliseconds=round(1000 * seconds[-1], 1),
        recorded=len(counts),
        acknowledged_but_missing=len(acknowledged - counts.keys()),
        recorded_twice=sum(number > 1 for number in counts.values()),
    )


async def _events(conn: Connection) -> dict[str, int]:
    rows = await conn.fetch("select event_id, count(*) as number from events group by event_id")
    return {row["event_id"]: row["number"] for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long the database is away")
    parser.add_argument("--per-second", type=float, default=200, help="deliveries")
    parser.add_argument("--no-spool", action="store_true", help="503 is an answer, too")
    given = parser.parse_args()
    spool = not given.no_spool
    options = Options(seconds=given.seconds, per_second=given.per_second, spool=spool)
    with tempfile.TemporaryDirectory(prefix="draftgate-outage-") as directory:
        Path(directory).chmod(0o755)
        figures = asyncio.run(run(options, Path(directory)))
    sys.stdout.write(json.dumps(asdict(figures)) + "\n")
    return 0 if figures.kept and (figures.all_acknowledged or not spool) else 1


if __name__ == "__main__":
    sys.exit(main())
