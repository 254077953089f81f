"""Migrations: from nothing, by many at once, and with one of them killed."""

import asyncio
import sys
from datetime import timedelta

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.db import (
    gate,
    hooks,
    installations,
    look,
    outbox,
    reconciliations,
    retention,
    sessions,
)
from app.db.reconciliations import Mark
from app.decide import Rules, decide
from app.errors import SchemaError
from app.machine import Phase
from app.migrate import LATEST, LOCK, MIGRATIONS, migrate, require_latest
from app.model import Fact, FactKind
from app.worker.outbox import tellings
from tests.conftest import with_name
from tests.ladder import LEASE, bid
from tests.locks import WAITS, until

NO_TIME = timedelta(0)
MIGRATE = "import asyncio, sys; from app.migrate import migrate; asyncio.run(migrate(sys.argv[1]))"


@pytest.fixture
async def empty(server, dsn):
    """The DSN of a database without a schema."""
    conn = await asyncpg.connect(dsn)
    await conn.execute("drop schema public cascade; create schema public")
    await conn.close()
    return dsn


async def migrate_to(revision, dsn):
    """Brings the schema to that of an earlier version."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))

    def upgrade(connection):
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn), poolclass=NullPool
    )
    async with engine.begin() as connection:
        await connection.run_sync(upgrade)


def test_the_code_needs_the_newest_migration():
    """What a process asks for when it starts is the last of the migrations."""
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == LATEST


async def test_eight_may_migrate_at_once(empty):
    """Processes that start together bring the schema up once, and none of them fails."""
    await asyncio.gather(*(migrate(empty) for _ in range(8)))

    conn = await asyncpg.connect(empty)
    await require_latest(conn)
    await conn.close()


async def test_a_killed_migrator_holds_nobody_up(empty):
    """One process is killed while it holds the lock; another one migrates."""
    conn = await asyncpg.connect(empty)
    await conn.execute("select pg_advisory_lock($1)", LOCK)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, empty)
    await until(lambda: conn.fetchval(WAITS))
    killed.kill()
    await killed.wait()
    await conn.execute("select pg_advisory_unlock($1)", LOCK)

    await migrate(empty)

    await require_latest(conn)
    await conn.close()


async def test_a_current_schema_is_left_alone(dsn):
    """Migrating again changes nothing and keeps what is stored."""
    conn = await asyncpg.connect(dsn)
    await conn.execute(
        "insert into events (source, dedupe_key, kind, body)"
        " values ('s', gen_random_uuid(), 'v1', '')"
    )

    await migrate(dsn)

    assert await conn.fetchval("select count(*) from events") == 1
    await conn.close()


async def test_sessions_of_before_are_found_by_their_words(empty):
    """Whatever titles there are by then, of any length, they can be searched."""
    await migrate_to("0001", empty)
    conn = await asyncpg.connect(empty)
    await conn.executemany(
        "insert into patch_sessions (workspace, sc_id, title, status, decided_at, heard_at)"
        " values ('w', $1, $2, 'opened', now(), now())",
        [(1, None), (2, "Export invoices"), (3, "word " * 400_000), (4, "w" * 1_000_000)],
    )

    await migrate(empty)

    found = await look.sessions(conn, words="INVOICES")
    assert [row["sc_id"] for row in found.rows] == [2]
    await conn.close()


async def test_sessions_of_before_are_not_told_of(empty):
    """Where a session stood before its story was told of it at all is no news."""
    await migrate_to("0002", empty)
    conn = await asyncpg.connect(empty)
    await conn.execute(
        "insert into patch_sessions (workspace, sc_id, status, decided_at, heard_at)"
        " values ('w', 1, 'drafted', now(), now())"
    )
    await conn.execute("insert into outbox (session_id, key, kind, text) values (1, 'k', 'x', 'y')")

    await migrate(empty)

    assert not await outbox.tell(conn, tellings(), workspaces=["w"], quiet=NO_TIME)
    await conn.execute("update patch_sessions set status = 'clarified'")
    assert await outbox.tell(conn, tellings(), workspaces=["w"], quiet=NO_TIME) == 1
    assert await conn.fetchval("select edition from outbox where key = 'k'") == 1
    await conn.close()


async def test_sessions_from_before_they_could_wait_are_claimed_and_taken(empty):
    """Without a word on who was stopped last, a session is ready; what is owned can be taken."""
    await migrate_to("0003", empty)
    conn = await asyncpg.connect(empty)
    await conn.execute(
        """
        insert into patch_sessions
            (workspace, sc_id, status, prior_status, claim_token, claim_generation, claimed_by,
             claimed_at, claim_expires_at, phase_ends_at, progressed_at, decided_at, heard_at)
        select 'w', story, status, prior, token, 4, worker, at, ends, ends, at, now(), now()
          from (values (1, 'clarified', null, null::uuid, null, null::timestamptz,
                        null::timestamptz),
                       (2, 'drafting', 'clarified', gen_random_uuid(), 'old', now(),
                        now() + interval '1 hour'))
            as row (story, status, prior, token, worker, at, ends)
        """
    )

    await migrate(empty)

    ready = await gate.claim(conn, Phase.DRAFT, bid(), workspace="w", sc_id=1)
    assert ready is not None
    owned = await gate.held(
        conn, await conn.fetchval("select claim_token from patch_sessions where sc_id = 2")
    )
    assert await gate.beat(conn, owned, lease=LEASE)
    assert await sessions.take_away(conn, owned.session_id, actor="operator")
    assert await gate.claim(conn, Phase.DRAFT, bid(), workspace="w", sc_id=2) is None
    await gate.confirm_stopped(conn, owned)
    assert await gate.claim(conn, Phase.DRAFT, bid(), workspace="w", sc_id=2) is not None
    await conn.close()


async def test_hooks_come_to_a_database_that_has_events(empty):
    """What is recorded stays, and there is no hook but those that are registered."""
    await migrate_to("0004", empty)
    conn = await asyncpg.connect(empty)
    await conn.execute(
        "insert into events (source, dedupe_key, kind, body)"
        " values ('s', gen_random_uuid(), 'v1', '')"
    )

    await migrate(empty)

    assert await conn.fetchval("select count(*) from events") == 1
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute(
            "insert into hooks (source, integration_id, url, status) values ('s', 1, 'u', 'new')"
        )
    await conn.close()


async def test_sessions_of_before_may_be_written_to(empty):
    """No story is muted by a new version, and one that then is can go on."""
    await migrate_to("0006", empty)
    conn = await asyncpg.connect(empty)
    await conn.execute(
        "insert into patch_sessions (workspace, sc_id, status, decided_at, heard_at)"
        " values ('w', 1, 'drafted', now(), now())"
    )
    await conn.execute("insert into outbox (session_id, key, kind, text) values (1, 'k', 'x', 'y')")

    await migrate(empty)

    assert await outbox.claim(conn, sender="me", lease=timedelta(minutes=1)) is not None
    assert not await sessions.unmute(conn, 1, actor="me")
    await conn.close()


async def test_installations_come_to_a_database_that_has_hooks(empty):
    """Hooks stay as they are, and nobody has installed the app before it could be."""
    await migrate_to("0008", empty)
    conn = await asyncpg.connect(empty)
    await conn.execute("insert into hooks (source, integration_id, url) values ('s', 1, 'u')")

    await migrate(empty)

    assert len(await hooks.all_of_them(conn)) == 1
    assert await installations.all_of_them(conn) == []
    await conn.close()


async def test_titles_of_before_are_as_new_as_what_was_heard_last(empty):
    """No word that comes late puts out a title whose time was not kept."""
    await migrate_to("0009", empty)
    conn = await asyncpg.connect(empty)
    await conn.execute(
        "insert into patch_sessions (workspace, sc_id, title, status, decided_at, heard_at)"
        " values ('w', 1, 'New', 'drafted', now(), now())"
    )

    await migrate(empty)

    (old,) = (await sessions.lock(conn, {("w", 1)})).values()
    assert (old.title, old.title_at) == ("New", None)
    late = Fact(
        workspace="w",
        sc_id=1,
        kind=FactKind.DESCRIBED,
        occurred_at=old.heard_at - timedelta(minutes=1),
        title="Old",
    )
    assert decide(old, [late], Rules())[0].session.title == "New"
    await conn.close()


async def test_a_workspace_that_was_reconciled_before_stays_so(empty):
    """Its mark stands, and the turn of its sessions begins with the first."""
    await migrate_to("0010", empty)
    conn = await asyncpg.connect(empty)
    through = await conn.fetchval(
        "insert into reconciliations (workspace, through, next_run_at)"
        " values ('w', now(), now()) returning through"
    )

    await migrate(empty)

    assert await reconciliations.mark(conn, "w") == Mark(through=through, looked_up_to=0)
    await conn.close()


async def test_a_session_of_before_takes_its_timeline_along(empty):
    """What was told before goes with its session as what is told since, and nothing else does."""
    await migrate_to("0011", empty)
    conn = await asyncpg.connect(empty)
    await conn.execute(
        """
        insert into patch_sessions (workspace, sc_id, status, decided_at, heard_at, updated_at)
        values ('w', 1, 'closed', now(), now(), now() - interval '2 days'),
               ('w', 2, 'closed', now(), now(), now());
        insert into timeline (session_id, move, status, generation)
        values (1, 'open', 'opened', 0), (2, 'open', 'opened', 0), (1, 'close', 'closed', 0)
        """
    )

    await migrate(empty)

    assert await retention.forget_sessions(conn, older_than=timedelta(days=1), limit=9) == 1
    assert await conn.fetchval("select array_agg(session_id) from timeline") == [2]
    await conn.execute("truncate patch_sessions cascade")
    assert await conn.fetchval("select count(*) from timeline") == 0
    await conn.close()


async def test_a_missing_schema_is_said(empty):
    """Without a schema a process does not start, and says what to do."""
    conn = await asyncpg.connect(empty)
    with pytest.raises(SchemaError, match="draftgate migrate"):
        await require_latest(conn)
    await conn.close()


async def test_another_schema_is_said(conn):
    """A schema of another version is refused, with both versions named."""
    await conn.execute("update alembic_version set version_num = '9999'")

    with pytest.raises(SchemaError, match=f"is at 9999, this version needs {LATEST}"):
        await require_latest(conn)


async def test_no_column_forgets_its_time_zone(conn):
    """Every instant is stored with its zone."""
    naive = await conn.fetch(
        "select table_name, column_name from information_schema.columns"
        " where table_schema = 'public' and data_type = 'timestamp without time zone'"
    )

    assert naive == []


async def test_numbers_do_not_run_out(conn):
    """Every key that counts is a bigint."""
    small = await conn.fetch(
        "select table_name from information_schema.columns"
        " where table_schema = 'public' and is_identity = 'YES' and data_type <> 'bigint'"
    )

    assert small == []


async def test_every_foreign_key_has_an_index(conn):
    """Deleting a session or an event scans no table for what hangs on it."""
    without = await conn.fetch(
        "select conrelid::regclass, conname from pg_constraint as fk"
        " where contype = 'f' and not exists (select from pg_index"
        " where indrelid = fk.conrelid and indkey[0] = fk.conkey[1])"
    )

    assert without == []


async def test_no_index_holds_what_a_heartbeat_writes(conn):
    """An index on the end of a claim would cost every beat its heap-only update."""
    definitions = await conn.fetch(
        "select indexdef from pg_indexes where tablename = 'patch_sessions'"
    )

    assert not [row for row in definitions if "claim_expires_at" in row["indexdef"]]


async def test_the_clock_can_be_set_by_a_test(conn):
    """What is due is asked of one clock, which is the server's unless a test sets it."""
    assert await conn.fetchval("select app_now() = statement_timestamp()")

    await conn.execute("set draftgate.now = '2026-01-02 03:04:05+00'")

    assert await conn.fetchval("select app_now() = '2026-01-02 03:04:05+00'")
    assert await conn.fetchval("select app_clock() = '2026-01-02 03:04:05+00'")


def test_a_name_is_put_into_a_dsn():
    """The tests' own helper keeps the host."""
    assert with_name("postgresql://postgres@/postgres?host=/x", "t").endswith("/t?host=/x")
