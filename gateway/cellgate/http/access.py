"""Access: finds a request's token, and checks which Hosts and Origins are allowed.

Pure checks of header values; ``base`` runs them first in every request. ``principals`` maps tokens to
principals; tokens are never logged. The Host check prevents DNS rebinding, the Origin check requests from
foreign web pages.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from cellgate.errors import Forbidden
from cellgate.identity.addresses import is_loopback
from cellgate.identity.authentication import Authentication
from cellgate.identity.principal import Ask, Login
from cellgate.identity.tokens import digest
from cellgate_kernels.base.errors import CellgateError, InvalidInput

SCHEMES = ("bearer ", "token ")
_OTHER_HEADERS = ("X-API-Key", "Api-Key", "X-Auth-Token", "X-Access-Token", "Proxy-Authorization")
_OTHER_PARAMETERS = frozenset({"access_token", "api_key", "apikey", "auth", "key"})
"""Names of parameters in which other services have tokens."""
_NAME = re.compile(r"[a-z0-9_-]++(?:\.[a-z0-9_-]++)*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PORTS = MappingProxyType({"http": "80", "https": "443"})
"""Default ports, which no browser names in an origin."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The rules of access. `any_address`: a Host may be any IP address, as in probes."""

    authentication: Authentication
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    any_address: bool = False

    def authenticate(self, authorization: str, query_token: str | None) -> Login | Ask:
        """Return the login of a request, or a way to ask for it. Raises as `Authentication.login`."""
        return self.authentication.login(token_of(authorization, query_token))

    def is_token(self, word: str) -> bool:
        """Return whether a word is a token that this gateway has issued, without asking other services."""
        return self.authentication.directory.knows(digest(word))

    def may_know(self, word: str) -> bool:
        """Return whether a word is a token that lets somebody in, or the Authorization field with one.

        True also for a word that another service would have to check, so that it is withheld like a token.
        """
        if self.authentication.directory.is_open:
            return False
        for authorization in (word, f"Bearer {word}"):
            with suppress(CellgateError):
                self.authenticate(authorization, None)
                return True
        return False

    def check_host(self, host: str) -> None:
        """Check the Host header. Raises Forbidden for one that is neither loopback nor allowed."""
        name = host_name(host)
        allowed = is_loopback(name) or name in self.allowed_hosts or "*" in self.allowed_hosts
        if not (allowed or (self.any_address and _is_address(name))):
            raise Forbidden(
                f"Host {name[:100]!r} is not allowed; start the gateway with --allow-host"
                " NAME if this is its name",
                cause="host",
            )

    def check_origin(self, origin: str | None, host: str) -> bool:
        """Return whether the request comes from an allowed foreign Origin. Raises Forbidden for others."""
        if origin is None or origin_host(origin) == host.lower():
            return False
        if origin in self.allowed_origins or "*" in self.allowed_origins:
            return True
        raise Forbidden(
            f"Origin {origin[:100]!r} is not allowed; start the gateway with"
            " --allow-origin ORIGIN to let its pages in",
            cause="origin",
        )


def check_hosts(given: Iterable[str]) -> frozenset[str]:
    """Return the names of `--allow-host` in the form in which requests are compared. Raises InvalidInput."""
    names = set()
    for text in map(str.strip, given):
        name = text.strip("[]").rstrip(".").lower()
        if name != "*" and not _is_name(name):
            meant = _in_ascii(host_name(text.rpartition("//")[2]))
            meant = meant if _is_name(meant) else "gateway.example.org"
            raise InvalidInput(f"--allow-host {text[:100]!r} must be a name alone, such as {meant[:100]}")
        names.add(name)
    return frozenset(names)


def check_origins(given: Iterable[str]) -> frozenset[str]:
    """Return the origins of `--allow-origin`. Raises InvalidInput for texts that no browser sends as one."""
    origins = frozenset(map(str.strip, given))
    # The last one is the origin of Electron's pages.
    for text in sorted(origins - {"*", "null", "file://"}):
        meant = _as_sent(text)
        if meant == "null":
            raise InvalidInput(
                f"--allow-origin {text[:100]!r} must be null, as browsers call a page in a file"
            )
        if text != meant:
            raise InvalidInput(
                f"--allow-origin {text[:100]!r} must be as browsers send it, scheme and name with nothing"
                f" behind: {meant[:100]}"
            )
    return origins


def _as_sent(text: str) -> str:
    """Return the origin that was probably meant, as a browser sends it."""
    scheme, _, rest = text.rpartition("://")
    scheme = scheme.lower() or "https"
    if text.lower() == "null" or text.lower().startswith("file:"):
        return "null"
    place = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    name, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal():
        name, port = (name, "") if colon and not port else (place, "")
    name = _in_ascii(name.lower())
    is_place = _is_address(name[1:-1]) if name.startswith("[") else _NAME.fullmatch(name)
    if not is_place or not _SCHEME.fullmatch(scheme):
        return "https://notebooks.example.org"
    return f"{scheme}://{name}" + (f":{port}" if port and port != _PORTS.get(scheme) else "")


def _is_name(text: str) -> bool:
    """Return whether this can be a host's name, without wildcards as in ``*.example.org``."""
    return bool(_NAME.fullmatch(text)) or _is_address(text)


def _in_ascii(name: str) -> str:
    """Return a name in the form of requests: in Punycode, if it has other letters."""
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return ""


def is_own_page(headers: Mapping[str, str], protocol: str, *, reads: bool) -> bool:
    """Return whether a page of the very origin that it requests has made this request, by the browser's word.

    Only then does a cookie count: browsers also send it with requests by pages of the host's other ports,
    which may be programs' pages. `Sec-Fetch-Site` names the page's site; without TLS it is missing, except on
    the browser's own machine. Then `Origin` counts or, for a request that only `reads`, `Referer`.
    `protocol`: the request's; under TLS, a page without TLS, which others may have made, is never ours.
    """
    host = headers.get("Host", "").lower()
    origin = headers.get("Origin")
    if protocol == "https" and (origin or headers.get("Referer", "")).startswith("http:"):
        return False
    if not host or (origin is not None and origin_host(origin) != host):
        return False
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    if origin is not None:
        return True
    return reads and origin_host(headers.get("Referer", "")) == host


def token_of(authorization: str, query_token: str | None) -> str:
    """Return a request's token from its Authorization header or its query, "" without one."""
    scheme = authorization.lower()
    for known in SCHEMES:
        if scheme.startswith(known):
            return authorization[len(known) :].strip() or query_token or ""
    if scheme.startswith("basic "):
        return _password(authorization[6:]) or query_token or ""
    return query_token or ""


def misplaced(headers: Mapping[str, str], query: Iterable[str]) -> str:
    """Explain a token in a wrong place of a request; empty if there is none."""
    given = headers.get("Authorization", "").strip()
    if given:
        scheme = given.partition(" ")[0].lower()
        if scheme in {"bearer", "token"}:
            return "There is no token in the Authorization header"
        if scheme == "basic":
            return "HTTP Basic must have the token as its password"
        return "The Authorization header must begin with the word Bearer"
    for name in _OTHER_HEADERS:
        if name in headers:
            return f"The header {name} is not read here"
    for name in _OTHER_PARAMETERS.intersection(query):
        return f"The parameter {name} is not read here"
    return ""


def _password(encoded: str) -> str:
    """Return the password of HTTP Basic (RFC 7617); the user's name is ignored."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def origin_host(origin: str) -> str | None:
    """Return the host and port of an origin; None if it is not one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without its port; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
