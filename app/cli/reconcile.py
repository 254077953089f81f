"""`draftgate reconcile`: what was never delivered."""

from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from app.cli.common import ask_with_pool, errors_as_exit_codes, settings_and_logs
from app.cli.options import AsJson
from app.cli.show import print_json, print_table
from app.db import reconciliations
from app.db.connect import Pool, take
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
        found = ask_with_pool(lambda pool: _run(pool, since and since.replace(tzinfo=UTC)))
        rows = [asdict(it) for it in found]
        if as_json:
            print_json(rows)
        else:
            print_table(rows, COLUMNS)


async def _run(pool: Pool, since: datetime | None) -> list[Found]:
    settings = settings_and_logs()
    async with connected(settings, pool) as workspaces:
        await workspaces.learn()
        await workspaces.update()
        reconciler = Reconciler(
            take=partial(take, pool),
            workspaces=workspaces,
            rules=rules_of(settings, workspaces),
            every=settings.reconcile_every,
            ring=lambda: None,
        )
        if not reconciler.reachable:
            raise DraftgateError("no workspace has an API token that works: nothing can be asked")
        found = []
        for workspace in reconciler.reachable:
            async with take(pool) as conn:
                mark = await reconciliations.mark(conn, workspace)
            if since is not None:
                mark = Mark(through=since)
            if mark is None:
                raise DraftgateError("it was never reconciled before: say --since when")
            found.append(await reconciler.run(workspace, mark))
        return found
