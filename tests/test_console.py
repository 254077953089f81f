"""The console, over HTTP: who gets in, what every page shows, what forms do, what is never sent."""

import asyncio
import re
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote, urlsplit

import httpx
import pytest

from app import live
from app.api.guard import MOST_FAILURES
from app.console import actions, diff, server
from app.console import pages as reading
from app.console.access import local
from app.console.render import link, visible
from app.db import events, gate, hooks, installations
from app.door.bounds import MOST_AT_ONCE
from app.errors import Rejected
from app.live import MOST_WATCHERS, Live, Shared
from app.machine import Status
from app.model import Draft, HookStatus
from app.operate import possible
from app.settings import Settings
from app.shortcut.envelope import read
from app.shortcut.signature import sign
from tests import shapes
from tests.hostile import PATCH, TOKEN, hostile_pages
from tests.ladder import comment
from tests.locks import until
from tests.service import SECRET, receiver
from tests.stack import stack
from tests.test_installs import settings
from tests.test_official_client import simulator


@asynccontextmanager
async def console(database, *, path="", **given):
    """A client of the console that is not signed in."""
    async with receiver(database, api_token=TOKEN, **given) as running:
        running.client.base_url = running.client.base_url.join(f"{path}/console/")
        yield running.client


@asynccontextmanager
async def signed_in(database, **given):
    """A client that has signed in as Ada."""
    async with console(database, **given) as client:
        await sign_in(client)
        yield client


async def sign_in(client, **fields):
    return await client.post("login", data={"token": TOKEN, "name": "Ada", **fields})


@pytest.fixture
async def pages(database):
    """A client of the console who is signed in."""
    async with signed_in(database) as client:
        yield client


async def shown(client, path):
    """The page, which must be one."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def hidden(html, name="csrf"):
    """A hidden field of the last form on a page."""
    return re.findall(rf'name="{name}" value="([^"]*)"', html)[-1]


async def submit(client, path, **more):
    """Loads a page that asks, and sends its form."""
    html = await shown(client, path)
    fields = {"csrf": hidden(html), "nonce": hidden(html, "nonce"), **more}
    return await client.post(path, data=fields)


async def test_a_dead_webhook_is_the_first_thing_that_is_seen(pages, conn):
    """Nothing is delivered any more, which nothing else on the page would show."""
    for name in ("acme", "bravo"):
        await hooks.save(conn, name, url="https://a.example", integration_id=7, wait=timedelta(0))
    acme, _ = await hooks.all_of_them(conn)
    await hooks.looked(conn, acme, status=HookStatus.DISABLED)

    page = await shown(pages, "")

    assert "The webhook of acme is disabled" in page
    assert "The webhook of bravo" not in page


async def test_installations_are_shown_and_disconnected(pages, conn):
    """Who has installed the agent app, whose tokens are dead, and forgetting them, once asked."""
    await conn.execute(
        "insert into installations (workspace, slug, access, status) values"
        " ('w&1', 'acme', '', 'revoked'), ('w2', 'bravo', '', 'active')"
    )
    await hooks.save(conn, "acme", url="https://a.example", integration_id=7, wait=timedelta(0))
    overview = await shown(pages, "")
    assert "The installation in" in overview
    assert "bravo" not in overview

    html = await shown(pages, "installations")
    assert all(word in html for word in ("acme", "bravo", "revoked", "https://a.example"))
    (path,) = re.findall(r'href="[^"]*(installations/disconnect\?workspace=w%261)"', html)
    assert (await submit(pages, path)).status_code == 303

    assert [it.slug for it in await installations.all_of_them(conn)] == ["bravo"]
    assert (await pages.get(path)).status_code == 404


async def test_an_installation_begins_in_the_console(database, conn):
    """A form makes a link for an admin; where there is no agent app, there is no form."""
    async with simulator(webhook_url=None) as (simulation, origin):
        app = settings(origin).model_dump(exclude_unset=True, exclude={"shortcut_secrets"})
        async with signed_in(database, **app) as client:
            html = await shown(client, "installations")
            made = await client.post("installations/link", data={"csrf": hidden(html)})
            (link,) = re.findall(r'<a href="([^"]+)" rel', made.text)
            async with httpx.AsyncClient(trust_env=False) as http:
                agreed = (await http.get(unescape(link))).headers["location"]
            callback = f"/oauth/shortcut/callback?{urlsplit(agreed).query}"
            back = await client.get(client.base_url.join(callback))
            assert (back.status_code, simulation.oauth.installed) == (200, True)
            assert "active" in await shown(client, "installations")
            api = client.base_url.join("/api/v1/installations/link")
            bearer = {"Authorization": f"Bearer {TOKEN}".encode()}
            answer = await client.post(api, headers=bearer)
            assert answer.json()["url"].startswith(f"{origin}/oauth-authorization-code-flow/code?")

    async with signed_in(database) as client:
        html = await shown(client, "installations")
        assert "installations/link" not in html
        refused = await client.post("installations/link", data={"csrf": hidden(html)})
        assert refused.status_code == 404


class Markup(HTMLParser):
    """What a browser would make of a page: its tags, and attributes that do something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.active: list[str] = []
        self.scripts: set[str] = set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        for name, value in attributes:
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.active.append(name)
            if name in ("href", "src", "action") and re.match("[^/?#]*:", value or ""):
                self.active.append(value)
        if tag == "script":
            self.scripts.add(dict(attributes)["src"])


async def test_every_page_takes_hostile_text_for_text(ladder, conn, pages):
    """Titles, comments, names, headers, errors and patches run nothing and leave nothing unseen."""
    for path in await hostile_pages(ladder, conn):
        html = await shown(pages, path)
        page = Markup()
        page.feed(html)
        links = [link for link in page.active if not link.startswith("https://app.shortcut.com/")]
        assert links == [], path
        assert page.tags & {"img", "iframe", "object", "embed", "style", "base"} == set(), path
        assert page.scripts <= {"/console/static/console.js", "/console/static/login.js"}, path
        assert not re.search("[\x00-\x08\x0b-\x1f\u2028\u202e]", html), path


async def test_the_hostile_pages_are_all_pages(ladder, conn, pages):
    """There is none among the routes that no hostile text was tried on, but files and streams."""
    tried = [f"/{path.partition('?')[0]}" for path in await hostile_pages(ladder, conn)]
    routes = [*reading.router.routes, *actions.router.routes, *server.router.routes]
    untried = {
        route.path
        for route in routes
        if "GET" in route.methods and not any(route.path_regex.match(path) for path in tried)
    }

    assert untried == {
        "/stream",
        "/find",
        "/events/{number}/body",
        "/sessions/{number}/drafts/{revision}/patch",
    }


async def test_a_page_of_a_session_shows_all_that_belongs_to_it(ladder, conn, pages):
    """Timeline, conversation, draft in both views, claims, events, outbox, and where it stands."""
    claim = await ladder.claimed(1, worker="the worker")
    await ladder.deliver(shapes.commented(1, minute=3, text="Mind the order", comment=31))
    made = Draft(summary="Sorts it.", patch=PATCH)
    await gate.complete(conn, claim, made, comment=comment(claim))

    html = await shown(pages, f"sessions/{claim.session_id}")
    split = await shown(pages, f"sessions/{claim.session_id}?view=split")
    patch = await pages.get(f"sessions/{claim.session_id}/drafts/1/patch")

    for text in ("Story 1", "the worker", "Mind the order", "Sorts it.", "a.txt", "complete"):
        assert text in html
    assert re.search(r'class="box lit"><rect[^>]*/><text[^>]*>drafted<', html)
    assert html.count('<tr class="new">') == 2
    beside = r'class="old">.*?old .*?</td>\s*<td class="number">2</td><td class="new">'
    assert re.search(beside, split)
    assert patch.text == PATCH
    assert patch.headers["Content-Disposition"] == 'attachment; filename="sc-1-1.patch"'


async def test_an_event_shows_what_was_signed(ladder, pages):
    """Outcome, reason, headers and the exact bytes, readable and as a file."""
    body = b'{"id": "\xff\x00"'
    await ladder.record(body)

    html = await shown(pages, "events/1")
    file = await pages.get("events/1/body")

    assert "quarantined" in html
    assert "\\xff" in html
    assert (file.content, file.headers["Content-Type"]) == (body, "application/octet-stream")


async def test_lists_lead_from_page_to_page(ladder, conn, pages):
    """Filters stay on the way, and each row is on one page."""
    for story in range(1, 54):
        await ladder.record(shapes.labelled(story))
    await ladder.apply()

    first = await shown(pages, "events?status=applied&story=")
    (more,) = re.findall('rel="next" href="([^"]*)"', first)
    second = await shown(pages, f"events{more.replace('&amp;', '&')}")

    found = [re.findall('href="/console/events/([0-9]+)"', html) for html in (first, second)]
    assert [len(numbers) for numbers in found] == [50, 3]
    assert sorted(map(int, [*found[0], *found[1]])) == list(range(1, 54))
    assert "status=applied" in more
    only = await shown(pages, f"sessions?story={quote('https://app.shortcut.com/acme/story/7/x')}")
    assert re.findall(r">sc-(\d+)<", only) == ["7"]


async def test_it_says_why_nothing_happened(ladder, pages):
    """For a number or a link: what was delivered, what came of it, and what would help."""
    await ladder.deliver(shapes.labelled(5, label="other"))

    html = await shown(pages, "why?story=sc-5")
    nothing = await shown(pages, "sessions?story=5")

    assert "None of what was delivered about sc-5 has opened a session." in html
    assert "gets the label &#39;patch&#39;" in html
    assert 'href="/console/why?story=5"' in nothing


async def test_a_story_is_found_from_every_page(ladder, pages):
    """By number, link or words: its session, or why it has none, or all titles with the words."""
    await ladder.deliver(shapes.labelled(5, name="Export invoices"))
    ways = {
        "sc-5": "sessions/1",
        "https://app.shortcut.com/acme/story/5/x": "sessions/1",
        "6": "why?story=6",
        "exp & inv\0": "sessions?story=exp+%26+inv%00",
    }

    led = {words: await pages.get("find", params={"story": words}) for words in ways}
    found = await shown(pages, ways["exp & inv\0"])

    leads = {words: answer.headers["Location"] for words, answer in led.items()}
    assert leads == {words: f"/console/{to}" for words, to in ways.items()}
    assert re.findall(r">sc-(\d+)<", found) == ["5"]
    assert 'action="/console/find"' in found


async def test_the_settings_in_force_are_shown(database):
    """Each with where it comes from, and not one secret."""
    secret = "p4ssw0rd of seventeen"
    given = {
        "repository": "https://u:p4ss@host/r?t=p4ss",
        "sources": {"acme": {"secrets": secret, "api_token": secret}},
        "oauth_client_secret": secret,
        "drafter_command": f"draft --key {secret}",
    }
    async with signed_in(database, lease_seconds=77, **given) as it:
        html = await shown(it, "settings")
        told = {s["variable"]: s for s in await settings_by_api(it)}

    assert set(told) == {f"DRAFTGATE_{name.upper()}" for name in Settings.model_fields}
    assert all(variable in html for variable in told)
    assert told["DRAFTGATE_LEASE_SECONDS"]["value"] == "77.0"
    assert told["DRAFTGATE_REPOSITORY"]["value"] == "https://…@host/r?…"
    assert told["DRAFTGATE_SOURCES"]["value"] == "acme"
    assert told["DRAFTGATE_SOURCES"]["default"] is None
    assert told["DRAFTGATE_API_TOKEN"]["value"] == "set, not shown"
    assert told["DRAFTGATE_SHORTCUT_SECRETS"]["value"] == "1 set, not shown"
    assert not [
        secret for secret in (TOKEN, SECRET, "p4ss", "seventeen") if secret in f"{html} {told}"
    ]


async def settings_by_api(client):
    """What the API says of them."""
    headers = {"Authorization": b"Bearer " + TOKEN.encode()}
    url = client.base_url.copy_with(path="/api/v1/settings")
    return (await client.get(url, headers=headers)).json()


async def test_strangers_are_sent_to_sign_in_and_then_to_where_they_wanted(database):
    """Without a session no page is shown, and no stream."""
    async with console(database) as client:
        asked = await client.get("sessions?status=failed&story=")
        stream = await client.get("stream")
        entered = await sign_in(client, next="/console/sessions?status=failed&story=")
        page = await client.get("sessions")

    wanted = quote("/console/sessions?status=failed&story=", safe="")
    assert (asked.status_code, asked.headers["Location"]) == (303, f"/console/login?next={wanted}")
    assert stream.status_code == 401
    assert entered.headers["Location"] == "/console/sessions?status=failed&story="
    assert page.status_code == 200


async def test_nothing_is_for_strangers(database):
    """Each page, file and form that there is, but that of signing in, wants a session first."""
    async with console(database) as client:
        for method, path in everything_there_is():
            answer = await client.request(method, path, data={"csrf": "x"})
            leads = answer.headers.get("Location", "").partition("?")[0]
            assert (answer.status_code, leads) in ((303, "/console/login"), (401, "")), path


def everything_there_is():
    """Each method and path, with numbers and words in place of names."""
    for route in (*reading.router.routes, *actions.router.routes):
        path = route.path.replace("{action}", "close")
        path = re.sub(r"{\w+}", "1", path).removeprefix("/")
        for method in route.methods:
            yield method, f"{path}?workspace=w" if path.endswith("disconnect") else path


async def test_a_wrong_token_opens_nothing(database):
    """And the right one opens nothing in the address."""
    async with console(database) as client:
        for token in ("", "x", TOKEN[:-1], TOKEN + "x", b"\xff\xfe"):
            refused = await client.post("login", data={"token": token})
            assert (refused.status_code, "Set-Cookie" in refused.headers) == (403, False)
        in_address = await client.get("sessions", params={"token": TOKEN})

    assert in_address.status_code == 303


async def test_wrong_tokens_are_limited_by_address(database):
    """After some from one address none is compared there; elsewhere one can still sign in."""
    async with console(database, trusted_proxies="127.0.0.1") as client:

        async def tries(token, address):
            headers = {"X-Forwarded-For": address}
            answer = await client.post("login", data={"token": token}, headers=headers)
            return answer.status_code

        wrong = [await tries("x", f"2001:db8::{n}") for n in range(MOST_FAILURES)]
        right_too_late = await tries(TOKEN, "2001:db8::ffff")
        from_elsewhere = await tries(TOKEN, "2001:db8:1::1")

    assert set(wrong) == {403}
    assert (right_too_late, from_elsewhere) == (429, 303)


async def test_the_cookie_is_kept_from_scripts_and_other_sites(database):
    """HttpOnly, SameSite=Strict, for the console only, and Secure where there is TLS in front."""
    async with console(database) as client:
        plain = await sign_in(client)
        tls = await client.post(
            "login", data={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"}
        )

    for part in ("HttpOnly", "SameSite=strict", "Path=/console;", "Max-Age="):
        assert part in plain.headers["Set-Cookie"] + ";"
    assert "Secure" not in plain.headers["Set-Cookie"]
    assert "Secure" in tls.headers["Set-Cookie"]
    assert TOKEN not in plain.headers["Set-Cookie"]


async def test_a_cookie_that_was_changed_or_ended_is_none(pages):
    """What is not signed with this token's key does not count, and signing out ends it here."""
    cookie = pages.cookies["draftgate_console"]
    pages.cookies.clear()
    forged = await pages.get("sessions", headers={"Cookie": f"draftgate_console=A{cookie}"})
    await sign_in(pages)
    left = await pages.post("logout", data={"csrf": hidden(await shown(pages, "outbox"))})
    after = await pages.get("sessions")

    assert [answer.status_code for answer in (forged, left, after)] == [303, 303, 303]


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example", "/\\evil.example", "///evil.example", "/%09/evil.example",
        "https:evil.example", "https://evil.example/console/", "javascript:alert(1)",
        "/console/\\evil", "/console//evil\r\nX: y", "/console/\t/evil", "/console", "/elsewhere",
        "/console/logout", "", "%2F%2Fevil.example", "/consoleevil",
    ],
)  # fmt: skip
def test_only_pages_of_the_console_are_gone_to(target):
    """Whatever else stands in `next` leads to the overview."""
    assert local(target, "/console") == "/console/"


def test_pages_of_the_console_are_gone_to():
    """Below whatever path it is."""
    assert local("/a/console/why?story=1", "/a/console") == "/a/console/why?story=1"


async def test_it_works_under_a_path(database, ladder):
    """Links, forms and redirects have the prefix, whether or not a proxy cuts it off."""
    await ladder.clarified()
    for path in ("", "/gate"):
        async with console(database, path=path, root_path="/gate") as client:
            asked = await client.get("sessions")
            entered = await sign_in(client)
            cookie = {"Cookie": entered.headers["Set-Cookie"].partition(";")[0]}
            answer = await client.get("sessions", headers=cookie)
            style = await client.get("static/console.css")

        assert asked.headers["Location"] == "/gate/console/login?next=%2Fgate%2Fconsole%2Fsessions"
        assert entered.headers["Location"] == "/gate/console/"
        assert "Path=/gate/console;" in entered.headers["Set-Cookie"]
        assert style.status_code == 200
        assert (answer.status_code, 'href="/gate/console/sessions"' in answer.text) == (200, True)
        assert set(re.findall('(?:href|src|action)="(/[a-z]*)', answer.text)) == {"/gate"}


async def test_every_answer_keeps_browsers_from_more(database):
    """Pages, errors, files and static parts have the headers; nothing inline may run."""
    async with signed_in(database) as client:
        for path in ("", "login", "sessions", "nothing", "events/1", "static/console.js"):
            headers = (await client.get(path)).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "same-origin"
            assert headers["Cache-Control"] == ("no-cache" if "static" in path else "no-store")


async def test_what_is_not_there_is_a_page_that_says_so(pages):
    """Odd numbers, words and paths are refused with a page that repeats none of them."""
    for path in (
        "sessions/99999999999999999999", "sessions/-1", "sessions/1_0", "sessions/%EF%BC%91",
        "sessions/7", "events/7", "outbox/7", "sessions/7/drafts/1", "sessions/7/late/1",
        "sessions/7/explode", "events/7/replay", "nothing", "sessions?after=x", "sessions?status=x",
        "events?story=x", "static/../server.py", "static/%2e%2e/server.py", "why?story=<script>",
    ):  # fmt: skip
        answer = await pages.get(path)
        assert answer.status_code in (404, 422), path
        assert "<h1>4" in answer.text, path
        assert "<script>" not in answer.text, path


async def test_without_a_token_the_console_is_off(database):
    """And says so."""
    async with receiver(database) as service:
        for path in ("/console/", "/console/sessions"):
            answer = await service.client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "console-off")


@pytest.mark.parametrize("status", Status)
async def test_each_action_says_what_it_does_and_does_it(ladder, conn, pages, status):
    """What is possible is offered, asked about, done, and told with who did it; the rest is not."""
    await ladder.in_status(status)
    number = (await ladder.session())["id"]
    offered = re.findall(rf'/sessions/{number}/([a-z]+)"', await shown(pages, f"sessions/{number}"))
    assert set(offered) == set(possible(await ladder.session())) - {"adopt"}

    for action in ("retry", "release", "close", "reopen"):
        asking = await shown(pages, f"sessions/{number}/{action}")
        assert f"sc-1 is {status}." in asking
        assert ('<button class="main">' in asking) == (action in offered)
        if action not in offered:
            refused = await submit(pages, f"sessions/{number}/{action}")
            assert (refused.status_code, (await ladder.session())["status"]) == (409, status)

    done = await submit(pages, f"sessions/{number}/{offered[0]}")

    assert (done.status_code, done.headers["Location"]) == (303, f"/console/sessions/{number}")
    assert "operator Ada" in await shown(pages, f"sessions/{number}")


async def test_a_late_result_is_adopted(ladder, conn, pages):
    """It is shown, and becomes the draft."""
    claim = await ladder.claimed()
    await gate.release(conn, claim, error="it broke", delay=timedelta(0), failed=True)
    await gate.keep_late_result(conn, claim, Draft(summary="Late but good", patch=PATCH))
    number = claim.session_id

    page = await shown(pages, f"sessions/{number}")
    result = await shown(pages, f"sessions/{number}/late/{claim.generation}")
    done = await submit(pages, f"sessions/{number}/adopt?generation={claim.generation}")

    assert f"/sessions/{number}/adopt?generation={claim.generation}" in page
    assert "Late but good" in result
    assert done.status_code == 303
    assert (await ladder.session())["status"] == Status.DRAFTED


async def test_a_replay_runs_once_for_each_time_it_was_asked_for(ladder, conn, pages):
    """The same form sent twice is one replay; a new form is another."""
    await ladder.deliver(shapes.labelled(5, label="other"))
    html = await shown(pages, "events/1/replay")
    fields = {"csrf": hidden(html), "nonce": hidden(html, "nonce")}

    for _ in range(2):
        answer = await pages.post("events/1/replay", data=fields)
        assert answer.headers["Location"] == "/console/events/1"
        await ladder.apply()
    await submit(pages, "events/1/replay")

    assert await conn.fetchval("select count(*) from replays where actor = 'operator Ada'") == 2
    assert (await shown(pages, "events/1")).count("operator Ada") == 2


async def test_a_comment_that_was_given_up_is_sent_again(ladder, conn, pages):
    """And only such a one."""
    await ladder.in_status(Status.DRAFTED)
    refused = await submit(pages, "outbox/1/retry")
    await conn.execute("update outbox set status = 'failed', last_error = 'refused'")
    why = await shown(pages, "why?story=1")
    done = await submit(pages, "outbox/1/retry")

    assert "draftgate outbox retry 1" in why
    assert 'href="/console/outbox/1"' in why
    assert (refused.status_code, done.status_code) == (409, 303)
    assert await conn.fetchval("select status from outbox") == "pending"


OTHER_SITES = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "https://evil.example", "Content-Type": "text/plain"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {},
)


async def test_forms_of_other_sites_do_nothing(ladder, pages):
    """With the cookie and even the form's token; nor does one from nowhere without that token."""
    await ladder.in_status(Status.FAILED)
    number = (await ladder.session())["id"]
    right = hidden(await shown(pages, f"sessions/{number}/retry"))
    forms = [path for method, path in everything_there_is() if method == "POST"]

    for headers in OTHER_SITES:
        form = f"csrf={right if headers else 'made up'}&nonce=x"
        for path in (f"sessions/{number}/retry", *forms, "logout"):
            answer = await pages.post(path, content=form, headers=headers)
            assert answer.status_code == 403, (path, headers)

    assert (await ladder.session())["status"] == Status.FAILED


async def test_forms_of_this_site_are_taken(ladder, pages):
    """As browsers send them."""
    await ladder.in_status(Status.FAILED)
    number = (await ladder.session())["id"]
    origin = str(pages.base_url.copy_with(path="/")).rstrip("/")

    for site in ({"Origin": origin}, {"Sec-Fetch-Site": "same-origin", "Origin": "null"}):
        html = await shown(pages, f"sessions/{number}/retry")
        answer = await pages.post(
            f"sessions/{number}/retry", data={"csrf": hidden(html)}, headers=site
        )
        assert answer.status_code in (303, 409)


async def test_looking_changes_nothing(ladder, conn, pages):
    """Every link of every page can be followed, by GET or HEAD, and no row is another one."""
    await hostile_pages(ladder, conn)
    before = await everything(conn)
    seen, todo = set(), {""}
    while todo:
        path = todo.pop()
        seen.add(path)
        answer = await pages.get(path)
        await pages.head(path)
        assert answer.status_code in (200, 303), path
        if answer.headers["Content-Type"].startswith("text/html"):
            found = re.findall(r'href="/console/([^"#]*)"', answer.text)
            todo |= {link.replace("&amp;", "&") for link in found} - seen

    assert len(seen) > 20
    assert await everything(conn) == before


async def everything(conn):
    """All rows that an action may change."""
    tables = ("events", "patch_sessions", "outbox", "timeline", "replays")
    return [await conn.fetch(f"select * from {table} order by 1, 2") for table in tables]  # noqa: S608


@asynccontextmanager
async def streaming(client):
    """The changes that an open page is told of."""
    async with client.stream("GET", "stream", timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["X-Accel-Buffering"] == "no"
        lines = answer.aiter_lines()

        async def next_topics():
            async for line in lines:
                if line.startswith("data:"):
                    return set(line.removeprefix("data:").split()[1:])
            return None

        yield next_topics


async def test_open_pages_are_told_what_has_changed(ladder, pages):
    """First of nothing in particular, then of the topics that changed."""
    async with streaming(pages) as next_topics:
        assert await next_topics() == set()
        await ladder.clarified(1)
        number = (await ladder.session())["id"]
        told = set()
        while not {"sessions", f"session-{number}", "events"} <= told:
            told |= await next_topics()


async def test_open_pages_end_at_once_at_shutdown(database):
    """A stream is over when the process stops: the server has nobody to wait for, or to cut off."""
    async with receiver(database, api_token=TOKEN) as service:
        entered = await service.client.post("/console/login", data={"token": TOKEN})
        cookie = entered.headers["Set-Cookie"].partition(";")[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(
            f"GET /console/stream HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode()
        )
        assert b"200 OK" in await reader.readuntil(b"data:")

    assert await reader.read() != b""
    writer.close()


async def test_open_pages_cost_no_connection_and_are_bounded(pool):
    """However many watch, there is one look for all; and beyond the bound there is no more."""
    live = Live(pool)
    watchers = [live.watch() for _ in range(MOST_WATCHERS)]
    waiting = [asyncio.ensure_future(anext(watcher)) for watcher in watchers]
    await asyncio.sleep(0)
    with pytest.raises(Rejected):
        live.admit()
    await live.look()
    assert pool.get_size() - pool.get_idle_size() == 0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    live.admit()


async def test_who_leaves_makes_room_for_another(database, monkeypatch):
    """A page that is closed is noticed at once, and is none of the watchers any more."""
    monkeypatch.setattr(live, "MOST_WATCHERS", 1)
    async with signed_in(database) as client:
        async with streaming(client) as next_topics:
            assert await next_topics() == set()
            assert (await client.get("stream")).status_code == 503

        async def has_room() -> bool:
            async with client.stream("GET", "stream") as answer:
                return answer.status_code == 200

        await until(has_room)


async def test_a_range_of_many_parts_costs_nothing(pages):
    """Ten thousand parts of one file are refused, or answered as if there were none."""
    parts = ",".join(["0-0"] * 10_000)
    answer = await pages.get("static/console.css", headers={"Range": f"bytes={parts}"})

    assert answer.status_code in (200, 206, 400, 416)
    assert len(answer.content) < 100_000


async def test_a_token_in_an_address_opens_nothing(database):
    """Addresses are kept by browsers and proxies: the token is not looked for in them."""
    async with console(database) as client:
        page = await client.get("sessions", params={"token": TOKEN})
        stream = await client.get("stream", params={"token": TOKEN})
        api = await client.get(
            client.base_url.join("/api/v1/sessions"), params={"access_token": TOKEN}
        )

    assert (page.status_code, stream.status_code, api.status_code) == (303, 401, 401)


async def test_what_is_in_quarantine_is_shown_and_can_be_replayed(ladder, conn, pages):
    """The reason, and the bytes as they came; a version that can read them applies them."""
    await ladder.record(b'\xff\x00<b>{"half')
    body = shapes.labelled(2)
    unread = read("shortcut", body, [])._replace(kind="invalid", defect="odd")
    await events.record(conn, [unread])

    listed = await shown(pages, "events?status=quarantined")
    html = await shown(pages, "events/1")
    refused = await pages.get("events/1/replay")
    await submit(pages, "events/2/replay")
    await ladder.apply()

    assert listed.count('class="status quarantined"') >= 2
    assert "not UTF-8" in html
    assert "\\xff\ufffd&lt;b&gt;" in html or "\\xff\\x00&lt;b&gt;" in html
    assert (await pages.get("events/1/body")).content == b'\xff\x00<b>{"half'
    assert "not UTF-8" in refused.text
    assert (await pages.get("events/2/body")).content == body
    assert await conn.fetchval("select status from events where id = 2") == "applied"


async def test_many_who_look_at_once_cost_one_look():
    """They share what is read."""
    looks = []

    async def read():
        looks.append(None)
        return len(looks)

    shared = Shared(read)

    assert await asyncio.gather(*(shared.get() for _ in range(50))) == [1] * 50


async def test_streams_take_no_request_s_place(database):
    """More pages can be open than requests may be under way."""
    async with signed_in(database) as client, AsyncExitStack() as closing:
        count = MOST_AT_ONCE + 5
        opened = [await closing.enter_async_context(streaming(client)) for _ in range(count)]
        assert await asyncio.gather(*(each() for each in opened)) == [set()] * count
        assert (await client.get("sessions")).status_code == 200


async def test_two_hundred_open_pages_hold_nothing_up(database, conn, tmp_path):
    """A delivery is answered and told to all of them, who have no connection of the database's.

    SIGTERM ends them, and the process by itself, long before anything is cut off.
    """
    async with stack(database, tmp_path) as it, AsyncExitStack() as closing:
        it.settings["DRAFTGATE_DATABASE_POOL_SIZE"] = "2"
        fd = it.trial.service.fileno()
        roles = ("--role", "receiver", "--role", "console")
        process = await it.start("serve", "--fd", str(fd), *roles, fd=fd)
        cookie = await _cookie(it.trial)
        streams = [await _open_stream(it.trial, cookie, closing) for _ in range(200)]
        await asyncio.gather(*(_told(reader, b"data:") for reader in streams))

        answer = await asyncio.to_thread(_deliver, it.trial)
        assert (answer.status_code, answer.json()["duplicate"]) == (200, False)
        told = await asyncio.gather(*(_told(reader, b" events\n") for reader in streams))
        assert all(b"event: change" in said for said in told)
        assert await conn.fetchval(CONNECTIONS) <= 2

        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0
            await asyncio.gather(*(reader.read() for reader in streams))
    assert "Traceback" not in it.log()


CONNECTIONS = """
    select coalesce(max(count), 0)
      from (select count(*) from pg_stat_activity
             where datname = current_database() group by application_name) as by_purpose
"""


async def _cookie(trial):
    """Signs in, as soon as the process listens."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        url = f"{trial.service_url}/console/login"
        entered = await client.post(url, data={"token": trial.api_token})
    return entered.headers["Set-Cookie"].partition(";")[0]


async def _open_stream(trial, cookie, closing):
    """A page's stream, as soon as it is answered."""
    reader, writer = await asyncio.open_connection(*trial.service.getsockname())
    closing.callback(writer.close)
    writer.write(f"GET /console/stream HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode())
    assert b" 200 OK\r\n" in await _told(reader, b"\r\n\r\n")
    return reader


async def _told(reader, text):
    async with asyncio.timeout(60):
        return await reader.readuntil(text)


def _deliver(trial):
    body = shapes.labelled(1)
    headers = {"Payload-Signature": sign(trial.secret.encode(), body)}
    return httpx.post(trial.webhook_url, content=body, headers=headers, timeout=60, trust_env=False)


@pytest.mark.parametrize("text", [
    "", "\n", "not a diff", "@@ -1 +1 @@\n-a", PATCH, "diff --git a/x b/x\nBinary files differ",
    "--- a\n+++ b\n@@ -1,9999 +1 @@\n-a\n", "x\n" * 5000,
    "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x",
])  # fmt: skip
def test_any_text_can_be_read_as_a_patch(text):
    """Each of its lines is in one place, as far as lines are shown."""
    patch = diff.read(text)

    count = sum(
        len(file.notes) + sum(1 + len(hunk.lines) for hunk in file.hunks) for file in patch.files
    )
    assert count + patch.left_out == len(text.splitlines())


def test_a_patch_is_read():
    """Files with their names, and lines with their numbers on each side."""
    first, second = diff.read(PATCH).files

    assert (first.name, second.name) == ("a.txt", "<svg onload=alert(1)>")
    assert [(line.kind, line.old, line.new) for line in first.hunks[0].lines] == [
        ("same", 1, 1),
        ("old", 2, None),
        ("new", None, 2),
        ("same", 3, 3),
    ]
    rows = [(old and old.old, new and new.new) for old, new in first.hunks[0].rows()]
    assert rows == [(1, 1), (2, 2), (3, 3)]
    assert [line.text for line in second.hunks[0].lines][:1] == ["--- not a header"]


def test_lines_of_a_patch_end_where_those_of_git_do():
    """A form feed, or what Unicode takes for a line's end, stands in a line."""
    (file,) = diff.read("--- a\n+++ b\n@@ -1 +1,2 @@\n-a\fb\r\n+a\u2028b\r\n+c\n").files

    assert [line.text for line in file.hunks[0].lines] == ["a\fb", "a\u2028b", "c"]


def test_what_was_removed_stands_beside_what_came_instead():
    """Runs of removed and added lines are set side by side, however they alternate."""
    text = "--- a\n+++ b\n@@ -1,4 +1,4 @@\n-a\n-b\n+c\n-d\n+e\n+f\n g\n"
    (hunk,) = diff.read(text).files[0].hunks

    beside = [(old and old.text, new and new.text) for old, new in hunk.rows()]
    assert beside == [("a", "c"), ("b", None), ("d", "e"), (None, "f"), ("g", "g")]


@pytest.mark.parametrize("value", [
    "javascript:alert(1)", "data:text/html,x", " java\tscript:alert(1)", "//evil", "/x", "", None,
    "https:", "http://[", "https://a b", "https://a\u202eb",
])  # fmt: skip
def test_only_web_addresses_become_links(value):
    """Anything else stays text."""
    assert link(value) is None
    assert link("https://app.shortcut.com/acme/story/1") is not None


def test_text_keeps_what_can_be_seen():
    """Lines, tabs, emoji and scripts of all directions stay; what nobody sees is made visible."""
    assert visible("a\tb\r\nc 👩\u200d💻 שלום") == "a\tb\nc 👩\u200d💻 שלום"
    assert visible("a\x1b[0m\u202eb\x00") == "a\ufffd[0m\ufffdb\ufffd"
