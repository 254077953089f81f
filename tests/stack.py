"""Real processes: receivers, workers, proxies; with a simulated Shortcut in the test's own."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from app.cli.simulate import serve_app
from app.cli.trial import SAMPLE_DRAFTER, Trial, listen
from app.db.connect import Database
from app.model import Rewritten
from app.processes import Child, argv
from app.send import Report, send
from app.simulator.records import AGENT
from app.simulator.server import create_simulator
from app.simulator.simulation import Simulation

STANDING = f"draftgate:{Rewritten.STANDING}:"
DEPLOY = Path(__file__).parent.parent / "deploy"


def free_port() -> int:
    """A port that nobody listens on."""
    with listen(0) as front:
        return int(front.getsockname()[1])


class Stack:
    """All processes of one test, and the simulated workspace that they work for."""

    def __init__(self, trial: Trial, simulation: Simulation, home: Path) -> None:
        self.trial = trial
        self.simulation = simulation
        self.home = home
        self._running: list[asyncio.subprocess.Process] = []
        self.drafter: tuple[str, ...] = SAMPLE_DRAFTER
        self.settings: dict[str, str] = {}

    async def start(self, *arguments: str, fd: int | None = None) -> asyncio.subprocess.Process:
        """Starts `draftgate` with these arguments; its log is `log` in the home directory."""
        environment = self.trial.environment(self.drafter, **self.settings)
        child = Child(arguments=arguments, fds=[] if fd is None else [fd])
        return await self.run(*argv(child.arguments), environment=environment, fds=child.fds)

    async def run(self, *command: str, environment=None, fds=()) -> asyncio.subprocess.Process:
        """Starts any program, which ends with the test."""
        with (self.home / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, "DRAFTGATE_STATE_DIR": str(self.home), **(environment or {})},
                pass_fds=fds,
                stdout=log,
                stderr=log,
            )
        self._running.append(process)
        return process

    async def receiver(self) -> asyncio.subprocess.Process:
        """A receiver on the trial's socket, which all receivers share."""
        fd = self.trial.service.fileno()
        return await self.start("serve", "--role", "receiver", "--fd", str(fd), fd=fd)

    async def receiver_on(self, listener: socket.socket) -> asyncio.subprocess.Process:
        """A receiver with a socket of its own."""
        fd = listener.fileno()
        return await self.start("serve", "--role", "receiver", "--fd", str(fd), fd=fd)

    async def worker(self) -> asyncio.subprocess.Process:
        """A worker."""
        return await self.start("worker")

    async def nginx(
        self, program: str, ports: list[int], edit: Callable[[str], str] = lambda site: site
    ) -> int:
        """nginx with the configuration that is shipped, in front of these; the port it has."""
        port = free_port()
        servers = "".join(f"server 127.0.0.1:{p} max_fails=0;\n" for p in ports)
        upstream = re.sub(r"server .*;\n", "", (DEPLOY / "nginx/upstream.conf").read_text())
        upstream = upstream.replace("upstream draftgate {\n", f"upstream draftgate {{\n{servers}")
        site = (DEPLOY / "nginx/draftgate.conf").read_text()
        site = edit(site).replace("listen 80", f"listen {port}")
        paths = "".join(
            f"{kind}_temp_path {self.home}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = self.home / "nginx.conf"
        config.write_text(
            f"user root; daemon off; master_process off; pid {self.home}/nginx.pid;\n"
            f"error_log {self.home}/nginx.log;\nevents {{ worker_connections 512; }}\n"
            f"http {{ access_log off;\n{paths}{upstream}{site}}}\n"
        )
        await self.run(program, "-e", f"{self.home}/nginx.log", "-c", str(config))
        return port

    async def caddy(self, program: str, ports: list[int]) -> int:
        """Caddy with the configuration that is shipped, in front of these; the port it has.

        It speaks TLS as `localhost`, with a certificate of its own making.
        """
        port = free_port()
        site = (DEPLOY / "caddy/Caddyfile").read_text()
        own = "admin off\n\tlocal_certs\n\tskip_install_trust\n\tauto_https disable_redirects\n"
        config = self.home / "Caddyfile"
        config.write_text(site.replace("{\n", f"{{\n\t{own}", 1))
        environment = {
            "DRAFTGATE_SITE": f"https://localhost:{port}",
            "DRAFTGATE_UPSTREAMS": " ".join(f"127.0.0.1:{p}" for p in ports),
            "XDG_DATA_HOME": str(self.home),
        }
        command = (program, "run", "--config", str(config), "--adapter", "caddyfile")
        await self.run(*command, environment=environment)
        return port

    async def send(self, body: bytes, *, copies: int, concurrency: int, port: int) -> Report:
        """Posts copies of one delivery."""
        url = f"http://127.0.0.1:{port}/webhooks/shortcut"
        secret = self.trial.secret.encode()
        return await send(url, [body], secret=secret, repeat=copies, concurrency=concurrency)

    def comments(self) -> list[str]:
        """What the bot has said on stories, without where they stand."""
        ours = (c for c in self.simulation.workspace.comments.values() if c.author_id == AGENT.id)
        return [it.text for it in ours if not (it.external_id or "").startswith(STANDING)]

    def log(self) -> str:
        """What the processes have logged so far."""
        return (self.home / "log").read_text()

    async def end(self) -> None:
        """Kills what still runs."""
        for process in self._running:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
            await process.wait()


@asynccontextmanager
async def stack(database: Database, home: Path, **simulated: object) -> AsyncIterator[Stack]:
    """A simulated workspace and whatever a test starts beside it, which logs no traceback."""
    stopping = asyncio.Event()
    async with AsyncExitStack() as closing:
        service, simulator = (closing.enter_context(listen(0)) for _ in range(2))
        trial = Trial(dsn=database.dsn, service=service, simulator=simulator)
        app = create_simulator(
            webhook_url=trial.webhook_url,
            secret=trial.secret,
            api_token=trial.token,
            seeded=False,
            **simulated,  # type: ignore[arg-type]
        )
        serving = asyncio.create_task(serve_app(app, simulator, stopping))
        it = Stack(trial, app.state.simulation, home)
        it.settings["DRAFTGATE_LISTEN_DATABASE_URL"] = database.listen_dsn
        it.settings["DRAFTGATE_DATABASE_STATEMENT_CACHE"] = str(database.statement_cache_size)
        try:
            yield it
        finally:
            await it.end()
            stopping.set()
            await serving
    assert "Traceback" not in it.log()
