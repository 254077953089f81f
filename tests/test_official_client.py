"""Shortcut's own npm client: it works against the simulator, and its types are what we receive."""

import asyncio
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cli.simulate import serve_app
from app.cli.trial import listen
from app.simulator.deliver import Hook
from app.simulator.oauth import CLIENT_ID
from app.simulator.records import AGENT, AGENT_ID, PEOPLE, STATES, TEAM, TEAM_ID, WORKSPACE_ID
from app.simulator.server import create_simulator
from tests.office import TOKEN
from tests.service import SECRET, receiver
from tests.stack import free_port

NODE = Path(__file__).parent / "node"
CLIENT_SECRET = "a made-up client secret"


@pytest.fixture
def official(require_tool):
    """Starts the official client in one of its modes; its output is JSON."""
    node = require_tool("node")
    if not (NODE / "node_modules").is_dir():
        missing = "the official client is not installed: make node"
        if os.environ.get("DRAFTGATE_REQUIRE_TOOLS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)

    async def start(mode: str, **given: object) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            node,
            "--experimental-global-webcrypto",
            str(NODE / "client.mjs"),
            mode,
            json.dumps(given),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    return start


async def found(process: asyncio.subprocess.Process):
    """What the client has found, once it has ended well."""
    out, err = await process.communicate(b"")
    assert process.returncode == 0, err.decode()
    return json.loads(out)


@asynccontextmanager
async def simulator(**given: object):
    """A simulated workspace whose agent app can be installed; where it is."""
    stopping = asyncio.Event()
    app = create_simulator(
        secret=SECRET, api_token=TOKEN, client_secret=CLIENT_SECRET, seeded=False, **given
    )
    with listen(0) as listener:
        serving = asyncio.create_task(serve_app(app, listener, stopping))
        try:
            yield app.state.simulation, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopping.set()
            await serving


async def test_the_client_works_against_the_simulator(official):
    """Versions 3 and 4, OAuth, fields, cursors and errors, as its own code takes them."""
    async with simulator(webhook_url=None) as (_, origin):
        said = await found(
            await official(
                "api",
                origin=origin,
                token=TOKEN,
                state=STATES[2].id,
                team=TEAM_ID,
                client_id=CLIENT_ID,
                client_secret=CLIENT_SECRET,
            )
        )

    assert said["v3"] == {
        "hook": [True, False],
        "team": [it.id for it in TEAM],
        "workspace": WORKSPACE_ID,
        "label": "patch",
        "comments": 23,
        "states": len(STATES),
    }
    assert said["v4"] == {
        "team": [it.id for it in TEAM],
        "permission": AGENT_ID,
        "rotated": True,
        "replayed": "invalid_grant",
        "agent": {"assignable": True, "mentionable": True},
        "story": [["labels", "name"], "patch"],
        "texts": [str(number) for number in range(1, 24)],
        "unknown": 400,
    }


async def test_its_verifier_accepts_what_the_simulator_signs(official):
    """Each delivery of both versions, and not one whose signature is another secret's."""
    port = free_port()
    process = await official("listen", port=port, secret=SECRET)
    assert await process.stdout.readline() == b"listening\n"
    url = f"http://127.0.0.1:{port}"
    async with simulator(webhook_url=f"{url}/v2", versions=("v1", "v2")) as (simulation, _):
        simulation.integrations.clear()
        simulation.register(PEOPLE[0], Hook(url=f"{url}/v1", secret=SECRET.encode()))
        simulation.register(PEOPLE[0], Hook(url=f"{url}/v1", secret=b"the secret of another"))
        simulation.ping()
        workspace = simulation.workspace
        story = workspace.create_story(PEOPLE[0], {"name": "Größer 🚀", "owner_ids": [AGENT.id]}).id
        said = workspace.add_comment(PEOPLE[0], story, f"{AGENT.mention} faster").id
        workspace.add_comment(AGENT, story, "It is.", parent_id=said)
        ours = workspace.add_comment(AGENT, story, "Which one?").id
        workspace.add_comment(PEOPLE[0], story, "All.", parent_id=ours)
        await simulation.deliverer.deliver_now()
        statuses = {attempt.status for attempt in simulation.deliverer.attempts}
        counts = dict(simulation.deliverer.counts)

    seen = await found(process)
    assert statuses == {200, 401}
    assert counts["200"] == len(seen)
    assert counts["401"] == seen.count("v1") == 5
    assert {*seen} == {"v1", "observer", "validation", "assigned", "mentioned", "comment-reply"}


async def test_every_shape_of_its_types_is_received(official, database, conn):
    """What its types describe, signed by its own code, is recorded, and none of it puzzles us."""
    async with receiver(database) as it:
        url = f"http://127.0.0.1:{it.port}/webhooks/shortcut"
        sent = await found(await official("send", url=url, secret=SECRET))

    assert {status for _, status in sent} == {200}
    assert {kind for kind, _ in sent} == {"observer", "interaction", "validation"}
    rows = await conn.fetch("select kind, count(*) from events group by kind")
    kinds = {row["kind"]: row["count"] for row in rows}
    observed = sum(kind == "observer" for kind, _ in sent)
    assert kinds == {
        "validation": 2,
        "v2:observer": observed,
        "v2:assigned": 2,
        "v2:comment-reply": 2,
        "v2:mentioned": 6,
    }
    assert not await conn.fetchval("select count(*) from events where status <> 'pending'")
