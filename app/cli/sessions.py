"""`draftgate sessions`: what there is, and a hand on it."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from app.cli.common import ask_database, errors_as_exit_codes, fail, out
from app.cli.options import (
    After,
    AsJson,
    DryRun,
    Limit,
    OfStory,
    Story,
    Workspace,
    Yes,
    carry_out,
    me,
)
from app.cli.show import print_fields, print_json, print_page, print_table, print_text, readable
from app.db import look
from app.db.connect import Connection
from app.machine import Status
from app.operate import Action, act, plan

app = typer.Typer(no_args_is_help=True, help="Patch sessions, one per story.")


@app.command("list")
def list_sessions(
    status: Annotated[Status | None, typer.Option(help="Only these.")] = None,
    story: OfStory = None,
    workspace: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    words: Annotated[
        str | None, typer.Option(help="Only with these words, or their beginnings, in the title.")
    ] = None,
    after: After = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Sessions, the last moved first."""
    wanted: dict[str, Any] = {
        "status": status,
        "sc_id": story,
        "workspace": workspace,
        "words": words,
    }
    with errors_as_exit_codes():
        page = ask_database(lambda conn: look.sessions(conn, after=after, limit=limit, **wanted))
        columns = ("sc_id", "status", "revision", "attempts", "updated_at", "title", "last_error")
        print_page(page, columns, as_json=as_json)


@app.command("show")
def show_session(story: Story, workspace: Workspace = None, as_json: AsJson = False) -> None:
    """One session with all that belongs to it."""

    async def everything(conn: Connection) -> dict[str, Any]:
        row = await _session(conn, story, workspace)
        of_story = {"sc_id": row["sc_id"], "workspace": row["workspace"]}
        return {
            **row,
            "timeline": await look.timeline(conn, row["id"]),
            "conversation": await look.conversation(conn, row["id"]),
            "claims": await look.claims(conn, row["id"]),
            "events": (await look.events(conn, **of_story)).rows,
            "outbox": await look.owed(conn, row["id"]),
            "drafts": await look.drafts(conn, row["id"]),
            "late_results": await look.late_results(conn, row["id"]),
        }

    with errors_as_exit_codes():
        found = ask_database(everything)
        if as_json:
            print_json(found)
        else:
            _print_session(found)


def _print_session(found: dict[str, Any]) -> None:
    print_fields({k: v for k, v in found.items() if not isinstance(v, list)})
    for name, columns in _TABLES.items():
        if found[name]:
            out.print(f"\n[bold]{name}[/]")
            print_table(found[name], columns)
    for draft in found["drafts"]:
        _print_patch(f"Draft {draft['revision']}", draft)
    for late in found["late_results"]:
        adopted = "adopted" if late["adopted_at"] else "not adopted"
        _print_patch(f"Late result of generation {late['generation']}, {adopted}:", late)


_TABLES = {
    "timeline": ("at", "move", "status", "generation", "actor", "event_id", "reason"),
    "conversation": ("said_at", "author", "comment_id", "text"),
    "events": ("id", "kind", "status", "reason", "received_at"),
    "outbox": ("id", "kind", "status", "attempts", "comment_id", "last_error"),
}


def _print_patch(title: str, made: dict[str, Any]) -> None:
    out.print(f"\n[bold]{title}[/] {escape(readable(made['summary']))}")
    print_text(made["patch"])


_ACTIONS = {
    Action.RETRY: "failed -> clarified: try again with fresh attempts.",
    Action.RELEASE: "Take the session from its worker, whose result will count for nothing.",
    Action.CLOSE: "Close the session, and stop the worker that owns it.",
    Action.REOPEN: "closed -> opened: have it drafted after all.",
    Action.UNMUTE: "Let a story that was written to too often go on.",
}


def _command(action: Action) -> Callable[..., None]:
    def command(
        story: Story,
        workspace: Workspace = None,
        yes: Yes = False,
        dry_run: DryRun = False,
        as_json: AsJson = False,
    ) -> None:
        _act(story, workspace, action, yes=yes, dry_run=dry_run, as_json=as_json)

    return command


for _action, _help in _ACTIONS.items():
    app.command(_action.value, help=_help)(_command(_action))


@app.command("adopt")
def adopt_late_result(
    story: Story,
    generation: Annotated[
        int,
        typer.Argument(metavar="GENERATION", min=1, max=2**63 - 1, help="As `show` names it."),
    ],
    workspace: Workspace = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take a late result, which came from a worker that had lost its claim, as the draft."""
    way = {"yes": yes, "dry_run": dry_run, "as_json": as_json}
    _act(story, workspace, Action.ADOPT, generation=generation, **way)


def _act(
    story: int,
    workspace: str | None,
    action: Action,
    *,
    generation: int | None = None,
    **way: bool,
) -> None:
    with errors_as_exit_codes():
        row = ask_database(lambda conn: _session(conn, story, workspace))

        def do() -> str:
            given: dict[str, Any] = {"actor": me(), "generation": generation}
            if not ask_database(lambda conn: act(conn, row["id"], action, **given)):
                fail(f"there is nothing of the kind for sc-{story} now; nothing was changed")
            return "Done."

        carry_out(plan(row, action), do, **way)


async def _session(conn: Connection, story: int, workspace: str | None) -> dict[str, Any]:
    rows = await look.session(conn, story, workspace=workspace)
    if not rows:
        fail(f"there is no session for story {story}; `draftgate why {story}` says why")
    if len(rows) > 1:
        fail(f"several workspaces have a story {story}: say which with --workspace")
    return rows[0]
