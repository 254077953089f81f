"""Templates to pages. All that comes from stories, drafters and senders is untrusted text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app.api.access import Desked
from app.console.access import Signed, Visitor

HERE = Path(__file__).parent
#: Controls, and what turns the direction of the text around it or breaks lines.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def visible(value: object) -> object:
    """Text without characters that no one sees, but that change what one sees."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _UNSEEN.sub("\ufffd", value.replace("\r\n", "\n"))


def link(value: str | None) -> str | None:
    """An address that leads to a web page; None for anything else, as `javascript:`."""
    if value is None or _UNSEEN.search(value) or re.search(r"\s", value):
        return None
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    return value if parts.scheme in ("http", "https") and parts.netloc else None


def ago(at: datetime) -> str:
    """How long ago, in the largest unit of which there are two."""
    seconds = int((datetime.now(UTC) - at).total_seconds())
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= 2 * unit:
            return f"{abs(seconds) // unit} {name}"
    return f"{abs(seconds)} s"


def _future(at: datetime) -> bool:
    return at > datetime.now(UTC)


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


_PAGES = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    finalize=visible,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.filters |= {"link": link, "ago": ago, "future": _future, "clock": _clock}


def page(
    request: Request,
    template: str,
    visitor: Visitor | None,
    *,
    status_code: int = 200,
    **values: Any,
) -> HTMLResponse:
    """A page; `base` is where the console is, below whatever a proxy serves it under."""
    given: Mapping[str, Any] = {
        "base": request.scope["root_path"],
        "path": request.url.path,
        "visitor": visitor,
        **values,
    }
    return HTMLResponse(_PAGES.get_template(template).render(given), status_code=status_code)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of somebody who is signed in, and how it is answered."""

    request: Request
    desk: Desked
    visitor: Signed

    def page(self, template: str, **values: Any) -> HTMLResponse:
        """A page for them."""
        return page(self.request, template, self.visitor, **values)

    def to(self, path: str) -> RedirectResponse:
        """Leads to another page of the console."""
        return RedirectResponse(f"{self.request.scope['root_path']}/{path}", 303)


Visiting = Annotated[Visit, Depends()]
