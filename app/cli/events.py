"""`draftgate events`: what came in, and having it interpreted again."""

import base64
import json
from typing import Annotated, Any

import typer

from app.cli.common import ask_database, errors_as_exit_codes, fail, out
from app.cli.options import After, AsJson, DryRun, Limit, Number, OfStory, Yes, carry_out, me
from app.cli.show import print_fields, print_json, print_page, print_table, print_text
from app.db import look
from app.db.connect import Connection
from app.db.events import Replay
from app.model import EventStatus
from app.operate import plan_replay, replay

app = typer.Typer(no_args_is_help=True, help="Recorded events.")


@app.command("list")
def list_events(
    status: Annotated[EventStatus | None, typer.Option(help="Only these.")] = None,
    story: OfStory = None,
    after: After = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Events, the newest first, each with its outcome and reason."""
    wanted: dict[str, Any] = {"status": status, "sc_id": story}
    with errors_as_exit_codes():
        page = ask_database(lambda conn: look.events(conn, after=after, limit=limit, **wanted))
        columns = ("id", "sc_ids", "kind", "status", "reason", "received_at")
        print_page(page, columns, as_json=as_json)


@app.command("show")
def show_event(event: Number, as_json: AsJson = False) -> None:
    """One event with the bytes that were signed."""

    async def everything(conn: Connection) -> dict[str, Any]:
        return {**await _event(conn, event), "replays": await look.replays(conn, event)}

    with errors_as_exit_codes():
        row = ask_database(everything)
        if as_json:
            # Bytes that are no text can't be told from their escapes.
            print_json({**row, "body_base64": base64.b64encode(row["body"]).decode()})
            return
        body, replays = row.pop("body"), row.pop("replays")
        print_fields(row)
        if replays:
            out.print("\n[bold]replays[/]")
            print_table(replays, ("at", "actor"))
        out.print()
        print_text(_pretty(body))


@app.command("replay")
def replay_event(
    event: Number, yes: Yes = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Interpret an event again, as if it had just come in."""
    with errors_as_exit_codes():
        row = ask_database(lambda conn: _event(conn, event))

        def do() -> str:
            done = ask_database(lambda conn: replay(conn, event, actor=me()))
            said = "It is pending" if done is Replay.REPLAYED else "It was pending already"
            return f"{said}: see `draftgate events show {event}`."

        carry_out(plan_replay(row), do, yes=yes, dry_run=dry_run, as_json=as_json)


async def _event(conn: Connection, event_id: int) -> dict[str, Any]:
    row = await look.event(conn, event_id)
    if row is None:
        fail(f"there is no event {event_id}")
    return row


def _pretty(body: bytes) -> str:
    try:
        return json.dumps(json.loads(body), indent=2)
    except (ValueError, RecursionError):
        return body.decode(errors="backslashreplace")
