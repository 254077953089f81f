"""The ladder of fixtures: a delivery, recorded, applied, claimed; each step by the front door."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg

from app.db import events, gate
from app.db.connect import Connection, Database, Pool
from app.db.gate import Bid, Comment
from app.decide import Rules
from app.machine import Phase, Status
from app.model import Claim, Draft
from app.shortcut.client import ShortcutClient
from app.shortcut.envelope import read
from app.simulator.records import WORKSPACE_ID
from app.wake import Bell
from app.worker.apply import Applier
from app.worker.workspaces import Workspaces
from tests import shapes

LEASE = timedelta(seconds=60)
RULES = Rules(label="patch", bots=frozenset({shapes.BOT}))
#: The workspace of the samples of version 2.
SAMPLED_ID = "6a1001f4-0000-4000-8000-0000000001f4"
DRAFT = Draft(summary="Adds the export.", patch="diff --git a/a b/a\n")


def here(shortcut: ShortcutClient | None = None, *, workspace: str = "shortcut") -> Workspaces:
    """One source, for this workspace; its API is that of the simulated and the sampled one, too."""
    known = (workspace, WORKSPACE_ID, SAMPLED_ID)
    apis = dict.fromkeys(known, shortcut) if shortcut else {}
    return Workspaces(homes={"shortcut": workspace}, apis=apis)


def bid(worker: str = "worker", *, lease: timedelta = LEASE, token: UUID | None = None) -> Bid:
    """What a worker asks for."""
    phase_limit = timedelta(hours=1)
    return Bid(token=token or uuid4(), worker=worker, lease=lease, phase_limit=phase_limit)


def comment(claim: Claim, kind: str = "draft") -> Comment:
    """What an ending of this claim owes."""
    return Comment(key=f"{kind}:{claim.token}:{claim.generation}", kind=kind, text="Some text")


@dataclass(frozen=True, slots=True)
class Ladder:
    """Brings a story's session to where a test begins."""

    pool: Pool
    conn: Connection
    applier: Applier

    async def record(self, *bodies: bytes) -> int:
        """Records deliveries; how many were new."""
        return len(await events.record(self.conn, [read("shortcut", b, []) for b in bodies]))

    async def deliver(self, *bodies: bytes) -> None:
        """Records and applies deliveries, one after the other."""
        for body in bodies:
            await self.record(body)
            await self.apply()

    async def apply(self) -> None:
        """Applies whatever is recorded."""
        while await self.applier.tick() or await self.applier.read_tick():
            pass

    async def clarified(self, story: int = 1) -> None:
        """The story has a session that is ready to be drafted."""
        await self.deliver(shapes.labelled(story))

    async def claimed(self, story: int = 1, worker: str = "worker") -> Claim:
        """A worker is drafting the story."""
        await self.clarified(story)
        return await self.claim(story, worker)

    async def claim(self, story: int = 1, worker: str = "worker") -> Claim:
        """A worker takes the story, which is ready."""
        claim = await gate.claim(
            self.conn, Phase.DRAFT, bid(worker), workspace="shortcut", sc_id=story
        )
        assert claim is not None
        return claim

    async def session(self, story: int = 1) -> asyncpg.Record:
        """The session's row as it is now."""
        row = await self.conn.fetchrow("select * from patch_sessions where sc_id = $1", story)
        assert row is not None
        return row

    async def lapse(self, story: int = 1) -> None:
        """The lease of the story's claim is over, as if its time had passed."""
        await self.conn.execute(
            "update patch_sessions set claim_expires_at = now() - interval '1 second'"
            " where sc_id = $1",
            story,
        )

    async def stop_waiting(self, story: int = 1) -> None:
        """Whoever lost the story's claim must have ended its work, as if its lease had passed."""
        await self.conn.execute(
            "update patch_sessions set stopping_until = now() - interval '1 second'"
            " where stopping_until is not null and sc_id = $1",
            story,
        )

    async def due(self, story: int = 1) -> None:
        """The story's backoff is over, as if its time had passed."""
        await self.conn.execute(
            "update patch_sessions set next_attempt_at = now() where sc_id = $1", story
        )

    async def in_status(self, status: Status, story: int = 1) -> Claim | None:
        """The story's session stands there; the claim where it is owned."""
        return await _WAYS[status](self, story)


def ladder(database: Database, pool: Pool, conn: Connection) -> Ladder:
    """A ladder on this database."""
    return Ladder(pool, conn, Applier(pool, RULES, here(), Bell(database)))


async def _opened(ladder: Ladder, story: int) -> None:
    await ladder.deliver(shapes.labelled(story, name=""))


async def _asking(ladder: Ladder, story: int) -> Claim | None:
    await _opened(ladder, story)
    return await gate.claim(ladder.conn, Phase.CLARIFY, bid(), workspace="shortcut", sc_id=story)


async def _clarifying(ladder: Ladder, story: int) -> None:
    claim = await ladder.claimed(story)
    draft = Draft(summary="", patch="", questions=("Which format?",))
    assert await gate.question(ladder.conn, claim, draft, comment=comment(claim, "questions"))


async def _drafted(ladder: Ladder, story: int) -> None:
    claim = await ladder.claimed(story)
    assert await gate.complete(ladder.conn, claim, DRAFT, comment=comment(claim))


async def _failed(ladder: Ladder, story: int) -> None:
    claim = await ladder.claimed(story)
    assert await gate.fail(ladder.conn, claim, error="it broke", comment=comment(claim, "failure"))


async def _closed(ladder: Ladder, story: int) -> None:
    await ladder.deliver(shapes.labelled(story), shapes.archived(story, minute=2))


_WAYS: dict[Status, Callable[[Ladder, int], Awaitable[Claim | None]]] = {
    Status.OPENED: _opened,
    Status.ASKING: _asking,
    Status.CLARIFYING: _clarifying,
    Status.CLARIFIED: Ladder.clarified,
    Status.DRAFTING: Ladder.claimed,
    Status.DRAFTED: _drafted,
    Status.FAILED: _failed,
    Status.CLOSED: _closed,
}
