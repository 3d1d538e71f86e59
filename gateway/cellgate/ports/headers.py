"""Filters the heads of requests for programs, and of answers for browsers. Pure.

No credential of the gateway reaches the program: neither our cookies nor our tokens. Only we write the fields
in which proxies describe clients. A program can set neither a cookie of ours, nor one for other sessions'
programs at the same origin, nor a field that holds for a whole host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from cellgate.identity.tickets import MARK
from cellgate.wire.http_fields import OF_THE_CONNECTION

Fields = list[tuple[str, str]]

COOKIE: Final = "cellgate-port"
_OURS: Final = re.compile(r"(__host-|__secure-)?cellgate", re.IGNORECASE)
"""The beginning of all our cookies' names, at any origin of the same host."""
_HOP: Final = OF_THE_CONNECTION | {"expect"}
_BY_PROXIES: Final = frozenset({"forwarded", "x-real-ip", "x-scheme", "x-script-name", "x-original-url"})
_FOR_A_HOST: Final = frozenset(
    {"alt-svc", "clear-site-data", "nel", "report-to", "service-worker-allowed", "strict-transport-security"}
)
"""Fields of answers that would hold for more than this port."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A request's way: the origin it came to (`scheme`, `host` with port), and the `prefix` it came below.

    `is_ours`: whether a word is a token of this gateway. `upgrade`: it asks for a WebSocket.
    """

    scheme: str
    host: str
    prefix: str
    is_ours: Callable[[str], bool]
    upgrade: bool = False


def secrets_in(cookies: Iterable[str]) -> list[str]:
    """Return the values of our cookie in a request's Cookie fields; a page can add some of its name."""
    found = []
    for pair in _pairs(cookies):
        name, _, value = pair.partition("=")
        if name.strip() in {COOKIE, f"__Host-{COOKIE}"}:
            found.append(value.strip())
    return found


def _pairs(cookies: Iterable[str]) -> list[str]:
    return [pair.strip() for field in cookies for pair in field.split(";") if pair.strip()]


def cookie_field(secret: str, prefix: str, *, secure: bool) -> str:
    """Return the Set-Cookie field with a browser's secret, for this port alone."""
    whole_host = not prefix and secure
    name = f"__Host-{COOKIE}" if whole_host else COOKIE
    return f"{name}={secret}; Path={prefix}/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


def ticket_in(query: str) -> str | None:
    """Return the ticket of a query, if there is one."""
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "ticket" and value.startswith(MARK):
            return value
    return None


def without_our_parameters(query: str, is_ours: Callable[[str], bool]) -> str:
    """Return the query without our tickets and tokens, but otherwise unchanged."""
    return "&".join(part for part in query.split("&") if not _is_our_parameter(part, is_ours))


def _is_our_parameter(part: str, is_ours: Callable[[str], bool]) -> bool:
    for name, value in parse_qsl(part, keep_blank_values=True):
        if (name == "ticket" and value.startswith(MARK)) or (name == "token" and is_ours(value)):
            return True
    return False


def request_fields(given: Iterable[tuple[str, str]], passing: Passing) -> Fields:
    """Return a request's fields for the program, without those that frame its body."""
    given = list(given)
    dropped = _HOP | _named_by_connection(given)
    fields: Fields = [("Host", passing.host)]
    for name, value in given:
        plain = name.lower().replace("_", "-")  # many programs take the two for the same
        if plain in dropped or plain in _BY_PROXIES or plain.startswith("x-forwarded-"):
            continue
        if plain in {"host", "content-length"}:
            continue
        if plain == "authorization" and passing.is_ours(value):
            continue
        if plain == "cookie":
            kept = "; ".join(pair for pair in _pairs([value]) if not _OURS.match(pair))
            if kept:
                fields.append((name, kept))
            continue
        fields.append((name, value))
    fields += [("X-Forwarded-Proto", passing.scheme), ("X-Forwarded-Host", passing.host)]
    if passing.prefix:
        fields.append(("X-Forwarded-Prefix", passing.prefix))
    if passing.upgrade:
        return [*fields, ("Connection", "Upgrade"), ("Upgrade", "websocket")]
    return [*fields, ("Connection", "close")]


def answer_fields(given: Iterable[tuple[str, str]], passing: Passing, *, switches: bool = False) -> Fields:
    """Return an answer's fields for the browser; `switches`: it agrees to a WebSocket."""
    given = list(given)
    dropped = _HOP | _FOR_A_HOST | _named_by_connection(given)
    fields: Fields = []
    for name, value in given:
        plain = name.lower()
        if plain in dropped:
            continue
        if plain == "set-cookie":
            cookie = _own_cookie(value, passing.prefix)
            if cookie is not None:
                fields.append((name, cookie))
        elif plain == "location":
            fields.append((name, _location(value, passing)))
        else:
            fields.append((name, value))
    if switches:
        return [*fields, ("Connection", "Upgrade"), ("Upgrade", "websocket")]
    return fields


def _named_by_connection(given: Fields) -> frozenset[str]:
    """Return the fields that are for the next hop only."""
    named = (value.split(",") for name, value in given if name.lower() == "connection")
    return frozenset(word.strip().lower() for words in named for word in words)


def _own_cookie(field: str, prefix: str) -> str | None:
    """Return a program's cookie, limited to the program; None if it could be read as ours."""
    pair, *attributes = [part.strip() for part in field.split(";")]
    name, equals, _ = pair.partition("=")
    # Browsers send a cookie without a name as its value, which may look like any other.
    if not equals or not name.strip() or _OURS.match(pair):
        return None
    kept = [pair]
    for attribute in attributes:
        word, _, value = attribute.partition("=")
        if word.strip().lower() == "domain":
            continue
        if word.strip().lower() == "path" and prefix:
            path = value.strip()
            kept.append(f"Path={_below(prefix, path) if path.startswith('/') else f'{prefix}/'}")
        elif attribute:
            kept.append(attribute)
    return "; ".join(kept)


def _location(value: str, passing: Passing) -> str:
    """Return a program's Location; a path of its own is put below the prefix."""
    if not passing.prefix:
        return value
    if value.startswith("/") and not value.startswith("//"):
        return _below(passing.prefix, value)
    try:
        parts = urlsplit(value)
    except ValueError:
        return value
    if parts.scheme in {"http", "https"} and parts.netloc.lower() == passing.host.lower():
        return parts._replace(path=_below(passing.prefix, parts.path or "/")).geturl()
    return value


def _below(prefix: str, path: str) -> str:
    """Return the path below the prefix, unless a program that knows its prefix has put it there already."""
    return path if path == prefix or path.startswith(f"{prefix}/") else f"{prefix}{path}"
