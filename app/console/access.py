"""Who may see the console: signing in with the token, the cookie, and where a form comes from."""

import hmac
import re
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response
from itsdangerous import BadSignature, Signer, URLSafeTimedSerializer

from app import operate
from app.api.access import Desk, Desked
from app.errors import Rejected

COOKIE = "draftgate_console"
SESSION_SECONDS = 12 * 60 * 60
_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]*")


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who is signed in.

    Attributes:
        csrf: what each form of this session carries.
    """

    name: str
    csrf: str

    @property
    def actor(self) -> str:
        """As timelines name them."""
        return operate.actor(self.name)


class SignInRequired(Exception):
    """The page is for those who are signed in."""


def sign_in(request: Request, desk: Desk, response: Response, name: str) -> None:
    """Gives the browser a session."""
    value = _sealer(desk).dumps({"id": secrets.token_urlsafe(16), "name": name})
    response.set_cookie(
        COOKIE,
        value,
        max_age=SESSION_SECONDS,
        path=request.scope["root_path"],
        # Who says so falsely only makes the browser keep the cookie back.
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
        httponly=True,
        samesite="strict",
    )


def sign_out(request: Request, response: Response) -> None:
    """Takes the session from the browser."""
    response.delete_cookie(
        COOKIE, path=request.scope["root_path"], httponly=True, samesite="strict"
    )


def _sealer(desk: Desk) -> URLSafeTimedSerializer:
    """Its key is derived from the token, so a new token ends all sessions."""
    return URLSafeTimedSerializer(
        desk.guard.token,
        salt="draftgate console session",
        signer_kwargs={"key_derivation": "hmac", "digest_method": sha256},
    )


async def visitor(request: Request, desk: Desked) -> Visitor:
    """Who asks; raises SignInRequired for a stranger."""
    try:
        told = _sealer(desk).loads(request.cookies.get(COOKIE, ""), max_age=SESSION_SECONDS)
    except BadSignature:
        raise SignInRequired from None
    signer = Signer(
        desk.guard.token, salt="draftgate console form", key_derivation="hmac", digest_method=sha256
    )
    return Visitor(told["name"], signer.get_signature(told["id"]).decode())


def same_origin(request: Request) -> None:
    """Raises Rejected for a form that another site has sent.

    Browsers say so themselves; those that do not say from where.
    """
    site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    fine = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if site is not None:
        fine = site in ("same-origin", "none")
    if not fine:
        raise Rejected(403, "cross-site", "This form was sent by another site.")


async def form(request: Request) -> dict[str, str]:
    """The fields of a form of ours; each has one value. The size is bounded at the door."""
    same_origin(request)
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(body, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise Rejected(400, "form-invalid", "The form has too many fields.") from None
    return {name: values[-1] for name, values in fields.items()}


Signed = Annotated[Visitor, Depends(visitor)]
Form = Annotated[dict[str, str], Depends(form)]


async def signed_form(visitor: Signed, fields: Form) -> dict[str, str]:
    """The fields of a form that this very session was given."""
    if not hmac.compare_digest(fields.get("csrf", "").encode(), visitor.csrf.encode()):
        raise Rejected(403, "form-expired", "This form is of another session: load it again.")
    return fields


SignedForm = Annotated[dict[str, str], Depends(signed_form)]


def local(target: str, base: str) -> str:
    """The target if it is a page of the console; else the first one.

    Browsers take `/\\x` and `//x` for another host.
    """
    inside = target.startswith(f"{base}/") and not target.startswith(f"{base}/log")
    return target if inside and _LOCAL.fullmatch(target) else f"{base}/"


def to_sign_in(request: Request) -> RedirectResponse:
    """Where strangers are sent; they come back after it to what they asked for."""
    base = request.scope["root_path"]
    query = f"?{request.url.query}" if request.url.query else ""
    wanted = quote(local(f"{request.url.path}{query}", base), safe="")
    return RedirectResponse(f"{base}/login?next={wanted}", 303)
