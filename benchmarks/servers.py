"""Servers under load: started by the benchmark, and ended by it."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.database import until_zero
from benchmarks.payloads import SECRET

ROOT = Path(__file__).parent.parent
PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
#: Its packages are there where make found npm.
FASTIFY = ROOT / "benchmarks" / "peers" / "fastify"
START_SECONDS = 30
DRAFTGATE = (sys.executable, "-m", "app.cli.main")
NOT_LISTENING = """
    select 1 - least(count(*), 1) from pg_stat_activity
     where application_name = 'draftgate listener' and datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server's port and process."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the process, as the kernel says."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """What the process has used of all cores so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def draftgate(dsn: str, home: Path, *roles: str, **settings: str) -> Iterator[Server]:
    """The product in one process, as `draftgate serve` runs it; without roles a receiver."""
    port = _free_port()
    chosen = [word for role in roles or ("receiver",) for word in ("--role", role)]
    command = [*DRAFTGATE, "serve", "--port", str(port), *chosen]
    log = home / f"draftgate-{port}.log"
    with running(command, _settings(dsn, home, settings), log, port) as server:
        yield server


@contextmanager
def worker(dsn: str, home: Path, **settings: str) -> Iterator[Server]:
    """A `draftgate worker`, from when it listens for work."""
    environment, log = _settings(dsn, home, settings), home / "worker.log"
    with running([*DRAFTGATE, "worker"], environment, log) as server:
        until_zero(dsn, NOT_LISTENING)
        yield server


def _settings(dsn: str, home: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "DRAFTGATE_DATABASE_URL": dsn,
        "DRAFTGATE_SHORTCUT_SECRETS": SECRET,
        "DRAFTGATE_STATE_DIR": str(home / "state"),
        "DRAFTGATE_LOG_LEVEL": "error",
        **more,
    }


@contextmanager
def peer(name: str, dsn: str, home: Path) -> Iterator[Server]:
    """One of benchmarks/peers in one process: of node, else of uvicorn."""
    port = _free_port()
    command = [
        str(PEERS_PYTHON), "-m", "uvicorn", f"benchmarks.peers.{name}:app", "--port", str(port),
        "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip
    if name == "fastify":
        command = ["node", str(FASTIFY / "server.js"), str(port)]
    with running(command, {"BENCH_DSN": dsn}, home / f"{name}.log", port) as server:
        yield server


@contextmanager
def webhook(home: Path) -> Iterator[Server]:
    """Debian's `webhook` (adnanh): checks the signature, runs a program, then answers.

    If it answered first, the programs of one run would still be going in the next.
    """
    port, hooks = _free_port(), home / "hooks.json"
    hooks.write_text(HOOKS % SECRET)
    command = [
        str(shutil.which("webhook")), "-hooks", str(hooks), "-ip", "127.0.0.1",
        "-port", str(port), "-urlprefix", "webhooks",
    ]  # fmt: skip
    with running(command, {}, home / "webhook.log", port) as server:
        yield server


#: `success-http-response-code` aside, this is the example of its documentation.
HOOKS = """[{
  "id": "shortcut",
  "execute-command": "/bin/true",
  "include-command-output-in-response": true,
  "trigger-rule": {"match": {
    "type": "payload-hmac-sha256",
    "secret": "%s",
    "parameter": {"source": "header", "name": "Payload-Signature"}}}
}]"""


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, port: int | None = None
) -> Iterator[Server]:
    """A process with these variables; with a port, from when it takes connections."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        if port is not None:
            _wait_for(port, process, log)
        yield Server(port or 0, process)
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not start: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def prepare(name: str, dsn: str) -> None:
    """Makes a peer's schema, with the peer's own command."""
    python = str(PEERS_PYTHON)
    app = "benchmarks.peers.with_procrastinate.jobs"
    commands = {
        "with_procrastinate": [python, "-m", "procrastinate", "--app", app, "schema", "--apply"],
        "with_pgqueuer": [python, "-m", "pgqueuer", "--pg-dsn", dsn, "install"],
    }  # fmt: skip
    if name in commands:
        environment = {**os.environ, "BENCH_DSN": dsn}
        subprocess.run(commands[name], cwd=ROOT, env=environment, check=True, capture_output=True)


@contextmanager
def peer_worker(name: str, dsn: str, home: Path, started: Path) -> Iterator[Server]:
    """A peer's worker."""
    peers = "benchmarks.peers"
    commands = {
        "with_procrastinate": ["procrastinate", "--app", f"{peers}.with_procrastinate.jobs"],
        "with_pgqueuer": [f"{peers}.with_pgqueuer"],
    }
    command = [str(PEERS_PYTHON), "-m", *commands[name], "worker"]
    environment = {"BENCH_DSN": dsn, "BENCH_STARTED": str(started)}
    with running(command, environment, home / f"{name}-worker.log") as server:
        yield server
