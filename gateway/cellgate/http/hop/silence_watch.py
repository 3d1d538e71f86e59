"""Ends connections whose other side is gone without a word: its system acknowledges nothing for too long.

A side that only reads slowly stays: its system answers the probes of its closed window. These become rarer
with time, so the last answer may be two minutes old; but nothing is owed then, except for the moment between
a probe and its answer, and two looks never find two such moments: probes are further apart than looks. TCP's
own limit (TCP_USER_TIMEOUT) would not tell the two apart.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cellgate.http.listener.streams import silence
from cellgate_kernels.base.tasks import Supervisor

LOOK_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Watched:
    """A connection. `was_silent`: at the last look."""

    connection: socket.socket
    most: float
    end: Callable[[], object]
    was_silent: bool = False


class SilenceWatch:
    """Looks at connections as long as they are open. `close` it at the end."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._tasks = Supervisor()

    def add(self, connection: socket.socket, most: float, end: Callable[[], object]) -> None:
        """Call `end` once if nothing that was sent is acknowledged for `most` seconds."""
        self._watched.append(_Watched(connection, most, end))
        if not len(self._tasks):
            self._tasks.repeat(self._look, "silent connections", pause=LOOK_SECONDS)

    async def _look(self) -> float:
        """Look at all connections; two looks must find one silent: our own process may have stood still."""
        self._watched = [each for each in self._watched if each.connection.fileno() >= 0]
        for each in tuple(self._watched):
            is_silent = silence(each.connection) > each.most
            if is_silent and each.was_silent:
                self._watched.remove(each)
                each.end()
            each.was_silent = is_silent
        return LOOK_SECONDS

    async def close(self) -> None:
        """Stop looking at connections."""
        await self._tasks.cancel()
