"""Unified diffs as files, hunks and rows for two columns. Takes any text. No I/O."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest

#: The most lines of one patch that are shown; the rest is in the file that can be downloaded.
MOST_LINES = 2_000
#: The most characters of one line that are shown.
LONGEST_LINE = 1_000

_FILE = re.compile(r"diff --git |--- ")
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


class Kind(StrEnum):
    """What a line of a hunk is."""

    SAME = "same"
    OLD = "old"
    NEW = "new"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a hunk; a number is None where that side does not have it."""

    kind: Kind
    text: str
    old: int | None = None
    new: int | None = None


@dataclass(slots=True)
class Hunk:
    """A changed place."""

    heading: str
    lines: list[Line] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[Line | None, Line | None]]:
        """The lines in two columns, what was removed beside what came instead."""
        old: list[Line] = []
        new: list[Line] = []
        for line in self.lines:
            if line.kind is Kind.NEW:
                new.append(line)
            elif line.kind is Kind.OLD and not new:
                old.append(line)
            else:
                yield from zip_longest(old, new)
                old, new = [], []
                if line.kind is Kind.OLD:
                    old.append(line)
                else:
                    yield line, line
        yield from zip_longest(old, new)


@dataclass(slots=True)
class File:
    """What a patch does to one file.

    Attributes:
        notes: lines outside hunks: modes, renames, binary contents.
    """

    name: str
    notes: list[str] = field(default_factory=list)
    hunks: list[Hunk] = field(default_factory=list)

    def count(self, kind: Kind) -> int:
        """How many lines of a kind there are."""
        return sum(line.kind == kind for hunk in self.hunks for line in hunk.lines)


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch as it is shown; `left_out` counts the lines that are not."""

    files: list[File]
    left_out: int


def read(text: str) -> Patch:
    """The patch in its parts. What is no diff becomes notes."""
    # Not `splitlines`: a form feed, too, may stand in a line.
    lines = text.removesuffix("\n").split("\n") if text else []
    shown = [line.removesuffix("\r")[:LONGEST_LINE] for line in lines[:MOST_LINES]]
    return Patch(_files(shown), len(lines) - len(shown))


def _files(lines: list[str]) -> list[File]:
    files: list[File] = []
    rest = iter(lines)
    for line in rest:
        hunk = _HUNK.match(line)
        if hunk and files:
            files[-1].hunks.append(_hunk(hunk, rest))
        elif _begins(line, files):
            files.append(File(_name(line), [line]))
        else:
            if not files:
                files.append(File("patch"))
            files[-1].notes.append(line)
            if line.startswith("+++ ") and line != "+++ /dev/null":
                files[-1].name = _name(line)
    return files


def _begins(line: str, files: list[File]) -> bool:
    """Whether a file begins here; within git's own headers, `---` belongs to the file above."""
    if not _FILE.match(line):
        return False
    within = bool(files) and not files[-1].hunks and files[-1].notes[:1] != []
    return not (within and line.startswith("--- ") and files[-1].notes[0].startswith("diff "))


def _name(line: str) -> str:
    """The file's name in a header, without the prefix that git puts before it."""
    path = line.rpartition(" b/")[2] if line.startswith("diff ") else line[4:].split("\t")[0]
    return path.removeprefix("b/").removeprefix("a/") or "patch"


def _hunk(found: re.Match[str], rest: Iterable[str]) -> Hunk:
    """Reads as many lines as the heading announces."""
    old, new = int(found[1]), int(found[3])
    old_left, new_left = int(found[2] or 1), int(found[4] or 1)
    hunk = Hunk(found.string)
    for text in rest:
        match text[:1]:
            case "-":
                hunk.lines.append(Line(Kind.OLD, text[1:], old=old))
                old, old_left = old + 1, old_left - 1
            case "+":
                hunk.lines.append(Line(Kind.NEW, text[1:], new=new))
                new, new_left = new + 1, new_left - 1
            case "\\":
                hunk.lines.append(Line(Kind.NOTE, text))
            case _:
                hunk.lines.append(Line(Kind.SAME, text[1:], old=old, new=new))
                old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1
        if old_left <= 0 and new_left <= 0:
            break
    return hunk
