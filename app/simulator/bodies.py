"""The bodies that version 3 of the API takes, and how it says that one doesn't match. No I/O."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.simulator.deliveries import Json

Name = Annotated[str, Field(min_length=1, max_length=512)]
Text = Annotated[str, Field(max_length=100_000)]
StoryType = Annotated[str, Field(pattern="^(feature|bug|chore)$")]


class _Strict(BaseModel):
    # What isn't simulated is refused rather than silently not done.
    model_config = ConfigDict(extra="forbid")


class LabelName(_Strict):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    color: str | None = None
    description: str | None = None


class TaskText(_Strict):
    description: Annotated[str, Field(min_length=1, max_length=2048)]
    complete: bool = False


class StoryFields(_Strict):
    """What can be set on a story; only what was sent is."""

    name: Name | None = None
    description: Text | None = None
    story_type: StoryType | None = None
    archived: bool | None = None
    workflow_state_id: int | None = None
    owner_ids: list[str] | None = None
    follower_ids: list[str] | None = None
    external_links: list[str] | None = None
    labels: list[LabelName] | None = None

    def chosen(self) -> Json:
        sent = StoryFields.model_fields.keys() & self.model_fields_set
        chosen = {key: getattr(self, key) for key in StoryFields.model_fields if key in sent}
        if self.labels is not None:
            chosen["labels"] = [label.name for label in self.labels]
        return chosen


class NewStory(StoryFields):
    name: Name
    tasks: list[TaskText] = []


class Bulk(_Strict):
    story_ids: list[int]
    labels_add: list[LabelName] = []
    labels_remove: list[LabelName] = []
    archived: bool | None = None
    workflow_state_id: int | None = None

    def chosen(self) -> Json:
        sent = {"archived", "workflow_state_id"} & self.model_fields_set
        return {key: getattr(self, key) for key in sorted(sent)}


class Search(_Strict):
    updated_at_start: datetime


class NewComment(_Strict):
    text: Text
    author_id: str | None = None
    external_id: Annotated[str, Field(max_length=1024)] | None = None
    parent_id: int | None = None


class CommentText(_Strict):
    text: Text


class NewIntegration(_Strict):
    webhook_url: Annotated[str, Field(max_length=2048, pattern="^https?://")]
    secret: Annotated[str, Field(max_length=128)] = ""
