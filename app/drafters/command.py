"""The drafter that is a command: gives it a place to work, runs it, and takes what it made."""

import os
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.drafters import contract, process
from app.drafters.contract import Result, printable, slug
from app.drafters.git import Git
from app.drafters.process import GRACE_SECONDS, UNLIMITED, Finished, Limits, Spares
from app.drafters.worktree import Repository, Workplace, workplace
from app.errors import DrafterError
from app.machine import Phase
from app.model import Asked, Claim, Draft, Remark, Story

OUR_PREFIX = "DRAFTGATE_"
ALWAYS_ALLOWED = frozenset(["PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER"])
#: For one git command; the first fetch of a repository is the longest.
GIT_TIMEOUT_SECONDS = 600.0
#: An error is kept in 2,000 characters, the reason included.
LONGEST_TAIL_CHARS = 1_800
#: Of what a drafter printed, where that has to do as the summary.
LONGEST_PRINTED_SUMMARY_CHARS = 4_000
SHELL_SIGNAL_BASE = 128
SHELL_CODES = {126: "a command can't be executed", 127: "a command was not found"}


def allowed_environment(environ: Mapping[str, str], names: Sequence[str] = ()) -> dict[str, str]:
    """What a drafter may see of the environment; of this service's own settings nothing."""
    allowed = ALWAYS_ALLOWED.union(names)
    return {
        name: value
        for name, value in environ.items()
        if (name in allowed or name.startswith("LC_")) and not name.startswith(OUR_PREFIX)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDrafter:
    """Runs a command for each claim: in a worktree of the repository, or in an empty directory.

    Attributes:
        repository: a path or URL; None: the patch comes from the command's result.
        environment: all that the command sees besides what the contract adds.
        git_environment: what git needs to reach the repository, which the command need not see.
        grace_seconds: between SIGTERM and SIGKILL.
    """

    command: Sequence[str]
    state_dir: Path
    timeout_seconds: float
    environment: Mapping[str, str]
    git_environment: Mapping[str, str]
    repository: str | Path | None = None
    base_ref: str = "HEAD"
    limits: Limits = UNLIMITED
    grace_seconds: float = GRACE_SECONDS
    spares: Spares | None = None

    async def draft(
        self,
        claim: Claim,
        story: Story,
        *,
        conversation: Sequence[Remark],
        asked: Sequence[Asked] = (),
        previous_patch: str | None,
        progress: Callable[[], None] = process.nothing,
    ) -> Draft:
        """One run; raises DrafterError, and leaves neither a process nor a file on any path.

        In the clarify phase the draft has questions, or has nothing in it.
        """
        name = f"{claim.session_id}-g{claim.generation}-{slug(story.title)}"
        try:
            async with workplace(self.state_dir, name) as place:
                document = contract.request(
                    claim,
                    story,
                    conversation=conversation,
                    asked=asked,
                    previous_patch=previous_patch,
                    result_file=str(place.result_file),
                    timeout_seconds=self.timeout_seconds,
                )
                place.request_file.write_bytes(document)
                return await self._made_in(place, claim.phase, progress)
        except OSError as error:
            # The disk is full, or not ours to write to.
            raise DrafterError(f"the state directory can't be used: {error}") from error

    async def _made_in(self, place: Workplace, phase: Phase, progress: Callable[[], None]) -> Draft:
        if self.repository is None:
            return await self._in_empty_directory(place, phase, progress)
        return await self._in_worktree(place, self._source(self.repository), phase, progress)

    async def _in_empty_directory(
        self, place: Workplace, phase: Phase, progress: Callable[[], None]
    ) -> Draft:
        finished = await self._run(place, progress)
        answer = contract.result(_result_document(place) or finished.stdout)
        if answer.questions or phase is Phase.CLARIFY:
            return _draft(answer, patch="")
        patch = answer.patch or ""
        if not patch.strip():
            raise _failure("the drafter gave no patch and asked nothing", finished)
        await self._git().check_patch(patch, place.home)
        return _draft(answer, patch=patch)

    async def _in_worktree(
        self, place: Workplace, source: Repository, phase: Phase, progress: Callable[[], None]
    ) -> Draft:
        base = await source.check_out(place)
        finished = await self._run(place, progress)
        answer = _answer(place, finished)
        if answer.questions or phase is Phase.CLARIFY:
            return _draft(answer, patch="")
        patch = await source.patch(place, base, offered=answer.patch or "")
        if not patch.strip():
            raise _failure("the drafter changed nothing and asked nothing", finished)
        draft = _draft(answer, patch=patch)
        return replace(draft, meta={**draft.meta, "base_commit": base})

    async def _run(self, place: Workplace, progress: Callable[[], None]) -> Finished:
        finished = await process.run(
            self.command,
            cwd=place.work,
            environment=self._environment(place),
            timeout_seconds=self.timeout_seconds,
            stdin=place.request_file,
            limits=self.limits,
            grace_seconds=self.grace_seconds,
            hold=(place.lock,),
            progress=progress,
            spares=self.spares,
        )
        if finished.code is None:
            raise _failure(f"the drafter took longer than {self.timeout_seconds:g} s", finished)
        if finished.code != 0:
            raise _failure(f"the drafter {ending(finished.code)}", finished)
        return finished

    def _environment(self, place: Workplace) -> dict[str, str]:
        return {
            # There is nobody who could answer a prompt.
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
            **self.environment,
            # The state directory may itself lie in a checkout.
            "GIT_CEILING_DIRECTORIES": str(place.home),
            "DRAFTGATE_REQUEST_FILE": str(place.request_file),
            "DRAFTGATE_RESULT_FILE": str(place.result_file),
        }

    def _source(self, repository: str | Path) -> Repository:
        url = str(repository)
        if "://" not in url and Path(url).exists():
            url = str(Path(url).resolve())
        return Repository(
            url=url, base_ref=self.base_ref, state_dir=self.state_dir, git=self._git()
        )

    def _git(self) -> Git:
        return Git(
            environment=self.git_environment,
            timeout_seconds=GIT_TIMEOUT_SECONDS,
            spares=self.spares,
        )


def ending(code: int) -> str:
    """How a command that failed ended, in words."""
    if code < 0:
        return f"was killed by {_signal_name(-code)}"
    if code in SHELL_CODES:
        return f"exited with code {code} ({SHELL_CODES[code]})"
    if code - SHELL_SIGNAL_BASE in signal.valid_signals():
        return f"exited with code {code} ({_signal_name(code - SHELL_SIGNAL_BASE)})"
    return f"exited with code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _answer(place: Workplace, finished: Finished) -> Result:
    """The result file; else what was printed, as a document if it is one, else as the summary."""
    if document := _result_document(place):
        return contract.result(document)
    printed = finished.stdout.strip()
    if printed.startswith(b"{") and printed.endswith(b"}"):
        try:
            return contract.result(printed)
        except DrafterError:
            pass  # Something else in braces.
    return Result(summary=printable(printed, longest_chars=LONGEST_PRINTED_SUMMARY_CHARS))


def _result_document(place: Workplace) -> bytes:
    """What is in the result file, if it is a file: not a link to one, nor a pipe that blocks."""
    try:
        descriptor = os.open(place.result_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise DrafterError(f"the result file can't be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DrafterError("the result file is not a regular file")
        if status.st_size > contract.LARGEST_RESULT_BYTES:
            raise DrafterError(
                f"the result file is larger than {contract.LARGEST_RESULT_BYTES // 2**20} MiB"
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read().strip()
    finally:
        os.close(descriptor)


def _draft(answer: Result, *, patch: str) -> Draft:
    return Draft(
        summary=answer.summary,
        patch=patch,
        questions=answer.questions,
        cost_usd=answer.cost_usd,
        meta=answer.meta,
    )


def _failure(reason: str, finished: Finished) -> DrafterError:
    """The reason on the first line, then the end of what the drafter complained about."""
    tail = printable(finished.stderr, longest_chars=LONGEST_TAIL_CHARS)
    return DrafterError(f"{reason}\n{tail}" if tail else reason)
