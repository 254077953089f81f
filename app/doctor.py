"""Looks whether everything is there that is needed, and says how to mend what is not."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import asyncpg

from app.db import hooks, installations, look, server
from app.db.connect import DATABASE_ERRORS, Connection, reason
from app.db.server import Server
from app.db.spool import SpoolFile, SpoolState
from app.door.spool import FILE
from app.drafters.git import Git, git_environment
from app.errors import (
    DrafterError,
    SchemaError,
    SettingsError,
    ShortcutError,
    ShortcutUnavailable,
)
from app.migrate import require_latest
from app.model import Hook, HookStatus, Installation, InstallationStatus, OwedStatus
from app.settings import PREFIX, Settings, strangers
from app.shortcut.client import ShortcutClient
from app.sources import SOURCE, Source

#: The versions of PostgreSQL that are tested.
OLDEST, NEWEST = 15, 18
CLOCK_SECONDS = 5
LEAST_FREE_BYTES = 1 << 30
GIT_SECONDS = 20
MOST_COUNTED = 100


class Grade(StrEnum):
    """How a finding is meant."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and how to mend it."""

    check: str
    grade: Grade
    said: str
    mend: str = ""


def ok(check: str, said: str) -> Finding:
    return Finding(check, Grade.OK, said)


def warning(check: str, said: str, mend: str) -> Finding:
    return Finding(check, Grade.WARNING, said, mend)


def fault(check: str, said: str, mend: str) -> Finding:
    return Finding(check, Grade.FAULT, said, mend)


def names(environ: Mapping[str, str]) -> list[Finding]:
    """Variables that look like settings and are none."""
    found = []
    for name, meant in strangers(environ).items():
        mend = f"Write {meant}." if meant else "Remove it, or see the README's table of settings."
        found.append(warning("variables", f"{name} is no setting, and does nothing.", mend))
    return found or [ok("variables", "Every DRAFTGATE_ variable is a setting.")]


def setup(settings: Settings) -> list[Finding]:
    """What the settings leave out, and what then does not happen."""
    found = [*_secrets(settings), _triggers(settings)]
    if settings.api_token is None:
        mend = "Set DRAFTGATE_API_TOKEN: `openssl rand -hex 32`."
        found.append(warning("operators' API", "It is off.", mend))
    else:
        found.append(ok("operators' API", "It has a token."))
    state = _directory("state directory", "DRAFTGATE_STATE_DIR", settings.state_dir)
    return [*found, _drafter(settings), state, *_spool(settings)]


def _secrets(settings: Settings) -> list[Finding]:
    if not settings.secrets:
        mend = "Set DRAFTGATE_SHORTCUT_SECRETS: `openssl rand -hex 32`, and in the webhook too."
        return [fault("webhook secret", "There is none, so no receiver starts.", mend)]
    counts = {name: len(secrets) for name, secrets in settings.secrets.items()}
    return [
        ok(_of("webhook secret", name), f"{count} {'secret' if count == 1 else 'secrets'}.")
        for name, count in counts.items()
    ]


def _of(check: str, source: str) -> str:
    return check if source == SOURCE else f"{check} of {source}"


def _triggers(settings: Settings) -> Finding:
    named = (settings.trigger_label, settings.trigger_owner, settings.trigger_state)
    if any(named):
        return ok("triggers", "Something opens a session.")
    mend = "Set DRAFTGATE_TRIGGER_LABEL, or another trigger."
    if settings.trigger_assigned or settings.trigger_mentioned:
        return warning("triggers", "Only the agent opens a session, which needs webhooks v2.", mend)
    return fault("triggers", "Nothing opens a session, so nothing will ever happen.", mend)


def _drafter(settings: Settings) -> Finding:
    command = settings.drafter_command
    if not command:
        mend = "Set DRAFTGATE_DRAFTER_COMMAND: see docs/drafters.md."
        return fault("drafter", "There is none, so sessions wait and nothing is drafted.", mend)
    if shutil.which(command[0]) is None:
        mend = "Correct DRAFTGATE_DRAFTER_COMMAND, or install it where workers run."
        return fault("drafter", f"{command[0]!r} is no program that can be run here.", mend)
    return ok("drafter", f"{command[0]} can be run.")


def _directory(check: str, variable: str, directory: Path) -> Finding:
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        mend = f"Set {variable} to a directory that this user may write to."
        return fault(check, f"{directory} can't be written to.", mend)
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE_BYTES:
        said = f"Only {free >> 20} MiB are free at {directory}."
        return warning(check, said, f"Make room, or set {variable} elsewhere.")
    return ok(check, f"{directory}, {free >> 30} GiB free.")


def _spool(settings: Settings) -> list[Finding]:
    if settings.spool_dir is None:
        mend = "Set DRAFTGATE_SPOOL_DIR, on a disk that outlives the process."
        said = "None: deliveries are refused while the database is away."
        return [warning("spool", said, mend)]
    there = _directory("spool", "DRAFTGATE_SPOOL_DIR", settings.spool_dir)
    if not (settings.spool_dir / FILE).exists():
        return [there]
    try:
        file = SpoolFile(settings.spool_dir / FILE, limit_bytes=settings.spool_limit_bytes)
        with closing(file):
            return [there, _spooled(file.state())]
    except (sqlite3.Error, OSError) as error:
        mend = "Move the file away, keep it, and start again: deliveries need another now."
        return [there, fault("spool", f"Its file can't be used: {error}.", mend)]


def _spooled(state: SpoolState) -> Finding:
    used = f"{state.used_bytes >> 20} of {state.limit_bytes >> 20} MiB used"
    if state.is_full:
        mend = "See to the database, or raise DRAFTGATE_SPOOL_LIMIT_BYTES."
        return fault("spool", f"It is full: {state.deliveries} deliveries wait.", mend)
    if state.refused:
        said = f"The database can't store {state.refused} deliveries; {used}."
        return warning("spool", said, "See `spool.refused` in the log; a restart tries them again.")
    if state.oldest_at is not None:
        said = f"{state.deliveries} deliveries wait, since {state.oldest_at:%Y-%m-%d %H:%M:%SZ}."
        return warning(
            "spool", said, "A running receiver brings them in when the database is back."
        )
    return ok("spool", f"Nothing waits in it; {used}.")


async def git(settings: Settings) -> list[Finding]:
    """Whether git is there, and the repository and its base can be read by it."""
    if shutil.which("git") is None:
        return [fault("git", "It is not installed.", "Install git where workers run.")]
    if settings.repository is None:
        mend = "Set DRAFTGATE_REPOSITORY, unless the drafter finds its own way to the code."
        return [warning("repository", "There is none: drafters start in an empty place.", mend)]
    ask = Git(environment=git_environment(os.environ), timeout_seconds=GIT_SECONDS)
    where = _absolute(settings.repository)
    with tempfile.TemporaryDirectory(prefix="draftgate-doctor-") as home:
        try:
            refs = await ask("ls-remote", "--", where, cwd=Path(home))
        except DrafterError as error:
            mend = "Correct DRAFTGATE_REPOSITORY, or give this user what git needs to read it."
            return [fault("repository", str(error), mend)]
    if not refs.strip():
        return [fault("repository", "It has no commit.", "Push one: drafts start from it.")]
    return [ok("repository", "It can be read.")]


def _absolute(repository: str) -> str:
    """A path as it is from anywhere; an address as it is."""
    return str(Path(repository).absolute()) if Path(repository).exists() else repository


async def shortcut(settings: Settings) -> list[Finding]:
    """Whether the API can be reached with each source's token, and who we are there."""
    url = settings.shortcut_api_url
    return [await _source(url, name, source) for name, source in settings.all_sources.items()]


async def _source(api_url: str, name: str, source: Source) -> Finding:
    check = _of("Shortcut", name)
    prefix = f"{PREFIX}SOURCES__{name.upper()}__"
    token_setting = f"{PREFIX}SHORTCUT_API_TOKEN" if name == SOURCE else f"{prefix}API_TOKEN"
    if source.api_token is None:
        said = "No token: nothing is read, and no comment posted."
        return warning(check, said, f"Set {token_setting}.")
    try:
        async with ShortcutClient(api_url, source.api_token.get_secret_value()) as client:
            member = (await client.me()).member_id
    except ShortcutUnavailable as error:
        mend = "Look whether DRAFTGATE_SHORTCUT_API_URL can be reached from here."
        return fault(check, str(error), mend)
    except (ShortcutError, SettingsError) as error:
        return fault(check, str(error), f"Make a new token in Shortcut: {token_setting}.")
    if source.bot_member_id not in (None, member):
        setting = f"{PREFIX}BOT_MEMBER_ID" if name == SOURCE else f"{prefix}BOT_MEMBER_ID"
        mend = f"Unset {setting}, or set it to {member}."
        return fault(check, f"The token is not that of {setting}.", mend)
    return ok(check, f"The API knows us as member {member}.")


async def database(settings: Settings, dsn: str) -> list[Finding]:
    """Whether the database can be used as it is set up, and is what it should be."""
    try:
        conn = await asyncpg.connect(dsn, timeout=5, command_timeout=10, statement_cache_size=0)
    except (*DATABASE_ERRORS, asyncpg.PostgresError, ValueError) as error:
        mend = "Look whether it runs, and at DRAFTGATE_DATABASE_URL."
        return [fault("database", f"It can't be reached: {reason(error)}", mend)]
    try:
        before = datetime.now(UTC)
        found = await server.about(conn)
        return [
            _version(found),
            _pooler(found, settings),
            _durability(found),
            _clock((found.now - before).total_seconds()),
            *await _schema(conn),
        ]
    finally:
        await conn.close()


def _version(found: Server) -> Finding:
    if not OLDEST <= found.major <= NEWEST:
        mend = f"Use PostgreSQL {OLDEST} to {NEWEST}."
        return warning("database", f"PostgreSQL {found.version}, which is not tested.", mend)
    if found.in_recovery:
        mend = "Let DRAFTGATE_DATABASE_URL lead to the primary: target_session_attrs=primary."
        return fault("database", "It is a standby, which takes no writes.", mend)
    return ok("database", f"PostgreSQL {found.version}.")


def _pooler(found: Server, settings: Settings) -> Finding:
    if not found.pooled:
        return ok("pooler", "None: connections lead to the server itself.")
    if settings.database_statement_cache:
        mend = "Set DRAFTGATE_DATABASE_STATEMENT_CACHE=0, or pool by session."
        return fault("pooler", "Prepared statements do not hold behind a pooler.", mend)
    if settings.listen_database_url is None:
        mend = "Set DRAFTGATE_LISTEN_DATABASE_URL to the server itself."
        return warning("pooler", "No wake-up comes through it: work waits for the poll.", mend)
    return ok("pooler", "There is one, and the settings suit it.")


def _durability(found: Server) -> Finding:
    if found.keeps:
        return ok("durability", "What was answered outlives a crash.")
    mend = "Set fsync and synchronous_commit to on at the server."
    return warning("durability", "A crash of the server may lose answered deliveries.", mend)


def _clock(ahead_seconds: float) -> Finding:
    if abs(ahead_seconds) <= CLOCK_SECONDS:
        return ok("clock", "This machine and the database agree.")
    said = f"The database is {ahead_seconds:+.0f} s from this machine."
    return warning("clock", said, "Keep both in time by NTP; only logs and pages mislead.")


async def _schema(conn: Connection) -> list[Finding]:
    try:
        await require_latest(conn)
    except SchemaError as error:
        said, _, mend = str(error).partition(": ")
        return [fault("schema", f"{said.capitalize()}.", f"{mend.capitalize()}.")]
    return [
        ok("schema", "It is this version's."),
        *map(_hook, await hooks.all_of_them(conn)),
        *map(_installation, await installations.all_of_them(conn)),
        await _outbox(conn),
    ]


def _installation(it: Installation) -> Finding:
    check = f"installation in {it.slug}"
    if it.status is InstallationStatus.REVOKED:
        mend = "Run `draftgate installs link`, and let an admin follow it."
        return fault(check, f"It was revoked: {it.error}. Comments wait there.", mend)
    if it.missing_scopes:
        mend = "Install it again, and tick comments on the consent page."
        return warning(check, f"{', '.join(it.missing_scopes)} was not granted.", mend)
    if it.error is not None:
        mend = "Look whether DRAFTGATE_OAUTH_URL can be reached, and at the keys."
        return warning(check, f"Its token could not be refreshed: {it.error}.", mend)
    return ok(check, f"We are member {it.member_id} there.")


def _hook(hook: Hook) -> Finding:
    check, said = _of("webhook", hook.source), f"Webhook {hook.integration_id} is {hook.status}"
    if hook.error is not None:
        mend = "Correct it, and run `draftgate webhook status`."
        return warning(check, f"{said} when last seen; it can't be asked: {hook.error}.", mend)
    if hook.status is HookStatus.ALIVE:
        return ok(check, f"{said}.")
    mend = f"Run `draftgate webhook rotate {hook.source}`, or set {PREFIX}WEBHOOK_REREGISTER."
    return fault(check, f"{said}: Shortcut delivers nothing.", mend)


async def _outbox(conn: Connection) -> Finding:
    found = await look.outbox(conn, status=OwedStatus.FAILED, limit=MOST_COUNTED)
    if not found.rows:
        return ok("outbox", "Nothing that is owed to a story was given up.")
    count = f"{len(found.rows)}{' or more' if found.next else ''}"
    said = f"Given up: {count}; the last error was: {found.rows[0]['last_error']}"
    mend = "See `draftgate outbox list --status failed`; mend that, then `draftgate outbox retry`."
    return warning("outbox", said, mend)
