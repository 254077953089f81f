"""What `dev` and `demo` share: the environment and the processes of a trial run."""

import secrets
import shlex
import socket
import sys
from dataclasses import dataclass, field
from urllib.parse import quote

from cryptography.fernet import Fernet

from app.cli.common import err
from app.processes import Child
from app.simulator.oauth import CLIENT_ID
from app.simulator.records import WORKSPACE_ID

#: `-P`: a worktree's own `app` must not be taken for ours.
SAMPLE_DRAFTER = (sys.executable, "-P", "-m", "app.drafters.sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Draftgate and a simulated Shortcut on this machine, with secrets made for this run."""

    dsn: str
    service: socket.socket
    simulator: socket.socket
    secret: str = field(default_factory=lambda: secrets.token_hex(24), repr=False)
    token: str = field(default_factory=lambda: secrets.token_hex(24), repr=False)
    #: For the console.
    api_token: str = field(default_factory=lambda: secrets.token_urlsafe(16), repr=False)

    @property
    def service_url(self) -> str:
        return f"http://127.0.0.1:{self.service.getsockname()[1]}"

    @property
    def webhook_url(self) -> str:
        return f"{self.service_url}/webhooks/shortcut"

    @property
    def simulator_url(self) -> str:
        return f"http://127.0.0.1:{self.simulator.getsockname()[1]}"

    @property
    def sign_in_url(self) -> str:
        """Signs in who opens it. What is behind the # is sent to nobody, and so in no log."""
        return f"{self.service_url}/console/login#{quote(self.api_token, safe='')}"

    def environment(self, drafter: tuple[str, ...] = SAMPLE_DRAFTER, **more: str) -> dict[str, str]:
        """What the processes are told."""
        return {
            "DRAFTGATE_DATABASE_URL": self.dsn,
            "DRAFTGATE_SHORTCUT_SECRETS": self.secret,
            "DRAFTGATE_SHORTCUT_API_URL": f"{self.simulator_url}/api/v3",
            "DRAFTGATE_SHORTCUT_API_TOKEN": self.token,
            # The simulated one has no limit unless it is told to.
            "DRAFTGATE_SHORTCUT_REQUESTS_A_MINUTE": "1000000",
            "DRAFTGATE_API_TOKEN": self.api_token,
            "DRAFTGATE_DRAFTER_COMMAND": shlex.join(drafter),
            "DRAFTGATE_LOG_FORMAT": "console",
            **more,
        }

    def agent_app(self) -> dict[str, str]:
        """An agent app that the simulated workspace can install, from here and by itself."""
        return {
            "DRAFTGATE_OAUTH_CLIENT_ID": CLIENT_ID,
            "DRAFTGATE_OAUTH_CLIENT_SECRET": secrets.token_hex(24),
            "DRAFTGATE_OAUTH_TOKEN_KEYS": Fernet.generate_key().decode(),
            "DRAFTGATE_OAUTH_WORKSPACES": WORKSPACE_ID,
            "DRAFTGATE_OAUTH_URL": f"{self.simulator_url}/oauth-authorization-code-flow",
            "DRAFTGATE_PUBLIC_URL": self.service_url,
        }

    def serving(self, *roles: str, environment: dict[str, str]) -> Child:
        """A `serve` on this trial's socket."""
        chosen = [word for role in roles for word in ("--role", role)]
        fd = self.service.fileno()
        return Child(
            arguments=["serve", "--fd", str(fd), *chosen], fds=[fd], environment=environment
        )


def listen(port: int) -> socket.socket:
    """Listens on this port of the loopback, or on any free one if it is taken."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=2048)
    except OSError:
        err.print(f"Port {port} is taken; another one is used.")
        return socket.create_server(("127.0.0.1", 0), backlog=2048)
