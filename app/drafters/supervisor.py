"""Runs one command and leaves nothing of it behind. A script: only the standard library.

It stands between the worker and the command because only a process of its own can outlive the
worker: when the worker dies, even by SIGKILL, the control socket reaches its end and the command
goes with everything it started. The worker passes it descriptors, first the command's standard
streams, then others to hold open; says what to run in one line of JSON, and gets an empty line
back when that has begun, and one of JSON when it has ended; its end of the socket closing means
stop. The supervisor leads the session and the process group that the command runs in, and adopts
what the command's children leave as orphans.

The command's process is forked before there is a job, since a fork takes as long as all the rest,
and takes the job from the control socket itself. It passes on what the supervisor has to know.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MOST_DESCRIPTORS = 16
LINUX = sys.platform == "linux"
#: How long to try to kill; what then still lives can't be killed, e.g. waits for a dead disk.
KILL_SECONDS = 5.0
KILL_PAUSE_SECONDS = 0.05
#: Between SIGXCPU, which names the reason, and SIGKILL.
CPU_WARNING_SECONDS = 5


def main() -> None:
    """Takes one job from the control socket, whose descriptor is the only argument."""
    if os.getpgrp() != os.getpid():
        sys.exit("the supervisor must lead a process group: it ends by killing it")
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    # Whatever needs no job is done while nobody waits.
    libc = ctypes.CDLL(None) if LINUX else None
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken = _wake_on_signals()
    ours, theirs = socket.socketpair()
    try:
        command = _fork(control, theirs, libc)
    except OSError as error:
        outcome = _no_start(error, None)
    else:
        theirs.close()
        outcome = Supervisor(control, woken, command).run(ours)
    with suppress(OSError):
        control.sendall(_line(outcome))
    # Whatever there is in the group, in one stroke, and the supervisor with it.
    os.killpg(0, signal.SIGKILL)


class Supervisor:
    """One command and all its descendants."""

    def __init__(self, control: socket.socket, woken: socket.socket, command: int) -> None:
        self.control = control
        self.woken = woken
        self.command = command
        self.code: int | None = None
        self.alone = False

    def run(self, told: socket.socket) -> dict[str, object]:
        """From what its process is told of the job to the end of all of it."""
        failed = b""
        # What is to be held open is, by being received.
        if self._hears(told) and socket.recv_fds(told, 1, MOST_DESCRIPTORS)[0]:
            said = told.makefile("rb")
            grace_seconds = json.loads(said.readline() or b"0")
            # It says nothing, and closes its end, by becoming the command.
            failed = said.readline()
            if not failed:
                self._watch(grace_seconds)
        self._kill()
        return json.loads(failed) if failed else {"code": self.code}

    def _hears(self, told: socket.socket) -> bool:
        """Waits for either; False: the worker is no more, and its process has taken no job."""
        waiting = select.poll()
        waiting.register(told, select.POLLIN)
        waiting.register(self.control, 0)  # For its end alone: what it brings is not for us.
        return any(ready == told.fileno() for ready, _ in waiting.poll())

    def _watch(self, grace_seconds: float) -> None:
        """Until the command ends, or the worker says stop, or is no more."""
        with suppress(OSError):
            self.control.sendall(b"\n")
        while self.code is None and not self._wait(None, self.control):
            pass
        if self.code is None:
            self._ask_to_end(grace_seconds)

    def _ask_to_end(self, grace_seconds: float) -> None:
        """SIGTERM to the group, and time for it."""
        os.killpg(0, signal.SIGTERM)
        give_up_at = time.monotonic() + grace_seconds
        while not self.alone and (left := give_up_at - time.monotonic()) > 0:
            self._wait(left)

    def _kill(self) -> None:
        """SIGKILL to every descendant, in the group or not, until none is left."""
        give_up_at = time.monotonic() + KILL_SECONDS
        self._reap()
        while LINUX and not self.alone and time.monotonic() < give_up_at:
            for pid in _descendants():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._wait(KILL_PAUSE_SECONDS)

    def _wait(self, seconds: float | None, *others: socket.socket) -> bool:
        """Until a signal arrives; True if one of the others is readable."""
        ready = select.select([self.woken, *others], [], [], seconds)[0]
        if self.woken in ready:
            self.woken.recv(4096)
        self._reap()
        return any(other in ready for other in others)

    def _reap(self) -> None:
        try:
            while not self.alone:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.command:
                    self.code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            self.alone = True


def _wake_on_signals() -> socket.socket:
    """A socket that becomes readable with every signal that the supervisor must survive."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    # Handled rather than ignored: what is ignored stays so in the command.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)
    return woken


def _fork(control: socket.socket, tell: socket.socket, libc: Any) -> int:
    """The process that waits for a job and becomes its command, or says why it can't."""
    supervisor = os.getpid()
    if command := os.fork():
        return command
    try:
        signal.set_wakeup_fd(-1)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == supervisor:
            _wait_for_job(control, tell)
    finally:
        os._exit(1)


def _wait_for_job(control: socket.socket, tell: socket.socket) -> None:
    # Python ignores them, and what is ignored stays so.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    descriptors = socket.recv_fds(control, 1, MOST_DESCRIPTORS)[1]
    line = control.makefile("rb").readline()
    if line:
        job = json.loads(line)
        socket.send_fds(tell, [b"*"], descriptors[3:])
        tell.sendall(_line(job["grace_seconds"]))
        for stream, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, stream)
        for descriptor in descriptors:
            os.close(descriptor)
        tell.sendall(_line(_become_the_command(job)))


def _become_the_command(job: dict[str, Any]) -> dict[str, object]:
    """Does not return, unless to say what went wrong."""
    file = None
    try:
        _limit(job["limits"])
        file = job["cwd"]
        os.chdir(file)
        file = job["argv"][0]
        os.execvpe(file, job["argv"], job["environment"])
    except OSError as error:
        return _no_start(error, file)
    except Exception as error:  # Whatever it is: unsaid, it would pass for the command's own end.
        return {"errno": None, "file": None, "error": str(error) or type(error).__name__}


def _no_start(error: OSError, file: str | None) -> dict[str, object]:
    return {"errno": error.errno, "file": file, "error": error.strerror}


def _line(said: object) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _limit(limits: dict[str, int | None]) -> None:
    kinds = {
        # Not the address space: some runtimes reserve a hundred times what they use.
        "memory_bytes": resource.RLIMIT_DATA,
        "cpu_seconds": resource.RLIMIT_CPU,
        "file_bytes": resource.RLIMIT_FSIZE,
        "processes": resource.RLIMIT_NPROC,
    }
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, kind in kinds.items():
        if (value := limits.get(name)) is not None:
            _lower(kind, value)


def _lower(kind: int, value: int) -> None:
    hard = value + CPU_WARNING_SECONDS if kind == resource.RLIMIT_CPU else value
    highest = resource.getrlimit(kind)[1]
    if highest != resource.RLIM_INFINITY:
        value, hard = min(value, highest), min(hard, highest)
    resource.setrlimit(kind, (value, hard))


def _descendants() -> list[int]:
    """Every process below this one, found by the parents that /proc names."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat") as stat:
                # The name, in brackets, may itself hold brackets and blanks.
                parent = int(stat.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found = children.get(os.getpid(), [])
    for pid in found:  # It grows while it is walked.
        found.extend(children.get(pid, []))
    return found


if __name__ == "__main__":
    main()
