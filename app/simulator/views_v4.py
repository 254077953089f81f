"""Things of the workspace as version 4 of the API shows them. No I/O."""

from collections.abc import Iterable

from app.simulator.deliveries import Json
from app.simulator.records import (
    AGENT_ID,
    MEMBERS,
    STATES_BY_ID,
    URL_SLUG,
    WORKFLOW_ID,
    WORKSPACE_ID,
    Comment,
    Label,
    Member,
    State,
    Story,
)
from app.simulator.views import time
from app.simulator.workspace import Workspace

_API = f"https://api.app.shortcut.com/api/v4/{URL_SLUG}"


def story(it: Story, workspace: Workspace) -> Json:
    return {
        "entity_type": "story",
        "id": it.id,
        "uri": f"{_API}/stories/{it.id}",
        "app_url": it.app_url,
        "name": it.name,
        "description": it.description,
        "story_type": it.story_type,
        "archived": it.archived,
        "blocked": False,
        "blocker": False,
        "started": it.started,
        "started_at": time(it.started_at),
        "completed": it.completed,
        "completed_at": time(it.completed_at),
        "created_at": time(it.created_at),
        "updated_at": time(it.updated_at),
        "deadline": None,
        "estimate": None,
        "external_id": None,
        "position": it.position,
        "requester": slim_member(MEMBERS[it.requested_by_id]),
        **_lists(it, workspace),
        "workflow": {"entity_type": "workflow:slim", "id": WORKFLOW_ID, "name": "Engineering"},
        "workflow_state": slim_state(STATES_BY_ID[it.workflow_state_id]),
        "epic": None,
        "team": None,
        "project": None,
        "parent_story": None,
    }


def _lists(it: Story, workspace: Workspace) -> Json:
    labels: list[Json] = [slim_label(workspace.labels[number]) for number in it.label_ids]
    tasks: list[Json] = [_task(it, number) for number in range(len(it.tasks))]
    links: list[Json] = [
        {"entity_type": "external-link", "value": link} for link in it.external_links
    ]
    return {
        "owners": _members(it, "owners", it.owner_ids),
        "followers": _members(it, "followers", it.follower_ids),
        "labels": _nested(it, "labels", labels),
        "checklist_items": _nested(it, "checklist-items", tasks),
        "external_links": _nested(it, "external-links", links),
    }


def _members(it: Story, name: str, ids: Iterable[str]) -> Json:
    return _nested(it, name, [slim_member(MEMBERS[one]) for one in ids])


def _nested(it: Story, name: str, rows: list[Json]) -> Json:
    return {
        "entities": rows,
        "current_items": len(rows),
        "total_items": len(rows),
        "list_url": f"{_API}/stories/{it.id}/{name}",
    }


def _task(it: Story, position: int) -> Json:
    one = it.tasks[position]
    return {
        "entity_type": "checklist-item:slim",
        "id": one.id,
        "description": one.description,
        "uri": f"{_API}/stories/{it.id}/checklist-items/{one.id}",
    }


def comment(it: Comment) -> Json:
    """A comment; a deleted one stays in lists, without id, text and author's words."""
    url = f"https://app.shortcut.com/{URL_SLUG}/story/{it.story_id}#activity-{it.id}"
    return {
        "entity_type": "comment",
        "id": None if it.deleted else it.id,
        "uri": f"{_API}/stories/{it.story_id}/comments/{it.id}",
        "app_url": url,
        "text": None if it.deleted else it.text,
        "author": slim_member(MEMBERS[it.author_id]),
        "deleted": it.deleted,
        "external_id": it.external_id,
        "parent_comment": None if it.parent_id is None else {"id": it.parent_id},
        "position": it.id,
        "created_at": time(it.created_at),
        "updated_at": time(it.updated_at),
    }


def label(it: Label) -> Json:
    return {
        "entity_type": "label",
        "id": it.id,
        "uri": f"{_API}/labels/{it.id}",
        "app_url": f"https://app.shortcut.com/{URL_SLUG}/label/{it.id}",
        "name": it.name,
        "archived": False,
        "color": None,
        "description": "",
        "external_id": None,
    }


def slim_label(it: Label) -> Json:
    whole = label(it)
    kept = ("id", "uri", "app_url", "name")
    return {"entity_type": "label:slim", **{name: whole[name] for name in kept}}


def state(it: State) -> Json:
    return {
        "entity_type": "workflow-state",
        "id": it.id,
        "uri": f"{_API}/workflow-states/{it.id}",
        "name": it.name,
        "type": it.type,
        "description": "",
    }


def slim_state(it: State) -> Json:
    whole = state(it)
    return {
        "entity_type": "workflow-state:slim",
        "id": it.id,
        "name": it.name,
        "uri": whole["uri"],
        "workflow_name": "Engineering",
    }


def slim_member(it: Member) -> Json:
    return {
        "entity_type": "member:slim",
        "id": it.id,
        "name": it.name,
        "uri": f"{_API}/members/{it.id}",
    }


def member(it: Member) -> Json:
    return {"id": it.id, "name": it.name, "mention_name": it.mention_name, "role": it.role}


def whoami(it: Member) -> Json:
    """Whose token it is; of an agent also what it may do."""
    agent = {"assignable": True, "mentionable": True} if it.id == AGENT_ID else None
    return {
        "entity_type": "whoami",
        "member": {
            "entity_type": "member",
            "id": it.id,
            "name": it.name,
            "mention_name": it.mention_name,
            "role": it.role,
            "disabled": False,
            "agent": agent,
        },
        "workspace": {
            "entity_type": "workspace:slim",
            "id": WORKSPACE_ID,
            "slug": URL_SLUG,
            "name": "Simulated workspace",
            "app_url": f"https://app.shortcut.com/{URL_SLUG}",
        },
    }
