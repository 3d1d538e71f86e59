"""The open ports of one session: connections to them, their limits, and their record.

Each connection goes through the keeper of the session's current kernel, and ends with that kernel, with the
session, or when its client closes it. A port is in the session's record once, with sums at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from cellgate.errors import NotFound, QueueFull, StorageError
from cellgate.record.events import EventLog
from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.places import Places
from cellgate_kernels.keeper.ports import BUFFER, PortStreams
from cellgate_kernels.kernel.kernel import Kernel

MOST_OF_SESSION: Final = 48
"""Most connections to programs of one session; its keeper allows a few more."""
MOST_OF_PRINCIPAL: Final = 192
MOST_PORTS: Final = 64
"""Most different ports of one kernel, each of which has two rows in the record."""
RETRY_AFTER: Final = 2.0
PIECES_A_TURN: Final = 64
"""Pieces of answers, of all programs together, that are handled in one turn of the loop."""


class PortCounts:
    """Each principal's connections to programs, in all sessions. `places`: in the turns of the loop."""

    def __init__(self) -> None:
        self.places = Places(PIECES_A_TURN)
        self._open: Counter[str] = Counter()

    def enter(self, principal: str) -> None:
        """Count one connection more. Raises QueueFull when there are too many."""
        if self._open[principal] >= MOST_OF_PRINCIPAL:
            raise QueueFull(
                f"{MOST_OF_PRINCIPAL} connections to programs of {principal} are open already",
                retry_after=RETRY_AFTER,
            )
        self._open[principal] += 1

    def leave(self, principal: str) -> None:
        """Count one connection less for a principal."""
        self._open[principal] -= 1
        if not self._open[principal]:
            del self._open[principal]


class PortsHost(Protocol):
    """The session, as far as its ports need one."""

    @property
    def log(self) -> EventLog:
        """The log that records events of ports."""

    def kernel(self) -> Kernel:
        """Return the current kernel. Raises KernelDied without one, ShuttingDown at the session's end."""

    def used(self) -> None:
        """Note a connection's end: the session's idle time begins now, if nothing else goes on."""


@dataclass(slots=True)
class _Sums:
    connections: int = 0
    sent: int = 0
    received: int = 0


class PortConnection:
    """A connection to a program. `close` it; after that, or when the kernel ends, reads return the end.

    `places`: take one before each piece of the read bytes is handled.
    """

    def __init__(
        self, streams: PortStreams, sums: _Sums, places: Places, closed: Callable[[PortConnection], None]
    ) -> None:
        self.places = places
        self._reader, self._writer = streams
        self._sums = sums
        self._closed: Callable[[PortConnection], None] | None = closed

    async def read(self) -> bytes:
        """Read the next bytes from the program; empty at its end. Raises OSError."""
        data = await self._reader.read(BUFFER)
        self._sums.received += len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, and return when more may be sent. Raises OSError."""
        self._sums.sent += len(data)
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection to the program. Idempotent."""
        closed = self._closed
        self._closed = None
        if closed is not None:
            self._writer.transport.abort()
            closed(self)


class SessionPorts:
    """All connections to programs of a session."""

    def __init__(self, host: PortsHost, counts: PortCounts, principal: str) -> None:
        self.closed = False
        """Whether the session, and with it all permissions, is over."""
        self._host = host
        self._counts = counts
        self._principal = principal
        self._open: set[PortConnection] = set()
        self._opening = 0
        self._ports: dict[int, _Sums] = {}

    @property
    def busy(self) -> bool:
        """Whether there are connections, or some being opened."""
        return bool(self._opening or self._open)

    async def connect(self, port: int) -> PortConnection:
        """Connect to a port of the current kernel's sandbox.

        Raises PortUnanswered when nothing listens there, QueueFull, NotFound, KernelDied, ShuttingDown, and
        StorageError when it can't be recorded.
        """
        if self.closed:
            raise NotFound("This session has ended")
        if len(self._open) + self._opening >= MOST_OF_SESSION:
            raise QueueFull(
                f"{MOST_OF_SESSION} connections to programs of this session are open already",
                retry_after=RETRY_AFTER,
            )
        kernel = self._host.kernel()
        self._counts.enter(self._principal)
        self._opening += 1
        try:
            streams = await kernel.connect_port(port)
            try:
                connection = self._opened(port, streams)
            except BaseException:
                streams[1].transport.abort()
                raise
        except BaseException:
            self._counts.leave(self._principal)
            raise
        finally:
            self._opening -= 1
        self._open.add(connection)
        return connection

    def _opened(self, port: int, streams: PortStreams) -> PortConnection:
        if self.closed:
            raise KernelDied("The session has ended")
        sums = self._ports.get(port)
        if sums is None:
            if len(self._ports) >= MOST_PORTS:
                raise QueueFull(
                    f"{MOST_PORTS} different ports of this kernel were opened already",
                    retry_after=RETRY_AFTER,
                )
            self._host.log.append("port_opened", None, {"port": port})
            sums = self._ports[port] = _Sums()
        sums.connections += 1
        return PortConnection(streams, sums, self._counts.places, self._left)

    def _left(self, connection: PortConnection) -> None:
        self._open.discard(connection)
        self._counts.leave(self._principal)
        self._host.used()

    def lose(self) -> None:
        """End all connections with their kernel, and record what they carried."""
        for connection in tuple(self._open):
            connection.close()
        for port, sums in self._ports.items():
            fields = {
                "port": port,
                "connections": sums.connections,
                "sent": sums.sent,
                "received": sums.received,
            }
            with suppress(StorageError):  # a caller that waits for the session's end learns of it
                self._host.log.append("port_closed", None, fields)
        self._ports.clear()

    async def close(self) -> None:
        """Revoke all permissions: the session ends, or another gateway continues it."""
        self.closed = True
        self.lose()
