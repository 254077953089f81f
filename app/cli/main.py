"""`draftgate`: the command."""

from collections import UserDict
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

#: Where each command is. It is imported when it is asked for: a worker has no need of the
#: simulator, nor `why` of the web.
COMMANDS = {
    "dev": "app.cli.dev:dev",
    "demo": "app.cli.demo:demo",
    "serve": "app.cli.run:serve",
    "worker": "app.cli.run:worker",
    "migrate": "app.cli.run:migrate",
    "why": "app.cli.why:why",
    "doctor": "app.cli.doctor:doctor",
    "settings": "app.cli.settings:settings",
    "reconcile": "app.cli.reconcile:reconcile",
    "purge": "app.cli.purge:purge",
    "send": "app.cli.simulate:send",
    "simulate": "app.cli.simulate:simulate",
    "sessions": "app.cli.sessions:app",
    "events": "app.cli.events:app",
    "outbox": "app.cli.outbox:app",
    "webhook": "app.cli.webhook:app",
    "installs": "app.cli.installs:app",
}


class Commands(UserDict[str, Any]):
    """What typer takes for its commands, each imported as it is looked up."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self.data[name].partition(":")
        found = getattr(import_module(module), attribute)
        around = typer.Typer()
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name)
        else:
            around.command(name)(found)
        return get_group(around).commands[name]


class Group(TyperGroup):
    """All commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": Commands(COMMANDS)})


app = typer.Typer(name="draftgate", cls=Group, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def draftgate() -> None:
    """Takes Shortcut's webhook deliveries and drafts one patch per story, exactly once."""


def main() -> None:
    """The entry point of the `draftgate` script."""
    app()


if __name__ == "__main__":
    main()
