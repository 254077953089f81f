"""Runs git so that nothing but the arguments decides what it does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.drafters import process
from app.drafters.contract import printable
from app.drafters.process import UNLIMITED, Limits, Spares
from app.errors import DrafterError

LONGEST_REASON_CHARS = 500

#: The command line outranks every configuration file.
SAFE = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "protocol.allow": "never",
    "protocol.file.allow": "always",
    "protocol.http.allow": "always",
    "protocol.https.allow": "always",
    "protocol.ssh.allow": "always",
    "submodule.recurse": "false",
    "advice.addEmbeddedRepo": "false",
    # Clones borrow the mirror's objects, so none may ever go; and no process may stay behind.
    "gc.pruneExpire": "never",
    "gc.autoDetach": "false",
    "maintenance.autoDetach": "false",
}
#: What is not taken from the service's own environment.
ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": str(Path(__file__).with_name("gitconfig")),
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "LC_ALL": "C",
}
#: How git reaches a remote: proxies, certificates, the ssh agent.
PASSED_ON = frozenset(
    [
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    ]
)
_LEAVING = frozenset([".", "..", ".git"])
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def git_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What git needs of the service's environment; no GIT_ variable and no secret."""
    return {name: value for name, value in environ.items() if name in PASSED_ON}


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """git with one environment and one limit of time."""

    environment: Mapping[str, str]
    timeout_seconds: float
    hold: tuple[int, ...] = field(default=())
    spares: Spares | None = None

    async def __call__(
        self,
        *arguments: str | Path,
        cwd: Path,
        variables: Mapping[str, str] | None = None,
        limits: Limits = UNLIMITED,
    ) -> bytes:
        """What the git command prints; raises DrafterError with what it complained about."""
        safe = [part for key, value in SAFE.items() for part in ("-c", f"{key}={value}")]
        verb = arguments[0]
        ceiling = {"GIT_CEILING_DIRECTORIES": str(cwd.parent)}
        finished = await process.run(
            ["git", *safe, *map(str, arguments)],
            cwd=cwd,
            environment={**self.environment, **ENVIRONMENT, **ceiling, **(variables or {})},
            timeout_seconds=self.timeout_seconds,
            limits=limits,
            hold=self.hold,
            spares=self.spares,
        )
        if finished.code is None:
            raise DrafterError(f"git {verb} took longer than {self.timeout_seconds:g} s")
        if finished.code != 0:
            raise DrafterError(f"git {verb} failed: {_reason(finished.stderr, finished.code)}")
        if finished.stdout_dropped_bytes:
            raise DrafterError(f"git {verb} printed more than is kept of it")
        return finished.stdout

    async def check_patch(self, patch: str, scratch: Path) -> None:
        """Raises DrafterError unless the patch can be read and stays inside the tree."""
        file = scratch / "patch"
        file.write_bytes(patch.encode())
        listed = await self("apply", "--numstat", "-z", "--", file, cwd=scratch)
        for entry in listed.split(b"\0"):
            path = entry.split(b"\t", 2)[-1].decode(errors="replace")
            if path.startswith("/") or not _LEAVING.isdisjoint(path.lower().split("/")):
                raise DrafterError(f"the patch leaves the tree: {path!r}")


def _reason(stderr: bytes, code: int) -> str:
    text = _CREDENTIALS.sub("***@", printable(stderr, longest_chars=LONGEST_REASON_CHARS))
    return " ".join(text.split()) or f"exit code {code}"
