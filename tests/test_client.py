"""The client of Shortcut's API, against servers that answer badly on purpose."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from app.errors import SettingsError, ShortcutError, ShortcutRefused, ShortcutUnavailable
from app.shortcut.client import Me, ShortcutClient, retry_after_seconds, sendable

TOKEN = "0f5d2c1e-made-up-token"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Api:
    """A server that says what it is told to, in order, the last answer for ever."""

    answers: Sequence[Answer]
    url: str = ""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await _request(reader))
                position = min(len(self.requests), len(self.answers)) - 1
                await self.answers[position](writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return head[0], headers, body


@asynccontextmanager
async def api(*answers: Answer) -> AsyncIterator[Api]:
    it = Api(answers)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/v3"
    try:
        yield it
    finally:
        server.close()


def raw(*, status: int = 200, body: bytes = b"", headers: str = "") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} Whatever\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)

    return answer


def says(value: object, *, status: int = 200) -> Answer:
    return raw(status=status, body=json.dumps(value).encode())


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    raise ConnectionResetError


async def never(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drips(writer: asyncio.StreamWriter) -> None:
    """One byte now and then, for as long as somebody listens."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def cut_off(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{"id": 70')
    await writer.drain()
    raise ConnectionResetError


STORY = {
    "id": 4101,
    "name": "Export invoices as CSV",
    "description": "One row per invoice.",
    "story_type": "feature",
    "app_url": "https://app.shortcut.com/acme/story/4101",
    "labels": [{"id": 881, "name": "patch"}, {"id": 882, "name": "billing"}],
    "tasks": [{"id": 1, "description": "Write the header row", "complete": False}],
    "external_links": ["https://example.com/spec", "javascript:alert(1)"],
    "archived": False,
    "completed": True,
}


async def test_a_story_is_read_with_all_that_a_drafter_is_told() -> None:
    """A story's labels, tasks, links and end are taken; a link that is no link is left out."""
    async with api(says(STORY)) as server, ShortcutClient(server.url, TOKEN) as client:
        story = await client.story(4101)

    assert story.title == "Export invoices as CSV"
    assert story.labels == ("patch", "billing")
    assert story.tasks == ("Write the header row",)
    assert story.links == ("https://example.com/spec",)
    assert story.completed
    assert not story.archived
    assert server.requests[0][0] == "GET /api/v3/stories/4101 HTTP/1.1"
    assert server.requests[0][1]["shortcut-token"] == TOKEN


async def test_what_comes_in_can_be_stored() -> None:
    """NUL and lone surrogates, which PostgreSQL's text can't hold, become U+FFFD."""
    body = rb'{"id": 4101, "name": "a\u0000b", "description": "\ud800", "tasks": [], "labels": {}}'
    async with api(raw(body=body)) as server, ShortcutClient(server.url, TOKEN) as client:
        story = await client.story(4101)

    assert story.title == "a\ufffdb"
    assert story.description == "\ufffd"
    assert story.labels == ()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (says({"id": 7001, "text": "In cents, please.", "deleted": False}), "In cents, please."),
        (says({"id": 7001, "text": None, "deleted": True}), None),
        (says({"message": "Resource not found."}, status=404), None),
    ],
)
async def test_a_comment_that_is_gone_has_no_text(answer: Answer, expected: str | None) -> None:
    """A comment that is deleted or nowhere reads as None."""
    async with api(answer) as server, ShortcutClient(server.url, TOKEN) as client:
        assert await client.comment_text(4101, 7001) == expected


async def test_names_are_read_by_id() -> None:
    """Labels and states have names; what is nowhere has none."""
    workflows = [{"id": 1, "states": [{"id": 8, "name": "To do"}, {"id": 9, "name": "Doing"}]}]
    answers = says({"id": 881, "name": "patch"}), raw(status=404), says(workflows)
    async with api(*answers) as server, ShortcutClient(server.url, TOKEN) as client:
        assert await client.label_name(881) == "patch"
        assert await client.label_name(882) is None
        assert await client.state_name(9) == "Doing"
        assert await client.state_name(10) is None


async def test_our_own_comment_is_found_by_its_marker() -> None:
    """A comment is ours by its external id, unless it was deleted."""
    comments = [
        {"id": 7000, "external_id": None, "deleted": False},
        {"id": 7001, "external_id": "mark", "deleted": True},
        {"id": 7002, "external_id": "mark", "deleted": False},
    ]
    async with (
        api(says(comments), says(comments[:2])) as server,
        ShortcutClient(server.url, TOKEN) as client,
    ):
        assert await client.find_comment(4101, "mark") == 7002
        assert await client.find_comment(4101, "mark") is None


async def test_a_comment_is_posted_once_with_its_marker() -> None:
    """One POST with the text, the marker and the thread, and the id that it got."""
    answer = says({"id": 7003}, status=201)
    async with api(answer) as server, ShortcutClient(server.url, TOKEN) as client:
        assert await client.post_comment(4101, "Done.", "mark", parent_id=7001) == 7003

    line, _, body = server.requests[0]
    assert line == "POST /api/v3/stories/4101/comments HTTP/1.1"
    assert json.loads(body) == {"text": "Done.", "external_id": "mark", "parent_id": 7001}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_refusal(status: int) -> None:
    """No redirect is followed, wherever it leads: POST would become GET, or leave the API."""
    async with api(says({"id": 1})) as elsewhere:
        moved = raw(status=status, headers=f"location: {elsewhere.url}\r\n")
        async with api(moved) as server, ShortcutClient(server.url, TOKEN) as client:
            with pytest.raises(ShortcutRefused) as refused:
                await client.post_comment(4101, "Done.", "mark")

    assert refused.value.status == status
    assert elsewhere.requests == []


@pytest.mark.parametrize("answer", [drips, never])
async def test_a_call_has_a_deadline_however_alive_the_answer_is(answer: Answer) -> None:
    """A server that drips bytes is cut off like one that is silent."""
    async with (
        api(answer) as server,
        ShortcutClient(server.url, TOKEN, deadline_seconds=0.2) as client,
    ):
        async with asyncio.timeout(5):
            with pytest.raises(ShortcutUnavailable) as reading:
                await client.story(4101)
            with pytest.raises(ShortcutUnavailable) as writing:
                await client.post_comment(4101, "Done.", "mark")

    assert not reading.value.uncertain
    assert writing.value.uncertain


GARBAGE = [
    raw(body=b"<html>Sign in</html>"),
    raw(body=b""),
    raw(body=b'{"id": 70'),
    raw(status=204),
    says(None),
    says([]),
    says({"id": "seven"}),
    says({"id": True}),
    raw(body=b"[" * 100_000),
    raw(body=b'{"id": ' + b"9" * 5_000 + b"}"),
    raw(body=b"\xff\xfe"),
    raw(body=b"\x1f\x8b\x08\x00", headers="content-encoding: gzip\r\n"),
    hangs_up,
    cut_off,
]


@pytest.mark.parametrize("answer", GARBAGE)
async def test_only_the_expected_shape_is_a_success(answer: Answer) -> None:
    """After a POST without a proper answer nobody knows; after a GET nothing has happened."""
    async with api(answer) as server, ShortcutClient(server.url, TOKEN) as client:
        with pytest.raises(ShortcutUnavailable) as writing:
            await client.post_comment(4101, "Done.", "mark")
        assert len(server.requests) == 1
        with pytest.raises(ShortcutUnavailable) as reading:
            await client.story(4101)

    assert writing.value.uncertain
    assert not reading.value.uncertain


async def test_an_answer_has_a_limit() -> None:
    """No more of an answer is read than the limit says."""
    async with (
        api(says({"id": 4101, "name": "x" * 2_000})) as server,
        ShortcutClient(server.url, TOKEN, max_answer_bytes=1_000) as client,
    ):
        with pytest.raises(ShortcutUnavailable, match="too large"):
            await client.story(4101)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 422])
async def test_what_the_api_refuses_is_not_tried_again(status: int) -> None:
    """A 4xx is a refusal with its status."""
    async with (
        api(says({"message": "No."}, status=status)) as server,
        ShortcutClient(server.url, TOKEN) as client,
    ):
        with pytest.raises(ShortcutRefused) as refused:
            await client.post_comment(4101, "Done.", "mark")

    assert refused.value.status == status
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "uncertain"), [(429, False), (500, True), (502, True), (503, True), (504, True)]
)
async def test_what_may_work_later_says_when(status: int, uncertain: bool) -> None:
    """429 and 5xx carry the wait that was asked for; after a 5xx the comment may be there."""
    answer = raw(status=status, headers="retry-after: 2\r\n")
    async with api(answer) as server, ShortcutClient(server.url, TOKEN) as client:
        with pytest.raises(ShortcutUnavailable) as later:
            await client.post_comment(4101, "Done.", "mark")

    assert later.value.retry_after_seconds == 2
    assert later.value.uncertain is uncertain


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2),
        (" 0 ", 0),
        ("86400", 300),
        ("9" * 5_000, 300),
        ("000000000000001", 1),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 300),
        ("30,120", None),
        ("-1", None),
        ("1e9", None),
        ("nan", None),
        ("inf", None),
        ("\u0663", None),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("soon", None),
        ("", None),
        ("x" * 20_000, None),
        (None, None),
    ],
)
def test_a_wait_is_bounded_whatever_is_asked(value: str | None, seconds: float | None) -> None:
    """Retry-After is seconds or a date, clamped to 0..300; anything else says nothing."""
    assert retry_after_seconds(value) == seconds


def test_a_date_to_come_is_the_time_until_then() -> None:
    """A date is counted from now."""
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)

    assert retry_after_seconds(in_a_minute) == pytest.approx(60, abs=5)


#: As the API says who asks it.
ME = {"id": "member", "workspace2": {"id": "workspace", "url_slug": "acme"}}


async def test_a_connection_that_never_was_is_certain() -> None:
    """A POST that could not connect was not carried out."""
    async with api(never) as server:
        pass
    async with ShortcutClient(server.url, TOKEN) as client:
        with pytest.raises(ShortcutUnavailable) as refused:
            await client.post_comment(4101, "Done.", "mark")

    assert not refused.value.uncertain


async def test_the_environment_says_nothing_about_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment does not see the token."""
    async with api(says([])) as proxy, api(says(ME)) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        async with ShortcutClient(server.url, TOKEN) as client:
            assert await client.me() == Me(member_id="member", workspace_id="workspace")

    assert proxy.requests == []


async def test_connections_are_used_again() -> None:
    """Calls one after another share a connection; many at once all get their answer."""
    async with api(says(STORY)) as server, ShortcutClient(server.url, TOKEN) as client:
        for _ in range(50):
            await client.story(4101)
        one_by_one = server.connections
        async with asyncio.TaskGroup() as tasks:
            for _ in range(100):
                tasks.create_task(client.story(4101))

    assert one_by_one == 1
    assert len(server.requests) == 150


@pytest.mark.parametrize("answer", [raw(status=401), raw(status=500), hangs_up, raw(body=b"?")])
async def test_the_token_is_told_to_nobody(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither errors, nor logs, nor a repr hold the token, and httpx logs no addresses."""
    caplog.set_level(logging.DEBUG)
    async with api(answer) as server, ShortcutClient(server.url, TOKEN) as client:
        with pytest.raises(ShortcutError) as error:
            await client.post_comment(4101, "Done.", "mark")
        told = f"{error.value!r} {client!r} {vars(client)!r} {caplog.text}"

    assert TOKEN not in told
    assert server.url not in caplog.text


@pytest.mark.parametrize("token", ["", "two\nlines", "caf\u00e9", "with space"])
def test_a_token_that_no_header_can_hold_is_a_wrong_setting(token: str) -> None:
    """It is refused at once, and not quoted."""
    with pytest.raises(SettingsError) as refused:
        ShortcutClient("https://api.app.shortcut.com/api/v3", token)

    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("url", ["", "api.app.shortcut.com", "ftp://x/", "http://", "http://x:y/"])
def test_an_address_that_is_none_is_a_wrong_setting(url: str) -> None:
    """The base is an http or https URL."""
    with pytest.raises(SettingsError):
        ShortcutClient(url, TOKEN)


@pytest.mark.parametrize("text", ["x" * 2_000_000, "\U0001f600" * 60_000, "```\n" + "x\n" * 60_000])
def test_text_that_is_too_long_is_cut_with_a_note(text: str) -> None:
    """At most 100,000 characters by either way of counting, valid, with the note outside code."""
    sent = sendable(text)

    assert len(sent.encode("utf-16-le")) // 2 <= 100_000
    assert len(sent) > 45_000
    assert sent.endswith("longer than Shortcut takes.*")
    assert sent.count("```") % 2 == 0


async def test_odd_text_is_sent_as_valid_text() -> None:
    """NUL and lone surrogates become U+FFFD on the way out, too."""
    answer = says({"id": 7004}, status=201)
    async with api(answer) as server, ShortcutClient(server.url, TOKEN) as client:
        await client.post_comment(4101, "a\0b\ud800 \U0001f600", "mark")

    assert json.loads(server.requests[0][2])["text"] == "a\ufffdb\ufffd \U0001f600"
