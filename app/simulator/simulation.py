"""A simulated workspace with everything that belongs to it: deliveries, hooks, faults."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Literal

from app.simulator.deliver import Deliverer, Hook
from app.simulator.deliveries import Outgoing, encoded, v1
from app.simulator.deliveries_v2 import v2
from app.simulator.faults import Faults
from app.simulator.oauth import OAuth
from app.simulator.records import Change, Member
from app.simulator.seeds import plant
from app.simulator.workspace import NotFound, Workspace

Version = Literal["v1", "v2"]


@dataclass(slots=True, kw_only=True)
class Integration:
    """A registered outgoing webhook of version 1."""

    id: int
    hook: Hook
    creator: Member
    created_at: datetime
    disabled: bool = False


@dataclass(slots=True, kw_only=True)
class Simulation:
    """What the API, the page and the control endpoints share.

    Attributes:
        versions: what is sent; version 2 also while the agent app is installed.
        app_hook: where the agent app's deliveries of version 2 go; None: nowhere.
        seeded: whether the workspace starts with a few stories.
    """

    api_token: str = field(repr=False)
    deliverer: Deliverer
    faults: Faults
    oauth: OAuth
    first_id: int
    versions: frozenset[Version]
    app_hook: Hook | None
    seeded: bool = True
    integrations: dict[int, Integration] = field(default_factory=dict)
    workspace: Workspace = field(init=False)
    _quiet: bool = True
    _integration_ids: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.workspace = Workspace(tell=self._tell, first_id=self.first_id)
        self._plant()

    def reset(self) -> None:
        """Back to the first stories, under new numbers; hooks stay, deliveries are forgotten."""
        self.workspace.clear()
        self.faults.clear()
        self.deliverer.forget()
        self._plant()

    def register(self, creator: Member, hook: Hook) -> Integration:
        made = Integration(
            id=next(self._integration_ids),
            hook=hook,
            creator=creator,
            created_at=datetime.now(UTC),
        )
        self.integrations[made.id] = made
        return made

    def integration(self, integration_id: int) -> Integration:
        """Raises NotFound."""
        if integration_id not in self.integrations:
            raise NotFound("integration")
        return self.integrations[integration_id]

    def ping(self) -> bool:
        """Sends the agent app's validation ping; False if there is nowhere to send it."""
        if self.app_hook is None:
            return False
        ping = Outgoing(kind="validation", change_id="", body=encoded({"type": "validation"}))
        self.deliverer.offer(ping, self.app_hook)
        return True

    def _plant(self) -> None:
        # The first stories were there before anybody listened.
        self._quiet = True
        if self.seeded:
            plant(self.workspace)
        self._quiet = False

    def _tell(self, change: Change) -> None:
        if self._quiet:
            return
        if "v1" in self.versions:
            for integration in self.integrations.values():
                if not integration.disabled:
                    for outgoing in v1(change):
                        self.deliverer.offer(outgoing, integration.hook)
        told_v2 = "v2" in self.versions or self.oauth.installed
        if told_v2 and self.app_hook is not None:
            for outgoing in v2(change):
                self.deliverer.offer(outgoing, self.app_hook)
