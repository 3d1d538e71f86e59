"""Filters the heads of requests that are handed on, and of their answers. Pure.

The token and the cookies go on with a request, as the owner checks them itself. No field of the gateways' own
does: clients can't send one, and only the gateway that hands a request on adds one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cellgate.ports.headers import Fields
from cellgate.wire.http_fields import OF_THE_CONNECTION
from cellgate.wire.owner import OURS

_LEFT_OUT: Final = OF_THE_CONNECTION | {
    *("expect", "host", "content-length", "http2-settings"),
    *("forwarded", "x-real-ip", "x-scheme"),
}
"""Fields of a request that are for this connection, or that the signed header has instead."""
_BY_PROXIES: Final = "x-forwarded-"


def request_fields(given: Iterable[tuple[str, str]], host: str) -> Fields:
    """Return a request's fields for the owner, without those that frame its body. `host`: as asked for."""
    given = list(given)
    dropped = _LEFT_OUT | _named_by_connection(given)
    fields: Fields = [("Host", host)]
    for name, value in given:
        plain = name.lower().replace("_", "-")
        if plain not in dropped and not plain.startswith((_BY_PROXIES, OURS)):
            fields.append((name, value))
    return fields


def answer_fields(given: Iterable[tuple[str, str]], *, switches: bool) -> Fields:
    """Return the fields of the owner's answer for the client; `switches`: it agrees to a WebSocket."""
    given = list(given)
    dropped = OF_THE_CONNECTION | _named_by_connection(given)
    fields = [(name, value) for name, value in given if name.lower() not in dropped]
    return [*fields, ("Connection", "Upgrade"), ("Upgrade", "websocket")] if switches else fields


def _named_by_connection(given: Fields) -> frozenset[str]:
    """Return the fields that are for one connection only."""
    named = (value.split(",") for name, value in given if name.lower() == "connection")
    return frozenset(word.strip().lower() for words in named for word in words)
