"""Deliveries while the database is away: on disk before they are answered, recorded once after."""

import asyncio
import json
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.db.connect import Database
from app.db.spool import Spooled, SpoolFile
from app.door.spool import FILE, Spool, require_directory
from app.errors import SettingsError
from tests import shapes
from tests.locks import until
from tests.proxy import proxy_to
from tests.service import receiver

NOWHERE = Database(dsn="postgresql://127.0.0.1:1/none", listen_dsn="")
BODY = shapes.labelled(1)
MIB = 1 << 20


@pytest.fixture
async def proxy(database):
    """What stands between the receiver and the database."""
    async with proxy_to(database.dsn) as proxy:
        yield proxy


def kept(directory: Path):
    """What is in the spool's file, read by the test itself."""
    conn = sqlite3.connect(directory / FILE)
    try:
        return conn.execute("select body, refused from deliveries order by id").fetchall()
    finally:
        conn.close()


def recorded(conn, count: int):
    """Asks whether so many events are recorded."""

    async def are() -> bool:
        return await conn.fetchval("select count(*) from events") == count

    return are


async def test_without_the_database_a_delivery_is_spooled(tmp_path):
    """202, which says so, and the bytes that were signed are on the disk."""
    async with receiver(NOWHERE, spool_dir=tmp_path) as service:
        answer = await service.post(BODY)

        assert answer.status_code == 202
        assert answer.json() == {"event_id": json.loads(BODY)["id"], "spooled": True}
        assert kept(tmp_path) == [(BODY, None)]


async def test_what_is_spooled_is_recorded_once_when_the_database_is_back(
    database, proxy, conn, tmp_path
):
    """Each delivery is in `events` once, byte for byte, as of when it came, in order."""
    bodies = [shapes.labelled(story) for story in range(1, 41)]
    before = await conn.fetchval("select clock_timestamp()")
    async with receiver(proxy.through(database), spool_dir=tmp_path) as service:
        assert (await service.post(bodies[0])).status_code == 200
        proxy.refuse()
        # The first of them come again, some of them while they are in the spool.
        answers = [await service.post(body) for body in [*bodies, *bodies[:5]]]
        spooled_by = await conn.fetchval("select clock_timestamp()")
        proxy.accept()
        await until(recorded(conn, len(bodies)))
        await until(lambda: asyncio.sleep(0, not kept(tmp_path)))
        after = await service.post(bodies[1])

    assert {answer.status_code for answer in answers} == {202}
    assert (after.status_code, after.json()["duplicate"]) == (200, True)
    rows = await conn.fetch("select body, received_at, status, headers from events order by id")
    assert sorted(row["body"] for row in rows) == sorted(bodies)
    slack = timedelta(seconds=0.1)
    assert all(before - slack <= row["received_at"] <= spooled_by + slack for row in rows)
    assert {row["status"] for row in rows} == {"pending"}
    assert all("user-agent" in row["headers"] for row in rows)


async def test_a_database_that_hangs_holds_up_only_the_first(database, proxy, conn, tmp_path):
    """After the first delivery has waited in vain, the others go to the spool at once."""
    async with receiver(
        proxy.through(database), spool_dir=tmp_path, commit_timeout_seconds=5
    ) as service:
        await service.post(BODY)
        proxy.freeze()
        start = asyncio.get_running_loop().time()
        first = await service.post(shapes.labelled(2))
        waited = asyncio.get_running_loop().time() - start
        others = [await service.post(shapes.labelled(story)) for story in range(3, 23)]
        all_of_them = asyncio.get_running_loop().time() - start - waited
        proxy.thaw()
        await until(recorded(conn, 22))

    assert {answer.status_code for answer in (first, *others)} == {202}
    # Each of them would have waited half of the five seconds.
    assert waited > 2.4
    assert all_of_them < 40


async def test_without_a_spool_a_known_outage_is_a_503_at_once(database, proxy, conn):
    """Nobody waits for a database that is known to be away; and it is noticed when it is back."""
    async with receiver(proxy.through(database), commit_timeout_seconds=5) as service:
        await service.post(BODY)
        proxy.freeze()
        assert (await service.post(shapes.labelled(2))).status_code == 503
        start = asyncio.get_running_loop().time()
        answers = [await service.post(shapes.labelled(story)) for story in range(3, 23)]
        seconds = asyncio.get_running_loop().time() - start
        proxy.thaw()

        async def is_accepted() -> bool:
            return (await service.post(shapes.labelled(2))).status_code == 200

        await until(is_accepted)

    assert {(answer.status_code, answer.headers["retry-after"]) for answer in answers} == {
        (503, "1")
    }
    assert seconds < 50


async def test_what_is_unreadable_is_spooled_and_quarantined(database, proxy, conn, tmp_path):
    """The sender hears 400 as ever; the bytes come to the quarantine by way of the spool."""
    async with receiver(proxy.through(database), spool_dir=tmp_path) as service:
        proxy.refuse()
        assert (await service.post(b"{ signed")).status_code == 400
        proxy.accept()
        await until(recorded(conn, 1))

    row = await conn.fetchrow("select body, status, reason from events")
    assert (row["body"], row["status"]) == (b"{ signed", "quarantined")
    assert row["reason"]


async def test_another_process_s_spool_is_brought_in(database, conn, tmp_path):
    """What a process that died has left in a shared spool, any other brings to the database."""
    async with receiver(NOWHERE, spool_dir=tmp_path) as service:
        await asyncio.gather(*(service.post(shapes.labelled(story)) for story in range(1, 301)))
    assert len(kept(tmp_path)) == 300

    async with receiver(database, spool_dir=tmp_path):
        await until(recorded(conn, 300))
        await until(lambda: asyncio.sleep(0, not kept(tmp_path)))


async def test_a_time_of_receipt_that_is_to_come_is_the_present(database, conn, tmp_path):
    """What was spooled keeps its time, unless this machine's clock is ahead of the database's."""
    before = await conn.fetchval("select now()")
    bodies = [shapes.labelled(story) for story in (1, 2)]
    times = [long_ago(), now() + timedelta(days=1)]
    with closing(SpoolFile(tmp_path / FILE, limit_bytes=MIB)) as file:
        file.append(
            [
                Spooled(source="shortcut", body=body, headers="{}", received_at=at)
                for body, at in zip(bodies, times, strict=True)
            ]
        )
    async with receiver(database, spool_dir=tmp_path):
        await until(recorded(conn, 2))

    received = {
        row["body"]: row["received_at"]
        for row in await conn.fetch("select body, received_at from events")
    }
    assert received[bodies[0]] == times[0]
    assert before < received[bodies[1]] < await conn.fetchval("select now()")


async def test_a_crash_after_the_commit_makes_duplicates(database, conn, tmp_path):
    """Recorded, but still in the spool: the second time it is a duplicate, which writes nothing."""
    async with receiver(database) as service:
        await service.post(BODY)
    row = await conn.fetchrow("select * from events")
    file = SpoolFile(tmp_path / FILE, limit_bytes=MIB)
    file.append([Spooled(source="shortcut", body=BODY, headers="{}", received_at=long_ago())])
    file.close()

    async with receiver(database, spool_dir=tmp_path):
        await until(lambda: asyncio.sleep(0, not kept(tmp_path)))

    assert await conn.fetch("select * from events") == [row]


async def test_processes_share_a_spool(database, conn, tmp_path):
    """Two that fill it at once lose nothing of each other's, and two that empty it neither."""
    bodies = [shapes.labelled(story) for story in range(1, 101)]
    async with (
        receiver(NOWHERE, spool_dir=tmp_path) as one,
        receiver(NOWHERE, spool_dir=tmp_path) as other,
    ):
        answers = await asyncio.gather(
            *((one if number % 2 else other).post(body) for number, body in enumerate(bodies))
        )
    assert {answer.status_code for answer in answers} == {202}

    async with receiver(database, spool_dir=tmp_path), receiver(database, spool_dir=tmp_path):
        await until(lambda: asyncio.sleep(0, not kept(tmp_path)))

    stored = await conn.fetch("select body from events")
    assert sorted(row["body"] for row in stored) == sorted(bodies)


async def test_a_full_spool_is_a_503(tmp_path):
    """What does not fit is 503, acknowledged is only what is there; it is not ready by then."""
    bodies = [shapes.labelled(1)[:-1] + b" " * 100_000 + b"}" + b" " * n for n in range(40)]
    async with receiver(NOWHERE, spool_dir=tmp_path, spool_limit_bytes=MIB) as service:
        answers = [await service.post(body) for body in bodies]
        ready = await service.client.get("/readyz")

    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {202, 503}
    assert statuses.index(503) >= 5
    assert len(kept(tmp_path)) == statuses.count(202)
    assert (tmp_path / FILE).stat().st_size <= MIB
    assert (ready.status_code, ready.json()["fault"]) == (503, "the spool is full")


async def test_a_full_spool_can_be_emptied(database, conn, tmp_path):
    """Full to the last page, it is drained all the same, and takes deliveries again."""
    file = SpoolFile(tmp_path / FILE, limit_bytes=MIB)
    count = 0
    with suppress(sqlite3.OperationalError):
        for count in range(1000):
            body = shapes.labelled(count + 1) + b" " * 3000
            file.append([Spooled(source="shortcut", body=body, headers="{}", received_at=now())])
    file.close()
    assert 100 < count < 999

    async with receiver(database, spool_dir=tmp_path, spool_limit_bytes=MIB):
        await until(recorded(conn, count))
        await until(lambda: asyncio.sleep(0, not kept(tmp_path)))


async def test_a_corrupt_spool_is_a_503(database, conn, tmp_path):
    """A file that is no spool: never acknowledged, never a crash; the database still counts."""
    (tmp_path / FILE).write_bytes(b"this is no database" * 1000)
    async with receiver(NOWHERE, spool_dir=tmp_path) as service:
        refused = await service.post(BODY)
        ready = await service.client.get("/readyz")
    async with receiver(database, spool_dir=tmp_path) as service:
        accepted = await service.post(BODY)
        still_ready = await service.client.get("/readyz")

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (ready.status_code, accepted.status_code, still_ready.status_code) == (503, 200, 200)
    assert still_ready.json()["spool"] == {"fault": "the spool can't be used"}


async def test_a_spool_that_disappears_is_a_503(tmp_path):
    """A directory that can't be used any more: 503, and 202 again once it can."""
    directory = tmp_path / "spool"
    async with receiver(NOWHERE, spool_dir=directory) as service:
        directory.rmdir()
        directory.write_text("in the way")
        refused = await service.post(BODY)
        directory.unlink()
        directory.mkdir()
        accepted = await service.post(BODY)

    assert (refused.status_code, accepted.status_code) == (503, 202)


async def test_what_the_database_can_not_store_holds_up_nothing(database, conn, tmp_path):
    """It stays in the spool with the reason; the next process tries it again."""
    await conn.execute("alter table events add constraint broken check (body <> 'broken')")
    file = SpoolFile(tmp_path / FILE, limit_bytes=MIB)
    for body in (BODY, b"broken", shapes.labelled(2)):
        file.append([Spooled(source="shortcut", body=body, headers="{}", received_at=now())])
    file.close()
    async with receiver(database, spool_dir=tmp_path, allowed=["spool.refused"]) as service:
        await until(recorded(conn, 2))
        await until(lambda: asyncio.sleep(0, len(kept(tmp_path)) == 1))
        ready = await service.client.get("/readyz")
    assert ready.json()["spool"]["refused"] == 1
    ((body, refused),) = kept(tmp_path)
    assert body == b"broken"
    assert "broken" in refused

    await conn.execute("alter table events drop constraint broken")
    async with receiver(database, spool_dir=tmp_path):
        await until(recorded(conn, 3))


async def test_a_schema_that_is_gone_sends_deliveries_to_the_spool(database, conn, tmp_path):
    """A table that is missing is an outage like another: kept, and recorded once it is there."""
    await conn.execute("alter table events rename to mislaid")
    async with receiver(database, spool_dir=tmp_path) as service:
        answer = await service.post(BODY)
        await conn.execute("alter table mislaid rename to events")
        await until(recorded(conn, 1))

    assert answer.status_code == 202


async def test_a_receiver_with_room_in_its_spool_is_ready(tmp_path):
    """While the database is away a receiver that can keep deliveries may have them, and says so."""
    async with receiver(NOWHERE, spool_dir=tmp_path) as service:
        await service.post(BODY)
        ready = await service.client.get("/readyz")

    assert ready.status_code == 200
    told = ready.json()
    assert told["fault"] == "the database is not available"
    assert (told["spool"]["deliveries"], told["spool"]["refused"]) == (1, 0)
    assert told["spool"]["oldest_seconds"] >= 0
    assert 0 < told["spool"]["used_bytes"] < told["spool"]["limit_bytes"]


async def test_a_disk_that_hangs_is_a_503_in_time(tmp_path):
    """A spool whose lock somebody holds is given up in time; nothing is acknowledged."""
    async with receiver(NOWHERE, spool_dir=tmp_path, commit_timeout_seconds=1) as service:
        assert (await service.post(BODY)).status_code == 202
        locker = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        locker.execute("begin immediate")
        refused = await service.post(shapes.labelled(2))
        locker.execute("rollback")
        locker.close()

        async def is_accepted() -> bool:
            return (await service.post(shapes.labelled(2))).status_code == 202

        await until(is_accepted)

    assert refused.status_code == 503


def test_only_its_owner_may_read_the_spool(tmp_path):
    """What is in it was signed for us: neither the directory nor a file is open to others."""
    file = SpoolFile(tmp_path / "spool" / FILE, limit_bytes=MIB)
    file.append([Spooled(source="shortcut", body=BODY, headers="{}", received_at=now())])

    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "spool").iterdir()}

    assert modes == {0}
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0
    file.close()


def test_a_spool_that_can_not_be_made_is_a_wrong_setting(tmp_path):
    """It is found when the process starts, not when the database is away."""
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="DRAFTGATE_SPOOL_DIR"):
        require_directory(tmp_path / "file" / "spool")


async def test_a_spool_is_on_the_disk_when_it_says_so(tmp_path):
    """Each append is an fsync of the log before it returns."""
    spool = Spool(tmp_path, limit_bytes=MIB, timeout_seconds=5)
    await spool.append([Spooled(source="s", body=BODY, headers="{}", received_at=now())])

    assert (tmp_path / f"{FILE}-wal").stat().st_size > len(BODY)
    assert (await spool.state()).deliveries == 1
    spool.close()


def now():
    """The present."""
    return datetime.now(UTC)


def long_ago():
    """A time before anything here."""
    return datetime(2026, 1, 1, tzinfo=UTC)
