"""`draftgate installs`: the workspaces that have installed the agent app."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, TypeVar

import typer

from app.cli.common import ask_database, errors_as_exit_codes, fail, out
from app.cli.options import AsJson, DryRun, Yes, carry_out, me
from app.cli.show import print_json, print_table
from app.db import installations
from app.db.connect import Connection
from app.errors import SettingsError
from app.installs import Installs, installs_of
from app.operate import disconnect as forget
from app.operate import plan_disconnect
from app.settings import load

T = TypeVar("T")

COLUMNS = ("workspace", "slug", "status", "scope", "error", "installed_at", "refreshed_at")

app = typer.Typer(no_args_is_help=True, help="Workspaces that have installed the agent app.")


@app.command("list")
def list_installs(as_json: AsJson = False) -> None:
    """Every installation, and whether its tokens still count."""
    with errors_as_exit_codes():
        rows = [asdict(it) for it in ask_database(installations.all_of_them)]
        if as_json:
            print_json({"items": rows})
        else:
            print_table(rows, COLUMNS)


@app.command("link")
def link(as_json: AsJson = False) -> None:
    """Print a link by which a workspace's admin installs the app; good once, for ten minutes."""
    with errors_as_exit_codes():
        url = _ask(Installs.begin)
        if as_json:
            print_json({"url": url})
        else:
            out.print(url, soft_wrap=True, markup=False)


@app.command("disconnect")
def disconnect(
    workspace: Annotated[str, typer.Argument(metavar="WORKSPACE", help="As `list` shows it.")],
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Forget a workspace's tokens: nothing is read or written there any more."""
    with errors_as_exit_codes():
        plan = ask_database(lambda conn: plan_disconnect(conn, workspace))
        if plan is None:
            fail(f"the app is not installed in {workspace}")

        def do() -> str:
            ask_database(lambda conn: forget(conn, workspace, actor=me()))
            return "Done."

        carry_out(plan, do, yes=yes, dry_run=dry_run, as_json=as_json)


def _ask(do: Callable[[Installs], Awaitable[T]]) -> T:
    settings = load()

    async def asked(conn: Connection) -> T:
        def taken() -> nullcontext[Connection]:
            return nullcontext(conn)

        installs = installs_of(settings, taken)
        if installs is None:
            raise SettingsError("DRAFTGATE_OAUTH_CLIENT_ID is not set: there is no agent app")
        return await do(installs)

    return ask_database(asked)
