"""The agent app's OAuth: a workspace installs it, tokens rotate, and an install can be revoked."""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse

from app.simulator.deliveries import Json
from app.simulator.forms import fields_of
from app.simulator.records import AGENT_ID, URL_SLUG, WORKSPACE_ID

CLIENT_ID = "simulated-agent-app"
SCOPES = "read write story-write comment-write"
_MAX_FORM_BYTES = 64 * 1024


@dataclass(slots=True)
class Code:
    """What a person has agreed to, until it is exchanged."""

    redirect_uri: str
    challenge: str


@dataclass(slots=True, kw_only=True)
class OAuth:
    """What the app was granted. Every refresh makes the refresh token before it worthless.

    Attributes:
        token_seconds: how long an access token lasts.
        consents: whether a person who is asked agrees.
    """

    client_secret: str = field(repr=False)
    client_id: str = CLIENT_ID
    token_seconds: float = 3600.0
    consents: bool = True
    codes: dict[str, Code] = field(default_factory=dict, repr=False)
    access: dict[str, datetime] = field(default_factory=dict, repr=False)
    refresh: str | None = field(default=None, repr=False)
    refreshes: int = 0

    def revoke(self) -> None:
        """The workspace has uninstalled the app: no token counts any more."""
        self.codes.clear()
        self.access.clear()
        self.refresh = None

    def expire(self) -> None:
        """Access tokens end now; the refresh token still counts."""
        self.access.clear()

    @property
    def installed(self) -> bool:
        """Whether the workspace has the app."""
        return self.refresh is not None

    def accepts(self, authorization: str) -> bool:
        """Whether the header brings an access token that counts now."""
        scheme, _, token = authorization.partition(" ")
        until = self.access.get(token)
        return scheme.lower() == "bearer" and until is not None and until > datetime.now(UTC)

    def exchange(self, form: dict[str, str]) -> Json | None:
        """Tokens for a code, which is good once; None where it is not."""
        code = self.codes.pop(form.get("code", ""), None)
        if code is None or code.redirect_uri != form.get("redirect_uri"):
            return None
        if code.challenge and code.challenge != _challenge(form.get("code_verifier", "")):
            return None
        tokens = self._tokens()
        return tokens | {
            "permission_id": AGENT_ID,
            "workspace2_id": WORKSPACE_ID,
            "workspace2_slug": URL_SLUG,
            "scope": SCOPES,
            "capabilities": {"assignable": True, "mentionable": True},
        }

    def renew(self, form: dict[str, str]) -> Json | None:
        """Other tokens for a refresh token, which is good once; None where it is not."""
        if self.refresh is None or form.get("refresh_token") != self.refresh:
            return None
        self.refreshes += 1
        return self._tokens()

    def _tokens(self) -> Json:
        access, self.refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        until = datetime.now(UTC) + timedelta(seconds=self.token_seconds)
        self.access[access] = until
        return {
            "access_token": access,
            "refresh_token": self.refresh,
            "access_token_expires_at": until.isoformat().replace("+00:00", "Z"),
            "token_type": "Bearer",
        }


router = APIRouter(prefix="/oauth-authorization-code-flow")


@router.get("/code")
async def authorize(
    request: Request,
    client_id: str,
    redirect_uri: Annotated[str, Query(pattern="^https?://")],
    state: str = "",
    code_challenge: str = "",
    code_challenge_method: str = "",
) -> RedirectResponse:
    """The consent page, on which somebody has clicked already."""
    oauth: OAuth = request.app.state.simulation.oauth
    if client_id != oauth.client_id or (code_challenge and code_challenge_method != "S256"):
        raise HTTPException(400, "There is no such app, or no such method.")
    answer = {"state": state} if state else {}
    if oauth.consents:
        code = secrets.token_urlsafe(16)
        oauth.codes[code] = Code(redirect_uri, code_challenge)
        answer["code"] = code
    else:
        answer["error"] = "access_denied"
    between = "&" if "?" in redirect_uri else "?"
    return RedirectResponse(f"{redirect_uri}{between}{urlencode(answer)}", 302)


@router.post("/token")
async def token(request: Request) -> JSONResponse:
    """Tokens for a code or a refresh token."""
    oauth: OAuth = request.app.state.simulation.oauth
    form = fields_of((await request.body())[:_MAX_FORM_BYTES])
    known = form.get("client_id") == oauth.client_id and oauth.client_secret
    secret = form.get("client_secret", "").encode()
    if not (known and hmac.compare_digest(secret, oauth.client_secret.encode())):
        return _refused("invalid_client", 401)
    match form.get("grant_type"):
        case "authorization_code":
            tokens = oauth.exchange(form)
        case "refresh_token":
            tokens = oauth.renew(form)
        case _:
            return _refused("unsupported_grant_type", 400)
    return _refused("invalid_grant", 400) if tokens is None else JSONResponse(tokens)


def _refused(error: str, status: int) -> JSONResponse:
    return JSONResponse({"error": error, "error_description": "It is refused."}, status)


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
