"""Who may use the API, with what arguments, and what its routes work with."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BeforeValidator, StringConstraints

from app import operate
from app.api.guard import Guard
from app.db.connect import Connection, Pool, take
from app.db.look import Cursor
from app.errors import Rejected
from app.in_force import InForce
from app.installs import installs_of
from app.live import Live
from app.settings import Settings
from app.shortcut.values import story_number

_DIGITS = re.compile("[0-9]{1,19}")

bearer = HTTPBearer(auto_error=False, description="DRAFTGATE_API_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What the routes work with; it is the application's state `desk`.

    Attributes:
        in_force: the settings as people may see them.
        ring: wakes workers after something was done that they may go on with.
        live: tells open pages what changes.
    """

    pool: Pool
    settings: Settings
    in_force: Sequence[InForce]
    guard: Guard
    ring: Callable[[], None]
    live: Live

    async def install_link(self) -> str:
        """A link by which a workspace's admin installs the agent app; good once, for ten minutes.

        Raises Rejected where the settings name no agent app.
        """
        installs = installs_of(self.settings, partial(take, self.pool))
        if installs is None:
            said = "There is no agent app: see DRAFTGATE_OAUTH_CLIENT_ID."
            raise Rejected(404, "not-found", said)
        return await installs.begin()


def guard_of(settings: Settings) -> Guard | None:
    """Who has the token may pass; None where none is set."""
    token = settings.api_token
    return Guard(token.get_secret_value(), settings.proxies) if token else None


def desk(request: Request) -> Desk:
    """The application's desk."""
    found: Desk = request.app.state.desk
    return found


def require_token(
    request: Request,
    at: Annotated[Desk, Depends(desk)],
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> None:
    """Raises Rejected unless the request has the token."""
    at.guard.require(request, shown(given))


def shown(given: HTTPAuthorizationCredentials | None) -> str | None:
    """The token that a request shows, which Starlette has read as Latin-1, whatever it was."""
    return given.credentials.encode("latin-1").decode("utf-8", "replace") if given else None


async def connection(at: Annotated[Desk, Depends(desk)]) -> AsyncIterator[Connection]:
    """A connection for one request."""
    async with take(at.pool) as conn:
        yield conn


def _number(value: object) -> object:
    """Plain digits within 64 bits; `int` itself would take `1_0`, and digits of other scripts."""
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value) or int(value) >= 1 << 63:
            raise ValueError("not a number")
        return int(value)
    return value


def cursor(
    after: Annotated[str | None, Query(description="`next` of the page before.")] = None,
) -> Cursor | None:
    """Where a page begins."""
    try:
        return None if after is None else Cursor.read(after)
    except ValueError as error:
        raise Rejected(422, "cursor-invalid", f"`after` is {error}.") from None


def of_story(
    story: Annotated[str | None, Query(description="Its number or link.")] = None,
) -> int | None:
    """The story that is meant."""
    number = None if story is None else story_number(story)
    if story is not None and number is None:
        raise Rejected(422, "story-invalid", "`story` is no story's number or link.")
    return number


def actor(
    actor: Annotated[str, Query(max_length=100, description="Who does it.")] = "API",
) -> str:
    """Who does it, for the timeline."""
    return operate.actor(actor)


Number = Annotated[int, BeforeValidator(_number)]
Limit = Annotated[int, BeforeValidator(_number), Query(ge=1, le=200, description="Most rows.")]
Text = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")]
DryRun = Annotated[bool, Query(description="Only say what would be done.")]
Desked = Annotated[Desk, Depends(desk)]
Conn = Annotated[Connection, Depends(connection)]
After = Annotated[Cursor | None, Depends(cursor)]
OfStory = Annotated[int | None, Depends(of_story)]
Actor = Annotated[str, Depends(actor)]
