"""`draftgate sessions`, `events` and `outbox`: what there is, and a hand on it."""

import getpass
import json
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.markup import escape

from app import words
from app.cli.common import (
    ask_database,
    errors_as_exit_codes,
    fail,
    out,
    print_json,
    print_table,
    readable,
)
from app.db import events as event_table
from app.db import gate, look
from app.db import outbox as outbox_table
from app.db import sessions as session_table
from app.db.connect import Connection
from app.db.gate import Comment
from app.machine import OWNED, TRANSITIONS, Move, Status
from app.model import Draft, EventStatus, OwedStatus

AsJson = Annotated[bool, typer.Option("--json", help="JSON, one document on one line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Most rows.")]


def _story_number(text: str) -> int:
    """`123` or `sc-123`."""
    digits = text.lower().removeprefix("sc-")
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits[:20]) < 2**63):
        raise typer.BadParameter("a story's number, as 123 or sc-123")
    return int(digits)


Story = Annotated[
    int, typer.Argument(metavar="STORY", parser=_story_number, help="Its number: 123 or sc-123.")
]
Workspace = Annotated[
    str | None, typer.Option(help="Where several workspaces have a story of this number.")
]
EventNumber = Annotated[int, typer.Argument(metavar="EVENT", min=1, max=2**63 - 1)]

sessions = typer.Typer(no_args_is_help=True, help="Patch sessions, one per story.")
events = typer.Typer(no_args_is_help=True, help="Recorded events.")
outbox = typer.Typer(no_args_is_help=True, help="Comments that are owed to stories.")


@sessions.command("list")
def list_sessions(
    status: Annotated[Status | None, typer.Option(help="Only these.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Sessions, the last moved first."""
    with errors_as_exit_codes():
        rows = ask_database(lambda conn: look.sessions(conn, status=status, limit=limit))
        if as_json:
            print_json(rows)
        else:
            columns = ("sc_id", "status", "revision", "attempts", "updated_at", "title")
            print_table(rows, (*columns, "last_error"))


@sessions.command("show")
def show_session(story: Story, workspace: Workspace = None, as_json: AsJson = False) -> None:
    """One session with its timeline and its drafts."""

    async def everything(conn: Connection) -> dict[str, Any]:
        row = await _session(conn, story, workspace)
        return {
            **row,
            "timeline": await look.timeline(conn, row["id"]),
            "drafts": await look.drafts(conn, row["id"]),
            "late_results": await look.late_results(conn, row["id"]),
        }

    with errors_as_exit_codes():
        found = ask_database(everything)
        if as_json:
            print_json(found)
            return
        _print_fields({k: v for k, v in found.items() if not isinstance(v, list)})
        out.print()
        print_table(
            found["timeline"], ("at", "move", "status", "generation", "actor", "event_id", "reason")
        )
        for draft in found["drafts"]:
            _print_patch(f"Draft {draft['revision']}", draft)
        for late in found["late_results"]:
            adopted = "adopted" if late["adopted_at"] else "not adopted"
            _print_patch(f"Late result of generation {late['generation']}, {adopted}:", late)


@sessions.command("retry")
def retry_session(story: Story, workspace: Workspace = None, yes: Yes = False) -> None:
    """failed -> clarified: try again with fresh budgets."""
    does = "have it drafted again"
    _act(story, workspace, yes, does, session_table.retry, {Status.FAILED})


@sessions.command("release")
def release_session(story: Story, workspace: Workspace = None, yes: Yes = False) -> None:
    """Take the session from its worker, whose result will count for nothing."""
    does = "take it from its worker and have another one start over"
    _act(story, workspace, yes, does, session_table.take_away, set(OWNED.values()))


@sessions.command("adopt")
def adopt_late_result(
    story: Story,
    generation: Annotated[
        int, typer.Argument(metavar="GENERATION", min=1, help="As `sessions show` names it.")
    ],
    workspace: Workspace = None,
    yes: Yes = False,
) -> None:
    """Take a late result, which came from a worker that had lost its claim, as the draft."""

    async def adopt(conn: Connection, session_id: int, *, actor: str) -> bool:
        rows = await look.late_results(conn, session_id)
        found = [row for row in rows if row["generation"] == generation]
        if not found:
            return False
        draft = Draft(summary=found[0]["summary"], patch=found[0]["patch"])
        revision = len(await look.drafts(conn, session_id)) + 1
        key = f"draftgate:adopted:{uuid4()}:g{generation}"
        comment = Comment(key=key, kind="draft", text=words.draft(revision, draft))
        return await gate.adopt(conn, session_id, generation, actor=actor, comment=comment)

    does = f"hand the late result of generation {generation} to the story"
    adoptable = {status for status, moves in TRANSITIONS.items() if Move.ADOPT in moves}
    _act(story, workspace, yes, does, adopt, adoptable)


@events.command("list")
def list_events(
    status: Annotated[EventStatus | None, typer.Option(help="Only these.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Events, the newest first, each with its outcome and reason."""
    with errors_as_exit_codes():
        rows = ask_database(lambda conn: look.events(conn, status=status, limit=limit))
        if as_json:
            print_json(rows)
        else:
            print_table(rows, ("id", "sc_ids", "kind", "status", "reason", "received_at"))


@events.command("show")
def show_event(event: EventNumber, as_json: AsJson = False) -> None:
    """One event with the bytes that were signed."""
    with errors_as_exit_codes():
        row = ask_database(lambda conn: look.event(conn, event))
        if row is None:
            fail(f"there is no event {event}")
        elif as_json:
            print_json(row)
        else:
            body = row.pop("body")
            _print_fields(row)
            out.print()
            out.print(escape(_pretty(body)), soft_wrap=True)


@events.command("replay")
def replay_event(event: EventNumber, yes: Yes = False) -> None:
    """Interpret an event again, as if it had just come in."""
    with errors_as_exit_codes():
        row = ask_database(lambda conn: look.event(conn, event))
        if row is None:
            fail(f"there is no event {event}")
            return
        said = f"Event {event} was {row['status']}: {row['reason']}. It will be interpreted again."
        out.print(escape(readable(said)))
        if yes or typer.confirm("Go on?"):
            replayed = ask_database(lambda conn: event_table.replay(conn, event))
            said = "It is pending" if replayed else "It was pending already"
        out.print(f"{said}: see `draftgate events show {event}`.")


@outbox.command("list")
def list_outbox(
    status: Annotated[OwedStatus | None, typer.Option(help="Only these.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Comments, the newest first, each with what became of it."""
    with errors_as_exit_codes():
        rows = ask_database(lambda conn: look.outbox(conn, status=status, limit=limit))
        if as_json:
            print_json(rows)
        else:
            print_table(rows, ("id", "sc_id", "kind", "status", "attempts", "last_error"))


@outbox.command("retry")
def retry_outbox(
    numbers: Annotated[
        list[int], typer.Argument(metavar="ID...", min=1, help="As `outbox list` shows them.")
    ],
) -> None:
    """failed -> pending: send comments that were given up; none is ever posted twice."""
    with errors_as_exit_codes():
        retried = ask_database(lambda conn: outbox_table.retry(conn, numbers))
        if retried:
            out.print(f"Pending again: {', '.join(map(str, retried))}.")
        if left := sorted(set(numbers) - set(retried)):
            fail(f"not failed, and so left alone: {', '.join(map(str, left))}")


def _act(
    story: int, workspace: str | None, yes: bool, does: str, action: Any, possible: set[Status]
) -> None:
    with errors_as_exit_codes():
        row = ask_database(lambda conn: _session(conn, story, workspace))
        if row["status"] not in possible:
            fail(f"sc-{story} is {row['status']}; this is for {' or '.join(sorted(possible))}")
        out.print(escape(readable(f"sc-{story} is {row['status']}: {does}.")))
        if not (yes or typer.confirm("Go on?")):
            return
        actor = f"operator {getpass.getuser()}"
        if not ask_database(lambda conn: action(conn, row["id"], actor=actor)):
            fail(f"there is nothing of the kind for sc-{story} now; nothing was changed")
        out.print("Done.")


async def _session(conn: Connection, story: int, workspace: str | None) -> dict[str, Any]:
    rows = await look.session(conn, story, workspace=workspace)
    if not rows:
        fail(f"there is no session for story {story}")
    if len(rows) > 1:
        fail(f"several workspaces have a story {story}: say which with --workspace")
    return rows[0]


def _print_fields(row: dict[str, Any]) -> None:
    width = max(map(len, row))
    for name, value in row.items():
        out.print(f"[bold]{name:<{width}}[/]  {escape(readable(value))}", soft_wrap=True)


def _print_patch(title: str, made: dict[str, Any]) -> None:
    out.print(f"\n[bold]{title}[/] {escape(readable(made['summary']))}")
    out.print(escape(_visible(made["patch"])), soft_wrap=True)


def _pretty(body: bytes) -> str:
    try:
        text = json.dumps(json.loads(body), indent=2)
    except (ValueError, RecursionError):
        text = body.decode(errors="backslashreplace")
    return _visible(text)


def _visible(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
