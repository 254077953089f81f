"""What a story lacks before it can be drafted, by rules that the settings name. No I/O."""

import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from app.model import Story

SHORT_CHARS = 80

_LIST = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s", re.MULTILINE)
_CRITERIA = re.compile(r"criteria|expected|definition of done", re.IGNORECASE)


class Rule(StrEnum):
    """What a story may have to have. The values are those of the setting."""

    DESCRIPTION = "description"
    LENGTH = "length"
    CRITERIA = "criteria"
    STEPS = "steps"


def lacking(story: Story, answers: Collection[str], rules: Collection[Rule]) -> list[Rule]:
    """The rules that the story does not keep; what was answered counts as if it stood there.

    Of a story that says nothing at all, only that is asked.
    """
    told = "\n".join([story.description, *answers])
    lacks = [rule for rule in rules if _LACKS[rule](story, told)]
    return [Rule.DESCRIPTION] if Rule.DESCRIPTION in lacks else lacks


_LACKS: Mapping[Rule, Callable[[Story, str], bool]] = {
    Rule.DESCRIPTION: lambda story, told: not told.strip(),
    Rule.LENGTH: lambda story, told: len(told.strip()) < SHORT_CHARS,
    Rule.CRITERIA: lambda story, told: (
        story.story_type == "feature"
        and not (story.tasks or _LIST.search(told) or _CRITERIA.search(told))
    ),
    Rule.STEPS: lambda story, told: story.story_type == "bug" and not _LIST.search(told),
}
