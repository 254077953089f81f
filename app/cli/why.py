"""`draftgate why`: why did nothing happen?"""

from dataclasses import asdict

from rich.markup import escape

from app.cli.common import ask_database, errors_as_exit_codes, out
from app.cli.options import AsJson, Story
from app.cli.show import print_json, print_table, readable
from app.settings import load
from app.why import why as ask


def why(story: Story, as_json: AsJson = False) -> None:
    """Say what was delivered about a story, what came of it, and what would make it go on."""
    with errors_as_exit_codes():
        settings = load()
        answer = ask_database(lambda conn: ask(conn, story, settings))
        if as_json:
            print_json(asdict(answer))
            return
        out.print(f"[bold]{escape(readable(answer.verdict, longest=1000))}[/]", soft_wrap=True)
        out.print(escape(readable(answer.go_on, longest=1000)), soft_wrap=True)
        if answer.comments:
            out.print("\nWhat the story has not been told:")
            print_table(answer.comments, ("id", "kind", "status", "last_error", "go_on"))
        if answer.events:
            out.print()
            print_table(answer.events, ("id", "received_at", "kind", "status", "reason", "go_on"))
        if answer.more_events:
            out.print(f"There are older ones: draftgate events list --story {story}")
