"""How PostgreSQL does what workers and operators ask for: by an index, however much there is."""

from dataclasses import replace
from datetime import timedelta
from inspect import iscoroutinefunction
from uuid import UUID

import pytest

from app.db import events, facts, gate, outbox, reconciliations, retention, sessions
from app.db.connect import Database
from app.machine import Phase, Status
from app.model import EventStatus, Fact, FactKind, Owed, Remark, Session
from app.shortcut.envelope import read
from app.worker.outbox import tellings
from tests import shapes
from tests.crowd import BIG, MANY, crowd
from tests.drafters import CLAIM, STORY
from tests.ladder import DRAFT, LEASE, bid, comment

ME, W, AT, NEW = "me", "shortcut", shapes.START, MANY + 1
OWED = Owed(
    id=77,
    generation=0,
    key="77",
    kind="draft",
    workspace=W,
    sc_id=77,
    text="",
    edition=0,
    comment_id=None,
    attempts=0,
)
DELIVERY = read(W, b'{"id": "77"}', ())
FACT = Fact(W, 77, AT, FactKind.TOUCHED)
REMARK = Remark(comment_id=77, author=ME, text="so", said_at=AT, as_of=AT, spoken=True)
SESSION = Session(workspace=W, sc_id=77, status=Status.DRAFTED, decided_at=AT, heard_at=AT)
TOLD = sessions.Told(77, "open", Status.OPENED, 77, "so")
WORK = (
    lambda conn: events.record(conn, [DELIVERY]),
    lambda conn: events.take(conn, limit=100),
    lambda conn: events.set_aside(conn, [77]),
    lambda conn: events.take_to_read(conn, lease=LEASE),
    lambda conn: events.retake(conn, 77),
    lambda conn: events.finish(conn, [(77, EventStatus.APPLIED, "so")]),
    lambda conn: events.defer(conn, 77, delay=LEASE, reason="so"),
    lambda conn: events.read_anew(conn, 77, DELIVERY),
    lambda conn: events.replay(conn, 77, nonce="new", actor=ME),
    lambda conn: facts.replace(conn, [77], [(77, UUID(int=77), 0, FACT)]),
    lambda conn: facts.of_stories(conn, [(W, 77)]),
    lambda conn: gate.claim(conn, Phase.DRAFT, bid(), workspace=W, sc_id=77),
    lambda conn: gate.claim_next(conn, Phase.DRAFT, bid()),
    lambda conn: gate.claim_next(conn, Phase.CLARIFY, bid()),
    lambda conn: gate.held(conn, UUID(int=77)),
    lambda conn: gate.beat(conn, CLAIM, lease=LEASE),
    lambda conn: gate.clear(conn, CLAIM, STORY),
    lambda conn: gate.complete(conn, CLAIM, DRAFT, comment=comment(CLAIM)),
    lambda conn: gate.question(conn, CLAIM, DRAFT, comment=comment(CLAIM)),
    lambda conn: gate.release(conn, CLAIM, error="so", delay=LEASE, failed=True),
    lambda conn: gate.fail(conn, CLAIM, error="so", comment=comment(CLAIM)),
    lambda conn: gate.abandon(conn, CLAIM, reason="so"),
    lambda conn: gate.expire(
        conn, limit=100, max_crashes=3, delay=LEASE, error="it died", text="It died."
    ),
    lambda conn: gate.keep_late_result(conn, CLAIM, DRAFT),
    lambda conn: gate.adopt(conn, 77, 9, actor=ME, comment=comment(CLAIM)),
    lambda conn: gate.lost(conn, [(77, 0)]),
    lambda conn: gate.confirm_stopped(conn, CLAIM),
    lambda conn: outbox.claim(conn, sender=ME, lease=LEASE),
    lambda conn: outbox.answer(conn, 77, "status", "so", event_id=77, comment=None),
    lambda conn: outbox.take_back(conn, [77]),
    lambda conn: outbox.tell(conn, tellings("drafted"), workspaces=[W], quiet=LEASE),
    lambda conn: outbox.sent(conn, OWED, comment_id=77),
    lambda conn: outbox.postpone(conn, OWED, error="so", delay=LEASE),
    lambda conn: outbox.give_up(conn, OWED, error="so"),
    lambda conn: outbox.expire(conn, limit=100),
    lambda conn: outbox.retry(conn, [77], actor=ME),
    lambda conn: sessions.lock(conn, [(W, 77)]),
    lambda conn: sessions.add(conn, [replace(SESSION, sc_id=NEW)]),
    lambda conn: sessions.save(conn, SESSION, moves=()),
    lambda conn: sessions.evict(conn, W, 77),
    lambda conn: sessions.tell(conn, [TOLD]),
    lambda conn: sessions.remark(conn, [(77, REMARK)]),
    lambda conn: sessions.spoken(conn, W, 77, [77]),
    lambda conn: sessions.forget_conversations(conn, [77]),
    lambda conn: sessions.conversation(conn, 77),
    lambda conn: sessions.asked(conn, 77, rounds=1),
    lambda conn: sessions.latest_patch(conn, 77),
    lambda conn: sessions.retry(conn, 77, actor=ME),
    lambda conn: sessions.mute(conn, 77, most=1, text="so"),
    lambda conn: sessions.unmute(conn, 77, actor=ME),
    lambda conn: sessions.take_away(conn, 77, actor=ME),
    lambda conn: sessions.close(conn, 77, actor=ME),
    lambda conn: sessions.reopen(conn, 77, actor=ME),
    lambda conn: reconciliations.open_after(conn, W, 77, limit=100),
    lambda conn: reconciliations.with_session(conn, W, [77]),
    lambda conn: retention.forget_sessions(conn, older_than=timedelta(days=90), limit=100),
    lambda conn: retention.forget_events(conn, after=77, older_than=timedelta(days=90), limit=100),
    lambda conn: retention.ids(conn),
)
#: Their tables have a row for each workspace.
SMALL = {("reconciliations", name) for name in ("take", "mark", "now", "done")}


@pytest.fixture
async def crowded(dsn):
    """A connection to a database that holds much of everything; no statement is forgotten."""
    conn = await Database(dsn=dsn, listen_dsn=dsn, statement_cache_size=1000).connect("test")
    await crowd(conn)
    yield conn
    conn.terminate()


async def test_no_statement_scans_a_table(crowded):
    """Each is prepared, and planned once for any values: that plan finds all it needs by indexes.

    A scan that is only a plan's last resort is found, too: it would be carried out.
    """
    for work in WORK:
        await work(crowded)

    prepared = await crowded.fetch(
        "select name, statement, cardinality(parameter_types) as count from pg_prepared_statements"
    )
    scanned = {}
    for name, statement, count in prepared:
        values = f"({', '.join(['null'] * count)})" if count else ""
        lines = await crowded.fetch(f'explain execute "{name}"{values}')
        plan = "\n".join(line[0] for line in lines)
        if any(f"Seq Scan on {table}" in plan for table in BIG):
            scanned[statement] = plan

    assert len(prepared) >= len(WORK)
    assert scanned == {}


def test_every_statement_is_planned():
    """What a worker, a purge or an operator asks of the big tables is explained above."""
    asked = {work.__code__.co_names[:2] for work in WORK}
    known = {
        (module.__name__.removeprefix("app.db."), name)
        for module in (events, facts, gate, outbox, reconciliations, retention, sessions)
        for name, it in vars(module).items()
        if iscoroutinefunction(it) and not name.startswith("_") and it.__module__ == module.__name__
    }

    assert known - asked == SMALL
