"""Runs several processes of this program as one: starts them, restarts them, stops them."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

#: Tells a child that it is to end when its parent does.
SUPERVISED = "DRAFTGATE_SUPERVISED"
RESTART_PAUSE_SECONDS = 1.0
PR_SET_PDEATHSIG = 1

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process: the arguments of `draftgate`, sockets that it inherits, its environment."""

    arguments: Sequence[str]
    fds: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def argv(arguments: Sequence[str]) -> list[str]:
    """The command line that runs this very program with these arguments."""
    return [sys.executable, "-m", "app.cli.main", *arguments]


async def supervise(children: Sequence[Child], stopping: asyncio.Event, *, seconds: float) -> None:
    """Keeps the children running until `stopping`, then ends them with SIGTERM.

    A child that has not ended after so many seconds is killed.
    """
    async with asyncio.TaskGroup() as tasks:
        for child in children:
            tasks.create_task(_keep(child, stopping, seconds=seconds))


async def _keep(child: Child, stopping: asyncio.Event, *, seconds: float) -> None:
    while not stopping.is_set():
        process = await asyncio.create_subprocess_exec(
            *argv(child.arguments),
            pass_fds=child.fds,
            # A Ctrl-C is for the parent alone, which tells its children what to do.
            start_new_session=True,
            env={**os.environ, **child.environment, SUPERVISED: str(os.getpid())},
        )
        await _end_of(process, stopping)
        if process.returncode is None:
            await _stop(process, seconds=seconds)
        elif not stopping.is_set():
            log.error("process.died", pid=process.pid, code=process.returncode)
            await asyncio.sleep(RESTART_PAUSE_SECONDS)


async def _end_of(process: asyncio.subprocess.Process, stopping: asyncio.Event) -> None:
    waits = [asyncio.create_task(process.wait()), asyncio.create_task(stopping.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def _stop(process: asyncio.subprocess.Process, *, seconds: float) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        log.error("process.killed", pid=process.pid)
        process.kill()
        await process.wait()


def die_with_parent() -> None:
    """In a child: SIGTERM comes when the parent ends, however it ends. Linux only."""
    parent = os.environ.get(SUPERVISED)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit("draftgate: the parent process has ended")
