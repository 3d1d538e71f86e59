"""The way between libzmq and a kernel's TCP port, on which no more lies than may.

libzmq keeps the parts of a message for as long as more of them come, and counts them nowhere: its limits are
of one frame (ZMQ_MAXMSGSIZE) and of whole messages (ZMQ_RCVHWM), see zmq_setsockopt(3). Code in a kernel that
never ends a message would take all of this process's memory. So libzmq connects to a Unix socket of this
process, and a `Relay` passes on what has been read so far and a number of bytes more. While its reader has
stopped, the rest waits in the kernel's memory. Where the reader waits, and yet so much has come, a message
does not end: the connection is cut, and libzmq makes another.

It looks at no byte: with CurveZMQ they are encrypted from end to end. ``sockets`` says what was read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable

from cellgate_kernels.tasks import Supervisor

logger = logging.getLogger(__name__)

_PIECE = 256 * 1024
_STALL_SECONDS = 1.0
"""In which libzmq's own thread hands out what was passed on to it, unless the machine is busy."""
_FIRST_PAUSE = 0.01
_MOST_PAUSE = 1.0
"""Seconds between two attempts to reach a port; in between, a tenth of the time since the first."""
_SHORT = 255
_CURVE_BYTES = 33
_CREDENTIALS = struct.Struct("3i")
_NAME = "relay to a kernel"


def bytes_of(length: int, *, encrypted: bool) -> int:
    """How many bytes a frame of this length is on the wire: with its head (ZeroMQ RFC 23), and in CurveZMQ
    with its command's name, nonce, authentication and flags (RFC 26).
    """
    size = length + _CURVE_BYTES if encrypted else length
    return size + (2 if size <= _SHORT else 9)


class Relay:
    """A Unix socket for libzmq, each of whose connections is one to the TCP port.

    `most_unread`: how many bytes may have come that were not read. `wakes`: whether libzmq has a whole
    message, which is then read soon. Use it on the loop's thread, from the start to `close`.
    """

    def __init__(self, host: str, port: int, most_unread: int, wakes: Callable[[], bool]) -> None:
        """Raises OSError when there is no socket to be had."""
        self._target = (host, port)
        self._most_unread = most_unread
        self._wakes = wakes
        self._loop = asyncio.get_running_loop()
        self._tasks = Supervisor()
        self._way: asyncio.Task[None] | None = None
        self._unread = 0
        self._room = asyncio.Event()
        self._stall: asyncio.TimerHandle | None = None
        self._paused = False
        self._told = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # An abstract name (unix(7)): no file, and nothing to remove after a crash.
            name = f"cellgate-{secrets.token_hex(16)}"
            self._listener.bind(f"\0{name}")
            self._listener.listen()
        except BaseException:
            self._listener.close()
            raise
        self.endpoint = f"ipc://@{name}"
        """What libzmq connects to."""
        self._loop.add_reader(self._listener, self._tasks.guard(self._accept, _NAME))

    def read(self, size: int) -> None:
        """So many bytes more of what was passed on have been read."""
        self._unread = max(0, self._unread - size)
        if self._unread <= self._most_unread:
            self._room.set()
        self._watch()

    def pause(self) -> None:
        """The reader stops: it is no fault of the kernel's that nothing is read."""
        self._paused = True
        self._watch()

    def resume(self) -> None:
        """The reader goes on."""
        self._paused = False
        self._watch()

    def close(self) -> None:
        """Close everything. Idempotent."""
        self._unread = 0
        self._watch()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        if self._way is not None:
            self._way.cancel()

    def _watch(self) -> None:
        """From now on, wait for the next read if too much has come."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._unread > self._most_unread and not self._paused:
            self._stall = self._loop.call_later(_STALL_SECONDS, self._tasks.guard(self._nothing_read, _NAME))

    def _nothing_read(self) -> None:
        self._stall = None
        if self._wakes():
            self._watch()
            return
        if not self._told:
            self._told = True
            logger.warning(
                "The connection to a kernel's port %s:%d is closed: it sent %d bytes of a message"
                " that does not end",
                *self._target,
                self._unread,
            )
        if self._way is not None:
            self._way.cancel()

    def _accept(self) -> None:
        try:
            inside, _ = self._listener.accept()
        except OSError:
            # Too many open files at the moment, or libzmq has given up: it tries again.
            return
        inside.setblocking(False)
        credentials = inside.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[0] != os.getpid():
            inside.close()
            return
        if self._way is not None:
            self._way.cancel()
        self._way = self._tasks.start(self._pass(inside), _NAME)

    async def _pass(self, inside: socket.socket) -> None:
        """Pass on what comes, both ways, until one side has closed."""
        with inside, await self._reach() as outside:
            self._unread = 0
            self._watch()
            ways = [
                self._tasks.share(way, _NAME, errors=(OSError,))
                for way in (self._outwards(inside, outside), self._inwards(outside, inside))
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)

    async def _reach(self) -> socket.socket:
        """A connection to the port, once something is bound to it.

        libzmq, which waits for it, would try again every few milliseconds were its own connection closed.
        """
        family = socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET
        begun = self._loop.time()
        while True:
            outside = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._loop.sock_connect(outside, self._target)
            except OSError:
                outside.close()
            except BaseException:
                outside.close()
                raise
            else:
                return outside
            waited = self._loop.time() - begun
            await asyncio.sleep(min(max(_FIRST_PAUSE, waited / 10), _MOST_PAUSE))

    async def _outwards(self, inside: socket.socket, outside: socket.socket) -> None:
        while data := await self._loop.sock_recv(inside, _PIECE):
            await self._loop.sock_sendall(outside, data)

    async def _inwards(self, outside: socket.socket, inside: socket.socket) -> None:
        while data := await self._loop.sock_recv(outside, _PIECE):
            self._unread += len(data)
            await self._loop.sock_sendall(inside, data)
            if self._unread > self._most_unread:
                self._watch()
                self._room.clear()
                await self._room.wait()
