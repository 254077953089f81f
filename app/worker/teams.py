"""Who belongs to the teams whose members' commands count."""

import time
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog

from app.errors import ShortcutRefused
from app.shortcut.client import ShortcutClient

#: How long what was read counts before it is read again.
FRESH_SECONDS = 300.0

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Teams:
    """The teams that the settings name, and who belongs to them in each workspace.

    Attributes:
        ids: as Shortcut has them; a workspace that has no such team has nobody in it.
    """

    ids: tuple[str, ...] = ()
    _members: dict[str, frozenset[str]] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)

    def members(self, workspace: str) -> frozenset[str]:
        """Who belongs to them; nobody before they were read."""
        return self._members.get(workspace, frozenset())

    def must_be_read(self, workspace: str, *, for_comments: bool) -> bool:
        """Whether they were never read, or, before a comment is heard, too long ago."""
        read_at = self._read_at.get(workspace)
        if not self.ids or read_at is None:
            return bool(self.ids)
        return for_comments and time.monotonic() - read_at > FRESH_SECONDS

    async def read(self, workspace: str, api: ShortcutClient) -> None:
        """Reads who belongs to them. Raises ShortcutError."""
        members: set[str] = set()
        for team in self.ids:
            try:
                members |= await api.team_members(team)
            except ShortcutRefused as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    raise
                log.warning("team.not_read", workspace=workspace, team=team, error=str(error))
        self._members[workspace] = frozenset(members)
        self._read_at[workspace] = time.monotonic()
