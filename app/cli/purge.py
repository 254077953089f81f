"""`draftgate purge`: deletes what is old and at rest."""

from datetime import timedelta
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from app.cli.common import ask_database, err, errors_as_exit_codes, out
from app.cli.options import AsJson, DryRun, Yes, agreed
from app.cli.show import print_json
from app.db import retention
from app.db.connect import Connection
from app.operate import Plan

BATCH = 500
#: A key that is forgotten is new again: far longer than any sender delivers again.
LEAST_DAYS = 30


def purge(
    days: Annotated[
        int, typer.Option("--older-than", min=LEAST_DAYS, max=36_500, help="In days.")
    ] = 90,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete closed sessions, and finished events of stories without one, that are old."""
    plan = Plan(
        f"Sessions that have been closed for {days} days will be deleted with their drafts, and "
        f"finished events that came in more than {days} days ago about stories without a session. "
        "What is pending, owed or not closed stays.",
        True,
    )
    with errors_as_exit_codes():
        if not agreed(plan, yes=yes, dry_run=dry_run, as_json=as_json):
            return
        older_than = timedelta(days=days)
        sessions, events = ask_database(lambda conn: _purge(conn, older_than))
        if as_json:
            print_json({"sessions": sessions, "events": events})
        else:
            out.print(f"Deleted {sessions} sessions and {events} events.")


async def _purge(conn: Connection, older_than: timedelta) -> tuple[int, int]:
    """Every batch is a transaction of its own, so that nothing is held up, and Ctrl-C is safe."""
    sessions = events = 0
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
        task = progress.add_task("sessions", total=None)
        while gone := await retention.forget_sessions(conn, older_than=older_than, limit=BATCH):
            sessions += gone
        low, high = await retention.ids(conn)
        progress.update(task, description="events", total=max(high - low, 1))
        last: int | None = low - 1
        while last is not None:
            swept = await retention.forget_events(
                conn, after=last, older_than=older_than, limit=BATCH
            )
            events += swept.gone
            last = swept.last if swept.more else None
            progress.update(task, completed=(last or high) - low)
    return sessions, events
