"""`draftgate reconcile`: what was never delivered."""

from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from app.cli.common import ask_database, errors_as_exit_codes, settings_and_logs
from app.cli.options import AsJson
from app.cli.show import print_json, print_table
from app.db import reconciliations
from app.db.connect import Connection
from app.db.reconciliations import Mark
from app.errors import DraftgateError
from app.main import rules_of
from app.worker.reconcile import Found, Reconciler
from app.worker.workspaces import connected

FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
COLUMNS = ("workspace", "stories", "events", "more")


def reconcile(
    since: Annotated[
        datetime | None,
        typer.Option(formats=FORMATS, help="UTC; without it, since the last time."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find what Shortcut never delivered, and record it; a worker applies it."""
    with errors_as_exit_codes():
        found = ask_database(lambda conn: _run(conn, since and since.replace(tzinfo=UTC)))
        rows = [asdict(it) for it in found]
        if as_json:
            print_json(rows)
        else:
            print_table(rows, COLUMNS)


async def _run(conn: Connection, since: datetime | None) -> list[Found]:
    settings = settings_and_logs()
    async with connected(settings) as workspaces:
        await workspaces.learn()
        reconciler = Reconciler(
            take=lambda: nullcontext(conn),
            workspaces=workspaces,
            rules=rules_of(settings, workspaces),
            every=settings.reconcile_every,
            ring=lambda: None,
        )
        if not reconciler.reachable:
            raise DraftgateError("no workspace has an API token that works: nothing can be asked")
        found = []
        for workspace in reconciler.reachable:
            mark = await reconciliations.mark(conn, workspace)
            if since is not None:
                mark = Mark(through=since)
            if mark is None:
                raise DraftgateError("it was never reconciled before: say --since when")
            found.append(await reconciler.run(workspace, mark))
        return found
