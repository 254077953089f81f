"""Where people come back to after they have agreed, at Shortcut, to install the agent app."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from app.errors import Rejected, ShortcutUnavailable
from app.installs import CALLBACK, Installs

#: Longer than any code or state that was seen.
Given = Annotated[str, Query(max_length=2000)]


def router(installs: Installs) -> APIRouter:
    """The callback, which needs no token: a code of Shortcut's is what counts."""
    routes = APIRouter()

    @routes.get(CALLBACK, operation_id="oauth_callback", response_class=PlainTextResponse)
    async def come_back(code: Given = "", state: Given = "", error: Given = "") -> str:
        """Installs the agent app into the workspace that has agreed to it."""
        if error or not code:
            raise Rejected(400, "not-agreed", "Nobody has agreed to the installation.")
        try:
            slug = await installs.finish(code, state)
        except ShortcutUnavailable:
            raise Rejected(503, "unavailable", "Shortcut can't be asked now.") from None
        return f"Draftgate is installed in {slug}. You can close this page.\n"

    return routes
