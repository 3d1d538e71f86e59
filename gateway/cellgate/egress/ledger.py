"""Records a session's connections as events: one each, and above a number a minute their sums.

Refused ones have a number of their own, so that they can't crowd out successful ones. An event never has URLs
of pages, header fields or bodies: the proxy does not look at them. It knows no record; it calls `write`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cellgate.egress.policy import Cause

WINDOW = 60.0
MOST_ALLOWED = 60
MOST_REFUSED = 30
MOST_HOSTS = 20
"""Most different hosts that a sum names."""

Write = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Passage:
    """An ended connection. `host`: empty if the request could not be read. Times in seconds.

    `during`: the id of the execution that ran when it was opened.
    """

    host: str
    port: int | None
    address: str | None
    allowed: bool
    cause: Cause | None
    sent: int
    received: int
    seconds: float
    during: str | None


@dataclass(slots=True)
class _Sums:
    allowed: int = 0
    refused: int = 0
    sent: int = 0
    received: int = 0


class EgressLedger:
    """Writes ``connection`` and ``connections`` events. Call `look` now and then, and `close` at the end."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._time = asyncio.get_running_loop().time
        self._begun = self._time()
        self._written = {True: 0, False: 0}
        self._sums = _Sums()
        self._hosts: dict[str, None] = {}

    def note(self, passage: Passage) -> None:
        """Record a connection, or count it."""
        self.look()
        most = MOST_ALLOWED if passage.allowed else MOST_REFUSED
        if self._written[passage.allowed] < most:
            self._written[passage.allowed] += 1
            self._write("connection", _fields(passage))
        else:
            self._count(passage)

    def _count(self, passage: Passage) -> None:
        sums = self._sums
        if passage.allowed:
            sums.allowed += 1
        else:
            sums.refused += 1
        sums.sent += passage.sent
        sums.received += passage.received
        if passage.allowed and len(self._hosts) < MOST_HOSTS:
            self._hosts[f"{passage.host}:{passage.port}"] = None

    def look(self) -> None:
        """Record the sums of a minute that is over."""
        if self._time() - self._begun >= WINDOW:
            self._turn_over()

    def _turn_over(self) -> None:
        sums = self._sums
        hosts = list(self._hosts)
        self._begun = self._time()
        self._written = {True: 0, False: 0}
        self._sums = _Sums()
        self._hosts = {}
        if sums.allowed or sums.refused:
            fields = {
                "allowed": sums.allowed,
                "refused": sums.refused,
                "sent": sums.sent,
                "received": sums.received,
                "hosts": hosts,
            }
            self._write("connections", fields)

    def close(self) -> None:
        """Record the connections that were only counted so far."""
        self._turn_over()


def _fields(passage: Passage) -> dict[str, Any]:
    return {
        "host": passage.host,
        "port": passage.port,
        "address": passage.address,
        "verdict": "allowed" if passage.allowed else "refused",
        "cause": None if passage.cause is None else passage.cause.value,
        "sent": passage.sent,
        "received": passage.received,
        "seconds": round(passage.seconds, 3),
        "during": passage.during,
    }
