"""The operators' token, and how often an address may show a wrong one."""

import hmac
import time
from collections import OrderedDict
from ipaddress import IPv6Address, ip_network

from fastapi import Request

from app.errors import Rejected
from app.forwarded import Proxies

#: Wrong tokens from one address in so many seconds, after which it is told to wait.
MOST_FAILURES, FAILURES_SECONDS = 10, 60.0
MOST_ADDRESSES = 10_000


class Attempts:
    """Wrong tokens by address; an IPv6 network counts as one, since its owner has all of it.

    Of more addresses than `MOST_ADDRESSES`, those that have failed longest ago are forgotten.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def admit(self, address: str) -> None:
        """Raises Rejected when too many have failed from there."""
        since, failures = self._failures.get(address, (0.0, 0))
        if failures >= MOST_FAILURES and time.monotonic() - since < FAILURES_SECONDS:
            raise Rejected(429, "too-many-attempts", "Too many wrong tokens; wait a minute.")

    def failed(self, address: str) -> None:
        """One more has failed."""
        since, failures = self._failures.pop(address, (0.0, 0))
        if time.monotonic() - since >= FAILURES_SECONDS:
            since, failures = time.monotonic(), 0
        self._failures[address] = (since, failures + 1)
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)


class Guard:
    """Lets those pass who have the token."""

    def __init__(self, token: str, proxies: Proxies) -> None:
        self.token = token
        self._proxies = proxies
        self._attempts = Attempts()

    def is_token(self, given: str) -> bool:
        """Whether it is the token; comparing takes the same time always."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def address(self, request: Request) -> str:
        """Whom attempts are counted for."""
        peer = request.client.host if request.client else None
        found = self._proxies.client(peer, request.headers.raw)
        if isinstance(found, IPv6Address):
            return str(ip_network((found, 64), strict=False))
        return str(found)

    def require(self, request: Request, given: str | None) -> None:
        """Raises Rejected unless it is the token: 401, and 429 where too many have failed.

        The right one passes even then: workers may share the address, as where a proxy is not
        trusted, with somebody who guesses.
        """
        if given is not None and self.is_token(given):
            return
        address = self.address(request)
        self._attempts.admit(address)
        self._attempts.failed(address)
        raise Rejected(401, "token-invalid", "This needs the API token, as a bearer token.")
