"""What the drafters' tests share: claims, repositories, and a way to see a process tree die."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from app.drafters.command import CommandDrafter, allowed_environment
from app.drafters.git import git_environment
from app.machine import Phase
from app.model import Claim, Story

CLAIM = Claim(
    session_id=7,
    generation=3,
    token=UUID(int=1),
    phase=Phase.DRAFT,
    worker="worker-1",
    workspace="acme",
    sc_id=41,
    title="Fix the login",
    app_url=None,
    description=None,
    revision=0,
    rounds=0,
    attempt=1,
)
STORY = Story(sc_id=41, title="Fix the login", description="- It fails\n- It should not")
DEADLINE_SECONDS = 30
GIT_IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")


def git(repository: Path, *arguments: str | Path, stdin: bytes = b"") -> str:
    """git as a person at a terminal would run it."""
    done = subprocess.run(
        ["git", *GIT_IDENTITY, "-C", repository, *arguments],
        input=stdin,
        capture_output=True,
        check=True,
        env={"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null"},
    )
    return done.stdout.decode(errors="replace").strip()


def commit(repository: Path, **files: str | bytes) -> str:
    """Adds files, whose names have `__` for a dot, and commits them."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (repository / name.replace("__", ".")).write_bytes(data)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "Change files")
    return git(repository, "rev-parse", "HEAD")


def repository_in(directory: Path) -> Path:
    """A repository with one commit on its branch `main`."""
    repository = directory / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    commit(repository, README="Hello\n", main__py="print('hello')\n")
    return repository


@dataclass(frozen=True)
class Bench:
    """Runs commands as drafters, with a state directory of its own."""

    state_dir: Path
    timeout_seconds: float = DEADLINE_SECONDS

    def drafter(self, *command: str, **settings: object) -> CommandDrafter:
        drafter = CommandDrafter(
            command=command,
            state_dir=self.state_dir,
            timeout_seconds=self.timeout_seconds,
            environment=allowed_environment(os.environ),
            git_environment=git_environment(os.environ),
        )
        return replace(drafter, **settings)  # type: ignore[arg-type]

    def shell(self, script: str, **settings: object) -> CommandDrafter:
        return self.drafter("sh", "-c", script, **settings)

    def python(self, script: str, *arguments: str, **settings: object) -> CommandDrafter:
        return self.drafter(sys.executable, "-c", script, *arguments, **settings)

    def left_over(self) -> list[str]:
        """What is left in the place of the worktrees, besides the lock."""
        return [p.name for p in (self.state_dir / "worktrees").iterdir() if p.name != ".lock"]


class Pulse:
    """A pipe that every process of a tree holds open: it ends when the last of them is dead."""

    def __init__(self, path: Path, reader: asyncio.StreamReader) -> None:
        self.path = path
        self._reader = reader

    async def said(self) -> str:
        """The next line that the tree writes."""
        line = await asyncio.wait_for(self._reader.readline(), DEADLINE_SECONDS)
        return line.decode().strip()

    async def stopped(self) -> str:
        """Waits until nothing of the tree is alive; what it wrote until then."""
        rest = await asyncio.wait_for(self._reader.read(), DEADLINE_SECONDS)
        return rest.decode().strip()


@asynccontextmanager
async def pulse(directory: Path) -> AsyncIterator[Pulse]:
    path = directory / "pulse"
    os.mkfifo(path)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader),
        os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0),
    )
    try:
        yield Pulse(path, reader)
    finally:
        transport.close()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that nothing announces."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
