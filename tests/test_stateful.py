"""Whatever happens to two stories, in whatever order: the rows stay what the table says."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.db import gate, sessions
from app.db.connect import Connection, Database
from app.db.gate import Bid, Comment
from app.machine import OWNED, READY, TRANSITIONS, Move, Phase, Status
from app.model import Claim, Draft, Story
from tests import shapes
from tests.ladder import DRAFT, LEASE, Ladder, bid
from tests.ladder import ladder as make_ladder
from tests.test_order import start_over

STORIES = (1, 2)
MAX_ATTEMPTS = 3
MAX_CRASHES = 2
NO_TIME = timedelta(0)
CLOSABLE = set(Status) - {Status.CLOSED}
ASKS = Draft(summary="", patch="", questions=("Which format?",))

stories = st.sampled_from(STORIES)
phases = st.sampled_from(Phase)


def owed(kind: str, claim: Claim) -> Comment:
    """What an ending of this claim owes; the key is the claim's alone."""
    key = f"{kind}:{claim.token}:g{claim.generation}"
    return Comment(key=key, kind=kind, text="Some text")


async def complete(conn: Connection, claim: Claim) -> bool:
    return await gate.complete(conn, claim, DRAFT, comment=owed("draft", claim))


async def question(conn: Connection, claim: Claim) -> bool:
    return await gate.question(conn, claim, ASKS, comment=owed("questions", claim))


async def clear(conn: Connection, claim: Claim) -> bool:
    return await gate.clear(conn, claim, Story(sc_id=claim.sc_id, title="Told", description=""))


async def fail(conn: Connection, claim: Claim) -> bool:
    return await gate.fail(conn, claim, error="it broke", comment=owed("failure", claim))


async def release(conn: Connection, claim: Claim, *, failed: bool = True) -> bool:
    return await gate.release(conn, claim, error="it broke", delay=NO_TIME, failed=failed)


async def abandon(conn: Connection, claim: Claim) -> bool:
    return await gate.abandon(conn, claim, reason="the story is archived")


Ending = Callable[[Connection, Claim], Coroutine[Any, Any, bool]]

#: What a worker can do at the end of each phase, by the move that it is.
ENDINGS: dict[Phase, dict[Move, Ending]] = {
    Phase.CLARIFY: {
        Move.CLEAR: clear,
        Move.QUESTION: question,
        Move.RELEASE: release,
        Move.FAIL: fail,
        Move.CLOSE: abandon,
    },
    Phase.DRAFT: {
        Move.COMPLETE: complete,
        Move.QUESTION: question,
        Move.RELEASE: release,
        Move.FAIL: fail,
        Move.CLOSE: abandon,
    },
}
PHASES = {status: phase for phase, status in READY.items()}
#: Those that are known to have been carried out, since they have left a comment.
TOLD = (Move.COMPLETE, Move.QUESTION, Move.FAIL)


@dataclass
class Known:
    """What the test knows of one story's session, by doing the same to it in its head."""

    status: Status | None = None
    generation: int = 0
    attempts: int = 0
    crashes: int = 0
    revision: int = 0
    #: The claim that owns it, whether or not a worker still remembers it.
    owner: Claim | None = None
    #: The claim that was taken last, if its worker has not said yet that its work has ended.
    taken: Claim | None = None
    #: Whether the next claim has to wait for that.
    waits: bool = False
    #: How often that was said.
    confirmed: int = 0
    #: Whether any text is known, so that it goes on by itself.
    has_text: bool = False
    #: How often the story was told that work was stopped.
    stopped: int = 0

    def go(self, move: Move) -> bool:
        """Makes the move if the table has it."""
        after = Status.OPENED if self.status is None else TRANSITIONS[self.status].get(move)
        if after is None:
            return False
        if self.status in OWNED.values():
            self.owner = None
        self.status = after
        return True

    def take(self, move: Move) -> bool:
        """Takes the claim from its worker by this move."""
        taken = self.owner
        if not self.go(move):
            return False
        self.taken, self.waits = taken, True
        self.generation += 1
        return True


class Sessions(RuleBasedStateMachine):
    """Workers, people and accidents, one step at a time."""

    dsn: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ladder: Ladder = self.do(self._connect())
        self.known: dict[int, Known] = {story: Known() for story in STORIES}
        self.remembered: list[Claim] = []
        self.ended: set[tuple[Move, Claim]] = set()
        self.minute = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def _connect(self) -> Ladder:
        database = Database(dsn=self.dsn, listen_dsn=self.dsn, pool_size=1)
        conn = await database.connect("stateful")
        self.pool = database.pool("stateful")
        await self.pool
        ladder = make_ladder(database, self.pool, conn)
        await start_over(ladder)
        return ladder

    def teardown(self) -> None:
        async def disconnect() -> None:
            self.pool.terminate()
            self.conn.terminate()

        self.do(disconnect())
        self.runner.close()

    @property
    def conn(self) -> Connection:
        return self.ladder.conn

    def deliver(self, body: Callable[[int], bytes]) -> None:
        self.minute += 1
        self.do(self.ladder.deliver(body(self.minute)))

    def claims(self, *, live: bool) -> list[Claim]:
        """Those that workers remember, and that are or are not what owns the session."""
        return [
            claim for claim in self.remembered if (self.known[claim.sc_id].owner == claim) is live
        ]

    def standing(self, *status: Status) -> list[int]:
        """The stories whose session stands there."""
        return [story for story in STORIES if self.known[story].status in status]

    def ready(self, *status: Status) -> list[int]:
        """Those of them that may be claimed."""
        return [story for story in self.standing(*status) if not self.known[story].waits]

    def late(self) -> list[Claim]:
        """Those that are lost, and under which nothing was completed."""
        lost = self.claims(live=False)
        return [claim for claim in lost if (Move.COMPLETE, claim) not in self.ended]

    # --- people ------------------------------------------------------------------------------

    @initialize(named=st.booleans())
    def begin(self, named: bool) -> None:
        """The first story has a session from the start."""
        self.label(STORIES[0], named)

    @rule(story=stories, named=st.booleans())
    def label(self, story: int, named: bool) -> None:
        """The story gets the label, with a title in the delivery or without."""
        known = self.known[story]
        self.deliver(
            lambda minute: shapes.labelled(
                story, minute=minute, name=f"Story {story}" if named else ""
            )
        )
        known.has_text |= named
        if known.status in (None, Status.CLOSED):
            self._moved(known, Move.OPEN)
            self._goes_on(known)

    def _goes_on(self, known: Known) -> None:
        if known.status is Status.OPENED and known.has_text:
            self._moved(known, Move.CLEAR)

    def _moved(self, known: Known, move: Move, *, by_command: bool = False) -> None:
        """A fact makes the move; counts begin anew where the status changes."""
        before, owned = known.status, known.status in OWNED.values()
        if known.take(move) if owned else known.go(move):
            known.stopped += move is Move.CLOSE and (owned or by_command)
            if known.status is not before:
                known.attempts = known.crashes = 0

    @rule(story=stories)
    def archive(self, story: int) -> None:
        """The story is archived: the session is closed, and its worker has lost it."""
        self.deliver(lambda minute: shapes.archived(story, minute=minute))
        known = self.known[story]
        known.has_text = True  # The delivery names the story.
        if known.status is not None:
            self._moved(known, Move.CLOSE)

    @rule(
        story=stories,
        said=st.sampled_from([None, Move.CLEAR, Move.RETRY, Move.REVISE, Move.CLOSE]),
    )
    def comment(self, story: int, said: Move | None) -> None:
        """Somebody says something, or one of the commands."""
        words = {
            None: "In euros.",
            Move.CLEAR: "/draft",
            Move.RETRY: "/retry",
            Move.REVISE: "/revise Shorter.",
            Move.CLOSE: "/stop",
        }
        known = self.known[story]
        self.deliver(
            lambda minute: shapes.commented(
                story, minute=minute, text=words[said], comment=100 + minute, title=""
            )
        )
        if known.status is None or known.status is Status.CLOSED:
            return
        if said is not None:
            self._moved(known, said, by_command=True)
        elif known.status is Status.CLARIFYING:
            self._moved(known, Move.ANSWER)
            self._goes_on(known)

    @precondition(lambda self: self.standing(Status.FAILED))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """An operator has a failed session tried again, with fresh budgets."""
        story = data.draw(st.sampled_from(self.standing(Status.FAILED)))
        assert self.do(sessions.retry(self.conn, self._session_id(story), actor="operator"))
        known = self.known[story]
        assert known.go(Move.RETRY)
        known.generation += 1
        known.attempts = known.crashes = 0

    @precondition(lambda self: self.standing(*OWNED.values()))
    @rule(data=st.data())
    def take_away(self, data: st.DataObject) -> None:
        """An operator takes a session from its worker."""
        story = data.draw(st.sampled_from(self.standing(*OWNED.values())))
        assert self.do(sessions.take_away(self.conn, self._session_id(story), actor="operator"))
        assert self.known[story].take(Move.RELEASE)

    @precondition(lambda self: self.standing(*CLOSABLE))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """An operator closes a session, whoever owns it."""
        story = data.draw(st.sampled_from(self.standing(*CLOSABLE)))
        assert self._by_hand(sessions.close, story)
        known = self.known[story]
        if known.status in OWNED.values():
            assert known.take(Move.CLOSE)
        else:
            assert known.go(Move.CLOSE)
            known.generation += 1

    @precondition(lambda self: self.standing(Status.CLOSED))
    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        """An operator opens a closed session again, with fresh budgets."""
        story = data.draw(st.sampled_from(self.standing(Status.CLOSED)))
        assert self._by_hand(sessions.reopen, story)
        known = self.known[story]
        assert known.go(Move.OPEN)
        known.generation += 1
        known.attempts = known.crashes = 0
        if known.has_text:
            assert known.go(Move.CLEAR)

    def _by_hand(self, act: Callable[..., Coroutine[Any, Any, bool]], story: int) -> bool:
        """An operator decides after what was delivered so far, and before what comes next."""
        self.minute += 1
        at = shapes.START + timedelta(minutes=self.minute)
        session_id = self._session_id(story)

        async def decide() -> bool:
            async with self.conn.transaction():
                await self.conn.execute(f"set local draftgate.now = '{at}'")
                return await act(self.conn, session_id, actor="operator")

        return self.do(decide())

    @precondition(lambda self: self.late())
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        """An operator hands over what a worker made that had lost its claim."""
        late = data.draw(st.sampled_from(self.late()))
        known = self.known[late.sc_id]
        self.do(gate.keep_late_result(self.conn, late, DRAFT))
        ids = (late.session_id, late.generation)
        done = self.do(gate.adopt(self.conn, *ids, actor="operator", comment=owed("adopted", late)))
        can = (Move.ADOPT, late) not in self.ended
        assert done == (can and known.status is not None and known.go(Move.ADOPT))
        if done:
            self.ended.add((Move.ADOPT, late))
            known.generation += 1
            known.revision += 1
            known.attempts = known.crashes = 0

    def _session_id(self, story: int) -> int:
        statement = "select id from patch_sessions where sc_id = $1"
        return self.do(self.conn.fetchval(statement, story))

    # --- workers -----------------------------------------------------------------------------

    @precondition(lambda self: self.ready(*READY.values()))
    @rule(data=st.data(), answered=st.booleans())
    def claim(self, data: st.DataObject, answered: bool) -> None:
        """A worker asks for a story that is ready; the answer may be lost."""
        story = data.draw(st.sampled_from(self.ready(*READY.values())))
        phase = PHASES[self.known[story].status]
        self._claim(
            lambda asked: gate.claim(self.conn, phase, asked, workspace="shortcut", sc_id=story),
            answered,
            ready=[story],
        )

    @rule(story=stories, phase=phases)
    def claim_in_vain(self, story: int, phase: Phase) -> None:
        """A worker asks for a story that is not ready, or not yet, and gets nothing."""
        if story in self.ready(READY[phase]):
            return
        asked = gate.claim(self.conn, phase, bid(), workspace="shortcut", sc_id=story)
        assert self.do(asked) is None

    @rule(phase=phases, answered=st.booleans())
    def claim_next(self, phase: Phase, answered: bool) -> None:
        """A worker asks for whatever is ready; the answer may be lost."""
        self._claim(
            lambda asked: gate.claim_next(self.conn, phase, asked),
            answered,
            ready=self.ready(READY[phase]),
        )

    def _claim(
        self, ask: Callable[[Bid], Coroutine[Any, Any, Claim | None]], answered: bool, *, ready
    ) -> None:
        asked = bid()
        won: Claim | None = self.do(ask(asked))
        found: Claim | None = self.do(gate.held(self.conn, asked.token))
        assert found == won
        if not answered:
            won = found
        assert (won is not None) == bool(ready)
        if won is None:
            return
        known = self.known[won.sc_id]
        assert won.sc_id in ready
        assert known.go(Move.ASK if won.phase is Phase.CLARIFY else Move.CLAIM)
        known.generation += 1
        known.owner = won
        assert (won.generation, won.attempt) == (known.generation, known.attempts + 1)
        self.remembered.append(won)

    @precondition(lambda self: self.claims(live=True))
    @rule(data=st.data(), progressed=st.booleans())
    def beat(self, data: st.DataObject, progressed: bool) -> None:
        """A worker that owns a session prolongs its claim, with a sign of life or without."""
        claim = data.draw(st.sampled_from(self.claims(live=True)))
        assert self.do(gate.beat(self.conn, claim, lease=LEASE, progressed=progressed))

    @precondition(lambda self: self.claims(live=True))
    @rule(data=st.data(), answered=st.booleans())
    def end(self, data: st.DataObject, answered: bool) -> None:
        """A worker ends its claim; if the answer is lost, it asks for the same again."""
        self._end(data.draw(st.sampled_from(self.claims(live=True))), data, answered)

    @precondition(lambda self: self.ready(*READY.values()))
    @rule(data=st.data(), answered=st.booleans())
    def work(self, data: st.DataObject, answered: bool) -> None:
        """A worker claims what is ready and does its work, with nothing in between."""
        self.claim(data, answered)
        self._end(self.remembered[-1], data, answered)

    def _end(self, claim: Claim, data: st.DataObject, answered: bool) -> None:
        known = self.known[claim.sc_id]
        move = data.draw(st.sampled_from(list(ENDINGS[claim.phase])))
        if move is Move.RELEASE and claim.attempt >= MAX_ATTEMPTS:
            move = Move.FAIL
        end = ENDINGS[claim.phase][move]
        assert self.do(end(self.conn, claim))
        if not answered:
            assert self.do(end(self.conn, claim)) == (move in TOLD)
        assert known.go(move)
        self._count(known, claim, move)

    def _count(self, known: Known, claim: Claim, move: Move) -> None:
        self.ended.add((move, claim))
        known.revision += move is Move.COMPLETE
        known.generation += move is Move.CLOSE
        known.attempts += move in (Move.RELEASE, Move.FAIL)
        if move in (Move.COMPLETE, Move.QUESTION, Move.CLEAR):
            known.attempts = known.crashes = 0
        known.has_text |= move is Move.CLEAR

    @precondition(lambda self: self.claims(live=True))
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        """A worker that is shut down gives its session back, which costs nothing."""
        claim = data.draw(st.sampled_from(self.claims(live=True)))
        assert self.do(release(self.conn, claim, failed=False))
        assert self.known[claim.sc_id].go(Move.RELEASE)

    @precondition(lambda self: self.remembered)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """A worker dies, and whatever it owned is nobody's to end."""
        self.remembered.remove(data.draw(st.sampled_from(self.remembered)))

    @precondition(lambda self: self.claims(live=False))
    @rule(data=st.data())
    def zombie(self, data: st.DataObject) -> None:
        """A worker that has lost its claim tries everything, and nothing of it counts."""
        claim = data.draw(st.sampled_from(self.claims(live=False)))
        before = self.do(self._everything())
        assert not self.do(gate.beat(self.conn, claim, lease=LEASE))
        for move, end in (ENDINGS[Phase.CLARIFY] | ENDINGS[Phase.DRAFT]).items():
            accepted = self.do(end(self.conn, claim))
            assert accepted == (move in TOLD and (move, claim) in self.ended)
        assert self.do(self._everything()) == before

    @precondition(lambda self: self.claims(live=False))
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        """A worker that has lost its claim has ended its work, and says so, once."""
        claim = data.draw(st.sampled_from(self.claims(live=False)))
        self.do(gate.confirm_stopped(self.conn, claim))
        known = self.known[claim.sc_id]
        if known.taken == claim:
            known.confirmed += 1
            known.taken, known.waits = None, False

    @rule(story=stories)
    def wait(self, story: int) -> None:
        """Whoever lost a claim must have ended its work by now, and may say so still."""
        self.do(self.ladder.stop_waiting(story))
        self.known[story].waits = False

    @rule(lapsed=st.sets(stories))
    def expire(self, lapsed: set[int]) -> None:
        """Some leases run out, and the sweep takes those claims back, and no others."""
        self.do(self._lapse(lapsed))
        owned = [story for story in self.standing(*OWNED.values()) if story in lapsed]
        rows = self.do(self._sweep())
        assert sorted(row["sc_id"] for row in rows) == owned
        for story in owned:
            known = self.known[story]
            known.crashes += 1
            assert known.take(Move.FAIL if known.crashes >= MAX_CRASHES else Move.EXPIRE)
            known.waits = False

    async def _lapse(self, lapsed: set[int]) -> None:
        await self.conn.execute(
            "update patch_sessions set claim_expires_at = now() - interval '1 second'"
            " where claim_token is not null and sc_id = any($1)",
            list(lapsed),
        )

    async def _sweep(self) -> list[Any]:
        return await gate.expire(
            self.conn, limit=10, max_crashes=MAX_CRASHES, delay=NO_TIME, error="gone", text="No"
        )

    async def _everything(self) -> list[Any]:
        tables = ("patch_sessions", "timeline", "drafts", "outbox", "late_results")
        return [await self.conn.fetch(f"select * from {table}") for table in tables]  # noqa: S608

    # --- what always holds -------------------------------------------------------------------

    @invariant()
    def rows_are_what_is_known(self) -> None:
        """Status, generation and counts are those of the table; budgets hold."""
        rows = self.do(self.conn.fetch("select * from patch_sessions order by sc_id"))
        assert {row["sc_id"] for row in rows} == {
            story for story, known in self.known.items() if known.status is not None
        }
        for row in rows:
            known = self.known[row["sc_id"]]
            counted = (row["claim_generation"], row["attempts"], row["crashes"], row["revision"])
            assert row["status"] == known.status
            assert counted == (known.generation, known.attempts, known.crashes, known.revision)
            assert row["attempts"] <= MAX_ATTEMPTS
            assert row["crashes"] <= MAX_CRASHES

    @invariant()
    def one_owner(self) -> None:
        """Of all claims that were ever made for a session, at most one is good: the newest."""
        held = [(claim.session_id, claim.generation) for claim in self.remembered]
        lost = self.do(gate.lost(self.conn, held))
        good = [claim for n, claim in enumerate(self.remembered) if n not in lost]
        assert good == self.claims(live=True)

    @invariant()
    def the_timeline_agrees(self) -> None:
        """Each move in it leads where the table says, and the last one to where the row is."""
        told = self.do(
            self.conn.fetch(
                "select session.sc_id, session.status as now, move, told.status, generation"
                " from timeline as told join patch_sessions as session on session.id = session_id"
                " order by told.id"
            )
        )
        for story in STORIES:
            status, generation = None, 0
            mine = [row for row in told if row["sc_id"] == story and row["move"] != "stopped"]
            for row in mine:
                moves = {Move.OPEN: Status.OPENED} if status is None else TRANSITIONS[status]
                assert moves[Move(row["move"])] == row["status"]
                assert row["generation"] >= generation
                status, generation = Status(row["status"]), row["generation"]
            assert status == self.known[story].status
        confirmed = sum(known.confirmed for known in self.known.values())
        assert confirmed == len([row for row in told if row["move"] == "stopped"])

    @invariant()
    def what_belongs_together_is_there_together(self) -> None:
        """Drafts, completions, revisions and comments that are owed agree."""
        row = self.do(
            self.conn.fetchrow(
                """
                select (select count(*) from drafts) as drafts,
                       (select coalesce(sum(revision), 0) from patch_sessions) as revisions,
                       (select count(*) from timeline where move in ('complete', 'adopt')) as made,
                       (select count(*) from outbox) as owed,
                       (select count(*) from timeline
                         where move in ('complete', 'adopt', 'question', 'fail')) as told
                """
            )
        )
        assert row["drafts"] == row["revisions"] == row["made"]
        stopped = sum(known.stopped for known in self.known.values())
        assert row["owed"] == row["told"] + stopped

    @invariant()
    def nothing_is_stranded(self) -> None:
        """What is ready is found by a pull, what is owned by the sweep; the rest has a way out."""
        for found, status in self.do(self._found()):
            assert sorted(found) == self.standing(*status)
        assert all(TRANSITIONS[known.status] for known in self.known.values() if known.status)

    async def _found(self) -> list[tuple[list[int], set[Status]]]:
        """What each scan finds, once its time has come; nothing of it is kept."""
        found: list[tuple[list[int], set[Status]]] = []
        transaction = self.conn.transaction()
        await transaction.start()
        try:
            await self._lapse(set(STORIES))
            swept = [row["sc_id"] for row in await self._sweep()]
            found.append((swept, set(OWNED.values())))
            await transaction.rollback()
            transaction = self.conn.transaction()
            await transaction.start()
            for story in STORIES:
                await self.ladder.stop_waiting(story)
            for phase in Phase:
                pulled = []
                while claim := await gate.claim_next(self.conn, phase, bid()):
                    pulled.append(claim.sc_id)
                found.append((pulled, {READY[phase]}))
        finally:
            await transaction.rollback()
        return found


def test_rows_stay_what_the_table_says(dsn: str) -> None:
    """Any sequence of claims, endings, expiries, crashes, words and accidents keeps the rules."""

    class OnThisDatabase(Sessions):
        pass

    OnThisDatabase.dsn = dsn
    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            derandomize="CI" in os.environ,
            suppress_health_check=list(HealthCheck),
        ),
    )
