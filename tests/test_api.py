"""The operators' API, over HTTP: what it shows, what it does, and what it refuses."""

import base64
import re
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from app.api import guard
from app.api.guard import MOST_FAILURES
from app.api.routes import router
from app.console import actions, pages
from app.db import gate, hooks, look, outbox, sessions
from app.db.connect import Database
from app.errors import Rejected, SettingsError
from app.machine import Status
from app.settings import load
from tests import shapes
from tests.ladder import DRAFT, LEASE, comment
from tests.service import receiver

TOKEN = "a token of tests only, ü"


@pytest.fixture
async def api(database):
    """A client of the API that has the token."""
    async with service(database) as client:
        yield client


@asynccontextmanager
async def service(database, **given):
    async with receiver(database, api_token=TOKEN, **given) as running:
        running.client.base_url = running.client.base_url.join("/api/v1/")
        running.client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield running.client


async def get(api, path, **params):
    """The answer to a question that is a right one."""
    answer = await api.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", "Basic x", f"bearer {TOKEN}x"])
@pytest.mark.parametrize("path", ["sessions", "events/1/body", "why", "stats?window=x"])
async def test_nothing_is_shown_without_the_token(api, path, given):
    """Whatever is asked, without the right token the answer is 401, and names what it takes."""
    answer = await api.get(path, headers={"Authorization": given.encode()})

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "token-invalid"


async def test_wrong_tokens_are_bounded_by_address(api):
    """After ten the answer is 429, with a wait; who has the token passes from there as well."""
    wrong = {"Authorization": "Bearer x"}
    answers = [await api.get("stats", headers=wrong) for _ in range(MOST_FAILURES + 2)]

    assert [answer.status_code for answer in answers] == [401] * MOST_FAILURES + [429] * 2
    assert (answers[-1].headers["Retry-After"], answers[-1].json()["code"]) == (
        "60",
        "too-many-attempts",
    )
    assert (await api.get("stats")).status_code == 200


def test_addresses_that_are_counted_are_bounded(monkeypatch):
    """Whoever has many addresses fills no memory: the first of them are forgotten."""
    monkeypatch.setattr(guard, "MOST_ADDRESSES", 3)
    attempts = guard.Attempts()
    for _ in range(MOST_FAILURES):
        for address in ("a", "b", "c"):
            attempts.failed(address)
    attempts.failed("d")

    attempts.admit("a")
    with pytest.raises(Rejected):
        attempts.admit("b")
    assert len(attempts) == 3


async def test_nothing_is_done_without_the_token(api, ladder):
    """An action without the token changes nothing."""
    await ladder.in_status(Status.FAILED)
    number = (await ladder.session())["id"]

    answer = await api.post(f"sessions/{number}/retry", headers={"Authorization": ""})

    assert answer.status_code == 401
    assert (await ladder.session())["status"] == "failed"


async def test_without_a_token_there_is_no_api(database):
    """Where no token is set, there are no routes, for nobody."""
    async with receiver(database) as running:
        answer = await running.client.get("/api/v1/sessions")

    assert answer.status_code == 404


def test_a_short_token_is_refused(monkeypatch):
    """A token of less than 16 bytes starts nothing, and is not repeated; an empty one is none."""
    monkeypatch.setenv("DRAFTGATE_API_TOKEN", "0123456789abcde")
    with pytest.raises(SettingsError, match=r"^DRAFTGATE_API_TOKEN: it is") as refusal:
        load(_env_file=None)
    assert "0123456789abcde" not in str(refusal.value)

    monkeypatch.setenv("DRAFTGATE_API_TOKEN", "")
    assert load(_env_file=None).api_token is None


async def test_installations_are_listed_and_disconnected(api, conn):
    """Hooks and installations as they are, without a token; one is forgotten, once."""
    await hooks.save(conn, "acme", url="u", integration_id=7, wait=timedelta(0))
    await conn.execute(
        "insert into installations (workspace, slug, access) values ('w', 'bravo', 'sealed')"
    )

    assert [(it["source"], it["status"]) for it in await get(api, "hooks")] == [("acme", "alive")]
    (shown,) = await get(api, "installations")
    assert (shown["slug"], shown["status"], "access" in shown) == ("bravo", "active", False)
    path = "installations/disconnect?workspace=w"
    answers = [await api.post(f"{path}&dry_run=true"), await api.post(path), await api.post(path)]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert [answer.json()["done"] for answer in answers[:2]] == [False, True]
    assert await get(api, "installations") == []


async def test_lists_come_in_pages(api, ladder):
    """`next` leads from page to page, until it is null."""
    await ladder.deliver(*(shapes.labelled(story) for story in (1, 2, 3)))

    first = await get(api, "events", limit=2)
    second = await get(api, "events", limit=2, after=first["next"])

    assert [row["sc_ids"] for row in first["items"] + second["items"]] == [[3], [2], [1]]
    assert second["next"] is None
    assert [s["sc_id"] for s in (await get(api, "sessions", story="sc-2"))["items"]] == [2]
    assert (await get(api, "sessions", status="failed"))["items"] == []


async def test_a_session_is_shown_with_all_that_belongs_to_it(api, ladder):
    """Its timeline, conversation, claims, events, comments, drafts, and what can be done."""
    first = await ladder.claimed()
    await ladder.deliver(shapes.commented(1, minute=5, text="In euros <b>", comment=9))
    await gate.release(ladder.conn, first, error="it broke", delay=LEASE * 0, failed=True)
    second = await ladder.claim()
    await gate.complete(ladder.conn, second, DRAFT, comment=comment(second))
    await gate.keep_late_result(ladder.conn, first, DRAFT)

    shown = await get(api, f"sessions/{first.session_id}")

    assert [entry["move"] for entry in shown["timeline"]][-3:] == ["release", "claim", "complete"]
    assert [entry["text"] for entry in shown["conversation"]] == ["In euros <b>"]
    assert [claim["ended_by"] for claim in shown["claims"]] == ["release", "complete"]
    assert [event["id"] for event in shown["events"]] == [2, 1]
    assert [owed["kind"] for owed in shown["outbox"]] == ["draft"]
    assert [draft["patch"] for draft in shown["drafts"]] == [DRAFT.patch]
    assert [late["generation"] for late in shown["late_results"]] == [first.generation]
    assert shown["actions"] == ["close", "adopt"]


async def test_an_event_is_shown_to_the_byte(api, ladder):
    """Whatever was signed can be had again exactly, and is shown as far as it is text."""
    body = b'\xff\x00 {"half": "\\ud83d"}'
    await ladder.record(body)

    shown = await get(api, "events/1")

    assert base64.b64decode(shown["body_base64"]) == body
    assert shown["body_text"] == '\\xff\x00 {"half": "\\ud83d"}'
    assert (shown["status"], shown["reason"]) == ("quarantined", "not UTF-8")
    raw = await api.get("events/1/body")
    assert raw.content == body
    assert raw.headers["Content-Type"] == "application/octet-stream"


async def test_text_that_is_not_text_is_shown(api, ladder):
    """Half characters and NULs in what a story says come out as what was stored of them."""
    await ladder.deliver(shapes.labelled(1, name="A\x00B\ud83d<script>\x1b[31m"))

    (shown,) = (await get(api, "sessions"))["items"]

    assert shown["title"] == "A\ufffdB\ufffd<script>\x1b[31m"


@pytest.mark.parametrize(
    ("status", "action", "then"),
    [
        (Status.FAILED, "retry", "clarified"),
        (Status.DRAFTING, "release", "clarified"),
        (Status.DRAFTING, "close", "closed"),
        (Status.CLOSED, "reopen", "clarified"),
    ],
)
async def test_actions_say_what_they_do_and_do_it(api, ladder, status, action, then):
    """A dry run only says it; then it is done, once, and told with who did it."""
    await ladder.in_status(status)
    path = f"sessions/{(await ladder.session())['id']}/{action}"

    dry = await api.post(path, params={"dry_run": True})
    assert (await ladder.session())["status"] == status
    done = await api.post(path, params={"actor": "ada"})
    again = await api.post(path, params={"actor": "ada"})

    assert (dry.json()["done"], done.json()["done"]) == (False, True)
    assert dry.json()["plan"] == done.json()["plan"]
    assert (again.status_code, again.json()["code"]) == (409, "not-possible")
    assert (await ladder.session())["status"] == then
    told = await look.timeline(ladder.conn, (await ladder.session())["id"])
    assert told[-1]["actor"] == "operator ada"


async def test_a_late_result_is_adopted(api, ladder):
    """By the generation that made it; there must be one."""
    claim = await ladder.claimed()
    await api.post(f"sessions/{claim.session_id}/release")
    await gate.keep_late_result(ladder.conn, claim, DRAFT)
    path = f"sessions/{claim.session_id}/adopt"

    assert (await api.post(path)).status_code == 409
    assert (await api.post(path, params={"generation": 99})).status_code == 409
    assert (await api.post(path, params={"generation": claim.generation})).status_code == 200
    assert (await ladder.session())["status"] == "drafted"


async def test_a_replay_with_a_key_runs_once(api, ladder):
    """The same key is answered alike and changes nothing; another one runs."""
    await ladder.deliver(shapes.labelled(1))

    for key, then in (("a", "pending"), ("a", "applied"), ("b", "pending")):
        answer = await api.post("events/1/replay", headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["done"]) == (200, True)
        assert (await get(api, "events/1"))["status"] == then
        await ladder.deliver()
        while await ladder.applier.tick():
            pass

    assert len((await get(api, "events/1"))["replays"]) == 2


async def test_a_pending_event_is_not_replayed(api, ladder):
    """It is interpreted anyway, and the answer says so."""
    await ladder.record(shapes.labelled(1))

    assert (await api.post("events/1/replay")).status_code == 409
    assert (await api.post("events/1/replay?dry_run=1")).status_code == 409


async def test_an_event_that_can_not_be_read_is_not_replayed(api, ladder):
    """A replay would read the same bytes, so it is refused, and the event stays in quarantine."""
    await ladder.record(b"{")

    assert (await api.post("events/1/replay")).json()["code"] == "not-possible"

    assert (await get(api, "events/1"))["status"] == "quarantined"


async def test_a_comment_that_was_given_up_is_sent_again(api, ladder, conn):
    """Failed comments are pending again; others are left alone."""
    claim = await ladder.claimed()
    await gate.complete(conn, claim, DRAFT, comment=comment(claim))
    (owed,) = (await get(api, "outbox"))["items"]
    assert (await api.post(f"outbox/{owed['id']}/retry")).status_code == 409
    await conn.execute("update outbox set status = 'failed', last_error = 'refused'")

    assert (await api.post(f"outbox/{owed['id']}/retry")).json()["done"] is True

    shown = await get(api, f"outbox/{owed['id']}")
    assert (shown["status"], shown["text"]) == ("pending", "Some text")


async def test_figures_are_those_of_the_database(api, ladder):
    """Backlog, sessions by status, and events over time."""
    await ladder.in_status(Status.FAILED)
    await ladder.record(shapes.labelled(2))

    for window, buckets in (("hour", 60), ("day", 24), ("week", 28)):
        shown = await get(api, "stats", window=window)
        assert len(shown["deliveries"]) == buckets
        newest = shown["deliveries"][-2:]
        assert sum(b["applied"] for b in newest) == sum(b["pending"] for b in newest) == 1
    assert shown["sessions"]["failed"] == 1
    assert {s["stage"]: s["waiting"] for s in shown["backlog"]}["apply"] == 1


@pytest.mark.parametrize("words", ["7", "sc-7", "https://app.shortcut.com/acme/story/7/title"])
async def test_why_answers_for_a_number_or_a_link(api, ladder, words):
    """What was delivered about the story is there with its outcome, its reason, and what helps."""
    await ladder.deliver(shapes.labelled(7, label="other"))
    await ladder.record(b'{"id": 7, broken')

    answer = await get(api, "why", story=words)

    assert answer["verdict"] == "None of what was delivered about sc-7 has opened a session."
    assert "gets the label 'patch'" in answer["go_on"]
    told = [(event["status"], event["reason"]) for event in answer["events"]]
    assert told[1] == ("ignored", "the label is not 'patch'")
    assert told[0][0] == "quarantined"
    assert all(event["go_on"] for event in answer["events"])


async def test_why_says_that_nothing_came(api, ladder):
    """Where nothing was delivered, the webhook is what to look at."""
    nothing = await get(api, "why", story="7")
    await ladder.deliver(shapes.labelled(8))
    nothing_about_it = await get(api, "why", story="7")

    assert nothing["verdict"] == "Nothing has ever been delivered."
    assert nothing_about_it["verdict"].startswith("Nothing about sc-7 was delivered; the last")
    assert "webhook" in nothing["go_on"]


@pytest.mark.parametrize("status", Status)
async def test_why_knows_every_status(api, ladder, status):
    """Wherever a session stands, there is a sentence about it and one about what now."""
    await ladder.in_status(status)

    answer = await get(api, "why", story="1")

    assert "sc-1" in answer["verdict"]
    assert answer["go_on"]


async def test_why_knows_that_a_worker_is_waited_for(api, ladder):
    """A session that was taken from its worker is ready, but not at once: it says until when."""
    claim = await ladder.claimed()
    assert await sessions.take_away(ladder.conn, claim.session_id, actor="operator")

    waits = (await get(api, "why", story="1"))["go_on"]
    await gate.confirm_stopped(ladder.conn, claim)

    assert waits.startswith("Its last worker is ending its work")
    assert (await get(api, "why", story="1"))["go_on"].startswith("A worker")


async def test_why_a_session_was_closed_is_what_closed_it(api, ladder):
    """Whatever its timeline says after that, as that the worker's drafter has ended."""
    claim = await ladder.claimed()
    await ladder.deliver(shapes.commented(1, minute=2, text="/stop", comment=7))
    await gate.confirm_stopped(ladder.conn, claim)

    assert (await get(api, "why", story="1"))["verdict"] == "sc-1 was closed: asked to stop."


async def test_why_names_what_the_story_was_not_told(api, ladder):
    """A comment that was given up or waits is named, with the reason and what makes it go on."""
    await ladder.in_status(Status.DRAFTED)
    assert (await get(api, "why", story="1"))[
        "verdict"
    ] == "Draft 1 of sc-1 was made; see its outbox."

    owed = await outbox.claim(ladder.conn, sender="s", lease=timedelta(minutes=1))
    await outbox.postpone(ladder.conn, owed, error="503 of Shortcut's", delay=timedelta(0))
    waits = await get(api, "why", story="1")
    owed = await outbox.claim(ladder.conn, sender="s", lease=timedelta(minutes=1))
    await outbox.give_up(ladder.conn, owed, error="422 of Shortcut's")
    given_up = await get(api, "why", story="1")

    assert "503 of Shortcut's" in waits["verdict"]
    assert waits["comments"][0]["go_on"].startswith("It is tried again at")
    assert f"Mend the reason, then `draftgate outbox retry {owed.id}`." in given_up["verdict"]
    (comment,) = given_up["comments"]
    assert (comment["kind"], comment["last_error"]) == ("draft", "422 of Shortcut's")


NO_NUMBERS = (
    "99999999999999999999",
    "9223372036854775808",
    "-1",
    "0x1",
    "%EF%BC%91",
    "%00",
    "1%00",
    "1_0",
    "1.0",
    "%20",
    "null",
    "%ED%A0%80",
    "..",
    "1%2F2",
)


async def test_no_number_breaks_anything(api):
    """Whatever stands where a number should: it is not found or not valid, as problem JSON."""
    for number in (*NO_NUMBERS, "0", "7", "9223372036854775807"):
        for name, action in (("sessions", "retry"), ("events", "replay"), ("outbox", "retry")):
            answer = await api.get(f"{name}/{number}")
            acted = await api.post(f"{name}/{number}/{action}")
            for each in (answer, acted):
                assert each.status_code in (404, 405, 422), (name, number, each.text)
                assert each.headers["Content-Type"] == "application/problem+json"
                assert each.json()["status"] == each.status_code


async def test_no_argument_breaks_a_list(api):
    """An argument that can't be used is refused, never an error of ours; others are ignored."""
    keys, values = ("after", "story", "limit", "status"), (*NO_NUMBERS, "")
    wrong = [f"sessions?{key}={value}" for key in keys for value in values]
    wrong += [f"{name}?after={value}" for name in ("events", "outbox") for value in values]
    wrong += [f"{name}?{key}=x" for name in ("events", "outbox") for key in ("limit", "status")]
    for query in ("workspace=%00", f"workspace={'x' * 201}", "words=%00", "limit=0", "limit=201"):
        wrong.append(f"sessions?{query}")
    for query in (*wrong, "events?story=x"):
        answer = await api.get(query)
        assert answer.status_code == 422, (query, answer.text)
    assert (await api.get("outbox?story=x")).status_code == 200


async def test_a_database_that_is_away_is_503():
    """What can't be read now may be asked for again."""
    nowhere = Database(dsn="postgresql://a@127.0.0.1:1/a", listen_dsn="postgresql:///a")
    async with service(nowhere) as client:
        answer = await client.get("sessions")

    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"]


def test_whatever_the_console_does_the_api_does():
    """Each page that lists or shows has its route, and each form, which can be asked for its plan.

    The overview is `stats`; drafts and late results are part of their session.
    """
    shown, asked = paths("GET", pages.router), paths("GET", actions.router)
    done = paths("POST", actions.router)
    inside = {"/", "/find", "/sessions/{}/drafts/{}", "/sessions/{}/drafts/{}/patch"}

    assert shown - paths("GET", router) == {*inside, "/sessions/{}/late/{}"}
    assert done == {
        *("/sessions/{}/{}", "/events/{}/replay", "/outbox/{}/retry"),
        *("/installations/disconnect", "/installations/link"),
    }
    assert done <= paths("POST", router)
    assert done - asked == {"/installations/link"}
    planned = [
        r for r in router.routes if "dry_run" in {it.name for it in r.dependant.query_params}
    ]
    assert {plain(route) for route in planned} == asked


def plain(route):
    """Its path, without the names of what stands in it."""
    return re.sub(r"{\w+}", "{}", route.path.removeprefix("/api/v1"))


def paths(method, *routers):
    """What they answer."""
    return {plain(route) for it in routers for route in it.routes if method in route.methods}


async def test_the_description_has_every_route_with_examples(api):
    """/openapi.json is open, names the token, and describes each answer."""
    described = (
        await api.get(
            f"{api.base_url.copy_with(path='/openapi.json')}", headers={"Authorization": ""}
        )
    ).json()

    routes = {path for path in described["paths"] if path.startswith("/api/v1/")}
    assert {"/api/v1/sessions/{session_id}/{action}", "/api/v1/why", "/api/v1/stats"} <= routes
    for path in routes:
        for operation in described["paths"][path].values():
            assert operation["security"] == [{"HTTPBearer": []}]
            assert {"200", "401", "422"} <= operation["responses"].keys()
            answer = operation["responses"]["200"]["content"].get("application/json", {})
            assert not answer or has_example(described, answer["schema"]), path


def has_example(described, schema):
    """Whether there is one for it, or for some part of it."""
    if "$ref" in schema:
        return has_example(described, described["components"]["schemas"][schema["$ref"][21:]])
    parts = [*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])]
    return "examples" in schema or any(has_example(described, part) for part in parts)
