"""The processes of a run: receivers, workers and PostgreSQL; started, harmed, replaced, ended."""

import asyncio
import os
import signal
import subprocess
import time
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path

from app.embedded import binaries
from app.processes import RESTART_PAUSE_SECONDS, SUPERVISED, Child, argv
from chaos.history import Frozen, Kill

#: For a process that was told to end; the service's own limit is shorter.
END_SECONDS = 25.0
POSTGRES_SECONDS = 60.0


class Role(StrEnum):
    RECEIVER = "receiver"
    WORKER = "worker"


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One process of the service."""

    role: Role
    process: Process
    log: Path
    frozen_since: float | None = None
    expected_to_end: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_started(self) -> bool:
        """Whether it says so in its log."""
        return "process.started" in self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """All processes of the service, of which some are always harmed.

    Attributes:
        children: how a process of each role is started.
        home: where the processes keep state and logs.
        deaths: what ended by itself, or did not end when told to.
        failed_starts: how often a process found no database when it started.
    """

    children: dict[Role, Child]
    home: Path
    members: list[Member] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    frozen: list[Frozen] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    failed_starts: int = 0
    ending: bool = False
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _watches: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, role: Role) -> Member:
        child = self.children[role]
        log = self.home / f"{role}-{next(self._numbers)}.log"
        with log.open("xb") as output:
            process = await asyncio.create_subprocess_exec(
                *argv(child.arguments),
                pass_fds=child.fds,
                env={**os.environ, **child.environment, SUPERVISED: str(os.getpid())},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        member = Member(role=role, process=process, log=log)
        self.members.append(member)
        watch = asyncio.create_task(self._watch(member))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return member

    def of(self, role: Role) -> list[Member]:
        """Those that have not been told to end, and do not stand still."""
        return [
            member
            for member in self.members
            if member.role is role and not member.expected_to_end and member.frozen_since is None
        ]

    async def kill(self, member: Member, *, quiet: bool = False) -> None:
        """SIGKILL, and another one starts."""
        member.expected_to_end = True
        member.signal(signal.SIGKILL)
        if member.role is Role.WORKER:
            self.kills.append(Kill(worker=member.pid, at=time.time(), quiet=quiet))
        await self.start(member.role)

    async def stop(self, member: Member) -> None:
        """SIGTERM, and another one starts; the code of its end must be 0."""
        await asyncio.gather(self.start(member.role), self.end(member))

    async def end(self, member: Member) -> None:
        member.expected_to_end = True
        member.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                code = await member.process.wait()
        except TimeoutError:
            self.deaths.append(f"{member.role} {member.pid} did not end in {END_SECONDS:g} s")
            member.signal(signal.SIGKILL)
            return
        # Before it has started, it has no handler yet, and has begun nothing either.
        if code != 0 and member.has_started():
            self.deaths.append(f"{member.role} {member.pid}: told to end, it ended with {code}")

    def freeze(self, member: Member) -> None:
        member.frozen_since = time.time()
        member.signal(signal.SIGSTOP)

    def thaw(self, member: Member) -> None:
        if member.frozen_since is not None:
            member.signal(signal.SIGCONT)
            times = {"since": member.frozen_since, "until": time.time()}
            self.frozen.append(Frozen(worker=member.pid, **times))
            member.frozen_since = None

    async def end_all(self) -> None:
        """Tells all to end, as an operator would."""
        self.ending = True
        for member in self.members:
            self.thaw(member)
        running = [m for m in self.members if m.process.returncode is None]
        await asyncio.gather(*[self.end(m) for m in running if not m.expected_to_end])

    async def kill_all(self) -> None:
        """Leaves no process behind, whatever has happened."""
        self.ending = True
        for member in self.members:
            member.expected_to_end = True
            if member.process.returncode is None:
                member.signal(signal.SIGCONT)
                member.signal(signal.SIGKILL)
        await asyncio.gather(*[member.process.wait() for member in self.members])

    async def _watch(self, member: Member) -> None:
        code = await member.process.wait()
        if member.expected_to_end:
            return
        member.expected_to_end = True
        if code == 1 and not member.has_started():
            # It found no database when it started, and says so: then its supervisor tries again.
            self.failed_starts += 1
            await asyncio.sleep(RESTART_PAUSE_SECONDS)
        else:
            self.deaths.append(f"{member.role} {member.pid} ended by itself with {code}")
        if not self.ending:
            await self.start(member.role)


@dataclass(frozen=True, slots=True)
class Postgres:
    """The embedded server, as somebody sees it who wishes it ill."""

    data: Path

    async def restart(self) -> None:
        """Ends it as a power failure would, and starts it again, which makes it recover."""
        await asyncio.to_thread(self._pg_ctl, "restart", "-w", "-m", "immediate")

    def _pg_ctl(self, *arguments: str) -> None:
        log = str(self.data / "server.log")
        subprocess.run(
            [binaries() / "pg_ctl", *arguments, "-D", self.data, "-l", log],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user="nobody" if os.geteuid() == 0 else None,
            cwd="/",
            timeout=POSTGRES_SECONDS,
            check=True,
        )
