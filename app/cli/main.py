"""`draftgate`: the command."""

import typer

from app.cli import (
    demo,
    dev,
    doctor,
    events,
    installs,
    outbox,
    purge,
    reconcile,
    run,
    sessions,
    settings,
    simulate,
    webhook,
    why,
)

app = typer.Typer(
    name="draftgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Takes Shortcut's webhook deliveries and drafts one patch per story, exactly once.",
)
app.command("dev")(dev.dev)
app.command("demo")(demo.demo)
app.command("serve")(run.serve)
app.command("worker")(run.worker)
app.command("migrate")(run.migrate)
app.command("why")(why.why)
app.command("doctor")(doctor.doctor)
app.command("settings")(settings.settings)
app.command("reconcile")(reconcile.reconcile)
app.command("purge")(purge.purge)
app.command("send")(simulate.send)
app.command("simulate")(simulate.simulate)
app.add_typer(sessions.app, name="sessions")
app.add_typer(events.app, name="events")
app.add_typer(outbox.app, name="outbox")
app.add_typer(webhook.app, name="webhook")
app.add_typer(installs.app, name="installs")


def main() -> None:
    """The entry point of the `draftgate` script."""
    app()


if __name__ == "__main__":
    main()
