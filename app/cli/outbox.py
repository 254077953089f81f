"""`draftgate outbox`: what is owed to stories, and sending it again."""

from typing import Annotated, Any

import typer

from app.cli.common import ask_database, errors_as_exit_codes, fail, out
from app.cli.options import After, AsJson, DryRun, Limit, Number, Yes, carry_out, me
from app.cli.show import print_fields, print_json, print_page, print_text
from app.db import look
from app.db.connect import Connection
from app.model import OwedStatus
from app.operate import Plan, plan_resend, resend

app = typer.Typer(no_args_is_help=True, help="Comments that are owed to stories.")


@app.command("list")
def list_outbox(
    status: Annotated[OwedStatus | None, typer.Option(help="Only these.")] = None,
    after: After = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Comments, the newest first."""
    with errors_as_exit_codes():
        page = ask_database(lambda conn: look.outbox(conn, status=status, after=after, limit=limit))
        columns = ("id", "sc_id", "kind", "status", "attempts", "created_at", "last_error")
        print_page(page, columns, as_json=as_json)


@app.command("show")
def show_comment(comment: Number, as_json: AsJson = False) -> None:
    """One comment with its text."""
    with errors_as_exit_codes():
        row = ask_database(lambda conn: _entry(conn, comment))
        if as_json:
            print_json(row)
            return
        text = row.pop("text")
        print_fields(row)
        out.print()
        print_text(text)


@app.command("retry")
def retry_comments(
    numbers: Annotated[
        list[int],
        typer.Argument(metavar="NUMBER...", min=1, max=2**63 - 1, help="As `list` shows them."),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """failed -> pending: send comments that were given up; none is ever posted twice."""

    async def entries(conn: Connection) -> list[dict[str, Any]]:
        return [await _entry(conn, number) for number in numbers]

    with errors_as_exit_codes():
        plans = [plan_resend(entry) for entry in ask_database(entries)]
        impossible = [plan for plan in plans if not plan.possible]
        plan = Plan("\n".join(plan.text for plan in impossible or plans), not impossible)
        carry_out(plan, lambda: _resend(numbers), yes=yes, dry_run=dry_run, as_json=as_json)


def _resend(numbers: list[int]) -> str:
    retried = ask_database(lambda conn: resend(conn, numbers, actor=me()))
    if left := sorted(set(numbers) - set(retried)):
        fail(f"not failed now, and so left alone: {', '.join(map(str, left))}")
    return "Done."


async def _entry(conn: Connection, outbox_id: int) -> dict[str, Any]:
    row = await look.outbox_entry(conn, outbox_id)
    if row is None:
        fail(f"there is no comment {outbox_id} in the outbox")
    return row
