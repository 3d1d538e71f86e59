"""A proxy's statements about a request: its client's address, scheme and host.

Pure. Anybody can send ``X-Forwarded-*``, so these headers count only on a connection from a trusted proxy,
and only the part that this proxy wrote itself: the last value, or for the address the last one that is not a
trusted proxy's. ``listener.server`` reads them once a request; everything above it sees the client, not the
proxy. Malformed values are ignored: then the nearest known address counts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tornado.httputil import HTTPHeaders

from cellgate_kernels.base.errors import InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HandedOn = Callable[[str, str, HTTPHeaders], "Forwarded | None"]
"""Returns whose a request is, by its method, target and headers, if another gateway hands it on.

Raises HopRefused if it only looks as if one did.
"""
MOST_HOPS = 32
"""Most proxies in a row that are looked at; beyond, the last one's address counts."""

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_WITH_PORT = re.compile(r"([0-9.]+):[0-9]{1,5}|\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The origin of a request. `scheme` and `host` are None if the proxy did not name them.

    `for_port`: another gateway hands it on to a program of a session, not to this gateway's own interfaces.
    """

    address: str
    scheme: str | None = None
    host: str | None = None
    for_port: bool = False


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The networks whose addresses are trusted proxies; none by default.

    `of_hub`: they are a JupyterHub's, which passes the Host header on, and a client's ``X-Forwarded-Host``
    with it: that one does not count. It adds its own scheme to that of a proxy before it: the first counts,
    as for the Hub itself. A client that sends a scheme of its own changes its own cookies and links alone.
    `anybody`: every peer of a connection is a proxy, but no other address on the way.
    """

    networks: tuple[Network, ...] = ()
    of_hub: bool = False
    anybody: bool = False

    def trusts(self, peer: str) -> bool:
        """Return whether this address of a connection is a trusted proxy's."""
        if self.anybody:
            return True
        address = _address(peer) if self.networks else None
        return address is not None and self._has(address)

    def _has(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def read(self, peer: str, headers: Mapping[str, str]) -> Forwarded:
        """Read the headers of a request from `peer`, which must be a trusted proxy."""
        address = self._client(peer, headers.get("X-Forwarded-For", ""))
        schemes = headers.get("X-Forwarded-Proto", "")
        if self.of_hub:
            # X-Scheme is what proxies set by the Hub's own guide.
            first = headers.get("X-Scheme", schemes).partition(",")[0].strip()
            return Forwarded(address, _SCHEMES.get(first.lower()))
        host = _last(headers.get("X-Forwarded-Host", ""))
        return Forwarded(
            address, _SCHEMES.get(_last(schemes).lower()), host if _HOST.fullmatch(host) else None
        )

    def _client(self, peer: str, forwarded_for: str) -> str:
        """Return the nearest address that is not a trusted proxy's; each proxy appends its client's."""
        nearest = peer
        for text in reversed(forwarded_for.rsplit(",", MOST_HOPS)[-MOST_HOPS:]):
            address = _address(text.strip())
            if address is None:
                break
            nearest = str(address)
            if not self._has(address):
                break
        return nearest


def parse_proxies(given: Iterable[str]) -> TrustedProxies:
    """Return the proxies with these addresses and networks, separated by commas. Raises InvalidInput."""
    networks = []
    for text in ",".join(given).split(","):
        if not (text := text.strip()):
            continue
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise InvalidInput(
                f"trusted_proxies has {text[:100]!r}, which is not an address or a network such as 10.0.0.0/8"
            ) from error
    return TrustedProxies(tuple(networks))


def _last(value: str) -> str:
    """Return the last item of a header's list, which the nearest proxy wrote."""
    return value.rpartition(",")[2].strip()


def _address(text: str) -> Address | None:
    """Return the address in a form for comparison: no zone and port, IPv4 if IPv6 only carries it."""
    if len(text) > 64:
        return None
    if (port := _WITH_PORT.fullmatch(text)) is not None:
        text = port[1] or port[2]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
