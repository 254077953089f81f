"""How values are shown: tables and fields for people, JSON for scripts."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.cli.common import out
from app.db.look import Page

#: What columns are called where their own names would not do.
HEADINGS = {"sc_id": "story", "sc_ids": "story", "updated_at": "moved", "received_at": "received"}


def print_json(value: object) -> None:
    """One JSON document on one line."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=True) + "\n")


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """A table for people; what the rows hold is untrusted text."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(HEADINGS.get(column, column.replace("_", " ")))
    for row in rows:
        table.add_row(*(escape(readable(row[column])) for column in columns))
    out.print(table)


def readable(value: object, *, longest: int = 200) -> str:
    """A value as a person reads it, on one line, without control characters."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        local = value.astimezone()
        today = local.date() == datetime.now().astimezone().date()
        return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return "".join(c if c.isprintable() else " " for c in str(value))[:longest]


def visible(text: str) -> str:
    """The text, on as many lines as it has, without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def print_text(text: str, *, to: Console = out) -> None:
    """Untrusted text as it is."""
    to.print(escape(visible(text)), soft_wrap=True)


def print_fields(row: Mapping[str, Any]) -> None:
    """One row, a line for each of its fields."""
    width = max(map(len, row))
    for name, value in row.items():
        out.print(f"[bold]{name:<{width}}[/]  {escape(readable(value))}", soft_wrap=True)


def print_page(page: Page, columns: Sequence[str], *, as_json: bool) -> None:
    """A part of a list, and how to ask for the next part."""
    if as_json:
        print_json({"items": page.rows, "next": page.next and str(page.next)})
        return
    print_table(page.rows, columns)
    if page.next:
        out.print(f"There are more: --after {page.next}")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)
