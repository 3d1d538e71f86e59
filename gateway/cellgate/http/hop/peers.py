"""Connections from this gateway to the others of its cluster, kept for the next requests.

What a waiting connection brings, be it its end, closes it: a gateway has nothing to say unasked, and its
words would be taken for the next answer.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import defaultdict
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from cellgate.errors import OwnerUnreachable
from cellgate.http.hop.silence_watch import SilenceWatch
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.places import Places
from cellgate_kernels.base.tasks import Supervisor

BUFFER: Final = 64 * 1024
CONNECT_SECONDS: Final = 3.0
MOST_KEPT: Final = 32
"""Connections to one gateway that wait for a request at most."""
WAITING_SECONDS: Final = 30.0
"""Seconds that one waits at most: gateways close theirs after a longer time, by default."""
SILENCE: Final = 10
"""Seconds after which a machine that acknowledges nothing is gone, if another look at it finds the same."""
PIECES_A_TURN: Final = 64
"""Pieces of one answer that are handled in one turn of the loop."""
PROBES: Final = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))
"""TCP's options by which a machine that owes nothing and says nothing is found gone within 15 s, a lease."""


class PeerConnection:
    """A connection to another gateway, for one request after the other."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.places = Places(PIECES_A_TURN)
        self._reader, self._writer = reader, writer

    async def is_silent(self) -> bool:
        """Return whether the other side has neither closed the connection nor sent anything."""
        with suppress(OSError):
            try:
                async with asyncio.timeout(0):
                    await self._reader.read(1)
            except TimeoutError:
                return True
        return False

    async def read(self) -> bytes:
        """Read the next bytes; empty at the end. Raises OSError."""
        return await self._reader.read(BUFFER)

    async def write(self, data: bytes) -> None:
        """Send bytes, and return when more may be sent. Raises OSError."""
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection, once the other side has taken what was sent. Idempotent."""
        self._writer.close()


class Peers:
    """The connections to all other gateways. `watch`: ends those to a gateway that is gone."""

    def __init__(self, watch: SilenceWatch) -> None:
        self._watch_silence = watch
        self._waiting: defaultdict[str, dict[PeerConnection, asyncio.Task[None]]] = defaultdict(dict)
        self._tasks = Supervisor()
        self._tls: ssl.SSLContext | None = None

    async def connect(self, address: str) -> PeerConnection:
        """Return a connection to the gateway with this URL. Raises OwnerUnreachable."""
        waiting = self._waiting[address]
        while waiting:
            connection, task = waiting.popitem()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                # What came in the turn of the loop in which the task was cancelled has not been read.
                if task.cancelled() and await connection.is_silent():
                    return connection
                connection.close()
        parts = urlsplit(address)
        if parts.hostname is None:
            raise OwnerUnreachable("The gateway that has the session says no address; try again")
        secure = parts.scheme == "https"
        if secure and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    parts.hostname,
                    parts.port or (443 if secure else 80),
                    limit=BUFFER,
                    ssl=self._tls if secure else None,
                )
        except OSError as error:  # TimeoutError and ssl.SSLError are some
            why = in_words(error)
            if isinstance(error, ssl.SSLCertVerificationError):
                why += " (SSL_CERT_FILE names the certificates that the other gateways of the cluster trust)"
            raise OwnerUnreachable(
                f"The gateway at {address}, which has the session, can't be reached: {why}."
                " Nothing has been done; try again"
            ) from error
        writer.transport.set_write_buffer_limits(high=BUFFER)
        connected: socket.socket = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES:
            connected.setsockopt(socket.IPPROTO_TCP, name, value)
        self._watch_silence.add(connected, SILENCE, writer.transport.abort)
        return PeerConnection(address, reader, writer)

    def keep(self, connection: PeerConnection) -> None:
        """Keep a connection for the next request, if few wait already."""
        waiting = self._waiting[connection.address]
        if len(waiting) >= MOST_KEPT:
            connection.close()
            return
        waiting[connection] = self._tasks.share(self._watch(connection), "waiting connection", (OSError,))

    async def _watch(self, connection: PeerConnection) -> None:
        """Close a waiting connection at its end, at its first byte, or when it has waited long enough."""
        with suppress(OSError):  # a TimeoutError, too
            async with asyncio.timeout(WAITING_SECONDS):
                await connection.read()
        self._waiting[connection.address].pop(connection, None)
        connection.close()

    async def close(self) -> None:
        """Close all waiting connections."""
        for waiting in self._waiting.values():
            for connection in waiting:
                connection.close()
            waiting.clear()
        await self._tasks.cancel()
