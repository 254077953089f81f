"""Sources: the workspace webhooks that deliver here, each with a path, secrets and a token. No I/O.

One is set by DRAFTGATE_SHORTCUT_SECRETS and its like; any number of others by name.
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

#: The name of the source that has settings of its own; its path has no name at its end.
SOURCE = "shortcut"
MIN_SECRET_BYTES = 16

#: The last part of a source's path.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


class Source(BaseModel):
    """One workspace webhook; `None` where something is asked from the API, or is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    secrets: Annotated[tuple[SecretStr, ...], NoDecode]
    workspace: str | None = None
    api_token: SecretStr | None = None
    bot_member_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, value: Any) -> Any:
        """Takes `secrets_file` (one a line) and `api_token_file` for what is in these files."""
        if not isinstance(value, dict):
            return value
        read = dict(value)
        for name, between in (("secrets", ","), ("api_token", "")):
            path = read.pop(f"{name}_file", None)
            if path is not None and name not in read:
                read[name] = in_file(Path(str(path)), between)
        return read

    @field_validator("workspace", "api_token", "bot_member_id", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("secrets", mode="before")
    @classmethod
    def _split_secrets(cls, value: Any) -> Any:
        return split(value, "a secret is empty") if isinstance(value, str) else value

    @field_validator("secrets")
    @classmethod
    def _long_secrets(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        return long_enough(value)

    @model_validator(mode="after")
    def _has_a_secret(self) -> Self:
        if not self.secrets:
            raise ValueError("it has no secret: no delivery could be trusted")
        return self


def in_file(path: Path, between: str) -> str:
    """A secret as a container mounts it. Raises ValueError for what can't be read."""
    try:
        return between.join(path.read_text(encoding="utf-8").splitlines()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"a secret's file can't be read: {error}") from None


def long_enough(secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """These secrets; raises ValueError where one could be guessed."""
    if any(len(s.get_secret_value().encode()) < MIN_SECRET_BYTES for s in secrets):
        raise ValueError(f"a secret is shorter than {MIN_SECRET_BYTES} bytes")
    return secrets


def split(text: str, complaint: str) -> tuple[str, ...]:
    """The parts between commas; raises ValueError, with this complaint, where one is empty."""
    if not text.strip():
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise ValueError(complaint)
    return parts
