"""Says once that something is away, and once that it is back, however often it is tried."""

import time

import structlog

log = structlog.get_logger(__name__)


class Outage:
    """The state of one thing that can be away."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None

    def failed(self, error: BaseException) -> None:
        """It was tried, in vain."""
        if self._since is None:
            self._since = time.monotonic()
            log.warning("outage.began", what=self._what, error=type(error).__name__)

    def worked(self) -> None:
        """It was tried, and it is there."""
        if self._since is not None:
            seconds = round(time.monotonic() - self._since, 1)
            log.warning("outage.ended", what=self._what, seconds=seconds)
            self._since = None
