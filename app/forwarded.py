"""Who sent a request: the peer, or whom proxies that are trusted name. No I/O.

Only `X-Forwarded-For` counts, which every proxy sets. A proxy that sets one header passes another
one on as the client made it up, so whoever reads both can be told anything.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: Trusts whoever connects by the Unix socket, where there are no addresses.
UNIX = "unix"
#: More proxies than stand in any row.
_MOST_HOPS = 16


class Proxies:
    """The proxies whose word is taken: addresses, networks, and `unix`.

    Raises ValueError for a name that is none of these.
    """

    def __init__(self, names: Iterable[str]) -> None:
        names = frozenset(names)
        self._unix = UNIX in names
        self._networks: Sequence[Network] = [ip_network(name) for name in names - {UNIX}]

    def client(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Address | None:
        """The nearest address that is not a trusted proxy's; None where nobody says any.

        Each proxy appends whom it has seen, so the list is read from its end, and only as long
        as the one who says so is trusted: what a client has put before it says nothing.
        """
        address = None if peer is None else _address(peer)
        said = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        hops = said.rsplit(b",", _MOST_HOPS)[-_MOST_HOPS:]
        for hop in reversed(hops):
            named = _address(hop.decode("latin-1").strip())
            if named is None or not self._trusts(address):
                break
            address = named
        return address

    def _trusts(self, address: Address | None) -> bool:
        if address is None:
            return self._unix
        return any(address in network for network in self._networks)


def _address(text: str) -> Address | None:
    """An address, as proxies write it: perhaps with a port, perhaps in brackets."""
    host = text
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        host = text.partition(":")[0]
    try:
        # A zone may be any text at all.
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
