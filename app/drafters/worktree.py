"""The directories that drafters work in, and what they changed there."""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from app.drafters.contract import patch_within_limits
from app.drafters.git import Git
from app.drafters.process import Limits, to_the_end
from app.errors import DrafterError

#: In the directory of the worktrees, for making and sweeping them.
LOCK_NAME = ".lock"
LOCK_PAUSE_SECONDS = 0.1
#: A file that the snapshot takes in; larger ones can't be part of a patch anyway.
LARGEST_FILE_BYTES = 512 * 1024 * 1024
#: Author and committer of what a drafter commits, unless its environment says otherwise.
IDENTITY = "[user]\n\tname = Draftgate\n\temail = draftgate@localhost\n"

log = structlog.get_logger(__name__)

#: Outranks every .gitattributes. What is in the commit is in the worktree, byte by byte, and the
#: other way round: no conversion that is not undone makes a change of its own.
ATTRIBUTES = "info/attributes"
AS_THEY_ARE = "* -text -ident -filter !working-tree-encoding"

_FILE_IN_PATCH = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_DIFF = (
    *("diff", "--cached", "--binary", "--full-index", "--no-color", "--no-ext-diff"),
    # Repositories inside the tree, submodules or not, can't be carried by a patch.
    *("--no-textconv", "--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/"),
)


# --- the place -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """A directory that belongs to one run and goes with it.

    Attributes:
        work: where the drafter runs: empty, or a checkout.
        out: where it leaves its result.
        lock: a descriptor that keeps the directory from being swept away.
    """

    home: Path
    lock: int

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def out(self) -> Path:
        return self.home / "out"

    @property
    def request_file(self) -> Path:
        return self.home / "request.json"

    @property
    def result_file(self) -> Path:
        return self.out / "result.json"

    @property
    def index_file(self) -> Path:
        return self.home / "index"


@asynccontextmanager
async def workplace(state_dir: Path, name: str) -> AsyncIterator[Workplace]:
    """A new directory under `state_dir`/worktrees, removed afterwards on every path."""
    parent = _made(state_dir / "worktrees")
    async with _locked(parent / LOCK_NAME):
        # A few entries, and nothing between making one and the promise to remove it.
        stale = _take_stale(parent)
        place = _furnish(parent, name)
    try:
        if stale:
            await to_the_end(asyncio.to_thread(_demolish, *stale))
        yield place
    finally:
        await to_the_end(asyncio.to_thread(_demolish, place))


def _made(directory: Path) -> Path:
    # The whole of it belongs to this service: stories and code are nobody else's business.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory.resolve()


def _furnish(parent: Path, name: str) -> Workplace:
    home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    place = Workplace(home=home, lock=os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600))
    fcntl.flock(place.lock, fcntl.LOCK_EX)
    place.work.mkdir()
    place.out.mkdir()
    return place


def _take_stale(parent: Path) -> list[Workplace]:
    """What killed workers left behind: their locks went when the last of their tree did."""
    taken = (_taken(home) for home in parent.iterdir() if home.name != LOCK_NAME)
    return [place for place in taken if place is not None]


def _taken(home: Path) -> Workplace | None:
    """The directory, if nobody works in it."""
    try:
        home.chmod(0o700)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None  # Tampered with: nothing that a run depends on.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return Workplace(home=home, lock=lock)


def _demolish(*places: Workplace) -> None:
    for place in places:
        shutil.rmtree(place.home, ignore_errors=True)
        if place.home.exists():
            # Some tools leave directories that nobody may write to.
            with suppress(OSError):
                _open_up(place.home)
            shutil.rmtree(place.home, ignore_errors=True)
        if place.home.exists():
            log.warning("worktree.left_over", path=str(place.home))
        os.close(place.lock)


def _open_up(home: Path) -> None:
    home.chmod(0o700)
    for path, directories, _ in os.walk(home):
        for directory in (Path(path, name) for name in directories):
            if not directory.is_symlink():
                directory.chmod(0o700)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[int]:
    """Holds a lock between processes; it goes with its holder, so it can't be stale."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            # Asked again and again, because a thread that waits for it can't be cancelled.
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        yield lock
    finally:
        os.close(lock)


# --- the repository --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository that is drafted against, by way of a mirror that all workers here share.

    Attributes:
        url: an absolute path, or anything that git fetches from.
        base_ref: the branch, tag or commit that drafts start from.
    """

    url: str
    base_ref: str
    state_dir: Path
    git: Git

    def __post_init__(self) -> None:
        for value in (self.url, self.base_ref):
            if not value or value.startswith("-") or not value.isprintable():
                raise DrafterError(f"not a repository or ref that git is asked for: {value!r}")

    @property
    def mirror(self) -> Path:
        name = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        return self.state_dir.absolute() / "mirrors" / f"{name}.git"

    async def check_out(self, place: Workplace) -> str:
        """Puts the newest base commit into the workplace, and gives its id."""
        base = await self._fetch()
        work, mirror = place.work, self.mirror
        git = replace(self.git, hold=(place.lock,))
        # A repository of its own: what is done to its config, refs and hooks stays in it.
        await git("init", "--quiet", "--template=", work, cwd=place.home)
        await asyncio.to_thread(_set_up, work / ".git", mirror)
        await git(
            *("fetch", "--quiet", "--no-write-fetch-head", "--no-auto-maintenance", mirror),
            *("+refs/tags/*:refs/tags/*", "+refs/heads/*:refs/remotes/origin/*"),
            cwd=work,
        )
        await git("checkout", "--quiet", "--detach", base, "--", cwd=work)
        # The times in it tell what was touched, so that not every file is read again.
        await asyncio.to_thread(shutil.copy2, work / ".git" / "index", place.index_file)
        return base

    async def patch(self, place: Workplace, base: str, *, offered: str) -> str:
        """What differs in the worktree from the base, whatever was committed in between.

        Where nothing does, the patch that the drafter offered. Raises DrafterError unless the
        patch applies to the base.
        """
        if place.work.is_symlink() or not place.work.is_dir():
            raise DrafterError("the drafter replaced its worktree with something else")
        async with self._outside(place) as git:
            patch = patch_within_limits(await _changes(git, base)) or offered
            if patch.strip():
                await _check(git, base, patch)
        return patch

    @asynccontextmanager
    async def _outside(self, place: Workplace) -> AsyncIterator["_Outside"]:
        """git on the worktree's files, with none of the settings that the drafter can have left."""
        scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="git-", dir=place.home))
        git = replace(self.git, hold=(place.lock,))
        await git("init", "--quiet", "--bare", "--template=", scratch, cwd=place.home)
        await asyncio.to_thread(_set_up, scratch, self.mirror)
        yield _Outside(git, place, scratch)

    async def _fetch(self) -> str:
        mirror = self.mirror
        await asyncio.to_thread(_made, mirror.parent)
        async with _locked(mirror.with_suffix(".lock")) as lock:
            git = replace(self.git, hold=(lock,))
            await self._make_mirror(git)
            await asyncio.to_thread(_unlock, mirror)
            await git(
                *("fetch", "--quiet", "--prune", "--no-write-fetch-head"),
                *("--no-recurse-submodules", "source"),
                *("+HEAD:refs/source/HEAD", "+refs/heads/*:refs/heads/*"),
                "+refs/tags/*:refs/tags/*",
                cwd=mirror,
                # Not an argument, for all users to see: it may hold a password.
                variables={
                    "GIT_DIR": str(mirror),
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "remote.source.url",
                    "GIT_CONFIG_VALUE_0": self.url,
                },
            )
            return await self._base(git)

    async def _make_mirror(self, git: Git) -> None:
        if self.mirror.exists():
            return
        # Made aside and renamed, so that there is never half a mirror.
        aside = await asyncio.to_thread(tempfile.mkdtemp, dir=self.mirror.parent)
        await git("init", "--quiet", "--bare", "--template=", aside, cwd=self.mirror.parent)
        os.rename(aside, self.mirror)

    async def _base(self, git: Git) -> str:
        if self.base_ref == "HEAD":
            candidates = ["refs/source/HEAD"]
        else:
            candidates = [f"refs/heads/{self.base_ref}", f"refs/tags/{self.base_ref}"]
            candidates.append(self.base_ref)
        for candidate in candidates:
            with suppress(DrafterError):
                commit = await git(
                    *("rev-parse", "--verify", "--quiet", "--end-of-options"),
                    candidate + "^{commit}",
                    cwd=self.mirror,
                    variables={"GIT_DIR": str(self.mirror)},
                )
                return commit.decode().strip()
        raise DrafterError(f"the repository has no branch, tag or commit {self.base_ref!r}")


class _Outside:
    """git with a directory of its own beside the worktree."""

    def __init__(self, git: Git, place: Workplace, scratch: Path) -> None:
        self._git = git
        self._place = place
        self._scratch = scratch
        self._index = place.index_file

    async def __call__(self, *arguments: str | Path, limits: Limits | None = None) -> bytes:
        return await self._git(
            *arguments,
            cwd=self._place.home,
            variables={
                "GIT_DIR": str(self._scratch),
                "GIT_WORK_TREE": str(self._place.work),
                "GIT_INDEX_FILE": str(self._index),
            },
            limits=limits or Limits(),
        )

    def use_new_index(self) -> None:
        self._index = self._scratch / "index"

    def file(self, patch: str) -> Path:
        path = self._scratch / "patch"
        path.write_bytes(patch.encode())
        return path

    def treat_all_as_binary(self) -> None:
        (self._scratch / ATTRIBUTES).write_text(f"{AS_THEY_ARE} -diff\n")


async def _changes(git: _Outside, base: str) -> str:
    await git("add", "--all", limits=Limits(file_bytes=LARGEST_FILE_BYTES))
    patch = await git(*_DIFF, "--find-renames", base, "--")
    if not _is_text(patch):
        plain = await git(*_DIFF, "--no-renames", base, "--")
        git.treat_all_as_binary()
        patch = _mended(plain, await git(*_DIFF, "--no-renames", base, "--"))
    return patch.decode()


async def _check(git: _Outside, base: str, patch: str) -> None:
    git.use_new_index()
    await git("read-tree", base)
    await git("apply", "--check", "--cached", "--whitespace=nowarn", "--", git.file(patch))


def _set_up(git_dir: Path, mirror: Path) -> None:
    for file, content in (
        ("objects/info/alternates", f"{mirror / 'objects'}\n"),
        (ATTRIBUTES, f"{AS_THEY_ARE}\n"),
    ):
        (git_dir / file).parent.mkdir(parents=True, exist_ok=True)
        (git_dir / file).write_text(content)
    with (git_dir / "config").open("a") as config:
        config.write(IDENTITY)


def _unlock(mirror: Path) -> None:
    """Removes what a killed git left; whoever holds the mirror's lock knows that none is alive."""
    for left_over in (*mirror.rglob("*.lock"), *mirror.glob("objects/pack/tmp_*")):
        left_over.unlink(missing_ok=True)


def _is_text(patch: bytes) -> bool:
    if b"\0" in patch:
        return False
    try:
        patch.decode()
    except UnicodeDecodeError:
        return False
    return True


def _mended(plain: bytes, binary: bytes) -> bytes:
    """Every file's part as text where it is UTF-8, as a binary patch where it is not."""
    pairs = zip(_FILE_IN_PATCH.split(plain), _FILE_IN_PATCH.split(binary), strict=True)
    return b"".join(text if _is_text(text) else encoded for text, encoded in pairs)
