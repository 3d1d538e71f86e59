"""Decides what a principal's sessions may reach: by patterns of hosts and ports, and by addresses.

Pure: texts in, verdicts out. It neither resolves names nor opens connections; ``proxy`` calls it before each
of both. The tables of addresses are our own, because ``ipaddress.is_global`` wrongly calls many addresses
global, and which ones depends on Python's version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from cellgate.identity.host_patterns import HostPattern

Address = IPv4Address | IPv6Address

MOST_HOST = 253
MOST_PORT = 65_535

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
# Resolvers read a name with such a last label as an IPv4 address: decimal, octal or hexadecimal.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)

_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All addresses assigned for global use. NAT64 and mapped IPv4 addresses are outside."""

_METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # most clouds
            "169.254.170.2",  # credentials of containers on AWS
            "169.254.170.23",
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure: a public address
            "192.0.0.192",  # Oracle
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",  # Google
            "fd00:42::42",  # Scaleway
        ),
    )
)
"""Addresses where clouds serve machines their metadata, credentials included."""

_LINK_LOCAL = (ip_network("169.254.0.0/16"), ip_network("fe80::/10"))
"""Networks with other clouds' metadata, each at an address of its own."""

_PRIVATE = tuple(
    map(
        ip_network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "::1/128",
            "fc00::/7",
        ),
    )
)
"""Private, loopback and link-local addresses: for policies that allow them."""

_SPECIAL = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",  # relays to 6to4
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "2001::/23",  # with Teredo
            "2001:db8::/32",
            "2002::/16",  # 6to4
            "3fff::/20",
        ),
    )
)
"""Never allowed: unspecified, multicast, reserved, for documents or tests, or containing an IPv4 address."""


class Cause(StrEnum):
    """Why a connection was refused or ended early."""

    BAD_REQUEST = "bad_request"
    NO_POLICY = "no_policy"
    HOST_NOT_ALLOWED = "host_not_allowed"
    ADDRESS_NOT_ALLOWED = "address_not_allowed"
    NAME_NOT_FOUND = "name_not_found"
    UNREACHABLE = "unreachable"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    QUOTA_EXCEEDED = "quota_exceeded"
    NOT_RECORDED = "not_recorded"
    POLICY_CHANGED = "policy_changed"
    IDLE = "idle"
    KERNEL_ENDED = "kernel_ended"


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The network of one principal's sessions. `allow_private`: also private networks, and this machine."""

    patterns: tuple[HostPattern, ...] = ()
    allow_private: bool = False

    def pattern_for(self, host: str, port: int) -> HostPattern | None:
        """Return the pattern that allows a canonical host and a port; None if none does."""
        return next((pattern for pattern in self.patterns if pattern.matches(host, port)), None)

    def admits(self, host: str, port: int, address: Address) -> bool:
        """Return whether this address may be connected to, as one of an allowed host.

        Link-local addresses, such as clouds' metadata, are allowed only if a pattern names the very address,
        and private networks are allowed.
        """
        pattern = self.pattern_for(host, port)
        if pattern is None:
            return False
        if address in _METADATA or any(address in network for network in _LINK_LOCAL):
            return self.allow_private and address_of(pattern.host) == address
        if any(address in network for network in _SPECIAL):
            return False
        if any(address in network for network in _PRIVATE):
            return self.allow_private
        return address.version == 4 or address in _GLOBAL_IPV6


def split_authority(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return a canonical host and the port of ``host:port`` or the default. Raises ValueError without one."""
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        if not closed or ":" not in inside:
            raise ValueError("an IPv6 address in brackets is not whole")
        host = canonical_host(inside)
    else:
        host, _, rest = text.partition(":")
        rest = text[len(host) :]
        host = canonical_host(host)
    if not rest and default_port is not None:
        return host, default_port
    if not rest.startswith(":") or not _PORT.fullmatch(rest[1:]):
        raise ValueError("a port must follow the host")
    port = int(rest[1:])
    if not 0 < port <= MOST_PORT:
        raise ValueError("there is no such port")
    return host, port


def canonical_host(text: str) -> str:
    """Return a host as patterns compare it: lower case, no final dot, addresses in their usual form.

    Raises ValueError for invalid names, and for numbers that only some programs read as an address.
    """
    if ":" in text:
        if "%" in text:
            raise ValueError("an address with a scope is not supported")
        return str(IPv6Address(text))
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > MOST_HOST or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("this is no name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        return str(IPv4Address(host))
    return host


def address_of(host: str) -> Address | None:
    """Return the address in a canonical host; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
