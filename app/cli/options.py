"""Arguments and options that several commands have, and the question before an action."""

import getpass
from collections.abc import Callable
from typing import Annotated

import typer

from app.cli.common import err, fail
from app.cli.show import print_json, print_text
from app.db.look import Cursor
from app.operate import Plan, actor
from app.shortcut.values import story_number


def _story(text: str) -> int:
    number = story_number(text)
    if number is None:
        raise typer.BadParameter("a story's number or link, as 123, sc-123 or its address")
    return number


def _cursor(text: str) -> Cursor:
    try:
        return Cursor.read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


AsJson = Annotated[bool, typer.Option("--json", help="JSON, one document on one line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Most rows.")]
After = Annotated[
    Cursor | None,
    typer.Option(parser=_cursor, metavar="CURSOR", help="Go on where the last page ended."),
]
STORY_HELP = "Its number or link: 123, sc-123."
Story = Annotated[int, typer.Argument(metavar="STORY", parser=_story, help=STORY_HELP)]
OfStory = Annotated[
    int | None, typer.Option("--story", metavar="STORY", parser=_story, help="Only of this one.")
]
Workspace = Annotated[
    str | None, typer.Option(help="Where several workspaces have a story of this number.")
]
Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, max=2**63 - 1)]


def agreed(plan: Plan, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Says what will be done and asks; False if it was only to be said.

    Fails where it can't be done, or is not agreed to. With JSON, which has the output for itself,
    one is asked on stderr.
    """
    if not plan.possible:
        fail(plan.text)
    if as_json and dry_run:
        print_json({"plan": plan.text, "done": False})
    elif not as_json:
        print_text(plan.text)
    elif not yes:
        print_text(plan.text, to=err)
    if not (yes or dry_run or typer.confirm("Go on?", err=as_json)):
        fail("called off; nothing was changed")
    return not dry_run


def carry_out(
    plan: Plan,
    do: Callable[[], str],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Says what will be done, asks, does it, and says what `do` says of it."""
    if agreed(plan, yes=yes, dry_run=dry_run, as_json=as_json):
        said = do()
        if as_json:
            print_json({"plan": plan.text, "done": True})
        else:
            print_text(said)


def me() -> str:
    """Who does it, for the timeline."""
    return actor(getpass.getuser())
