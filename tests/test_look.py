"""What people look at: pages of lists, and that every one of them is read by an index."""

import re
from datetime import timedelta
from inspect import getsource, iscoroutinefunction
from itertools import chain

import pytest

from app import why
from app.api import routes
from app.console import pages
from app.db import gate, look, stats
from app.db.look import Cursor
from app.machine import Status
from app.model import EventStatus, OwedStatus
from app.shortcut.values import story_number
from tests import shapes
from tests.crowd import BIG, MANY, MANY_EVENTS, crowd
from tests.ladder import DRAFT, comment


async def every_page(read, **wanted):
    """The ids of all rows of a list, page by page."""
    found, after = [], None
    while True:
        page = await read(after=after, limit=2, **wanted)
        found.append([row["id"] for row in page.rows])
        if page.next is None:
            return found
        after = Cursor.read(str(page.next))


async def test_pages_of_sessions_hold_each_one_once(ladder, conn):
    """Page after page leads through all sessions, the last moved first."""
    for story in range(1, 6):
        await ladder.clarified(story)
    await conn.execute("update patch_sessions set updated_at = '2026-09-14' where sc_id <= 3")

    pages = await every_page(lambda **given: look.sessions(conn, **given))

    assert [len(page) for page in pages] == [2, 2, 1]
    rows = await conn.fetch("select id from patch_sessions order by updated_at desc, id desc")
    assert list(chain(*pages)) == [row["id"] for row in rows]


async def test_pages_of_events_hold_each_one_once(ladder, conn):
    """The same for events, all of them or those about one story."""
    for minute in range(1, 6):
        await ladder.deliver(shapes.labelled(1, minute=minute), shapes.labelled(2, minute=minute))

    everything = await every_page(lambda **given: look.events(conn, **given))
    of_one = await every_page(lambda **given: look.events(conn, **given), sc_id=2)

    assert list(chain(*everything)) == list(range(10, 0, -1))
    assert of_one == [[10, 8], [6, 4], [2]]


async def test_lists_are_filtered(ladder, conn):
    """By status, by story and by workspace."""
    await ladder.in_status(Status.FAILED, 1)
    await ladder.clarified(2)
    await ladder.record(b"{")

    async def numbers(**wanted):
        return [row["sc_id"] for row in (await look.sessions(conn, **wanted)).rows]

    assert await numbers(status=Status.FAILED) == [1]
    assert await numbers(sc_id=2) == [2]
    assert await numbers(sc_id=2, workspace="elsewhere") == []
    quarantined = (await look.events(conn, status=EventStatus.QUARANTINED)).rows
    assert [row["sc_ids"] for row in quarantined] == [[]]
    assert len((await look.events(conn, status=EventStatus.APPLIED, sc_id=2)).rows) == 1
    assert (await look.outbox(conn, status=OwedStatus.SENT)).rows == []
    owed = (await look.outbox(conn, status=OwedStatus.PENDING)).rows
    assert [(row["sc_id"], row["kind"]) for row in owed] == [(1, "failure")]
    assert (await look.outbox_entry(conn, owed[0]["id"]))["text"] == "Some text"


FOUND_BY = {
    "export": [3, 2],
    "EXP inv": [2],
    "inv exp": [2],
    "side-by": [3],
    "config.y": [3],
    "o'brien": [4],
    "\u00fcb": [4],
    "xport": [],
    "export nothing": [],
    "'": [],
    "& | ! ( ) : * <-> \\": [],
    "export & !invoices:*'": [2],
    "w" * 5_000: [],
}


async def test_sessions_are_found_by_words_of_their_titles(ladder, conn):
    """All words, or their beginnings, in any order and case; nothing in them is an operator."""
    titles = ("Import", "Export invoices", "Export: side-by-side, config.yml", "O'Brien \u00fcber")
    for story, title in enumerate(titles, 1):
        await ladder.deliver(shapes.labelled(story, name=title, minute=story))

    found = {words: (await look.sessions(conn, words=words)).rows for words in FOUND_BY}

    assert {words: [row["sc_id"] for row in found[words]] for words in found} == FOUND_BY


async def test_a_session_shows_who_owned_it(ladder, conn):
    """Each claim is listed with what ended it."""
    first = await ladder.claimed()
    await gate.release(conn, first, error="it broke", delay=timedelta(0), failed=True)
    second = await ladder.claim(worker="another")
    await gate.complete(conn, second, DRAFT, comment=comment(second))

    claims = await look.claims(conn, first.session_id)

    told = [(c["generation"], c["worker"], c["ended_by"], c["reason"]) for c in claims]
    assert told == [(1, "worker", "release", "it broke"), (2, "another", "complete", None)]


async def test_events_that_nobody_has_read_are_found_by_their_text(ladder, conn):
    """A number in the body of a pending or unreadable event is found, whole numbers only."""
    await ladder.record(shapes.labelled(77), b'{"story": 77', b'{"story": 177', b"77 or so")

    found = await look.mentions(conn, 77)

    statuses = sorted(row["status"] for row in found)
    assert statuses == ["pending", "quarantined", "quarantined"]


async def test_the_backlog_says_what_waits_and_since_when(ladder, conn):
    """What waits at each stage is counted, with the time from which on it could be taken."""
    await ladder.clarified(1)
    await ladder.record(shapes.labelled(2))

    backlog = {stage.stage: stage for stage in await stats.backlog(conn)}

    assert {name: stage.waiting for name, stage in backlog.items()} == {
        "apply": 1,
        "clarify": 0,
        "draft": 1,
        "send": 0,
    }
    assert backlog["apply"].due_at is not None
    assert backlog["send"].due_at is None
    counted = await stats.sessions_by_status(conn, list(Status))
    assert (counted["clarified"], counted["drafting"]) == (1, 0)


async def test_deliveries_are_counted_over_time(ladder, conn):
    """Each new event is in one bucket, by outcome; a duplicate is in none."""
    await ladder.deliver(shapes.labelled(1), shapes.labelled(1), shapes.labelled(2, label="x"))
    await conn.execute("update events set received_at = received_at - interval '2 hours'")
    await ladder.record(b"{")

    counted = await stats.deliveries(conn, bucket=timedelta(hours=1), buckets=5)

    told = [(b.applied, b.ignored, b.quarantined) for b in counted.buckets]
    assert counted.every == 1
    assert told == [(0, 0, 0), (0, 0, 0), (1, 1, 0), (0, 0, 0), (0, 0, 1)]


async def test_many_deliveries_are_counted_by_some_of_them(conn):
    """Numbers are near the truth, and those of failures are the truth."""
    await conn.execute(MANY_EVENTS, MANY)

    counted = await stats.deliveries(conn, bucket=timedelta(hours=24), buckets=20)

    truth = await conn.fetch(
        """
        select date_bin('24 hours', received_at, 'epoch') as start,
               count(*) filter (where status = 'applied') as applied,
               count(*) filter (where status = 'failed') as failed
          from events group by 1
        """
    )
    by_start = {row["start"]: (row["applied"], row["failed"]) for row in truth}
    assert counted.every > 1
    assert sum(bucket.failed for bucket in counted.buckets) == MANY / 5000
    for bucket in counted.buckets:
        applied, failed = by_start.get(bucket.start, (0, 0))
        assert bucket.failed == failed
        assert abs(bucket.applied - applied) <= 4 * counted.every


@pytest.fixture
async def crowded(conn):
    """A connection to a database that holds much of everything."""
    await crowd(conn)
    return conn


AT = Cursor(9_000, shapes.START)
READS = {
    "sessions": lambda conn: look.sessions(conn),
    "sessions, later": lambda conn: look.sessions(conn, after=AT),
    "failed sessions": lambda conn: look.sessions(conn, status=Status.FAILED),
    "a story's session": lambda conn: look.sessions(conn, sc_id=77),
    "a workspace's": lambda conn: look.sessions(conn, workspace="shortcut"),
    "by words": lambda conn: look.sessions(conn, words="export 77"),
    "by words, later": lambda conn: look.sessions(
        conn, words="77", status=Status.DRAFTED, after=AT
    ),
    "session": lambda conn: look.session(conn, 77, workspace=None),
    "session by id": lambda conn: look.session_by_id(conn, 77),
    "timeline": lambda conn: look.timeline(conn, 77),
    "conversation": lambda conn: look.conversation(conn, 77),
    "claims": lambda conn: look.claims(conn, 77),
    "drafts": lambda conn: look.drafts(conn, 77),
    "revisions": lambda conn: look.revisions(conn, 77),
    "draft": lambda conn: look.draft(conn, 77, 1),
    "late results": lambda conn: look.late_results(conn, 77),
    "owed": lambda conn: look.owed(conn, 77),
    "events": lambda conn: look.events(conn),
    "events, later": lambda conn: look.events(conn, after=Cursor(9_000)),
    "failed events": lambda conn: look.events(conn, status=EventStatus.FAILED),
    "pending events": lambda conn: look.events(conn, status=EventStatus.PENDING),
    "a story's events": lambda conn: look.events(conn, sc_id=77),
    "a story's in a workspace": lambda conn: look.events(conn, sc_id=77, workspace="shortcut"),
    "event": lambda conn: look.event(conn, 77),
    "sessions of an event": lambda conn: look.sessions_of_event(conn, 77),
    "replays": lambda conn: look.replays(conn, 77),
    "mentions": lambda conn: look.mentions(conn, 77),
    "last received": lambda conn: look.last_received_at(conn),
    "outbox": lambda conn: look.outbox(conn),
    "failed comments": lambda conn: look.outbox(conn, status=OwedStatus.FAILED),
    "comment": lambda conn: look.outbox_entry(conn, 77),
    "backlog": lambda conn: stats.backlog(conn),
    "failures": lambda conn: stats.failures(conn),
    "connections": lambda conn: stats.connections(conn),
    "statuses": lambda conn: stats.sessions_by_status(conn, list(Status)),
    "marks": lambda conn: stats.marks(conn, since=MANY - 500),
    "deliveries": lambda conn: stats.deliveries(conn, bucket=timedelta(hours=1), buckets=24),
}


class Explained:
    """A connection that carries a statement out and keeps how the server did it."""

    def __init__(self, conn):
        self.conn = conn
        self.plans = []

    async def _explained(self, how, statement, *values):
        rows = await self.conn.fetch(f"explain (analyze, timing off) {statement}", *values)
        self.plans.append("\n".join(row[0] for row in rows))
        return await how(statement, *values)

    async def fetch(self, *asked):
        return await self._explained(self.conn.fetch, *asked)

    async def fetchrow(self, *asked):
        return await self._explained(self.conn.fetchrow, *asked)

    async def fetchval(self, *asked):
        return await self._explained(self.conn.fetchval, *asked)


async def test_no_page_scans_a_table(crowded):
    """Whatever is looked at is found by an index, and few rows are read for it."""
    scanned = {}
    await crowded.execute("set max_parallel_workers_per_gather = 0")
    for name, read in READS.items():
        explained = Explained(crowded)
        await read(explained)
        plan = "\n".join(explained.plans)
        if any(f"Seq Scan on {table}" in plan for table in BIG) or _rows_read(plan) > stats.COUNTED:
            scanned[name] = plan

    assert scanned == {}


def test_no_page_reads_in_another_way():
    """Pages read by `look` and `stats`, explained above, and the few hooks and installations."""
    asked = {name for read in READS.values() for name in read.__code__.co_names}
    known = {
        name
        for module in (look, stats)
        for name, it in vars(module).items()
        if iscoroutinefunction(it) and not name.startswith("_") and it.__module__ == module.__name__
    }
    assert known - asked == {"counts", "highest_number"}, "for `demo` and `dev`"
    for module in (pages, routes, why):
        read = re.findall(r"^from app\.db(\.\w+)? import (.+)$", getsource(module), re.M)
        names = {name for _, names in read for name in names.split(", ")}
        small = {"hooks", "installations"}
        assert names <= {"look", "stats", "Connection", "Pool", "take", "Row", "Replay", *small}


def _rows_read(plan):
    """The most rows that any step gave, or read and threw away."""
    given = re.findall(r"actual rows=(\d+)", plan)
    removed = re.findall(r"Rows Removed by (?:Filter|Join Filter|Index Recheck): (\d+)", plan)
    return max(map(int, given + removed), default=0)


@pytest.mark.parametrize(
    "words",
    ["123", " 123 ", "#123", "sc-123", "SC-123", "sc-123/some-branch"]
    + [f"https://app.shortcut.com/acme/story/123{rest}" for rest in ("", "/a-title", "?a=b", "#c")],
)
def test_a_story_is_named_by_number_or_link(words):
    """However a person writes it, it is the same story."""
    assert story_number(words) == 123


@pytest.mark.parametrize(
    "words", ["", "0", "-1", "1_0", "\uff11", "12a", "sc-", "9" * 19, "9" * 30, "12\x00", "1 2"]
)
def test_what_names_no_story_is_none(words):
    """Anything else is no story's number."""
    assert story_number(words) is None


@pytest.mark.parametrize("text", ["", "-1", "1-", "x", "1_0", "9" * 30, "9" * 18 + "-1", "1-2-3"])
def test_a_cursor_is_only_what_a_list_gave(text):
    """Anything else is refused, whatever it is."""
    with pytest.raises(ValueError, match="not a cursor"):
        Cursor.read(text)
