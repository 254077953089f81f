"""Runs a command so that its whole process tree ends with it, whatever ends it."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from app.errors import DrafterError

T = TypeVar("T")

SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
KEEP_STDOUT_BYTES = 8 * 1024 * 1024
KEEP_STDERR_BYTES = 64 * 1024
READ_BYTES = 64 * 1024
GRACE_SECONDS = 2.0
#: Beyond the grace: for the supervisor to kill what did not listen.
KILL_SECONDS = 10.0
#: For a command to begin, undisturbed by the start of the next supervisor.
BEGINNING_SECONDS = 0.05
#: How long the streams of a tree that has ended may stay open.
STREAM_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process of a command may use; None: as much as the worker itself.

    Attributes:
        memory_bytes: of data: heap and private mappings.
        cpu_seconds: of processor time, after which SIGXCPU ends it.
        file_bytes: the largest file that it may write.
        processes: of the same user, this service's included; not for root.
    """

    memory_bytes: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = None
    processes: int | None = None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a command ended.

    Attributes:
        code: the exit code; negative: the signal that ended it; None: it ran out of time.
        stdout: the last of it, and how much came before that.
    """

    code: int | None
    stdout: bytes
    stdout_dropped_bytes: int
    stderr: bytes
    stderr_dropped_bytes: int


def nothing() -> None:
    """Takes no notice of progress."""


async def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
    stdin: Path = Path(os.devnull),
    limits: Limits = UNLIMITED,
    grace_seconds: float = GRACE_SECONDS,
    hold: Sequence[int] = (),
    progress: Callable[[], None] = nothing,
    spares: "Spares | None" = None,
) -> Finished:
    """Runs the command to its end; nothing of it is left when this returns or raises.

    `stdin` is a file, so that a command that doesn't read it holds nothing up. The descriptors in
    `hold` stay open as long as anything of the tree lives, even if this process is killed.
    `progress` is called whenever the command prints something.
    Raises DrafterError if the command can't be started.
    """
    job = {
        "argv": list(argv),
        "cwd": str(cwd),
        "environment": dict(environment),
        "limits": asdict(limits),
        "grace_seconds": grace_seconds,
    }
    async with AsyncExitStack() as stack:
        stdout = await stack.enter_async_context(_drained(KEEP_STDOUT_BYTES, progress))
        stderr = await stack.enter_async_context(_drained(KEEP_STDERR_BYTES, progress))
        source = os.open(stdin, os.O_RDONLY)
        stack.callback(os.close, source)
        tree = await (_spawn() if spares is None else spares.take())
        outcome: dict[str, Any] | None = None
        try:
            tree.hand_over(source, stdout.end, stderr.end, *hold)
            stdout.hand_over()
            stderr.hand_over()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    outcome = await tree.carry_out(
                        job, nothing if spares is None else spares.refill
                    )
        finally:
            await to_the_end(tree.end(grace_seconds))
    return _finished(argv, cwd, outcome, stdout, stderr)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Waits for work that must not be cut short, and passes a cancellation on only then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break  # The task's own; raised below.
    if cancelled is not None:
        raise cancelled
    return task.result()


class _Tail:
    """A pipe that is read as fast as it fills, and of which the last is kept.

    Read by hand: uvloop's pipe transports close a descriptor a second time, when it may already be
    another thread's.
    """

    def __init__(self, keep_bytes: int, progress: Callable[[], None]) -> None:
        self.reading, self.end = os.pipe()
        os.set_blocking(self.reading, False)
        self._progress = progress
        self.closed = asyncio.Event()
        self._keep_bytes = keep_bytes
        self._kept = bytearray()
        self._seen_bytes = 0

    def read(self) -> None:
        """Takes what is there."""
        with suppress(BlockingIOError):
            if data := os.read(self.reading, READ_BYTES):
                self._keep(data)
            else:
                asyncio.get_running_loop().remove_reader(self.reading)
                self.closed.set()

    def _keep(self, data: bytes) -> None:
        self._progress()
        self._seen_bytes += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._keep_bytes:
            del self._kept[: -self._keep_bytes]

    def hand_over(self) -> None:
        """Closes our copy of the writing end."""
        if self.end >= 0:
            os.close(self.end)
            self.end = -1

    def kept(self) -> tuple[bytes, int]:
        """The last of the stream, and how many bytes came before that."""
        kept = bytes(self._kept[-self._keep_bytes :])
        return kept, self._seen_bytes - len(kept)


@asynccontextmanager
async def _drained(keep_bytes: int, progress: Callable[[], None]) -> AsyncIterator[_Tail]:
    """A pipe whose reading end is drained; afterwards it has been read to its end."""
    tail = _Tail(keep_bytes, progress)
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        stack.callback(os.close, tail.reading)
        stack.callback(tail.hand_over)
        loop.add_reader(tail.reading, tail.read)
        stack.callback(loop.remove_reader, tail.reading)
        yield tail
        # Not for ever: something that got away may hold the pipe.
        with suppress(TimeoutError):
            await asyncio.wait_for(tail.closed.wait(), STREAM_SECONDS)


@dataclass(frozen=True, slots=True)
class _Tree:
    """A supervisor and all that is below it."""

    process: Process
    #: Ours to close, so no transport has it: uvloop's may close a socket twice.
    control: socket.socket

    def hand_over(self, *descriptors: int) -> None:
        """Gives it the command's standard streams, and what else it is to hold open."""
        # A supervisor that is gone says so by saying nothing of the job.
        with suppress(OSError):
            socket.send_fds(self.control, [b"*"], descriptors)

    async def carry_out(
        self, job: Mapping[str, object], begun: Callable[[], None]
    ) -> dict[str, Any] | None:
        """What the supervisor says of the job; None if it was killed over it."""
        loop = asyncio.get_running_loop()
        said = bytearray()
        with suppress(ConnectionError):
            await loop.sock_sendall(self.control, json.dumps(job).encode() + b"\n")
        # A supervisor that took no job may have said why.
        with suppress(ConnectionError):
            while data := await loop.sock_recv(self.control, READ_BYTES):
                begun()
                said += data
        if said.strip():
            outcome: dict[str, Any] = json.loads(said)
            return outcome
        return {"code": -signal.SIGKILL}

    async def end(self, grace_seconds: float) -> None:
        """Has the supervisor end its tree, and kills the group if it fails to."""
        self.control.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), grace_seconds + KILL_SECONDS)
        # Also where the supervisor is gone: the command may have killed it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), STREAM_SECONDS)


class Spares:
    """Supervisors that wait for a job, so that no command waits for its supervisor to start.

    To be entered; what is left is ended with it.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        #: Those that wait, the one that has waited longest first.
        self.ready: deque[_Tree] = deque()
        self._filling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._fill()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for tree in self.ready:
            await to_the_end(tree.end(0))

    async def take(self) -> _Tree:
        """One that waits, if any does, else a new one."""
        while self.ready:
            tree = self.ready.popleft()
            if tree.process.returncode is None:
                return tree
            await tree.end(0)
        return await _spawn()

    def refill(self) -> None:
        """Starts what is missing, for when it slows down no command's start any more."""
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill_later())

    async def _fill_later(self) -> None:
        await asyncio.sleep(BEGINNING_SECONDS)
        await self._fill()

    async def _fill(self) -> None:
        # Without any, `take` says why none can be started.
        with suppress(DrafterError):
            while len(self.ready) < self._count:
                self.ready.append(await _spawn())


async def _spawn() -> _Tree:
    """Starts a supervisor, which starts nothing before it is given a job."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        try:
            process = await _supervisor(theirs.fileno())
        except BaseException:
            ours.close()
            raise
    return _Tree(process, ours)


async def _supervisor(control: int) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", SUPERVISOR, str(control)),
            cwd="/",
            env={},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(control,),
        )
    except (OSError, ValueError) as error:
        raise DrafterError(f"no process could be started: {error}") from error


def _finished(
    argv: Sequence[str],
    cwd: Path,
    outcome: Mapping[str, Any] | None,
    stdout: _Tail,
    stderr: _Tail,
) -> Finished:
    if outcome is not None and "error" in outcome:
        raise DrafterError(_not_started(argv[0], cwd, outcome))
    out, out_dropped = stdout.kept()
    err, err_dropped = stderr.kept()
    return Finished(
        code=None if outcome is None else outcome["code"],
        stdout=out,
        stdout_dropped_bytes=out_dropped,
        stderr=err,
        stderr_dropped_bytes=err_dropped,
    )


def _not_started(command: str, cwd: Path, outcome: Mapping[str, Any]) -> str:
    if outcome["file"] == str(cwd):
        return f"working directory missing: {cwd}"
    if outcome["errno"] == errno.ENOENT:
        return f"command not found: {command}"
    return f"command can't be started: {command}: {outcome['error']}"
