"""A sender, and a simulated workspace that it sends to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.cli.simulate import serve_app
from app.cli.trial import listen
from app.db import gate
from app.db.connect import Pool
from app.shortcut.client import ShortcutClient
from app.simulator.faults import Fault
from app.simulator.records import AGENT, PEOPLE
from app.simulator.server import create_simulator
from app.simulator.simulation import Simulation
from app.worker.outbox import Sender
from tests import shapes
from tests.ladder import DRAFT, Ladder, comment, here

TOKEN = "a-token-of-tests-only"


@dataclass(frozen=True, slots=True)
class Office:
    """A sender, and the workspace that it posts to."""

    simulation: Simulation
    shortcut: ShortcutClient
    sender: Sender
    ladder: Ladder
    story: int

    def comments(self) -> list[str]:
        """What we have said on stories."""
        said = self.simulation.workspace.comments.values()
        return [it.text for it in said if it.author_id == AGENT.id]

    async def owe(self) -> None:
        """A drafted session, and so a comment that is owed."""
        await self.ladder.deliver(shapes.labelled(self.story))
        claim = await self.ladder.claim(self.story)
        assert await gate.complete(self.ladder.conn, claim, DRAFT, comment=comment(claim))

    async def row(self, kind: str = "draft"):
        """The outbox's only row of the kind."""
        (row,) = await self.ladder.conn.fetch("select * from outbox where kind = $1", kind)
        return row

    async def due(self) -> None:
        """The wait before the next try is over."""
        await self.ladder.conn.execute("update outbox set next_attempt_at = now()")

    def fault(self, **fault: object) -> None:
        """The next request that it fits goes wrong."""
        self.simulation.faults.pending.append(Fault(**fault))


@asynccontextmanager
async def simulated() -> AsyncIterator[tuple[Simulation, str]]:
    """A simulated workspace with its API on a real port."""
    stopping = asyncio.Event()
    app = create_simulator(webhook_url=None, secret="", api_token=TOKEN, seeded=False)
    with listen(0) as listener:
        serving = asyncio.create_task(serve_app(app, listener, stopping))
        try:
            yield app.state.simulation, f"http://127.0.0.1:{listener.getsockname()[1]}/api/v3"
        finally:
            stopping.set()
            await serving


@asynccontextmanager
async def office_of(ladder: Ladder, pool: Pool) -> AsyncIterator[Office]:
    """A sender with a comment that is owed to a story that exists."""
    async with (
        simulated() as (simulation, url),
        ShortcutClient(url, TOKEN, deadline_seconds=3) as shortcut,
    ):
        story = simulation.workspace.create_story(PEOPLE[0], {"name": "Export"}).id
        sender = Sender(name="sender", pool=pool, workspaces=here(shortcut))
        made = Office(simulation, shortcut, sender, ladder, story)
        await made.owe()
        yield made
