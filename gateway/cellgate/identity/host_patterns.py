"""Patterns of hosts and ports in a policy: `host:port`, `*.host:port`, and addresses. Pure.

Names are stored as they appear in DNS: lower case, with letters beyond ASCII encoded (IDNA 2008). This module
only parses patterns and compares names with them; others decide which hosts a session may reach.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

import idna

from cellgate_kernels.base.errors import InvalidInput

MOST_CHARACTERS = 512
EXPECTED = "HOST:PORT or *.HOST:PORT, such as 'example.org:443', '*.example.org:443' or '[2001:db8::1]:443'"

_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*", re.ASCII)
"""A last label that makes resolvers read a name as an IPv4 address, as in `127.1` or `0x7f.1`."""


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One host, or with `wildcard` every name below it but not itself, at one port.

    `host`: a name as in DNS, or an IP address in its shortest form, without brackets.
    """

    host: str
    port: int
    wildcard: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'*.' if self.wildcard else ''}{host}:{self.port}"

    def matches(self, host: str, port: int) -> bool:
        """Return whether the pattern covers the host, which is in the form of `normal_host`."""
        if port != self.port:
            return False
        return host.endswith(f".{self.host}") if self.wildcard else host == self.host


def parse_host_pattern(text: str) -> HostPattern:
    """Return the pattern. Raises InvalidInput that names the error in the text."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(f"a pattern of {len(text)} characters is too long")
    name, colon, port = text.rpartition(":")
    if not colon or not name or name.endswith(":"):
        raise InvalidInput(f"{text!r} is not {EXPECTED}")
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise InvalidInput(f"{text!r}: the port must be a number from 1 to 65535")
    wildcard = name.startswith("*.")
    bare = name[2:] if wildcard else name
    if "*" in bare:
        raise InvalidInput(f"{text!r}: '*' stands only at the beginning and before a dot: {EXPECTED}")
    if ":" in bare and not bare.startswith("["):
        raise InvalidInput(f"{text!r}: an IPv6 address goes in brackets: {EXPECTED}")
    host = normal_host(bare)
    if wildcard and is_address(host):
        raise InvalidInput(f"{text!r}: an address has no names below it")
    return HostPattern(host, int(port), wildcard)


def normal_host(host: str) -> str:
    """Return a DNS name, or an address, also in brackets, in its shortest form. Raises InvalidInput."""
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        if bracketed:
            raise InvalidInput(f"{host!r} is no IPv6 address") from None
    else:
        if bracketed and address.version == 4:
            raise InvalidInput(f"{host!r}: only IPv6 addresses go in brackets")
        if "%" in host:
            raise InvalidInput(f"{host!r}: an address with a zone means something else on each machine")
        return address.compressed
    try:
        name = idna.encode(host, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise InvalidInput(f"{host[:80]!r} is no host name: {error}") from error
    labels = name.split(".")
    if not labels[-1]:
        raise InvalidInput(f"{host[:80]!r}: a host name is written without a dot at its end")
    if _NUMBER.fullmatch(labels[-1]):
        raise InvalidInput(f"{host[:80]!r} is neither a host name nor a complete IP address")
    return name


def is_address(host: str) -> bool:
    """Return whether a host in the form of `normal_host` is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
