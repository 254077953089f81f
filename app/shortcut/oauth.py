"""The agent app's OAuth at Shortcut: where people agree, and tokens for what they agreed to.

Paths and fields are those of Shortcut's own client; a refresh may leave most of them out.
"""

import asyncio
import base64
import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlencode

import httpx
from pydantic import SecretStr

from app.errors import GrantRevoked, ShortcutRefused, ShortcutUnavailable
from app.shortcut.envelope import instant
from app.shortcut.values import mapping, short, text

SCOPES = "read write story-write comment-write"
DEADLINE_SECONDS = 10.0
_MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What Shortcut grants; None where the answer leaves it out, which means as before."""

    access: str = field(repr=False)
    refresh: str | None = field(repr=False)
    expires_at: datetime | None
    workspace: str | None
    slug: str | None
    member_id: str | None
    scope: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthApp:
    """The agent app, as it is registered at Shortcut."""

    url: str
    client_id: str
    client_secret: SecretStr
    redirect_uri: str

    def link(self, state: str, verifier: str) -> str:
        """Where a person agrees to an installation that we begin (RFC 7636 binds it to us)."""
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": SCOPES,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        return f"{self.url}/code?{urlencode(query)}"

    async def exchange(self, code: str, verifier: str | None) -> Tokens:
        """Tokens for the code that came back. Raises ShortcutError."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
        }
        return await self._ask(form | ({"code_verifier": verifier} if verifier else {}))

    async def refresh(self, refresh_token: str) -> Tokens:
        """Other tokens; the refresh token is worthless from then on.

        Raises GrantRevoked if it was so before, and ShortcutError.
        """
        return await self._ask({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def _ask(self, form: dict[str, str]) -> Tokens:
        secret = self.client_secret.get_secret_value()
        form = {"client_id": self.client_id, "client_secret": secret, **form}
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                httpx.AsyncClient(trust_env=False, follow_redirects=False) as http,
                http.stream("POST", f"{self.url}/token", data=form) as response,
            ):
                raw = bytearray()
                async for chunk in response.aiter_raw():
                    raw += chunk
                    if len(raw) > _MAX_ANSWER_BYTES:
                        raise ShortcutUnavailable("POST /token: the answer is too large")
        except (httpx.HTTPError, TimeoutError) as error:
            raise ShortcutUnavailable(f"POST /token: {type(error).__name__}") from None
        return _tokens(response.status_code, bytes(raw))


def _tokens(status: int, raw: bytes) -> Tokens:
    try:
        found = mapping(json.loads(raw))
    except (ValueError, RecursionError):
        found = {}
    if status == 429 or status >= 500:
        raise ShortcutUnavailable(f"POST /token: Shortcut answered {status}")
    if status != 200:
        error = short(found.get("error"), 100)
        kind = GrantRevoked if error == "invalid_grant" else ShortcutRefused
        raise kind(f"POST /token: Shortcut answered {status} {error or ''}".strip(), status=status)
    access = text(found.get("access_token"))
    if not access:
        raise ShortcutUnavailable("POST /token: Shortcut answered with no token")
    return Tokens(
        access=access,
        refresh=text(found.get("refresh_token")) or None,
        expires_at=instant(found.get("access_token_expires_at")),
        workspace=text(found.get("workspace2_id")) or None,
        slug=text(found.get("workspace2_slug")) or None,
        member_id=text(found.get("permission_id")) or None,
        scope=text(found.get("scope")),
    )
