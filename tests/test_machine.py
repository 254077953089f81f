"""The table, the drawing, the CHECKs and the SQL say the same."""

from datetime import timedelta

import asyncpg
import pytest

from app.db import gate, sessions
from app.machine import OWNED, READY, TRANSITIONS, Move, Phase, Status, as_mermaid
from app.model import Claim, Story
from tests import shapes
from tests.ladder import DRAFT, Ladder, bid, comment

STORY = Story(sc_id=1, title="Story 1", description="")


async def _open(ladder: Ladder, claim: Claim) -> None:
    await ladder.conn.execute("update patch_sessions set title = null")
    await ladder.deliver(shapes.labelled(1, minute=30, name=""))


async def _ask(ladder: Ladder, claim: Claim) -> None:
    await gate.claim(ladder.conn, Phase.CLARIFY, bid(), workspace="shortcut", sc_id=1)


async def _question(ladder: Ladder, claim: Claim) -> None:
    await gate.question(ladder.conn, claim, DRAFT, comment=comment(claim, "q"))


async def _answer(ladder: Ladder, claim: Claim) -> None:
    await ladder.conn.execute("update patch_sessions set title = null")
    await ladder.deliver(shapes.commented(1, minute=30, text="CSV", comment=7, title=""))


async def _clear(ladder: Ladder, claim: Claim) -> None:
    if not await gate.clear(ladder.conn, claim, STORY):
        await ladder.deliver(shapes.commented(1, minute=30, text="/draft", comment=8))


async def _claim(ladder: Ladder, claim: Claim) -> None:
    await gate.claim(ladder.conn, Phase.DRAFT, bid(), workspace="shortcut", sc_id=1)


async def _complete(ladder: Ladder, claim: Claim) -> None:
    await gate.complete(ladder.conn, claim, DRAFT, comment=comment(claim, "again"))


async def _release(ladder: Ladder, claim: Claim) -> None:
    how = {"error": "it broke", "delay": timedelta(0), "failed": True}
    await gate.release(ladder.conn, claim, **how)


async def _expire(ladder: Ladder, claim: Claim) -> None:
    await ladder.conn.execute(
        "update patch_sessions set claim_expires_at = now() where claim_token is not null"
    )
    how = {"limit": 9, "max_crashes": 9, "delay": timedelta(0), "error": "gone", "text": "No"}
    await gate.expire(ladder.conn, **how)


async def _fail(ladder: Ladder, claim: Claim) -> None:
    await gate.fail(ladder.conn, claim, error="it broke", comment=comment(claim, "f"))


async def _revise(ladder: Ladder, claim: Claim) -> None:
    await ladder.deliver(shapes.commented(1, minute=30, text="/revise Shorter.", comment=9))


async def _adopt(ladder: Ladder, claim: Claim) -> None:
    await gate.keep_late_result(ladder.conn, claim, DRAFT)
    owed = comment(claim, "adopted")
    ids = (claim.session_id, claim.generation)
    await gate.adopt(ladder.conn, *ids, actor="operator", comment=owed)


async def _retry(ladder: Ladder, claim: Claim) -> None:
    await sessions.retry(ladder.conn, claim.session_id, actor="operator")


async def _close(ladder: Ladder, claim: Claim) -> None:
    await ladder.deliver(shapes.archived(1, minute=30))


DO = {
    Move.OPEN: _open,
    Move.ASK: _ask,
    Move.QUESTION: _question,
    Move.ANSWER: _answer,
    Move.CLEAR: _clear,
    Move.CLAIM: _claim,
    Move.COMPLETE: _complete,
    Move.RELEASE: _release,
    Move.EXPIRE: _expire,
    Move.FAIL: _fail,
    Move.REVISE: _revise,
    Move.ADOPT: _adopt,
    Move.RETRY: _retry,
    Move.CLOSE: _close,
}


async def claim_like(ladder: Ladder) -> Claim:
    """A claim on the row as it stands, whoever owns it: only its status can refuse a move."""
    row = await ladder.session()
    return Claim(
        session_id=row["id"],
        generation=row["claim_generation"],
        token=bid().token,
        phase=Phase.DRAFT,
        worker="worker",
        workspace="shortcut",
        sc_id=1,
        title=None,
        app_url=None,
        description=None,
        revision=row["revision"],
        rounds=0,
        attempt=1,
    )


@pytest.mark.parametrize("move", Move)
@pytest.mark.parametrize("status", Status)
async def test_sql_agrees_with_the_table(ladder, status, move):
    """Every pair of status and move does in PostgreSQL what the table says."""
    await ladder.in_status(status)
    claim = await claim_like(ladder)

    await DO[move](ladder, claim)

    assert (await ladder.session())["status"] == TRANSITIONS[status].get(move, status)


@pytest.mark.parametrize("status", Status)
async def test_the_database_ties_claims_to_owned_statuses(ladder, status):
    """No row can be owned without a claim, or have a claim without being owned."""
    await ladder.in_status(status)
    owned = status in OWNED.values()
    change = "claim_token = null" if owned else "claim_token = gen_random_uuid()"

    with pytest.raises(asyncpg.CheckViolationError):
        await ladder.conn.execute(f"update patch_sessions set {change}")  # noqa: S608


async def test_the_database_knows_the_statuses_of_the_table(ladder):
    """The CHECK lists the statuses of the table, and no others."""
    definition = await ladder.conn.fetchval(
        "select pg_get_constraintdef(oid) from pg_constraint"
        " where conname = 'session_status_is_known'"
    )

    named = {word for word in definition.split("'") if word.isalpha() and word.islower()}

    assert named - {"text"} == set(Status)


def test_a_phase_claims_what_is_ready_and_owns_it():
    """Each phase's claim is a move of the table, from its ready to its owned status."""
    for phase, move in ((Phase.CLARIFY, Move.ASK), (Phase.DRAFT, Move.CLAIM)):
        assert TRANSITIONS[READY[phase]][move] == OWNED[phase]


def test_what_is_owned_goes_back_to_where_it_was_claimed():
    """Release and expiry restore the prior status."""
    for phase in Phase:
        assert TRANSITIONS[OWNED[phase]][Move.RELEASE] == READY[phase]
        assert TRANSITIONS[OWNED[phase]][Move.EXPIRE] == READY[phase]


def test_every_status_can_be_left():
    """No session is stranded: from every status there is a move, also from closed."""
    assert all(TRANSITIONS[status] for status in Status)


def test_the_drawing_shows_every_move():
    """The drawing has one arrow for each entry of the table, and one for the beginning."""
    arrows = as_mermaid().count("-->")

    assert arrows == 1 + sum(len(moves) for moves in TRANSITIONS.values())
