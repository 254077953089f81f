"""The embedded server: any number of users, also killed ones; the last to leave stops it."""

import asyncio
import os
import sys

import asyncpg

from app.embedded import postgres
from tests.locks import until

HOLD = """
import sys
from pathlib import Path
from app.embedded import postgres
with postgres(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


async def hold(home) -> asyncio.subprocess.Process:
    """Another process that uses the server until its stdin ends."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, str(home), stdin=pipe, stdout=pipe
    )
    assert await process.stdout.readline() == b"ready\n"
    return process


def is_running(home) -> bool:
    """Whether the server runs."""
    return (home / "postgres" / "postmaster.pid").exists()


async def test_what_is_stored_survives_a_restart(tmp_path):
    """The data is under the state directory, and there again the next time."""
    for expected in (0, 1):
        with postgres(tmp_path) as dsn:
            conn = await asyncpg.connect(dsn)
            await conn.execute("create table if not exists kept (it int)")
            assert await conn.fetchval("select count(*) from kept") == expected
            await conn.execute("insert into kept values (1)")
            await conn.close()
    assert not is_running(tmp_path)


async def test_a_directory_that_only_its_owner_may_enter_will_do(tmp_path):
    """Also as root, who starts the server as another user."""
    home = tmp_path / "closed"
    os.mkdir(home, 0o700)

    with postgres(home) as dsn:
        conn = await asyncpg.connect(dsn)
        await conn.close()


async def test_the_last_to_leave_stops_it(tmp_path):
    """A process that leaves does not stop the server of another one."""
    other = await hold(tmp_path)
    with postgres(tmp_path):
        pass
    assert is_running(tmp_path)

    other.stdin.close()
    await other.wait()

    assert not is_running(tmp_path)


async def test_a_killed_user_keeps_nothing_running(tmp_path):
    """kill -9 of one user: the next one to leave stops the server all the same."""
    other = await hold(tmp_path)
    other.kill()
    await other.wait()
    assert is_running(tmp_path)

    with postgres(tmp_path):
        pass

    await until(lambda: asyncio.sleep(0, not is_running(tmp_path)))


async def test_a_long_path_has_its_socket_elsewhere(tmp_path):
    """A path that is too long for a socket's name does not keep the server from starting."""
    home = tmp_path / ("x" * 100)
    home.mkdir()

    with postgres(home) as dsn:
        conn = await asyncpg.connect(dsn)
        await conn.close()
