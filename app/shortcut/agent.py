"""Version 4 of the API, for workspaces that have installed the agent app: narrow reads, cursors.

Calls, fields and pages are those of Shortcut's own client. Writes go to version 3, which takes the
same tokens.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from app.budget import Budget
from app.errors import ShortcutRefused, ShortcutUnavailable
from app.model import Story
from app.shortcut.client import ShortcutClient
from app.shortcut.values import link, mapping, mappings, number, text

#: Gives an access token and its generation: another one than the one that was just refused.
Token = Callable[[int | None], Awaitable[tuple[str, int]]]

_V4 = "/api/v4/"
#: Pages of one list that are read: more rows than a story's comments ever were.
_MOST_PAGES = 100
_STORY = (
    "id,name,description,story_type,app_url,archived,completed,"
    "labels,checklist_items,external_links"
)


class AgentClient(ShortcutClient):
    """The API of one workspace, as the agent app that is installed there.

    Attributes:
        slug: what the workspace was called in addresses when the app was installed.
    """

    def __init__(self, base_url: str, slug: str, token: Token, *, budget: Budget | None) -> None:
        super().__init__(base_url, "unused", budget=budget)
        parts = urlsplit(self._base)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._v4 = f"{parts.path.removesuffix('/api/v3')}{_V4}"
        self.slug = self._slug = slug
        self._access = token

    async def story(self, sc_id: int) -> Story:
        """The story as it is now; a story that is gone is a ShortcutRefused with status 404."""
        found = await self._entity(f"stories/{sc_id}", _STORY)
        title = text(found.get("name"))
        if number(found.get("id")) != sc_id or title is None:
            raise ShortcutUnavailable("Shortcut answered with something that is no story")
        links = map(link, _nested(found.get("external_links"), "value"))
        return Story(
            sc_id=sc_id,
            title=title,
            description=text(found.get("description")) or "",
            story_type=text(found.get("story_type")) or "feature",
            app_url=link(found.get("app_url")),
            labels=_nested(found.get("labels"), "name"),
            tasks=_nested(found.get("checklist_items"), "description"),
            links=tuple(found for found in links if found),
            archived=found.get("archived") is True,
            completed=found.get("completed") is True,
        )

    async def comment_text(self, sc_id: int, comment_id: int) -> str | None:
        """What a comment says now; None if it or its story is gone."""
        path = f"stories/{sc_id}/comments/{comment_id}"
        found = await self._entity_if_there(path, "text,deleted")
        return None if found is None or found.get("deleted") is True else text(found.get("text"))

    async def label_name(self, label_id: int) -> str | None:
        """A label's name; None if there is no such label."""
        return await self._name(f"labels/{label_id}")

    async def state_name(self, state_id: int) -> str | None:
        """The name of a workflow state; None if no workflow has it."""
        return await self._name(f"workflow-states/{state_id}")

    async def find_comment(self, sc_id: int, external_id: str) -> int | None:
        """The id of the story's comment with our marker; None if it has none, or a deleted one."""
        path = f"stories/{sc_id}/comments"
        async for comment in self._rows(path, "id,external_id,deleted"):
            if comment.get("external_id") == external_id and comment.get("deleted") is not True:
                return number(comment.get("id"))
        return None

    async def team_members(self, team_id: str) -> frozenset[str]:
        """Who belongs to a team."""
        path = f"teams/{quote(team_id, safe='')}/members"
        ids = [text(member.get("id")) async for member in self._rows(path, "id")]
        return frozenset(filter(None, ids))

    async def _name(self, path: str) -> str | None:
        found = await self._entity_if_there(path, "name")
        if found is None:
            return None
        name = text(found.get("name"))
        if not name:
            raise ShortcutUnavailable(f"Shortcut answered GET {path} with something else")
        return name

    async def _entity_if_there(self, path: str, fields: str) -> dict[str, object] | None:
        try:
            return await self._entity(path, fields)
        except ShortcutRefused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _entity(self, path: str, fields: str) -> dict[str, object]:
        """One thing, which is wrapped, with these fields alone."""
        found = mapping(await self._ask("GET", self._path(path, {"fields": fields})))
        entity = found.get("entity")
        if not isinstance(entity, dict):
            raise ShortcutUnavailable(f"Shortcut answered GET {path} with something else")
        return entity

    async def _rows(self, path: str, fields: str) -> AsyncIterator[dict[str, object]]:
        """All rows of a list, page by page; a list that has no end is no list."""
        ask: str | None = self._path(path, {"fields": fields, "limit": "100"})
        seen: set[str] = set()
        while ask is not None:
            if ask in seen or len(seen) == _MOST_PAGES:
                raise ShortcutUnavailable(f"Shortcut's pages of {path} have no end")
            seen.add(ask)
            page = mapping(await self._ask("GET", ask))
            if not isinstance(page.get("entities"), list):
                raise ShortcutUnavailable(f"Shortcut answered GET {path} with no list")
            for row in mappings(page["entities"]):
                yield row
            ask = self._next(page.get("next_page_url"))

    def _next(self, url: object) -> str | None:
        """The path of the next page, if it is on the same server and holds nothing but a cursor.

        The token goes wherever the link leads, so a link that leads elsewhere is an error.
        """
        if url in (None, ""):
            return None
        try:
            parts = urlsplit(url if isinstance(url, str) else "")
            query = dict(parse_qsl(parts.query, strict_parsing=True))
        except ValueError:
            query = {}
        same = isinstance(url, str) and f"{parts.scheme}://{parts.netloc}" == self._origin
        if not (same and parts.path.startswith(self._v4) and "cursor" in query):
            raise ShortcutUnavailable("Shortcut's link to the next page leads elsewhere")
        if set(query) - {"cursor", "fields"} or parts.fragment or ".." in parts.path:
            raise ShortcutUnavailable("Shortcut's link to the next page holds more than a cursor")
        return f"{parts.path}?{urlencode(query)}"

    async def _ask(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> object:
        """Again where nothing was found because the workspace is called something else now."""
        try:
            return await super()._ask(method, path, body)
        except ShortcutRefused as refused:
            if refused.status != HTTPStatus.NOT_FOUND or not path.startswith(self._v4):
                raise
            asked, _, rest = path.removeprefix(self._v4).partition("/")
            member = mapping(await super()._ask("GET", "/member"))
            slug = quote(text(mapping(member.get("workspace2")).get("url_slug")) or "", safe="")
            if slug in ("", asked):
                raise
            self._slug = slug
        return await super()._ask(method, f"{self._v4}{self._slug}/{rest}", body)

    def _path(self, path: str, query: Mapping[str, str]) -> str:
        return f"{self._v4}{self._slug}/{path}?{urlencode(query)}"

    def _url(self, path: str) -> str:
        return self._origin + path if path.startswith(self._v4) else super()._url(path)

    async def _exchange(self, method: str, path: str, body: Mapping[str, object] | None) -> bytes:
        """Once more with another token where this one is refused: then nothing was done."""
        token, generation = await self._access(None)
        try:
            return await self._send(method, path, body, _bearer(token))
        except ShortcutRefused as refused:
            if refused.status != HTTPStatus.UNAUTHORIZED:
                raise
        token, _ = await self._access(generation)
        return await self._send(method, path, body, _bearer(token))


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _nested(value: object, key: str) -> tuple[str, ...]:
    found = (text(row.get(key)) for row in mappings(mapping(value).get("entities")))
    return tuple(name for name in found if name)
