"""Connections answered before their whole request had come: kept until the client has read the answer.

Closing a socket while unread bytes arrive is a reset, and a reset discards the bytes that the client has not
read yet: it would see a broken connection instead of a refusal (RFC 9112, 9.6). So the sending side is closed
at once, and later bytes are discarded, for a few seconds at most. These connections take no place among the
others and hold no memory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from cellgate_kernels.base.tasks import guarded

SECONDS: Final = 5.0
"""Seconds that a client may take to read its answer and close."""
MOST: Final = 128
"""Most connections at once; beyond, the one that has been kept longest is closed."""
_READS = 4
"""Most reads of `_PART` bytes in one turn of the loop."""
_PART = 64 * 1024


class Lingering:
    """Belongs to one event loop; `close` it with its server."""

    def __init__(self) -> None:
        # In order of arrival, each with the timer that ends it.
        self._kept: dict[socket.socket, asyncio.TimerHandle] = {}
        self._discarded = bytearray(_PART)

    def keep(self, connection: socket.socket) -> None:
        """Keep a duplicate of the connection, which the caller closes. Nothing is sent any more."""
        try:
            kept = socket.socket(fileno=os.dup(connection.fileno()))
        except OSError:
            # Its client has gone, or no more files can be opened.
            return
        kept.setblocking(False)
        if len(self._kept) >= MOST:
            self._end(next(iter(self._kept)))
        loop = asyncio.get_running_loop()
        self._kept[kept] = loop.call_later(SECONDS, guarded(self._end, "end of a connection"), kept)
        try:
            kept.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(kept)
        else:
            loop.add_reader(kept, guarded(self._discard, "rest of a refused request"), kept)

    def _discard(self, kept: socket.socket) -> None:
        try:
            for _ in range(_READS):
                if not kept.recv_into(self._discarded):
                    self._end(kept)
                    return
        except BlockingIOError:
            return
        except OSError:
            self._end(kept)

    def _end(self, kept: socket.socket) -> None:
        self._kept.pop(kept).cancel()
        asyncio.get_running_loop().remove_reader(kept)
        kept.close()

    def close(self) -> None:
        """Close all of them."""
        for kept in tuple(self._kept):
            self._end(kept)
