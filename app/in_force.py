"""The settings in force, for people to look at: never a secret."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from app.settings import PREFIX, Settings, origins

AT_DEFAULT = "default"
#: What stands in an address before its host, or behind its path, may be a password.
_USER, _QUERY = re.compile(r"(?<=://)[^/@\s]*@"), re.compile(r"(?<=[^\s?])\?\S+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """One setting as it is in force.

    Attributes:
        value: as one writes it; None where it is not set. Of a secret only that there is one, of
            sources only their names, and of a command only its first word, since a word behind it
            may be a secret.
        default: what it would be; None for not set.
        origin: where it comes from.
    """

    variable: str
    value: str | None
    default: str | None
    origin: str
    meaning: str


def in_force(settings: Settings, environ: Mapping[str, str]) -> list[InForce]:
    """All settings, in the README's order; `environ` is where they were read from."""
    sources = origins(environ)
    found = []
    for name, field in Settings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}"
        setting = InForce(
            variable=variable,
            value=_shown(name, getattr(settings, name)),
            default=_shown(name, field.get_default(call_default_factory=True)),
            origin=sources.get(variable, AT_DEFAULT),
            meaning=field.description or "",
        )
        found.append(setting)
    return found


def _shown(name: str, value: Any) -> str | None:
    match value:
        case None | () | "":
            return None
        case dict():
            return ", ".join(value) or None
        case SecretStr():
            return "set, not shown"
        case (SecretStr(), *_):
            return f"{len(value)} set, not shown"
        case (first, *more) if name.endswith("_command"):
            return f"{first} …" if more else str(first)
        case tuple() | dict():
            return ", ".join(map(str, value)) or None
        case bool():
            return str(value).lower()
        case _:
            return _QUERY.sub("?…", _USER.sub("…@", str(value)))
