"""PgBouncer in transaction mode in front of the tests' server."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

START_SECONDS = 10
DEPLOYED = Path(__file__).parent.parent / "deploy" / "pgbouncer" / "pgbouncer.ini"


class Pooler:
    """A PgBouncer that is started again when it ends by itself, as a service manager does.

    PgBouncer 1.18 and 1.19 can end in "server in bad state" when a query is cancelled
    (pgbouncer/pgbouncer, issues 822 and 904); `crashes` counts how often something like it
    happened, and the log in `directory` says what it was.
    """

    def __init__(self, program: str, directory: str, server_socket_dir: str) -> None:
        self.directory = directory
        self.crashes = 0
        config = Path(directory) / "pgbouncer.ini"
        config.write_text(_config(server_socket_dir, directory))
        self._command = [program, str(config)]
        self._stopping = False
        self._process = self._start()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def stop(self) -> None:
        """Ends it for good."""
        self._stopping = True
        self._process.terminate()
        self._supervisor.join()

    def _supervise(self) -> None:
        while True:
            self._process.wait()
            if self._stopping:
                return
            self.crashes += 1
            self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        user = "nobody" if os.geteuid() == 0 else None
        process = subprocess.Popen(self._command, user=user, cwd="/")
        _wait_for(Path(self.directory) / ".s.PGSQL.5432", process)
        return process


@contextmanager
def pgbouncer(server: str) -> Iterator[Pooler]:
    """Runs PgBouncer in front of a server that listens on a Unix socket."""
    program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        raise RuntimeError("pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="draftgate-pgbouncer-") as directory:
        Path(directory).chmod(0o777)
        pooler = Pooler(program, directory, _socket_dir(server))
        try:
            yield pooler
        finally:
            pooler.stop()


def through(directory: str, dsn: str) -> str:
    """The same database by way of PgBouncer."""
    return re.sub(r"host=[^&]*", f"host={directory}", dsn)


def _socket_dir(server: str) -> str:
    match = re.search(r"[?&]host=([^&]*)", server)
    assert match is not None, "the tests' server must listen on a Unix socket"
    return unquote(match.group(1))


def _config(server_socket_dir: str, directory: str) -> str:
    return f"""
[databases]
* = host={server_socket_dir} user=postgres

[pgbouncer]
unix_socket_dir = {directory}
listen_port = 5432
auth_type = any
default_pool_size = 4
max_client_conn = 500
server_idle_timeout = 5
logfile = {directory}/log
{_as_deployed()}
"""


def _as_deployed() -> str:
    """What has to be so wherever Draftgate is behind PgBouncer."""
    _, mark, rest = DEPLOYED.read_text().partition("; Everything that follows has to be so.\n")
    assert mark, f"{DEPLOYED} does not say what has to be so"
    return rest


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _listens(path):
        assert process.poll() is None, "pgbouncer ended at once"
        assert time.monotonic() < deadline, "pgbouncer did not start in time"
        time.sleep(0.02)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
