"""The places of sessions' ports for browsers: at a path of one origin, or at an origin of its own. Pure.

With an origin of its own (`*.` in the URL of the settings) no program's page can reach another's. The name
has the port, the session's key in the letters of host names, and a digest that is different for all sessions
of all owners.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from cellgate_kernels.base.errors import InvalidInput

MOST_PORT = 65535
_DIGEST = 12
_MOST_SLUG = 40
"""A label has at most 63 characters: port, slug and digest, with two hyphens."""
_PATH = re.compile(r"/([A-Za-z0-9][A-Za-z0-9._~-]*)/([0-9]{1,5})(?:(/)|(?=\?|$))")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
WILD = "*."


@dataclass(frozen=True, slots=True)
class PortPlace:
    """The place of a port. `prefix`: the path before the program's own, such as ``/work/8000``.

    Either `host` is for this port alone and there is no prefix, or it is None: any host of the gateway.
    """

    prefix: str = ""
    host: str | None = None


@dataclass(frozen=True, slots=True)
class PortPath:
    """A path in parts. `complete`: the port is followed by a slash, which relative links need."""

    session: str
    port: int
    prefix: str
    complete: bool


@dataclass(frozen=True, slots=True)
class PortsOrigin:
    """`scheme`, `name` and `port` of the URL, in browsers' form; `name` None: the request's own.

    `wild`: each port of a session has a name of its own, below `name`.
    """

    scheme: str
    port: int
    name: str | None = None
    wild: bool = False

    def described(self, ip: str) -> str:
        """Return the URL of ports for an operator. `ip`: the address that is listened on."""
        name = self.name or {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(ip, ip)  # noqa: S104
        return self.url(PortPlace(host=f"*.{name}" if self.wild else name), name)

    def place(self, owner: str, session: str, port: int) -> PortPlace:
        """Return the host or path at which a session's port is served."""
        if not self.wild:
            return PortPlace(prefix=f"/{session}/{port}")
        return PortPlace(host=f"{label_of(owner, session, port)}.{self.name}")

    def url(self, place: PortPlace, reached_at: str) -> str:
        """Return the URL of a port's first page. `reached_at`: the client's name for the gateway."""
        name = place.host or self.name or reached_at
        host = f"[{name}]" if ":" in name else name
        usual = {"http": 80, "https": 443}[self.scheme]
        port = "" if self.port == usual else f":{self.port}"
        return f"{self.scheme}://{host}{port}{place.prefix}/"

    def is_name(self, name: str) -> bool:
        """Return whether the settings name a request's host."""
        if self.name is None:
            return False
        return name == self.name or (self.wild and self.is_wild(name))

    def is_wild(self, name: str) -> bool:
        """Return whether a name is a single port's."""
        return self.wild and name.endswith(f".{self.name}")


def parse_ports_url(url: str) -> PortsOrigin:
    """Return the origin that an operator names. Raises InvalidInput."""
    wrong = InvalidInput(
        "ports_url must be a URL without a path, such as https://ports.example.org or"
        " https://*.ports.example.org"
    )
    try:
        parts = urlsplit(url)
        name = parts.hostname or ""
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        raise wrong from None
    wild = name.startswith(WILD)
    name = name.removeprefix(WILD)
    if parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise wrong
    if not re.fullmatch(r"[a-z0-9.-]+|\[?[0-9a-f:.]+\]?", name):
        raise wrong
    return PortsOrigin(parts.scheme, port, name, wild)


def label_of(owner: str, session: str, port: int) -> str:
    """Return the first label of a port's own name."""
    digest = hashlib.sha256(f"{owner}\0{session}".encode()).hexdigest()[:_DIGEST]
    slug = _NOT_IN_NAMES.sub("-", session.lower())[:_MOST_SLUG].strip("-")
    return f"{port}-{slug}-{digest}"


def check_port(text: str) -> int:
    """Return the number of a port. Raises InvalidInput."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_PORT))):
        raise InvalidInput(f"A port is a number from 1 to {MOST_PORT}")
    port = int(text)
    if not 1 <= port <= MOST_PORT:
        raise InvalidInput(f"A port is a number from 1 to {MOST_PORT}")
    return port


def parse_path(path: str) -> PortPath | None:
    """Return the session and port in a path, None if there are none. Raises InvalidInput."""
    match = _PATH.match(path)
    if match is None:
        return None
    return PortPath(match[1], check_port(match[2]), f"/{match[1]}/{match[2]}", complete=match[3] is not None)
