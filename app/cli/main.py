"""`draftgate`: the command."""

import typer

from app.cli import look, run

app = typer.Typer(
    name="draftgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Takes Shortcut's webhook deliveries and drafts one patch per story, exactly once.",
)
app.command("dev")(run.dev)
app.command("demo")(run.demo)
app.command("serve")(run.serve)
app.command("worker")(run.worker)
app.command("migrate")(run.migrate)
app.command("send")(run.send)
app.command("simulate")(run.simulate)
app.add_typer(look.sessions, name="sessions")
app.add_typer(look.events, name="events")


def main() -> None:
    """The entry point of the `draftgate` script."""
    app()


if __name__ == "__main__":
    main()
