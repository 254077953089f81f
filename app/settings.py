"""All settings: read once, when a command starts, from the environment, a `.env`, or files."""

import os
import shlex
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as Undecoded

from app.clarify import Rule
from app.errors import SettingsError
from app.forwarded import Proxies
from app.sources import MIN_SECRET_BYTES, SOURCE, Name, Source, in_file, long_enough, split
from app.vault import Vault

PREFIX = "DRAFTGATE_"
#: Beside `.env`; tables for what has parts.
TOML = "draftgate.toml"
#: Variables with our prefix that are not settings.
NO_SETTINGS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "SUPERVISED",
        "RESULT_FILE",
        "REQUIRE_TOOLS",
        "TEST_DATABASE_URL",
        "TEST_PGBOUNCER",
    )
)

Seconds = Annotated[float, Field(gt=0, le=86_400 * 7)]


class Settings(BaseSettings):
    """Every setting, its default and its meaning; the README's table is checked against it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_file=".env",
        toml_file=TOML,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    # PostgreSQL
    database_url: SecretStr | None = Field(
        None, description="PostgreSQL DSN. Unset: an embedded PostgreSQL under the state directory"
    )
    listen_database_url: SecretStr | None = Field(
        None, description="Direct DSN for LISTEN, when the first one goes through a pooler"
    )
    database_statement_cache: Annotated[int, Field(ge=0)] = Field(
        100, description="Prepared statements kept per connection; 0 behind a transaction pooler"
    )
    database_pool_size: Annotated[int, Field(ge=2, le=100)] = Field(
        5, description="Connections per process for work; the door and heartbeats have their own"
    )
    state_dir: Path = Field(
        Path(".draftgate"), description="Embedded database, git mirrors and worktrees"
    )

    # Shortcut
    shortcut_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="Webhook secrets, comma separated, 16 bytes or more each; several to rotate",
    )
    shortcut_workspace: str | None = Field(
        None,
        description="Id of the workspace, which v1 deliveries do not say. Unset: asked from the API"
        " at start",
    )
    shortcut_api_url: str = Field(
        "https://api.app.shortcut.com/api/v3", description="Base of the REST API, version 3"
    )
    shortcut_api_token: SecretStr | None = Field(
        None, description="REST API token. Unset: stories are not read, comments not posted"
    )
    shortcut_requests_a_minute: Annotated[int, Field(ge=2)] = Field(
        180,
        description="Most requests per API token and minute, of all processes together; Shortcut"
        " takes fewer than 200",
    )
    bot_member_id: str | None = Field(
        None, description="Our own member id. Unset: asked from the API at start"
    )
    sources: dict[Name, Source] = Field(
        {},
        description="Further workspace webhooks, by name: see below",
    )

    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/?#@]+(/[A-Za-z0-9._~-]+)*$",
        description="Where Shortcut reaches this, as `https://draftgate.example`; for registering"
        " webhooks",
    )
    webhook_reregister: bool = Field(
        False, description="Register a webhook again that Shortcut has disabled or lost"
    )

    reconcile_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        600, description="How often Shortcut is asked for what it never delivered; 0: never"
    )

    # The agent app (version 2)
    oauth_client_id: str | None = Field(
        None, description="The agent app's client id. Unset: it can't be installed"
    )
    oauth_client_secret: SecretStr | None = Field(None, description="The agent app's client secret")
    oauth_token_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="Keys that encrypt its tokens, comma separated: the first encrypts, all"
        " decrypt. 32 bytes each, in URL-safe base64",
    )
    oauth_workspaces: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Workspaces, by id or slug, comma separated, that may install it from within"
        " Shortcut; others need a link from here",
    )
    oauth_url: str = Field(
        "https://api.app.shortcut.com/oauth-authorization-code-flow",
        pattern="^https?://[^\\s?#]+$",
        description="Where Shortcut grants tokens",
    )

    # What opens a session
    trigger_label: str = Field("patch", description="Label that opens a session; empty: none")
    trigger_owner: str | None = Field(
        None, description="Member id that opens a session when it becomes an owner"
    )
    trigger_state: str | None = Field(
        None, description="Workflow state, by name or id, that opens a session when entered"
    )
    trigger_assigned: bool = Field(
        True, description="Open when the agent is assigned, or becomes an owner"
    )
    trigger_mentioned: bool = Field(True, description="Open when the agent is mentioned (v2)")

    # What shows on a story
    drafted_label: str | None = Field(
        None, description="Label that a story has as long as there is a draft. Unset: none"
    )
    drafted_state: str | None = Field(
        None,
        description="Workflow state, by name or id, that a story is moved to with each draft."
        " Unset: not moved",
    )

    story_comments_an_hour: Annotated[int, Field(ge=2)] = Field(
        20,
        description="Comments on one story within an hour before it is muted, until an operator"
        " lets it go on",
    )

    # Who may say what
    shared_account: bool = Field(
        False,
        description="The API token is a person's own: what that person does counts, only our"
        " comments do not",
    )
    command_members: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Ids of the members whose commands count, comma separated"
    )
    command_teams: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Ids of teams whose members' commands count, comma separated; "
        "neither set: everybody's do",
    )

    # Clarifying
    clarify_rules: Annotated[tuple[Rule, ...], NoDecode] = Field(
        (Rule.DESCRIPTION,),
        description="What is asked for where a story lacks it: `description`, `length`,"
        " `criteria`, `steps`, comma separated",
    )
    clarify_rounds: Annotated[int, Field(ge=0, le=20)] = Field(
        2, description="Rounds of questions before a story is drafted all the same; 0: none"
    )
    clarifier_command: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Clarifier, as shell-like words: asks where the rules have no question"
    )

    # Drafting
    drafter_command: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Drafter, as shell-like words; no shell runs it"
    )
    drafter_timeout_seconds: Seconds = Field(1800, description="Longest that one run may take")
    drafter_environment: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Further variables that the drafter may see, comma separated"
    )
    repository: str | None = Field(
        None, description="Path or URL of the git repository that is drafted against"
    )
    base_ref: str = Field("HEAD", description="Branch, tag or commit that drafts start from")
    worker_slots: Annotated[int, Field(ge=1, le=64)] = Field(
        2, description="Drafters that one worker process runs at a time"
    )
    lease_seconds: Seconds = Field(60, description="How long a claim lasts without a heartbeat")
    heartbeat_seconds: Seconds | None = Field(
        None, description="Heartbeat interval; at most, and by default, a third of the lease"
    )
    max_attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        5, description="Failed attempts before a session is `failed`"
    )
    max_crashes: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="Expired claims before a session is `failed`"
    )
    retry_base_seconds: Seconds = Field(10, description="Backoff after the first failed attempt")
    retry_max_seconds: Seconds = Field(600, description="Longest backoff")
    poll_seconds: Seconds = Field(1, description="Longest wait for work when no wake-up arrives")

    # The door
    body_limit_bytes: Annotated[int, Field(ge=1024)] = Field(
        2 * 1024 * 1024, description="Largest body of a request"
    )
    header_timeout_seconds: Seconds = Field(
        10, description="Longest that a new connection, or a request's headers, may take"
    )
    connection_limit: Annotated[int, Field(ge=1)] = Field(
        5000, description="Connections per process; one more ends the longest idle new one"
    )
    body_timeout_seconds: Seconds = Field(30, description="Longest that a body may take to arrive")
    commit_timeout_seconds: Seconds = Field(
        10, description="Longest wait for the commit before the answer is 503"
    )
    spool_dir: Path | None = Field(
        None,
        description="Where deliveries are kept while the database is away, on a local disk."
        " Unset: they are 503",
    )
    spool_limit_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        1 << 30, description="Most that the spool may hold, then 503"
    )
    queue_limit: Annotated[int, Field(ge=1)] = Field(
        2000, description="Deliveries that may wait for a commit before the answer is 503"
    )
    buffer_limit_bytes: Annotated[int, Field(ge=1024)] = Field(
        64 * 1024 * 1024,
        description="Most of bodies that are arriving, and of deliveries that wait, each",
    )
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Proxies whose `X-Forwarded-For` counts, comma separated: addresses, networks,"
        " `unix`",
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="Path that a proxy serves this under, as `/draftgate`; cut off by it or not",
    )

    # People
    api_token: SecretStr | None = Field(
        None,
        description="Token of the operators' API and the console, 16 bytes or more. Unset: both are"
        " off",
    )

    metrics_listen: str | None = Field(
        None,
        pattern=r"^(\[[0-9a-fA-F:]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}$",
        description="`host:port` on which `/metrics` needs no token. Unset: only beside the rest,"
        " with `DRAFTGATE_API_TOKEN`",
    )

    # The process
    shutdown_grace_seconds: Seconds = Field(
        30, description="How long running drafters may finish after SIGTERM"
    )
    log_format: str = Field("json", pattern="^(json|console)$", description="`json` or `console`")
    log_level: str = Field(
        "info", pattern="^(debug|info|warning|error)$", description="Least level that is logged"
    )

    @field_validator(
        "database_url",
        "listen_database_url",
        "shortcut_api_token",
        "api_token",
        "shortcut_workspace",
        "bot_member_id",
        "public_url",
        "oauth_client_id",
        "oauth_client_secret",
        "trigger_owner",
        "trigger_state",
        "drafted_label",
        "drafted_state",
        "repository",
        "spool_dir",
        "metrics_listen",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("shortcut_secrets", "oauth_token_keys", mode="before")
    @classmethod
    def _split_secrets(cls, value: Any) -> Any:
        return split(value, "a secret is empty") if isinstance(value, str) else value

    @field_validator("shortcut_secrets")
    @classmethod
    def _long_secrets(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        return long_enough(value)

    @field_validator("oauth_token_keys")
    @classmethod
    def _usable_keys(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if not value:
            return value
        try:
            Vault([key.get_secret_value() for key in value])
        except ValueError:
            raise ValueError("a key is not 32 bytes in URL-safe base64") from None
        return value

    @field_validator("sources")
    @classmethod
    def _other_names(cls, value: dict[str, Source]) -> dict[str, Source]:
        if SOURCE in value:
            raise ValueError(f"{SOURCE!r} is the name of the one that DRAFTGATE_SHORTCUT_… sets")
        return value

    @field_validator("api_token")
    @classmethod
    def _long_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value().encode()) < MIN_SECRET_BYTES:
            raise ValueError(f"it is shorter than {MIN_SECRET_BYTES} bytes")
        return value

    @field_validator("clarify_rules", mode="before")
    @classmethod
    def _split_rules(cls, value: Any) -> Any:
        return split(value, "a rule is empty") if isinstance(value, str) else value

    @field_validator("clarifier_command", "drafter_command", mode="before")
    @classmethod
    def _split_command(cls, value: Any) -> Any:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator(
        "command_members",
        "command_teams",
        "oauth_workspaces",
        "drafter_environment",
        mode="before",
    )
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return split(value, "a name is empty") if isinstance(value, str) else value

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _split_proxies(cls, value: Any) -> Any:
        return split(value, "an address is empty") if isinstance(value, str) else value

    @field_validator("trusted_proxies")
    @classmethod
    def _known_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        Proxies(value)
        return value

    @model_validator(mode="after")
    def _whole_app(self) -> Self:
        needs = (self.oauth_client_secret, self.oauth_token_keys, self.public_url)
        if self.oauth_client_id is not None and not all(needs):
            raise ValueError(
                "oauth_client_id needs oauth_client_secret, oauth_token_keys and public_url"
            )
        return self

    @model_validator(mode="after")
    def _heartbeat_within_a_third(self) -> Self:
        if self.heartbeat_seconds is not None and self.heartbeat_seconds > self.lease_seconds / 3:
            raise ValueError("heartbeat_seconds is more than a third of lease_seconds")
        return self

    @model_validator(mode="after")
    def _marks_open_nothing(self) -> Self:
        label, state = self.drafted_label, self.drafted_state
        if label is not None and label.casefold() == self.trigger_label.casefold():
            raise ValueError("drafted_label is trigger_label")
        if state is not None and state == self.trigger_state:
            raise ValueError("drafted_state is trigger_state")
        return self

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)

    @property
    def reconcile_every(self) -> timedelta:
        return timedelta(seconds=self.reconcile_seconds)

    @property
    def heartbeat(self) -> timedelta:
        return timedelta(seconds=self.heartbeat_seconds or self.lease_seconds / 3)

    @property
    def all_sources(self) -> dict[str, Source]:
        """Every source by its name; the one with settings of its own unless it has none of them."""
        if self.sources and not (self.shortcut_secrets or self.shortcut_api_token):
            return dict(self.sources)
        first = Source.model_construct(
            secrets=self.shortcut_secrets,
            workspace=self.shortcut_workspace,
            api_token=self.shortcut_api_token,
            bot_member_id=self.bot_member_id,
        )
        return {SOURCE: first, **self.sources}

    @property
    def secrets(self) -> dict[str, tuple[bytes, ...]]:
        """The secrets of each source that has any: the others take no deliveries."""
        return {
            name: tuple(secret.get_secret_value().encode() for secret in source.secrets)
            for name, source in self.all_sources.items()
            if source.secrets
        }

    @property
    def proxies(self) -> Proxies:
        return Proxies(self.trusted_proxies)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        files = SecretFiles(settings_cls)
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, files, dotenv_settings, toml


class SecretFiles(PydanticBaseSettingsSource):
    """Reads a secret from the file that `DRAFTGATE_<NAME>_FILE` names, as containers mount them."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        path = os.environ.get(f"{PREFIX}{field_name.upper()}_FILE")
        if not path or not _is_secret(field):
            return None, field_name, False
        between = "," if field_name in ("shortcut_secrets", "oauth_token_keys") else ""
        return in_file(Path(path), between), field_name, False

    def __call__(self) -> dict[str, Any]:
        found = {
            name: self.get_field_value(field, name)[0]
            for name, field in self.settings_cls.model_fields.items()
        }
        return {name: value for name, value in found.items() if value is not None}


def _is_secret(field: Any) -> bool:
    return "SecretStr" in str(field.annotation)


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Our variables by their names in upper case, each with where it stands.

    Of a part of something, which has `__` in its name, the name of the whole.
    """
    given = {f"{PREFIX}{name}": f"the file {TOML}" for name in _toml()}
    given.update(dict.fromkeys(dotenv_values(".env"), "the file .env"))
    given.update(dict.fromkeys(environ, "the environment"))
    ours = {name.upper(): source for name, source in given.items()}
    return {n.partition("__")[0]: ours[n] for n in ours if n.startswith(PREFIX)}


def _toml() -> dict[str, Any]:
    try:
        return tomllib.loads(Path(TOML).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # Whoever reads the settings is told.


def origins(environ: Mapping[str, str]) -> dict[str, str]:
    """Where each setting that is not left at its default comes from; never a value."""
    given = _variables(environ)
    found = {}
    for name, field in Settings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}"
        file = environ.get(f"{variable}_FILE")
        if given.get(variable) == "the environment" or not (file and _is_secret(field)):
            found[variable] = given.get(variable)
        else:
            found[variable] = f"the file {file}"
    return {variable: source for variable, source in found.items() if source}


def strangers(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Variables with our prefix that are no setting, each with the one that may be meant."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    files = {
        f"{PREFIX}{name.upper()}_FILE"
        for name, field in Settings.model_fields.items()
        if _is_secret(field)
    }
    odd = sorted(set(_variables(environ)) - known - files - NO_SETTINGS)
    near = {name: get_close_matches(name, known | files, n=1, cutoff=0.8) for name in odd}
    return {name: next(iter(near[name]), None) for name in odd}


def load(**overrides: Any) -> Settings:
    """Reads the settings.

    Raises:
        SettingsError: one line that names each wrong setting, never its value.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        said = [f"{_where(it['loc'])}{it['msg'].removeprefix('Value error, ')}" for it in faults]
        raise SettingsError("; ".join(said)) from None
    except Undecoded as error:
        raise SettingsError(f"{error}: it is not JSON") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{TOML}: {error}") from None
    except (OSError, ValueError) as error:
        raise SettingsError(str(error)) from None


def _where(loc: tuple[int | str, ...]) -> str:
    if not loc:
        return ""
    depth = 3 if loc[0] == "sources" else 1
    names = [part.upper() for part in loc[:depth] if isinstance(part, str) and part != "[key]"]
    return f"{PREFIX}{'__'.join(names)}: "
