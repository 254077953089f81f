"""`draftgate doctor`: what is wrong, and how to mend it."""

import os
import sys
from dataclasses import asdict

from rich.markup import escape

from app import doctor as checks
from app.cli.common import FAILED, WRONG_SETTING, dsn_of, errors_as_exit_codes, out, run
from app.cli.options import AsJson
from app.cli.show import print_json, readable
from app.doctor import Finding, Grade, fault, warning
from app.errors import SettingsError
from app.settings import Settings, load, origins

_MARKS = {Grade.OK: "[green]ok[/]", Grade.WARNING: "[yellow]warn[/]", Grade.FAULT: "[red]FAULT[/]"}


def doctor(as_json: AsJson = False) -> None:
    """Check settings, database, Shortcut, drafter and git; exit 1 where something is at fault."""
    with errors_as_exit_codes():
        found = checks.names(os.environ)
        try:
            settings = load()
        except SettingsError as error:
            found.append(fault("settings", str(error), "Correct it; nothing starts until then."))
            _say(found, {}, as_json=as_json)
            sys.exit(WRONG_SETTING)
        found += [*checks.setup(settings), *_database(settings)]
        found += run(checks.git(settings)) + run(checks.shortcut(settings))
        _say(found, origins(os.environ), as_json=as_json)
        if any(finding.grade is Grade.FAULT for finding in found):
            sys.exit(FAILED)


def _database(settings: Settings) -> list[Finding]:
    if settings.database_url is not None:
        return run(checks.database(settings, settings.database_url.get_secret_value()))
    mend = "Set DRAFTGATE_DATABASE_URL; the embedded one is for trying things out."
    embedded = warning("database", f"An embedded one, under {settings.state_dir}.", mend)
    if not (settings.state_dir / "postgres").is_dir():
        return [embedded]
    with dsn_of(settings) as dsn:
        return [embedded, *run(checks.database(settings, dsn))]


def _say(found: list[Finding], sources: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json({"findings": [asdict(finding) for finding in found], "settings": sources})
        return
    if sources:
        out.print("[bold]Settings that are not left at their defaults[/]")
        for name, source in sources.items():
            out.print(escape(readable(f"  {name}  from {source}")), soft_wrap=True)
        out.print()
    for finding in found:
        said = escape(readable(finding.said, longest=1000))
        out.print(f"{_MARKS[finding.grade]:<18} {finding.check}: {said}", soft_wrap=True)
        if finding.mend:
            out.print(f"      {escape(finding.mend)}", soft_wrap=True)
