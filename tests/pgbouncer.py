"""PgBouncer in transaction mode in front of the tests' server."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

START_SECONDS = 10


@contextmanager
def pgbouncer(server: str) -> Iterator[str]:
    """Runs PgBouncer in front of a server that listens on a Unix socket; gives its directory."""
    program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        raise RuntimeError("pgbouncer is not installed")
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="draftgate-pgbouncer-") as directory:
        Path(directory).chmod(0o777)
        config = Path(directory) / "pgbouncer.ini"
        config.write_text(_config(_socket_dir(server), directory))
        process = subprocess.Popen([program, str(config)], user=user, cwd="/")
        try:
            _wait_for(Path(directory) / ".s.PGSQL.5432", process)
            yield directory
        finally:
            process.terminate()
            process.wait()


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
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
server_idle_timeout = 5
logfile = {directory}/log
"""


def _wait_for(socket: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not socket.exists():
        assert process.poll() is None, "pgbouncer ended at once"
        assert time.monotonic() < deadline, "pgbouncer did not start in time"
        time.sleep(0.02)
