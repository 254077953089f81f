"""Who may see the console: signing in with the token, the cookie, and where a form comes from."""

import hmac
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address, ip_network
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
#: Wrong tokens from one address in so many seconds, after which none is compared.
MOST_FAILURES, FAILURES_SECONDS = 10, 60.0
_MOST_ADDRESSES = 10_000
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


class Attempts:
    """Wrong tokens by address; an IPv6 network counts as one, since its owner has all of it."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def admit(self, address: str) -> None:
        """Raises Rejected when too many have failed from there."""
        since, failures = self._failures.get(address, (0.0, 0))
        if failures >= MOST_FAILURES and time.monotonic() - since < FAILURES_SECONDS:
            raise Rejected(429, "too-many-attempts", "Too many wrong tokens; wait a minute.")

    def failed(self, address: str) -> None:
        """One more has failed."""
        since, failures = self._failures.pop(address, (0.0, 0))
        if time.monotonic() - since >= FAILURES_SECONDS:
            since, failures = time.monotonic(), 0
        self._failures[address] = (since, failures + 1)
        if len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)


def address(request: Request, desk: Desk) -> str:
    """Whom attempts are counted for."""
    peer = request.client.host if request.client else None
    found = desk.settings.proxies.client(peer, request.headers.raw)
    if isinstance(found, IPv6Address):
        return str(ip_network((found, 64), strict=False))
    return str(found)


def is_token(desk: Desk, given: str) -> bool:
    """Whether it is the token; comparing takes the same time always."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), desk.token.encode())


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
        desk.token,
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
        desk.token, salt="draftgate console form", key_derivation="hmac", digest_method=sha256
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
