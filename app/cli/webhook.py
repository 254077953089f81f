"""`draftgate webhook`: the workspace webhooks at Shortcut that lead here."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, TypeVar

import typer

from app.cli.common import (
    ask_database,
    ask_with_pool,
    errors_as_exit_codes,
    out,
    settings_and_logs,
)
from app.cli.options import AsJson, DryRun, Yes, agreed, carry_out
from app.cli.show import print_json, print_table
from app.db import hooks as db
from app.db.connect import Pool, take
from app.errors import DraftgateError, SettingsError
from app.model import Hook
from app.operate import Plan
from app.settings import load
from app.sources import SOURCE
from app.worker.hooks import Hooks, address
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
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Register a webhook at Shortcut, with the source's first secret, and watch it from now on."""

    async def do(hooks: Hooks) -> Hook:
        return await (hooks.register(source) if adopt is None else hooks.adopt(source, adopt))

    with errors_as_exit_codes():
        if known := _known(source):
            stands = f"{source} has a webhook, {known[0].integration_id}"
            raise DraftgateError(f"{stands}: see `draftgate webhook rotate --help`")
        will = "A webhook is made with the first secret" if adopt is None else f"{adopt} is watched"
        plan = Plan(f"{will}: it leads to {address(load(), source)}.", True)
        if agreed(plan, yes=True, dry_run=dry_run, as_json=as_json):
            _say(_ask(do), as_json=as_json)


@app.command("status")
def status(as_json: AsJson = False) -> None:
    """Ask Shortcut how the registered webhooks are; exit 1 where one is not alive."""
    with errors_as_exit_codes():
        known = _known()

        async def do(hooks: Hooks) -> list[Hook]:
            return [await hooks.look(hook) for hook in known]

        rows = [asdict(hook) for hook in _ask(do)]
        if as_json:
            print_json({"items": rows})
        elif rows:
            print_table(rows, COLUMNS)
        else:
            out.print("None is registered: see `draftgate webhook register --help`.")
        if any(row["status"] != "alive" or row["error"] for row in rows):
            raise SystemExit(1)


@app.command("rotate")
def rotate(
    source: OfSource = SOURCE, yes: Yes = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Register the webhook anew with the first secret, then delete the one before it."""
    with errors_as_exit_codes():
        will = f"A new webhook is made with the first secret, and {_one(source).integration_id}"
        plan = Plan(f"{will} is deleted. Keep the old secret as second for a while.", True)
        if agreed(plan, yes=yes, dry_run=dry_run, as_json=as_json):
            _say(_ask(lambda hooks: hooks.register(source)), as_json=as_json)


@app.command("remove")
def remove(
    source: OfSource = SOURCE, yes: Yes = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Delete the webhook at Shortcut: nothing is delivered to this source any more."""
    with errors_as_exit_codes():
        hook = _one(source)
        will = f"Webhook {hook.integration_id} is deleted: nothing is delivered to {source}."

        def do() -> str:
            _ask(lambda hooks: hooks.remove(hook))
            return "Done."

        carry_out(Plan(will, True), do, yes=yes, dry_run=dry_run, as_json=as_json)


def _say(hook: Hook, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(hook))
    else:
        out.print(f"Webhook {hook.integration_id} leads to {hook.url}.", soft_wrap=True)


def _one(source: str) -> Hook:
    known = _known(source)
    if not known:
        raise DraftgateError(f"{source} has no webhook: see `draftgate webhook register --help`")
    return known[0]


def _known(source: str | None = None) -> Sequence[Hook]:
    """The webhooks that were registered, of that source if one is named."""
    sources = load().all_sources
    if source is not None and source not in sources:
        raise SettingsError(f"there is no source {source!r}; there is {', '.join(sources)}")
    return [hook for hook in ask_database(db.all_of_them) if source in (None, hook.source)]


def _ask(do: Callable[[Hooks], Awaitable[T]]) -> T:
    settings = settings_and_logs()

    async def asked(pool: Pool) -> T:
        async with connected(settings, pool) as workspaces:
            await workspaces.learn()
            return await do(
                Hooks(take=partial(take, pool), settings=settings, workspaces=workspaces)
            )

    return ask_with_pool(asked)
