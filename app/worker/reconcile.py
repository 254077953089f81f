"""Finds what was never delivered, in what Shortcut says of its stories, and records it."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from uuid import NAMESPACE_URL, uuid5

import structlog

from app.db import events, reconciliations
from app.db.connect import Connection
from app.db.reconciliations import Mark
from app.decide import Rules, may_have_opened
from app.errors import ShortcutRefused
from app.model import Glimpse
from app.shortcut import envelope
from app.shortcut.client import ShortcutClient
from app.shortcut.values import mappings, number
from app.sources import SOURCE
from app.worker.workspaces import Workspaces

#: Stories that one run reads, at most, with two requests each; the next run goes on.
MOST_STORIES = 40
#: Sessions whose stories one run asks for, at most, with one request each: no search shows that a
#: story was deleted.
MOST_OPEN = 20
#: Said of a story that is not there, or that our account may not see: the others are looked at all
#: the same. A token that may see none has been refused by the search before.
OF_ONE_STORY = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN})
#: So far back a run looks again: clocks differ, and a search may lag.
OVERLAP = timedelta(minutes=5)
#: What stands in place of the headers of a delivery that never came.
FOUND = '{"draftgate": "reconcile"}'

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run came to.

    Attributes:
        stories: how many were looked at.
        events: how many changes of theirs, and deletions of others, had not been delivered.
        more: there are further stories to look at.
    """

    workspace: str
    stories: int
    events: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Compares what was delivered of each workspace that has an API with its stories' histories.

    Attributes:
        take: gives a connection for a moment; none is held while Shortcut is asked.
        ring: called when something was found.
    """

    take: Callable[[], AbstractAsyncContextManager[Connection]]
    workspaces: Workspaces
    rules: Rules
    every: timedelta
    ring: Callable[[], None]

    async def tick(self) -> bool:
        """Reconciles the workspaces whose turn it is; True if one has more to look at at once."""
        more = False
        for workspace in self.reachable if self.every else ():
            async with self.take() as conn:
                mark = await reconciliations.take(conn, workspace, every=self.every)
            if mark is not None:
                try:
                    more |= (await self.run(workspace, mark)).more
                except ShortcutRefused as error:
                    log.error("reconcile.refused", workspace=workspace, error=str(error))
        return more

    @property
    def reachable(self) -> list[str]:
        """The workspaces whose API we may ask."""
        homes = filter(self.workspaces.has_api, self.workspaces.homes.values())
        return sorted({*homes, *self.workspaces.agents})

    async def run(self, workspace: str, mark: Mark) -> Found:
        """Records what has happened since the mark and was never delivered, and moves the mark.

        What is delivered after all is a duplicate then. Raises ShortcutError.
        """
        api = self.workspaces.api(workspace)
        if api is None:
            raise ShortcutRefused("there is no token for its workspace", status=401)
        async with self.take() as conn:
            now = await reconciliations.now(conn)
        stories = await api.changed_since(mark.read_up_to or mark.through)
        read, read_up_to = _first(await self._worth_reading(workspace, stories))
        count = 0
        for story in read:
            changes = await _happened(api, story.sc_id, mark.through)
            count += await self._record(workspace, changes)
        gone, looked_up_to = await self._gone(workspace, api, mark.looked_up_to, now)
        count += await self._record(workspace, [_deletion(workspace, it, now) for it in gone])
        through = now - OVERLAP if read_up_to is None else mark.through
        reached = Mark(through=through, read_up_to=read_up_to, looked_up_to=looked_up_to)
        async with self.take() as conn:
            await reconciliations.done(conn, workspace, reached)
        log.info("reconcile.done", workspace=workspace, stories=len(read), events=count)
        more = read_up_to is not None
        return Found(workspace=workspace, stories=len(read), events=count, more=more)

    async def _worth_reading(self, workspace: str, stories: Sequence[Glimpse]) -> list[Glimpse]:
        """Those that have a session, or show what may have opened one."""
        async with self.take() as conn:
            numbers = [story.sc_id for story in stories]
            known = await reconciliations.with_session(conn, workspace, numbers)
        return [it for it in stories if it.sc_id in known or may_have_opened(it, self.rules)]

    async def _gone(
        self, workspace: str, api: ShortcutClient, looked_up_to: int, now: datetime
    ) -> tuple[list[int], int]:
        """Stories of the next open sessions that were deleted, and whose turn it is after them."""
        async with self.take() as conn:
            turn = await reconciliations.open_after(conn, workspace, looked_up_to, limit=MOST_OPEN)
        gone = [sc_id for _, sc_id in turn if await _is_missing(api, sc_id)]
        if gone:
            # Something on the way may say 404 in Shortcut's place, to this or to everything.
            await api.changed_since(now)
            gone = [sc_id for sc_id in gone if await _is_missing(api, sc_id)]
        return gone, turn[-1][0] if len(turn) == MOST_OPEN else 0

    async def _record(self, workspace: str, changes: Sequence[dict[str, object]]) -> int:
        """Records changes by the keys that their deliveries have, if they came to that source."""
        homes = self.workspaces.homes.items()
        source = next((name for name, home in homes if home == workspace), SOURCE)
        # Said here, since a delivery of version 1 says it by the source that it came to.
        home = {"workspace2": {"id": workspace}}
        bodies = [json.dumps({**change, **home}).encode() for change in changes]
        if not bodies:
            return 0
        found = [envelope.read(source, body, ())._replace(headers=FOUND) for body in bodies]
        async with self.take() as conn:
            new = await events.record(conn, found)
        if new:
            self.ring()
        return len(new)


def _first(stories: Sequence[Glimpse]) -> tuple[Sequence[Glimpse], datetime | None]:
    """As many stories as one run reads, and from where the next goes on; None: it is all of them.

    Those that changed in the same second, as Shortcut tells it, are read together.
    """
    if len(stories) <= MOST_STORIES:
        return stories, None
    last = stories[MOST_STORIES - 1].updated_at
    return [it for it in stories if it.updated_at <= last], last + timedelta(seconds=1)


async def _happened(api: ShortcutClient, sc_id: int, since: datetime) -> list[dict[str, object]]:
    """The story's changes since then, as they would have been delivered."""
    try:
        changes = [it for it in await api.history(sc_id) if _is_since(it, since)]
        if any(_new_comments(change) for change in changes):
            said = {number(it.get("id")): it for it in await api.comments(sc_id)}
            changes = [_with_words(change, said) for change in changes]
    except ShortcutRefused as error:
        if error.status not in OF_ONE_STORY:
            raise
        return []
    return changes


async def _is_missing(api: ShortcutClient, sc_id: int) -> bool:
    try:
        await api.story(sc_id)
    except ShortcutRefused as error:
        if error.status not in OF_ONE_STORY:
            raise
        return error.status == HTTPStatus.NOT_FOUND
    return False


def _deletion(workspace: str, sc_id: int, at: datetime) -> dict[str, object]:
    """A deletion as it would have been delivered, though nobody says when, and under which id.

    Each run has an id of its own: one deletion that came to nothing must not hide the next.
    """
    return {
        "id": str(uuid5(NAMESPACE_URL, f"draftgate:deleted:{workspace}:{sc_id}:{at.isoformat()}")),
        "changed_at": at.isoformat(),
        "version": "v1",
        "primary_id": sc_id,
        "actions": [{"id": sc_id, "entity_type": "story", "action": "delete"}],
    }


def _is_since(change: Mapping[str, object], since: datetime) -> bool:
    at = envelope.instant(change.get("changed_at"))
    return at is not None and at >= since


def _new_comments(change: Mapping[str, object]) -> list[dict[str, object]]:
    return [
        action
        for action in mappings(change.get("actions"))
        if action.get("entity_type") == "story-comment" and action.get("action") == "create"
    ]


def _with_words(
    change: dict[str, object], said: Mapping[int | None, Mapping[str, object]]
) -> dict[str, object]:
    """The change with what its comments say, which a history leaves out; without deleted ones."""
    actions = []
    for action in mappings(change.get("actions")):
        if action in _new_comments(change):
            comment = said.get(number(action.get("id")), {})
            if comment.get("text") is None:
                continue
            action |= {key: comment.get(key) for key in ("text", "parent_id", "author_id")}
        actions.append(action)
    return {**change, "actions": actions}
