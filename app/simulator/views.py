"""Things of the workspace as version 3 of the API shows them. No I/O."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from app.simulator.deliveries import Json, v1
from app.simulator.edit import mentioned
from app.simulator.records import (
    STATES,
    URL_SLUG,
    WORKFLOW_ID,
    WORKSPACE_ID,
    Change,
    Comment,
    Label,
    Member,
    State,
    Story,
)
from app.simulator.simulation import Integration
from app.simulator.workspace import Workspace


def story(it: Story, workspace: Workspace) -> Json:
    comments = workspace.comments_of(it.id)
    return {
        "entity_type": "story",
        "id": it.id,
        "global_id": f"v2:s:{WORKSPACE_ID}:{it.id}",
        "app_url": it.app_url,
        "name": it.name,
        "description": it.description,
        "story_type": it.story_type,
        "workflow_id": WORKFLOW_ID,
        "workflow_state_id": it.workflow_state_id,
        "archived": it.archived,
        "started": it.started,
        "started_at": time(it.started_at),
        "completed": it.completed,
        "completed_at": time(it.completed_at),
        "blocked": False,
        "blocker": False,
        "position": it.position,
        "requested_by_id": it.requested_by_id,
        "owner_ids": it.owner_ids,
        "follower_ids": it.follower_ids,
        "member_mention_ids": it.mention_ids,
        "group_mention_ids": [],
        "label_ids": it.label_ids,
        "labels": [label(workspace.labels[number]) for number in it.label_ids],
        "tasks": [task(it, number) for number in range(len(it.tasks))],
        "comments": [comment(left) for left in comments if not left.deleted],
        "external_id": None,
        "external_links": it.external_links,
        "project_id": None,
        "epic_id": None,
        "iteration_id": None,
        "group_id": None,
        "estimate": None,
        "deadline": None,
        "branches": [],
        "pull_requests": [],
        "commits": [],
        "files": [],
        "story_links": [],
        "formatted_vcs_branch_name": f"sc-{it.id}",
        "created_at": time(it.created_at),
        "updated_at": time(it.updated_at),
    }


def slim(it: Story, workspace: Workspace) -> Json:
    """A story as searches give it."""
    whole = story(it, workspace)
    return {key: value for key, value in whole.items() if key not in ("description", "comments")}


def history(changes: Iterable[Change]) -> list[Json]:
    """Deliveries of version 1, but without what comments say."""
    told: list[Json] = [json.loads(it.body) for change in changes for it in v1(change)]
    for envelope in told:
        for action in envelope["actions"]:  # type: ignore[attr-defined]
            if action["entity_type"] == "story-comment" and action["action"] == "create":
                del action["text"]
    return told


def task(it: Story, position: int) -> Json:
    one = it.tasks[position]
    return {
        "entity_type": "story-task",
        "id": one.id,
        "story_id": it.id,
        "description": one.description,
        "complete": one.complete,
        "position": position + 1,
    }


def comment(it: Comment) -> Json:
    """A comment; a deleted one keeps its place, without text and author."""
    return {
        "entity_type": "story-comment",
        "id": it.id,
        "story_id": it.story_id,
        "app_url": f"https://app.shortcut.com/{URL_SLUG}/story/{it.story_id}#activity-{it.id}",
        "text": None if it.deleted else it.text,
        "author_id": None if it.deleted else it.author_id,
        "parent_id": it.parent_id,
        "external_id": it.external_id,
        "deleted": it.deleted,
        "member_mention_ids": mentioned(it.text),
        "group_mention_ids": [],
        "reactions": [],
        "linked_to_slack": False,
        "position": it.id,
        "created_at": time(it.created_at),
        "updated_at": time(it.updated_at),
    }


def label(it: Label) -> Json:
    return {
        "entity_type": "label",
        "id": it.id,
        "global_id": f"v2:l:{WORKSPACE_ID}:{it.id}",
        "name": it.name,
        "app_url": f"https://app.shortcut.com/{URL_SLUG}/label/{it.id}",
        "archived": False,
        "color": None,
        "description": "",
        "external_id": None,
    }


def workflow() -> Json:
    return {
        "entity_type": "workflow",
        "id": WORKFLOW_ID,
        "name": "Engineering",
        "description": "",
        "team_id": 1,
        "default_state_id": STATES[1].id,
        "auto_assign_owner": True,
        "states": [state(it, position) for position, it in enumerate(STATES)],
    }


def state(it: State, position: int) -> Json:
    return {
        "entity_type": "workflow-state",
        "id": it.id,
        "name": it.name,
        "type": it.type,
        "position": position,
        "verb": None,
        "description": "",
    }


def member(it: Member) -> Json:
    return {
        "entity_type": "member",
        "id": it.id,
        "role": it.role,
        "disabled": False,
        "profile": {"id": it.id, "name": it.name, "mention_name": it.mention_name},
    }


def group(team_id: str, members: Sequence[Member]) -> Json:
    return {
        "entity_type": "group",
        "id": team_id,
        "name": "Product",
        "mention_name": "product",
        "archived": False,
        "member_ids": [it.id for it in members],
    }


def current_member(it: Member) -> Json:
    return {
        "id": it.id,
        "name": it.name,
        "mention_name": it.mention_name,
        "role": it.role,
        "is_owner": False,
        "workspace2": {
            "id": WORKSPACE_ID,
            "url_slug": URL_SLUG,
            "name": "Simulated workspace",
        },
    }


def integration(it: Integration) -> Json:
    return {
        "entity_type": "integration",
        "type": "generic",
        "id": it.id,
        "webhook_url": it.hook.url,
        "has_secret": bool(it.hook.secret),
        "disabled": it.disabled,
        "creator_id": it.creator.id,
        "created_at": time(it.created_at),
        "updated_at": time(it.created_at),
    }


def time(at: datetime | None) -> str | None:
    """A time as the API writes it."""
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
