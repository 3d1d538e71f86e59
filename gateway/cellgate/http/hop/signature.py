"""The signed header of a request that is handed on: which gateway does so, and whose the request is.

All gateways of a cluster have one key. The header is about one request to one gateway, and is good for a
minute: so the gateway that gets it knows the client's address, and that it must not hand the request on
again. It says nothing of who the sender is: the receiver checks the sender's token itself. Pure.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tornado.httputil import HTTPHeaders

from cellgate.errors import HopRefused
from cellgate.http.listener.forwarded import Forwarded
from cellgate.wire.owner import HOP

GOOD_SECONDS: Final = 60
"""Seconds for which a signature is good, before and after: clocks of machines differ."""
MOST_LENGTH: Final = 512
FOR_PORT: Final = "port"
"""The last word, of a request to a program of a session."""
_SCHEMES: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class HopPlace:
    """This gateway in its cluster. `node`: its id. `address`: its URL for the others. `key`: all have it."""

    node: str
    address: str
    key: bytes


class HopSigner:
    """Signs what this gateway hands on, and checks what it is handed."""

    def __init__(self, place: HopPlace, clock: Callable[[], float] = time.time) -> None:
        self._place = place
        self._clock = clock

    def sign(self, to: str, method: str, target: str, client: Forwarded) -> str:
        """Return the header's value for a request to the gateway with the URL `to`."""
        told = f"{self._place.node} {int(self._clock())} {client.address} {client.scheme or 'http'}"
        told += f" {FOR_PORT}" if client.for_port else ""
        return f"{told} {self._digest(told, to, method, target)}"

    def read(self, method: str, target: str, headers: HTTPHeaders) -> Forwarded | None:
        """Return whose the request is, if another gateway has handed it on; None for one without the header.

        The header is taken away. Raises HopRefused if it is not good.
        """
        given = headers.get(HOP)
        if given is None:
            return None
        del headers[HOP]
        return self._read(given, method, target)

    def _read(self, given: str, method: str, target: str) -> Forwarded:
        told, _, digest = given.rpartition(" ")
        node = told.partition(" ")[0]
        if len(given) > MOST_LENGTH or not given.isascii():
            raise HopRefused("")
        if not hmac.compare_digest(digest, self._digest(told, self._place.address, method, target)):
            raise HopRefused(node)
        _, seconds, address, scheme, *more = told.split(" ")
        apart = abs(self._clock() - int(seconds))
        if apart > GOOD_SECONDS:
            raise HopRefused(node, apart)
        try:
            client = ipaddress.ip_address(address)
        except ValueError:
            raise HopRefused(node) from None
        if scheme not in _SCHEMES:
            raise HopRefused(node)
        return Forwarded(str(client), scheme, for_port=more == [FOR_PORT])

    def _digest(self, told: str, to: str, method: str, target: str) -> str:
        message = "\n".join((told, to, method, target))
        return hmac.digest(self._place.key, message.encode(), "sha256").hex()
