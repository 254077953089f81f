"""The simulated workspace: what it says about a change, how it delivers, and what its API does."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from app.errors import ShortcutError, ShortcutRefused, ShortcutUnavailable
from app.shortcut.client import ShortcutClient
from app.shortcut.envelope import read
from app.shortcut.signature import verify
from app.simulator.deliver import Deliverer, Hook, Weather
from app.simulator.deliveries import Outgoing, v1
from app.simulator.deliveries_v2 import v2
from app.simulator.oauth import CLIENT_ID
from app.simulator.records import AGENT, AGENT_ID, INSTALLATION_ID, PEOPLE, STATES, Change
from app.simulator.server import create_simulator
from app.simulator.workspace import Workspace

SECRET = "a secret of some length"
TOKEN = "a-made-up-token"
SAMPLES = Path(__file__).parent / "samples" / "deliveries"
PERSON = PEOPLE[0]

Payload = dict[str, Any]


# --- what is said about a change ----------------------------------------------------------------


@dataclass
class Told:
    """A workspace with one story, and what it has told since."""

    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workspace = Workspace(tell=self.changes.append)
        story = self.workspace.create_story(PERSON, {"name": "Export invoices as CSV"})
        self.sc_id = story.id
        self.changes.clear()

    def set(self, **fields: object) -> None:
        self.workspace.update_stories(PERSON, [self.sc_id], fields)

    def comment(self, text: str, *, parent_id: int | None = None) -> int:
        made = self.workspace.add_comment(PERSON, self.sc_id, text, parent_id=parent_id)
        return made.id

    @property
    def v1(self) -> Payload:
        return _payload(v1(self.changes[-1])[0])

    @property
    def v2(self) -> list[Payload]:
        return [_payload(outgoing) for outgoing in v2(self.changes[-1])]

    @property
    def triggers(self) -> list[Payload]:
        return [told["trigger"] for told in self.v2[1:]]


def _payload(outgoing: Outgoing) -> Payload:
    payload: Payload = json.loads(outgoing.body)
    return payload


def _label(told: Told) -> None:
    told.set(labels=["patch"])


def _label_again(told: Told) -> None:
    told.workspace.create_story(PERSON, {"name": "Another", "labels": ["patch"]})
    told.set(labels=["patch"])


def _comment(told: Told) -> None:
    told.comment("One row per invoice, please.")


def _edit_comment(told: Told) -> None:
    told.workspace.edit_comment(PERSON, told.sc_id, told.comment("In cents."), "In euros.")


def _describe_and_clear(told: Told) -> None:
    told.set(description="Was something")
    told.set(description="")


def _batch(told: Told) -> None:
    told.set(labels=["patch"])
    others = [told.workspace.create_story(PERSON, {"name": name}).id for name in ("One", "Two")]
    told.workspace.update_stories(PERSON, others, {}, labels_add=["patch"])


AS_CAPTURED: dict[str, Callable[[Told], None]] = {
    "v1-story-create": lambda told: _none(told.workspace.create_story(PERSON, {"name": "New"})),
    "v1-label-added-name-in-actions": _label,
    "v1-label-added-name-in-references": _label_again,
    "v1-comment-created": _comment,
    "v1-comment-updated": _edit_comment,
    "v1-description-cleared": _describe_and_clear,
    "v1-story-archived": lambda told: told.set(archived=True),
    "v1-story-deleted": lambda told: told.workspace.delete_story(PERSON, told.sc_id),
    "v1-state-moved-owner-auto-added": lambda told: told.set(workflow_state_id=STATES[2].id),
    "v1-batch-without-primary-id": _batch,
}


def _none(_: object) -> None: ...


def _shape(value: Any) -> Any:
    """The value with its contents replaced by their types; what lists hold, by kind."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        rows = [_shape(item) for item in value]
        return [row for position, row in enumerate(rows) if row not in rows[:position]]
    return type(value).__name__


def _lacks(sample: Any, told: Any, at: str = "") -> list[str]:
    """Where the sample has a key, or an item of a list, whose like was not told."""
    if isinstance(sample, dict) and isinstance(told, dict):
        missing = [f"{at}.{key}" for key in sample if key not in told]
        both = sample.keys() & told.keys()
        return missing + [
            it for key in both for it in _lacks(sample[key], told[key], f"{at}.{key}")
        ]
    if isinstance(sample, list) and isinstance(told, list):
        return [
            f"{at}[{item}]"
            for item in sample
            if not any(not _lacks(item, other, at) for other in told)
        ]
    return [] if sample == told else [f"{at}: {sample} is {told}"]


@pytest.mark.parametrize("name", AS_CAPTURED)
def test_version_1_has_the_shape_of_captured_deliveries(name: str) -> None:
    """Everything that a captured delivery has, the simulated one has too, of the same type."""
    told = Told()
    AS_CAPTURED[name](told)
    sample = json.loads((SAMPLES / f"{name}.json").read_text())
    # Teams are not simulated.
    for action in sample["actions"]:
        action.get("changes", {}).pop("group_id", None)
    sample["references"] = [it for it in sample.get("references", []) if type(it["id"]) is int]
    if not sample["references"] or "references" not in told.v1:
        assert not sample["references"]
        del sample["references"]
    optional = {"actor_name", "owner_ids"}

    assert (
        _lacks({k: v for k, v in _shape(sample).items() if k not in optional}, _shape(told.v1))
        == []
    )
    assert ("primary_id" in told.v1) == ("primary_id" in sample)
    assert told.v1["actor_name"] == PERSON.name


def test_a_label_made_by_the_change_is_named_only_by_its_action() -> None:
    """The name of a new label is in `actions`, that of one that was there is in `references`."""
    told = Told()
    told.set(labels=["patch"])
    made = told.v1
    told.set(labels=[])
    removed = told.v1

    assert [action["entity_type"] for action in made["actions"]] == ["story", "label"]
    assert "references" not in made
    label_id = made["actions"][1]["id"]
    assert removed["actions"][0]["changes"] == {"label_ids": {"removes": [label_id]}}
    assert removed["references"][0] | {"name": "patch", "id": label_id} == removed["references"][0]


def test_a_deleted_comment_leaves_the_story() -> None:
    """A deletion names the comment and the story that it was on."""
    told = Told()
    comment_id = told.comment("Never mind.")
    told.workspace.delete_comment(PERSON, told.sc_id, comment_id)

    comment, story = told.v1["actions"]
    assert comment == {"id": comment_id, "entity_type": "story-comment", "action": "delete"}
    assert story["changes"] == {"comment_ids": {"removes": [comment_id]}}


def test_what_changes_nothing_says_nothing() -> None:
    """The same label, state or text once more is no change."""
    told = Told()
    told.set(labels=["patch"], workflow_state_id=STATES[3].id, description="Text")
    told.changes.clear()
    told.set(labels=["patch"], workflow_state_id=STATES[3].id, description="Text")

    assert told.changes == []


def test_every_change_is_later_than_the_one_before() -> None:
    """No two changes share a millisecond, however fast they come."""
    told = Told()
    for number in range(50):
        told.comment(f"Comment {number}")

    times = [change.at for change in told.changes]
    assert times == sorted(set(times))


def test_the_agent_is_told_that_it_was_assigned() -> None:
    """An assignment is an observer delivery with the owner, and an interaction, under one id."""
    told = Told()
    told.set(owner_ids=[AGENT_ID])

    observer, assigned = told.v2
    assert observer["id"] == assigned["id"]
    assert observer["actions"][0]["changes"] == [
        {
            "attribute": "owners",
            "adds": [{"id": AGENT_ID, "entity_type": "member", "name": AGENT.name}],
            "removes": [],
        }
    ]
    sc_id = str(told.sc_id)
    assert assigned["trigger"] == {"type": "assigned", "entity_type": "story", "entity_id": sc_id}
    assert assigned["installation_id"] == INSTALLATION_ID


def test_the_agent_is_told_where_it_was_mentioned() -> None:
    """A mention in a description, in a comment, in a reply: each has its own fields."""
    told = Told()
    told.set(description=f"{AGENT.mention} please")
    in_description = told.triggers
    top = told.comment(f"{AGENT.mention} /draft")
    in_comment = told.triggers
    reply = told.comment(f"and {AGENT.mention}", parent_id=top)
    in_reply = told.triggers

    story = {"type": "mentioned", "entity_type": "story", "entity_id": str(told.sc_id)}
    assert in_description == [story | {"context": "description"}]
    assert in_comment == [story | {"context": "comment", "comment_id": str(top)}]
    ids = {"comment_id": str(reply), "comment_parent_id": str(top)}
    assert in_reply == [story | {"context": "comment"} | ids]


def test_a_reply_to_the_agent_is_told_as_such() -> None:
    """A reply in the agent's thread names both comments; one in another thread is not told."""
    told = Told()
    question = told.workspace.add_comment(AGENT, told.sc_id, "Which columns?")
    own = told.triggers
    reply = told.comment("All of them.", parent_id=question.id)
    answered = told.triggers
    told.comment("Thanks.", parent_id=told.comment("By the way"))

    ids = {"comment_id": str(reply), "parent_comment_id": str(question.id)}
    story = {"entity_type": "story", "entity_id": str(told.sc_id)}
    assert own == []
    assert answered == [{"type": "comment-reply", **story, **ids}]
    assert told.triggers == []


def test_long_strings_are_cut_in_version_2_only() -> None:
    """Version 1 carries whole descriptions, version 2 the first 8,192 characters."""
    told = Told()
    told.set(description="x" * 9_000)

    change = told.v2[0]["actions"][0]["changes"][0]
    assert told.v1["actions"][0]["changes"]["description"]["new"] == "x" * 9_000
    assert change == {
        "attribute": "description",
        "adds": ["x" * 8_192],
        "removes": [],
        "truncated": True,
    }


def test_the_door_reads_what_the_simulator_says() -> None:
    """Every kind is recorded under the name that the simulator gives it."""
    told = Told()
    told.set(owner_ids=[AGENT_ID], description=f"{AGENT.mention} \0 \ud800 \U0001f600")
    change = told.changes[-1]

    said = [*v1(change), *v2(change)]
    assert [read("shortcut", outgoing.body, []).kind for outgoing in said] == [
        "v1",
        "v2:observer",
        "v2:assigned",
        "v2:mentioned",
    ]
    assert len({read("shortcut", outgoing.body, []).dedupe_key for outgoing in said}) == 4


# --- how it is delivered ------------------------------------------------------------------------


@dataclass
class Door:
    """A receiver that answers as it is told, the last status for ever."""

    statuses: Sequence[int] = (200,)
    url: str = ""
    got: list[tuple[bytes, list[bytes]]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        signatures = [value for name, value in scope["headers"] if name == b"payload-signature"]
        self.got.append((body, signatures))
        status = self.statuses[min(len(self.got), len(self.statuses)) - 1]
        start = {"type": "http.response.start", "status": status, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b'{"duplicate": true}'})

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.got]


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The application on a port of its own; the address."""
    # Named as TCP, or asyncio leaves out TCP_NODELAY and each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = uvicorn.Config(
        app,
        lifespan="on" if isinstance(app, FastAPI) else "off",
        log_config=None,
        timeout_graceful_shutdown=1,
        ws="none",
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def door(*statuses: int) -> AsyncIterator[Door]:
    it = Door(statuses or (200,))
    async with served(it) as url:
        it.url = f"{url}/webhooks/shortcut"
        yield it


def _bodies(count: int) -> list[bytes]:
    return [b'{"id": "%d"}' % number for number in range(count)]


async def _deliver(weather: Weather, bodies: Sequence[bytes], *, seed: int = 0) -> Deliverer:
    """Delivers the bodies to a receiver of its own; the order is in the log."""
    deliverer = Deliverer(weather, seed=seed)
    async with door() as it, deliverer.running(), asyncio.timeout(20):
        _offer(deliverer, bodies, it.url)
        await deliverer.deliver_now()
    return deliverer


def _offer(deliverer: Deliverer, bodies: Sequence[bytes], url: str) -> None:
    for body in bodies:
        outgoing = Outgoing(kind="v1", change_id="", body=body)
        deliverer.offer(outgoing, Hook(url=url, secret=SECRET.encode()))


async def test_deliveries_are_signed_as_they_are_sent() -> None:
    """The signature is one header over the exact bytes."""
    deliverer = Deliverer(Weather(), seed=0)
    async with door() as it, deliverer.running():
        _offer(deliverer, [b'{"id":\t"1"}\n', b""], it.url)
        await deliverer.idle()

    assert it.bodies == [b'{"id":\t"1"}\n', b""] or it.bodies == [b"", b'{"id":\t"1"}\n']
    assert all(verify([SECRET.encode()], body, signatures) for body, signatures in it.got)


async def test_without_a_secret_there_is_no_signature() -> None:
    """A webhook that was registered without a secret is not signed for."""
    deliverer = Deliverer(Weather(), seed=0)
    async with door() as it, deliverer.running():
        deliverer.offer(Outgoing(kind="v1", change_id="", body=b"{}"), Hook(url=it.url, secret=b""))
        await deliverer.idle()

    assert it.got == [(b"{}", [])]


async def test_each_delivery_travels_as_often_as_asked() -> None:
    """Three copies of each arrive, and the log says which copy was answered how."""
    deliverer = await _deliver(Weather(copies=3), _bodies(10))

    sent = {(attempt.delivery, attempt.copy) for attempt in deliverer.attempts}
    assert sent == {(delivery, copy) for delivery in range(1, 11) for copy in (1, 2, 3)}
    assert deliverer.counts == {"offered": 10, "200": 30}
    assert all(attempt.duplicate for attempt in deliverer.attempts)
    assert all(attempt.milliseconds > 0 for attempt in deliverer.attempts)


async def test_a_seed_repeats_the_disorder() -> None:
    """What is mixed and dropped follows from the seed alone."""
    weather = Weather(copies=3, window_seconds=30, drop_percent=20, senders=1)
    runs = [await _deliver(weather, _bodies(20), seed=seed) for seed in (7, 7, 8)]
    orders = [[(it.delivery, it.copy, it.error) for it in run.attempts] for run in runs]

    assert orders[0] == orders[1] != orders[2]
    sent = [delivery for delivery, _, error in orders[0] if error is None]
    assert sent != sorted(sent)
    assert 0 < runs[0].counts["dropped"] < 30
    assert runs[0].counts["dropped"] + runs[0].counts["200"] == 60


async def test_what_nobody_took_is_sent_again() -> None:
    """After a 503, a 429 or no answer it comes again, as the same bytes; a 4xx ends it."""
    weather = Weather(first_backoff_seconds=0.001)
    deliverer = Deliverer(weather, seed=0)
    async with door(503, 429, 500, 200, 400) as it, deliverer.running(), asyncio.timeout(20):
        _offer(deliverer, [b"one"], it.url)
        await deliverer.idle()
        _offer(deliverer, [b"two"], it.url)
        await deliverer.idle()

    assert it.bodies == [b"one"] * 4 + [b"two"]
    assert [(a.attempt, a.status) for a in deliverer.attempts] == [
        (1, 503),
        (2, 429),
        (3, 500),
        (4, 200),
        (1, 400),
    ]


async def test_sending_again_has_an_end() -> None:
    """A receiver that is not there is given up on after the tries that it has."""
    deliverer = Deliverer(Weather(max_tries=3, first_backoff_seconds=0.001), seed=0)
    async with door() as it:
        pass
    async with deliverer.running(), asyncio.timeout(20):
        _offer(deliverer, [b"one"], it.url)
        await deliverer.idle()

    assert [attempt.error for attempt in deliverer.attempts] == ["ConnectError"] * 3


async def test_what_waits_can_be_forgotten() -> None:
    """After `forget` nothing is under way, and the log is empty."""
    deliverer = Deliverer(Weather(delay_seconds=3600, window_seconds=3600), seed=0)
    async with deliverer.running():
        _offer(deliverer, _bodies(5), "http://127.0.0.1:1/")
        waited = deliverer.waiting
        deliverer.forget()
        await deliverer.idle()

    assert waited == 5
    assert deliverer.waiting == 0
    assert not deliverer.counts


async def test_posts_without_a_body_can_be_had() -> None:
    """Shortcut is known to send them: they are signed like any other."""
    deliverer = Deliverer(Weather(empty_percent=100), seed=0)
    async with door() as it, deliverer.running():
        _offer(deliverer, _bodies(2), it.url)
        await deliverer.idle()

    assert sorted(it.bodies) == [b"", b"", *_bodies(2)]


# --- the API ------------------------------------------------------------------------------------


@dataclass
class Simulated:
    """The simulator, served, with a client of its API as the service has it and a plain one."""

    url: str
    client: ShortcutClient
    http: httpx.AsyncClient
    received: Door

    async def sc_id(self) -> int:
        state = (await self.http.get("/sim/state")).json()
        number: int = state["stories"][0]["id"]
        return number

    async def as_person(self, method: str, path: str, body: Payload | None = None) -> Any:
        headers = {"Shortcut-Token": TOKEN, "Sim-Member": PERSON.id}
        path = f"/api/v3{path}"
        response = await self.http.request(method, path, json=body, headers=headers)
        return response.json() if response.content else response.status_code

    async def exchange(self, code: str) -> Payload:
        """The tokens that a code is good for."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": CLIENT_ID,
            "client_secret": "a client's secret",
            "redirect_uri": urljoin(self.received.url, "/oauth/shortcut/callback"),
        }
        answer = await self.http.post("/oauth-authorization-code-flow/token", data=form)
        return cast(Payload, answer.json())

    async def accepts(self, tokens: Payload) -> bool:
        headers = {"Authorization": f"Bearer {tokens['access_token']}"}
        return (await self.http.get("/api/v3/workflows", headers=headers)).status_code == 200

    async def fail(self, **fault: object) -> None:
        (await self.http.post("/sim/faults", json=fault)).raise_for_status()

    async def deliver(self) -> list[Payload]:
        (await self.http.post("/sim/deliver-now")).raise_for_status()
        return [json.loads(body) for body in self.received.bodies]


@asynccontextmanager
async def simulated(*, deadline_seconds: float = 10, **options: Any) -> AsyncIterator[Simulated]:
    async with door() as received:
        app = create_simulator(webhook_url=received.url, secret=SECRET, api_token=TOKEN, **options)
        async with (
            served(app) as url,
            ShortcutClient(f"{url}/api/v3", TOKEN, deadline_seconds=deadline_seconds) as client,
            httpx.AsyncClient(base_url=url, trust_env=False) as http,
        ):
            yield Simulated(url, client, http, received)


async def test_the_client_reads_and_writes_the_simulated_workspace() -> None:
    """Everything that the service asks of the API works against the simulator."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        story = await sim.client.story(sc_id)
        labels = await sim.as_person("GET", "/labels")
        posted = await sim.client.post_comment(sc_id, "Which columns?", "mark")
        reply = await sim.client.post_comment(sc_id, "Or none?", "other", parent_id=posted)

        assert story.title == "Export invoices as CSV"
        assert story.labels == ("billing",)
        assert await sim.client.label_name(labels[0]["id"]) == "billing"
        assert await sim.client.label_name(1) is None
        assert await sim.client.state_name(STATES[1].id) == "To do"
        assert await sim.client.find_comment(sc_id, "mark") == posted
        assert await sim.client.comment_text(sc_id, reply) == "Or none?"
        assert (await sim.client.me()).member_id == AGENT_ID


async def test_a_story_s_history_leaves_out_what_comments_say() -> None:
    """It has the form of version 1 deliveries; searches find what has changed since a time."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        since = (await sim.client.changed_since(datetime(2020, 1, 1, tzinfo=UTC)))[-1].updated_at
        said = await sim.client.post_comment(sc_id, "Which columns?", "mark")

        history = await sim.client.history(sc_id)
        found = await sim.client.changed_since(since)

        assert {change["version"] for change in history} == {"v1"}
        assert [action["id"] for action in history[-1]["actions"]] == [said, sc_id]
        assert "text" not in history[-1]["actions"][0]
        assert [story.labels for story in found if story.sc_id == sc_id] == [("billing",)]
        with pytest.raises(ShortcutRefused):
            await sim.client.history(1)


async def test_a_deleted_comment_is_gone_for_the_client() -> None:
    """It stays in the list, marked, and is neither found nor read."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        posted = await sim.client.post_comment(sc_id, "Never mind.", "mark")
        path = f"/stories/{sc_id}/comments/{posted}"

        assert await sim.as_person("DELETE", path) == 204
        assert await sim.client.find_comment(sc_id, "mark") is None
        assert await sim.client.comment_text(sc_id, posted) is None
        assert (await sim.as_person("GET", path))["deleted"] is True


@pytest.mark.parametrize("kind", ["hang", "cut"])
async def test_a_comment_whose_answer_is_lost_is_found_and_not_posted_twice(kind: str) -> None:
    """After a lost answer the outcome is uncertain; the marker tells that the comment is there."""
    async with simulated(deadline_seconds=0.5) as sim:
        sc_id = await sim.sc_id()
        await sim.fail(kind=kind, method="POST", path="/comments")
        with pytest.raises(ShortcutUnavailable) as lost:
            await sim.client.post_comment(sc_id, "Draft 1", "mark")

        assert lost.value.uncertain
        assert await sim.client.find_comment(sc_id, "mark") is not None
        assert len(await sim.as_person("GET", f"/stories/{sc_id}/comments")) == 1


async def test_a_fault_does_nothing_else_and_ends() -> None:
    """A status fault leaves the workspace alone, for as many requests as it has."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        await sim.fail(status=429, retry_after="7", times=2)
        waits = []
        for _ in range(2):
            with pytest.raises(ShortcutUnavailable) as later:
                await sim.client.post_comment(sc_id, "Draft 1", "mark")
            waits.append(later.value.retry_after_seconds)
        await sim.client.post_comment(sc_id, "Draft 1", "mark")

        assert waits == [7, 7]
        assert len(await sim.as_person("GET", f"/stories/{sc_id}/comments")) == 1


async def test_the_rate_has_a_limit_where_one_is_set() -> None:
    """As many requests as the limit says are answered, the next one is a 429."""
    async with simulated(per_minute=3) as sim:
        for _ in range(3):
            await sim.client.me()
        with pytest.raises(ShortcutUnavailable, match="429"):
            await sim.client.me()


async def test_without_the_token_there_is_nothing() -> None:
    """A wrong token is a 401, for every path of the API."""
    async with simulated() as sim, ShortcutClient(f"{sim.url}/api/v3", "wrong") as stranger:
        with pytest.raises(ShortcutRefused) as refused:
            await stranger.me()
        plain = await sim.http.get("/api/v3/workflows")

    assert refused.value.status == 401
    assert plain.status_code == 401


REFUSED = [
    ("POST", "/stories", {}, 400),
    ("POST", "/stories", {"name": "x" * 513}, 400),
    ("POST", "/stories", {"name": "x", "colour": "red"}, 400),
    ("PUT", "/stories/{}", {"workflow_state_id": 1}, 422),
    ("PUT", "/stories/{}", {"owner_ids": ["nobody"]}, 422),
    ("PUT", "/stories/{}", {"name": None}, 422),
    ("PUT", "/stories/99", {"name": "x"}, 404),
    ("PUT", "/stories/bulk", {"story_ids": [99], "labels_add": [{"name": "patch"}]}, 404),
    ("POST", "/stories/{}/comments", {"text": "x", "parent_id": 99}, 422),
    ("POST", "/stories/{}/comments", {"text": "x" * 100_001}, 400),
    ("POST", "/stories/99/comments", {"text": "x"}, 404),
    ("GET", "/stories/{}/comments/99", None, 404),
    ("DELETE", "/stories/{}/comments/99", None, 404),
    ("GET", "/labels/99", None, 404),
    ("GET", "/nothing", None, 404),
]


async def test_what_is_wrong_is_refused_and_changes_nothing() -> None:
    """400 for the wrong shape, 404 for what isn't there, 422 for what refers to it."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        before = (await sim.http.get("/sim/state")).json()
        headers = {"Shortcut-Token": TOKEN}
        statuses = [
            (
                await sim.http.request(
                    method, f"/api/v3{path.format(sc_id)}", json=body, headers=headers
                )
            ).status_code
            for method, path, body, _ in REFUSED
        ]

        assert statuses == [status for *_, status in REFUSED]
        assert (await sim.http.get("/sim/state")).json() == before
        assert await sim.deliver() == []


async def test_a_change_over_the_api_is_delivered() -> None:
    """Whoever changes something, the webhook hears of it, and who it was."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        label = {"story_ids": [sc_id], "labels_add": [{"name": "patch"}]}
        await sim.as_person("PUT", "/stories/bulk", label)
        await sim.client.post_comment(sc_id, "Draft 1", "mark")
        told = await sim.deliver()

    assert [it["member_id"] for it in told] == [PERSON.id, AGENT_ID]
    assert told[0]["primary_id"] == sc_id


async def test_both_versions_can_be_had_at_once() -> None:
    """One change over both kinds of webhook: one id, three deliveries."""
    async with simulated(versions=("v1", "v2")) as sim:
        sc_id = await sim.sc_id()
        await sim.as_person("PUT", f"/stories/{sc_id}", {"owner_ids": [AGENT_ID]})
        told = await sim.deliver()

    assert len({it["id"] for it in told}) == 1
    assert sorted(it["version"] for it in told) == ["v1", "v2", "v2"]


async def test_webhooks_come_and_go() -> None:
    """A registered webhook gets deliveries signed with its own secret, until it is removed."""
    async with simulated() as sim, door() as second:
        hook = {"webhook_url": second.url, "secret": "another secret"}
        made = await sim.as_person("POST", "/integrations/webhook", hook)
        path = f"/integrations/webhook/{made['id']}"
        shown = await sim.as_person("GET", path)
        await sim.as_person("POST", "/stories", {"name": "Heard by both"})
        await sim.deliver()
        await sim.http.put(f"/sim/integrations/{made['id']}", json={"disabled": True})
        await sim.as_person("POST", "/stories", {"name": "Heard by one"})
        await sim.as_person("DELETE", path)
        gone = await sim.as_person("GET", path)
        await sim.deliver()

    assert shown == made
    assert "another secret" not in str(made)
    assert len(second.got) == 1
    assert verify([b"another secret"], *second.got[0])
    assert len(sim.received.got) == 2
    assert gone == {"message": "Resource not found."}


async def test_the_validation_ping_is_signed() -> None:
    """An agent app's endpoint is pinged before it is sent anything."""
    async with simulated() as sim:
        await sim.http.post("/sim/ping")
        told = await sim.deliver()

    assert told == [{"type": "validation"}]
    assert verify([SECRET.encode()], *sim.received.got[0])


async def test_starting_over_uses_no_number_twice() -> None:
    """After a reset the same stories are there under numbers that no receiver has seen."""
    async with simulated() as sim:
        await sim.fail(status=500)
        before = (await sim.http.get("/sim/state")).json()
        await sim.http.post("/sim/reset")
        after = (await sim.http.get("/sim/state")).json()

    assert [it["name"] for it in after["stories"]] == [it["name"] for it in before["stories"]]
    assert not {it["id"] for it in after["stories"]} & {it["id"] for it in before["stories"]}
    assert after["faults"] == []
    assert sim.received.got == []


# --- the page -----------------------------------------------------------------------------------

HOSTILE = "</title><script>alert(1)</script>\"'>{{ 7 * 7 }}<img src=x onerror=alert(2)>"


async def test_whatever_a_story_says_is_text_on_the_page() -> None:
    """Names, labels, descriptions and comments are escaped everywhere, and nothing may run."""
    async with simulated() as sim:
        fields = {"name": HOSTILE, "description": HOSTILE, "labels": [{"name": HOSTILE}]}
        story = await sim.as_person("POST", "/stories", fields)
        await sim.as_person("POST", f"/stories/{story['id']}/comments", {"text": HOSTILE})
        page = await sim.http.get("/")

    assert "<script" not in page.text
    assert "<img" not in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert page.text.count("&lt;script&gt;") >= 4
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_the_page_does_what_its_forms_say() -> None:
    """Each form changes the workspace as a person would, and leads back to the story."""
    async with simulated() as sim:
        form = {"name": "Sort by price", "description": "Cheapest\r\nfirst"}
        made = await sim.http.post("/page/stories", data=form)
        at = made.headers["location"].removeprefix("/#story-")
        path = f"/page/stories/{at}"
        for where, data in (
            ("labels", {"name": "patch"}),
            ("labels", {"name": "later"}),
            ("labels", {"name": "later", "do": "remove"}),
            ("assign", {"who": PEOPLE[1].id}),
            ("state", {"state": str(STATES[2].id)}),
            ("archive", {}),
            ("comments", {"text": "please", "mention": "yes", "who": PEOPLE[2].id}),
            ("comments", {"text": f"@{AGENT.mention_name} /draft"}),
        ):
            response = await sim.http.post(f"{path}/{where}", data=data)
            assert response.status_code == 303
        story = await sim.as_person("GET", f"/stories/{at}")
        page = await sim.http.get(f"/?every=3#story-{at}")
        style = await sim.http.get("/page.css")

    assert story["description"] == "Cheapest\nfirst"
    assert [label["name"] for label in story["labels"]] == ["patch"]
    assert story["owner_ids"] == [AGENT_ID]
    assert story["workflow_state_id"] == STATES[2].id
    assert story["archived"] is True
    assert [it["author_id"] for it in story["comments"]] == [PEOPLE[2].id, PERSON.id]
    assert all(it["text"].startswith(AGENT.mention) for it in story["comments"])
    assert f"sc-{at}" in page.text
    assert style.headers["content-type"].startswith("text/css")


async def test_comments_and_stories_are_edited_and_deleted_on_the_page() -> None:
    """By their authors, and a mention stays one link however often it is saved."""
    async with simulated() as sim:
        at = await sim.sc_id()
        said = {"text": f"@{AGENT.mention_name} please", "who": PEOPLE[2].id}
        await sim.http.post(f"/page/stories/{at}/comments", data=said)
        (comment,) = await sim.as_person("GET", f"/stories/{at}/comments")
        path = f"/page/stories/{at}/comments/{comment['id']}"
        await sim.http.post(path, data={"text": f"{comment['text']} now"})
        (edited,) = await sim.as_person("GET", f"/stories/{at}/comments")
        await sim.http.post(path, data={"do": "delete"})
        (deleted,) = await sim.as_person("GET", f"/stories/{at}/comments")
        await sim.http.post(f"/page/stories/{at}/delete")
        told = await sim.deliver()

    assert edited["text"] == f"{AGENT.mention} please now"
    assert deleted["deleted"] is True
    assert [it["member_id"] for it in told] == [PEOPLE[2].id] * 3 + [PERSON.id]
    assert told[-1]["actions"][0]["action"] == "delete"


async def test_webhooks_are_registered_disabled_and_removed_on_the_page() -> None:
    """One that has no secret of its own is signed with the simulator's."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        await sim.http.post("/page/webhooks/1", data={"do": "remove"})
        await sim.http.post("/page/webhooks", data={"webhook_url": sim.received.url})
        for do in ("disable", "enable"):
            await sim.http.post("/page/webhooks/2", data={"do": do})
            await sim.as_person("POST", f"/stories/{sc_id}/comments", {"text": do})
        told = await sim.deliver()
        page = await sim.http.get("/")

    assert [it["actions"][0]["text"] for it in told] == ["enable"]
    assert verify([SECRET.encode()], *sim.received.got[0])
    assert f"2: {sim.received.url}" in page.text


async def test_the_agent_app_comes_and_goes_on_the_page() -> None:
    """It is installed from within the workspace; its tokens expire, and it is uninstalled."""
    async with simulated(client_secret="a client's secret") as sim:

        async def follow(link: str) -> str:
            return (await sim.http.get(link)).headers["location"]

        async def do(what: str) -> str:
            answer = await sim.http.post("/page/app", data={"do": what})
            assert answer.status_code == 303
            return (await sim.http.get("/")).text

        page = (await sim.http.get("/")).text
        link = unescape(re.search('href="(/oauth[^"]+)"', page)[1])
        agreed = parse_qs(urlsplit(await follow(link)).query)
        tokens = await sim.exchange(agreed["code"][0])
        assert await sim.accepts(tokens)
        assert "Let tokens expire" in await do("expire")
        assert not await sim.accepts(tokens)
        assert "Not installed" in await do("uninstall")
        await do("refuse")
        assert "error=access_denied" in await follow(link)
        await do("agree")
        assert "code=" in await follow(link)
        await do("ping")
        assert await sim.deliver() == [{"type": "validation"}]


async def test_how_deliveries_travel_is_set_on_the_page() -> None:
    """From then on, for what happens after."""
    async with simulated() as sim:
        await sim.http.post("/page/travel", data={"copies": "3", "window_seconds": "0.1"})
        await sim.as_person("POST", "/stories", {"name": "Heard three times"})
        assert len(await sim.deliver()) == 3
        await sim.http.post("/page/travel", data={"drop_percent": "100"})
        await sim.as_person("POST", "/stories", {"name": "Heard by nobody"})
        assert len(await sim.deliver()) == 3


FAULTS = [
    ({"status": "503"}, False),
    ({"status": "429", "retry_after": "7", "method": "POST"}, False),
    ({"status": "302", "path": "/integrations"}, False),
    ({"status": "304"}, False),
    ({"kind": "cut"}, True),
    ({"kind": "hang"}, True),
    ({"kind": "blank"}, True),
]


async def test_faults_of_the_api_are_set_on_the_page(caplog: pytest.LogCaptureFixture) -> None:
    """They are listed until they have happened, or are taken away; none breaks the simulator."""
    async with simulated(deadline_seconds=0.5) as sim:
        for form, done in FAULTS:
            await sim.http.post("/page/faults", data={"times": "2", **form})
            before = (await sim.http.get("/sim/state")).json()["integrations"]
            with pytest.raises(ShortcutError):
                await sim.client.create_webhook("https://draftgate.example", SECRET)
            after = (await sim.http.get("/sim/state")).json()["integrations"]
            page = (await sim.http.get("/")).text
            await sim.http.post("/page/faults", data={"do": "clear"})
            await sim.client.me()

            assert len(after) == len(before) + done
            assert "1 to come" in page
            assert f"<li>{form.get('kind', 'status')}" in page
    assert not [it for it in caplog.records if it.exc_info]


SENSELESS = [
    ("/page/stories", {"name": "  "}, 400),
    ("/page/stories", {f"field{number}": "x" for number in range(51)}, 400),
    ("/oauth-authorization-code-flow/token", {f"field{number}": "x" for number in range(51)}, 400),
    ("/page/stories/{}/comments", {"text": ""}, 400),
    ("/page/stories/{}/comments", {"text": "x", "parent": "99"}, 422),
    ("/page/stories/{}/comments/99", {"do": "delete"}, 404),
    ("/page/stories/{}/state", {"state": "\u0663"}, 422),
    ("/page/stories/99/labels", {"name": "patch"}, 404),
    ("/page/stories/99/delete", {}, 404),
    ("/page/stories", {"name": "x", "description": "y" * 2_200_000}, 413),
    ("/page/webhooks", {"webhook_url": "ftp://elsewhere"}, 422),
    ("/page/webhooks/99", {"do": "remove"}, 404),
    ("/page/app", {"do": "sell"}, 400),
    ("/page/travel", {"copies": "101"}, 422),
    ("/page/travel", {"delay_seconds": "nan"}, 422),
    ("/page/faults", {"status": "204"}, 422),
    ("/page/faults", {"kind": "nonsense"}, 422),
]


async def test_a_form_that_makes_no_sense_is_refused() -> None:
    """It says so, and nothing happens."""
    async with simulated() as sim:
        sc_id = await sim.sc_id()
        before = (await sim.http.get("/sim/state")).json()
        statuses = [
            (await sim.http.post(path.format(sc_id), data=data)).status_code
            for path, data, _ in SENSELESS
        ]

        assert statuses == [status for *_, status in SENSELESS]
        assert (await sim.http.get("/sim/state")).json() == before
        assert await sim.deliver() == []


async def test_another_site_can_not_use_the_forms() -> None:
    """A form that another site's page sends is refused."""
    async with simulated() as sim:
        headers = {"Sec-Fetch-Site": "cross-site"}
        response = await sim.http.post("/page/stories", data={"name": "x"}, headers=headers)

    assert response.status_code == 403
