"""Reads stories from Shortcut's REST API, version 3, and comments on them."""

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Self
from urllib.parse import quote, urlsplit

import httpx
from pydantic import SecretStr

from app.budget import Budget
from app.errors import (
    SettingsError,
    ShortcutBusy,
    ShortcutRefused,
    ShortcutUnavailable,
    WebhookUnknown,
)
from app.model import Glimpse, Marks, Story
from app.shortcut.envelope import instant
from app.shortcut.values import clean, link, mapping, mappings, number, text

#: What one call may take from its first byte to its last, in seconds.
DEADLINE_SECONDS = 10.0
#: The largest answer that is read, in bytes.
MAX_ANSWER_BYTES = 5 * 1024 * 1024
#: The longest comment that version 3 takes, from its OpenAPI description.
MAX_COMMENT_CHARS = 100_000
#: The longest wait that an answer can ask of us, in seconds.
MAX_RETRY_AFTER_SECONDS = 300.0

_CUT = "\n\n*This comment was cut: it was longer than Shortcut takes.*"
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)
# With each of these the request never left; after any other failure it may have arrived.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """Who we are: a member of a workspace. v2 deliveries carry the same ids.

    Attributes:
        member_id: None where there is neither a token nor a setting to know it by.
    """

    member_id: str | None
    workspace_id: str


class ShortcutClient:
    """A connection pool to one workspace's API; one per process, closed by `async with`.

    Every method raises `ShortcutUnavailable` where trying later may help, and `ShortcutRefused`
    where it will not, which is a 4xx or a redirect. Methods that say so give None for a 404.
    Calls, limits and fields are those of https://developer.shortcut.com/api/rest/v3.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        budget: Budget | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """Raises SettingsError for an address or a token that can't be used."""
        self._base = _checked_base(base_url)
        if not re.fullmatch("[!-~]+", token):
            raise SettingsError("the Shortcut API token holds characters that no token has")
        self._token = SecretStr(token)
        self._budget = budget
        self._deadline_seconds = deadline_seconds
        self._max_answer_bytes = max_answer_bytes
        # Half: so that waiting for a connection ends as what it is, a request never sent.
        waits = httpx.Timeout(
            deadline_seconds, connect=deadline_seconds / 2, pool=deadline_seconds / 2
        )
        # A proxy from the environment would see the token; a redirect would turn POST into GET.
        self._http = httpx.AsyncClient(timeout=waits, trust_env=False, follow_redirects=False)
        for chatty in ("httpx", "httpcore"):
            logging.getLogger(chatty).setLevel(logging.WARNING)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def story(self, sc_id: int) -> Story:
        """The story as it is now; a story that is gone is a ShortcutRefused with status 404."""
        found = mapping(await self._ask("GET", f"/stories/{sc_id}"))
        title = text(found.get("name"))
        if number(found.get("id")) != sc_id or title is None:
            raise ShortcutUnavailable("Shortcut answered with something that is no story")
        return Story(
            sc_id=sc_id,
            title=title,
            description=text(found.get("description")) or "",
            story_type=text(found.get("story_type")) or "feature",
            app_url=link(found.get("app_url")),
            labels=_texts(found.get("labels"), "name"),
            tasks=_texts(found.get("tasks"), "description"),
            links=_links(found.get("external_links")),
            archived=found.get("archived") is True,
            completed=found.get("completed") is True,
        )

    async def comment_text(self, sc_id: int, comment_id: int) -> str | None:
        """What a comment says now; None if it or its story is gone."""
        found = await self._find(f"/stories/{sc_id}/comments/{comment_id}")
        if found is None or found.get("deleted") is True:
            return None
        return text(found.get("text"))

    async def label_name(self, label_id: int) -> str | None:
        """A label's name; None if there is no such label."""
        found = await self._find(f"/labels/{label_id}")
        return None if found is None else _required(found.get("name"), "label")

    async def state_name(self, state_id: int) -> str | None:
        """The name of a workflow state; None if no workflow has it."""
        for workflow in _rows(await self._ask("GET", "/workflows"), "workflows"):
            for state in mappings(workflow.get("states")):
                if number(state.get("id")) == state_id:
                    return _required(state.get("name"), "workflow state")
        return None

    async def find_comment(self, sc_id: int, external_id: str) -> int | None:
        """The id of the story's comment with our marker; None if it has none, or a deleted one."""
        for comment in await self.comments(sc_id):
            if comment.get("external_id") == external_id and comment.get("deleted") is not True:
                return _comment_id(comment, uncertain=False)
        return None

    async def post_comment(
        self, sc_id: int, text: str, external_id: str, parent_id: int | None = None
    ) -> int:
        """Posts a comment and gives its id.

        Text beyond 100,000 characters is cut, with a note. The API has no idempotency key: after a
        `ShortcutUnavailable` that is `uncertain`, look for the marker before posting again.
        """
        comment: dict[str, object] = {"text": sendable(text), "external_id": clean(external_id)}
        if parent_id is not None:
            comment["parent_id"] = parent_id
        answer = await self._ask("POST", f"/stories/{sc_id}/comments", comment)
        return _comment_id(mapping(answer), uncertain=True)

    async def edit_comment(self, sc_id: int, comment_id: int, text: str) -> None:
        """Gives a comment of ours another text; one that is gone is a ShortcutRefused, 404."""
        path = f"/stories/{sc_id}/comments/{comment_id}"
        await self._ask("PUT", path, {"text": sendable(text)})

    async def mark(self, sc_id: int, marks: Marks) -> None:
        """Changes what the marks name and leaves all else on the story as it is.

        Raises ShortcutRefused with status 422 where the story's workflow has no such state.
        """
        change: dict[str, object] = {"story_ids": [sc_id]}
        if marks.labels_add:
            change["labels_add"] = [{"name": name} for name in marks.labels_add]
        if marks.labels_remove:
            change["labels_remove"] = [{"name": name} for name in marks.labels_remove]
        if marks.state is not None:
            change["workflow_state_id"] = await self._state_id(sc_id, marks.state)
        await self._ask("PUT", "/stories/bulk", change)

    async def _state_id(self, sc_id: int, state: str) -> int:
        """The id of the state, by its name or id, in the story's own workflow."""
        story = mapping(await self._ask("GET", f"/stories/{sc_id}"))
        for workflow in _rows(await self._ask("GET", "/workflows"), "workflows"):
            if workflow.get("id") != story.get("workflow_id"):
                continue
            for row in mappings(workflow.get("states")):
                found = number(row.get("id"))
                if found is not None and state in (str(found), row.get("name")):
                    return found
        problem = f"the workflow of sc-{sc_id} has no state {state!r}"
        raise ShortcutRefused(problem, status=HTTPStatus.UNPROCESSABLE_ENTITY)

    async def create_webhook(self, url: str, secret: str) -> int:
        """Registers a webhook and gives its id, which the API never tells again.

        Raises WebhookUnknown where it does not tell it now: the description of version 3 says 204,
        the help pages show the webhook.
        """
        body: dict[str, object] = {"webhook_url": url, "secret": secret}
        found = number(mapping(await self._ask("POST", "/integrations/webhook", body)).get("id"))
        if found is None:
            raise WebhookUnknown
        return found

    async def webhook_disabled(self, integration_id: int) -> bool | None:
        """Whether Shortcut has disabled a webhook; None if there is no such webhook."""
        found = await self._find(f"/integrations/webhook/{integration_id}")
        return None if found is None else found.get("disabled") is True

    async def delete_webhook(self, integration_id: int) -> None:
        """Deletes a webhook, if it is still there."""
        try:
            await self._ask("DELETE", f"/integrations/webhook/{integration_id}")
        except ShortcutRefused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise

    async def changed_since(self, since: datetime) -> list[Glimpse]:
        """The stories that have changed since then, archived or not, the oldest change first."""
        body = {"updated_at_start": since.astimezone(UTC).isoformat(timespec="seconds")}
        rows = _rows(await self._ask("POST", "/stories/search", body), "stories")
        found = filter(None, map(_glimpse, rows))
        return sorted(found, key=lambda story: (story.updated_at, story.sc_id))

    async def history(self, sc_id: int) -> list[dict[str, object]]:
        """What happened to a story, in the form of v1 deliveries, whose comments have no text.

        Raises ShortcutRefused with status 404 for a story that is gone.
        """
        return _rows(await self._ask("GET", f"/stories/{sc_id}/history"), "changes")

    async def comments(self, sc_id: int) -> list[dict[str, object]]:
        """The comments on a story as they are now, the deleted ones among them."""
        return _rows(await self._ask("GET", f"/stories/{sc_id}/comments"), "comments")

    async def team_members(self, team_id: str) -> frozenset[str]:
        """Who belongs to a team, which version 3 calls a group."""
        found = mapping(await self._ask("GET", f"/groups/{quote(team_id, safe='')}"))
        members = found.get("member_ids")
        if not isinstance(members, list):
            raise ShortcutUnavailable("Shortcut answered with something that is no team")
        return frozenset(filter(None, map(text, members)))

    async def me(self) -> Me:
        """Whose token this is."""
        found = mapping(await self._ask("GET", "/member"))
        return Me(
            member_id=_required(found.get("id"), "member"),
            workspace_id=_required(mapping(found.get("workspace2")).get("id"), "workspace"),
        )

    async def _find(self, path: str) -> dict[str, object] | None:
        try:
            found = await self._ask("GET", path)
        except ShortcutRefused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        if not isinstance(found, dict) or number(found.get("id")) is None:
            raise ShortcutUnavailable(f"Shortcut answered GET {path} with something else")
        return found

    async def _ask(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> object:
        """The JSON of a successful answer, when it is this request's turn."""
        if self._budget is None:
            return await self._ask_now(method, path, body)
        await self._budget.turn()
        try:
            return await self._ask_now(method, path, body)
        except ShortcutBusy as error:
            await self._budget.close(error.retry_after_seconds)
            raise

    async def _ask_now(self, method: str, path: str, body: Mapping[str, object] | None) -> object:
        what = f"{method} {path}"
        writes = method != "GET"
        try:
            async with asyncio.timeout(self._deadline_seconds):
                raw = await self._exchange(method, path, body)
        except _NOT_SENT as error:
            raise ShortcutUnavailable(f"{what}: {type(error).__name__}") from None
        except (httpx.HTTPError, TimeoutError) as error:
            # Their texts may quote what was sent: the type says enough.
            raise ShortcutUnavailable(f"{what}: {type(error).__name__}", uncertain=writes) from None
        if not raw and writes:
            return None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise ShortcutUnavailable(f"{what}: the answer is not JSON", uncertain=writes) from None

    async def _exchange(self, method: str, path: str, body: Mapping[str, object] | None) -> bytes:
        token = {"Shortcut-Token": self._token.get_secret_value()}
        return await self._send(method, path, body, token)

    async def _send(
        self, method: str, path: str, body: Mapping[str, object] | None, token: Mapping[str, str]
    ) -> bytes:
        # Not compressed: a few kilobytes could unpack to gigabytes before they are counted.
        headers = {**token, "Accept": "application/json", "Accept-Encoding": "identity"}
        url = self._url(path)
        async with self._http.stream(method, url, json=body, headers=headers) as response:
            _check(response, f"{method} {path}", writes=method != "GET")
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > self._max_answer_bytes:
                    raise ShortcutUnavailable(
                        f"{method} {path}: the answer is too large", uncertain=method != "GET"
                    )
        return bytes(received)

    def _url(self, path: str) -> str:
        return self._base + path


def sendable(comment: str) -> str:
    """A comment as the API takes it: storable, and cut with a note where it is too long."""
    comment = clean(comment)
    if _length(comment) <= MAX_COMMENT_CHARS:
        return comment
    # Room for the fence that may have to be closed.
    room = MAX_COMMENT_CHARS - _length(_CUT) - 100
    kept = comment.encode("utf-16-le")[: 2 * room].decode("utf-16-le", errors="ignore")
    return f"{kept}{_closing(kept)}{_CUT}"


def retry_after_seconds(value: str | None) -> float | None:
    """What a Retry-After header asks for, within 0 to 300; None where it can't be understood.

    Takes both forms of RFC 9110, section 10.2.3: seconds and a date.
    """
    if value is None or len(value) > 10_000:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        # Compared by length first: Python refuses to read numbers of thousands of digits.
        digits = value.lstrip("0") or "0"
        return MAX_RETRY_AFTER_SECONDS if len(digits) > 9 else _clamped(float(digits))
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    aware = until if until.tzinfo else until.replace(tzinfo=UTC)
    return _clamped((aware - datetime.now(UTC)).total_seconds())


def _clamped(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _checked_base(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and not parts.query
        httpx.URL(base_url)
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable:
        raise SettingsError("the Shortcut API's address is not an http or https URL")
    return base_url.rstrip("/")


def _check(response: httpx.Response, what: str, *, writes: bool) -> None:
    status = response.status_code
    if 200 <= status < 300:
        return
    problem = f"{what}: Shortcut answered {status}"
    wait = retry_after_seconds(response.headers.get("Retry-After"))
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        raise ShortcutBusy(problem, retry_after_seconds=wait)
    if status in _LATER or status >= 500:
        # A gateway says 5xx for requests that were carried out, too.
        raise ShortcutUnavailable(problem, retry_after_seconds=wait, uncertain=writes)
    raise ShortcutRefused(problem, status=status)


def _glimpse(row: dict[str, object]) -> Glimpse | None:
    sc_id, updated_at = number(row.get("id")), instant(row.get("updated_at"))
    if sc_id is None or updated_at is None:
        return None
    state_id, owners = number(row.get("workflow_state_id")), row.get("owner_ids")
    return Glimpse(
        sc_id=sc_id,
        updated_at=updated_at,
        labels=_texts(row.get("labels"), "name"),
        owners=tuple(filter(None, map(text, owners))) if isinstance(owners, list) else (),
        state_id=None if state_id is None else str(state_id),
    )


def _length(comment: str) -> int:
    # As a JVM counts, which is never less than Python does.
    return len(comment.encode("utf-16-le")) // 2


def _closing(kept: str) -> str:
    """What closes the code block in which the text ends, so that the note is not code."""
    fence = ""
    for mark in _FENCE.findall(kept):
        if not fence:
            fence = mark
        elif mark.startswith(fence):
            fence = ""
    return f"\n{fence}" if 0 < len(fence) < 100 else ""


def _rows(found: object, what: str) -> list[dict[str, object]]:
    if not isinstance(found, list):
        raise ShortcutUnavailable(f"Shortcut answered with something that is no list of {what}")
    return mappings(found)


def _required(value: object, what: str) -> str:
    name = text(value)
    if not name:
        raise ShortcutUnavailable(f"Shortcut answered with something that is no {what}")
    return name


def _comment_id(comment: dict[str, object], *, uncertain: bool) -> int:
    found = number(comment.get("id"))
    if found is None:
        raise ShortcutUnavailable("Shortcut answered with no comment id", uncertain=uncertain)
    return found


def _texts(rows: object, key: str) -> tuple[str, ...]:
    found = (text(row.get(key)) for row in mappings(rows))
    return tuple(value for value in found if value)


def _links(value: object) -> tuple[str, ...]:
    found = map(link, value) if isinstance(value, list) else ()
    return tuple(item for item in found if item)
