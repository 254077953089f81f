"""`draftgate webhook`: the workspace webhooks at Shortcut that lead here."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, TypeVar

import typer

from app.cli.common import ask_with_pool, errors_as_exit_codes, out, settings_and_logs
from app.cli.options import AsJson, DryRun, Yes, agreed, carry_out
from app.cli.show import print_json, print_table
from app.db import hooks as db
from app.db.connect import Pool, take
from app.errors import DraftgateError, SettingsError
from app.model import Hook
from app.operate import Plan
from app.sources import SOURCE
from app.worker.hooks import Hooks
from app.worker.workspaces import connected

T = TypeVar("T")

COLUMNS = ("source", "integration_id", "status", "error", "url", "registered_at")

OfSource = Annotated[str, typer.Argument(metavar="[SOURCE]", help="Which source's webhook.")]

app = typer.Typer(no_args_is_help=True, help="Workspace webhooks (version 1) that lead here.")


@app.command("register")
def register(
    source: OfSource = SOURCE,
    adopt: Annotated[
        int | None,
        typer.Option(min=1, max=2**63 - 1, help="Take over the one that has this id instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register a webhook at Shortcut, with the source's first secret, and watch it from now on."""

    async def ask(hooks: Hooks, known: Sequence[Hook]) -> Hook:
        if known:
            raise DraftgateError(
                f"it is registered, as {known[0].integration_id}: see `draftgate webhook rotate`"
            )
        if adopt is not None:
            return await hooks.adopt(source, adopt)
        return await hooks.register(source)

    with errors_as_exit_codes():
        _say(_ask(ask, source), as_json=as_json)


@app.command("status")
def status(as_json: AsJson = False) -> None:
    """Ask Shortcut how the registered webhooks are; exit 1 where one is not alive."""

    async def ask(hooks: Hooks, known: Sequence[Hook]) -> list[Hook]:
        return [await hooks.look(hook) for hook in known]

    with errors_as_exit_codes():
        rows = [asdict(hook) for hook in _ask(ask)]
        if as_json:
            print_json({"items": rows})
        elif rows:
            print_table(rows, COLUMNS)
        else:
            out.print("None is registered: see `draftgate webhook register --help`.")
        if any(row["status"] != "alive" or row["error"] for row in rows):
            raise SystemExit(1)


@app.command("rotate")
def rotate(source: OfSource = SOURCE, yes: Yes = False, as_json: AsJson = False) -> None:
    """Register the webhook anew with the first secret, then delete the one before it."""
    said = "A new webhook is made with the first secret, and the old one is deleted."
    with errors_as_exit_codes():
        plan = Plan(f"{said} Keep the old secret as second for a while.", True)
        if agreed(plan, yes=yes, quiet=as_json):
            hook = _ask(lambda hooks, known: hooks.register(_one(known).source), source)
            _say(hook, as_json=as_json)


@app.command("remove")
def remove(
    source: OfSource = SOURCE, yes: Yes = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Delete the webhook at Shortcut: nothing is delivered to this source any more."""
    with errors_as_exit_codes():
        plan = Plan(f"The webhook of {source} is deleted, and nothing is delivered.", True)

        def do() -> str:
            _ask(lambda hooks, known: hooks.remove(_one(known)), source)
            return "Done."

        carry_out(plan, do, yes=yes, dry_run=dry_run, as_json=as_json)


def _say(hook: Hook, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(hook))
    else:
        out.print(f"Webhook {hook.integration_id} leads to {hook.url}.", soft_wrap=True)


def _one(known: Sequence[Hook]) -> Hook:
    if not known:
        raise DraftgateError("it is not registered: see `draftgate webhook register --help`")
    return known[0]


def _ask(do: Callable[[Hooks, Sequence[Hook]], Awaitable[T]], source: str | None = None) -> T:
    """Does it with the known hooks, of that source if one is named."""
    settings = settings_and_logs()
    if source is not None and source not in settings.all_sources:
        names = ", ".join(settings.all_sources)
        raise SettingsError(f"there is no source {source!r}; there is {names}")

    async def asked(pool: Pool) -> T:
        async with take(pool) as conn:
            known = [hook for hook in await db.all_of_them(conn) if source in (None, hook.source)]
        async with connected(settings, pool) as workspaces:
            await workspaces.learn()
            hooks = Hooks(take=partial(take, pool), settings=settings, workspaces=workspaces)
            return await do(hooks, known)

    return ask_with_pool(asked)
