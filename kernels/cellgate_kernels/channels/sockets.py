"""One channel's socket to a kernel: a Unix socket, by asyncio itself.

It moves frames without interpreting them: ``connection`` does, and ``zmtp`` parses their bytes. libzmq can't
limit frames by kind, or all kernels' unfinished bytes, before they are received, and its thread wakes for
every packet and then wakes ours (docs/explanation/architecture.md).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from cellgate_kernels.base.budget import PartOfBudget
from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.local_stream import connect_to
from cellgate_kernels.base.tasks import Supervisor, guarded
from cellgate_kernels.channels.zmtp import (
    MOST_BYTES,
    NOT_COPIED,
    SUBSCRIPTION,
    Decoder,
    ProtocolError,
    encode,
    encode_parts,
    hello,
)
from cellgate_kernels.protocol.messages import Channel

logger = logging.getLogger(__name__)

Receiver = Callable[[list[bytes], int], None]
"""Takes the frames of a message, and the number of missing bytes if it was too long."""

MESSAGES_PER_TURN: Final = 64
BYTES_PER_TURN: Final = 1024 * 1024
SECONDS_PER_TURN: Final = 0.001
"""One kernel's share of a turn of the loop; enough for all the output of a quick cell."""
SECONDS_OF_FLOOD: Final = 0.0003
"""Its share of the turns after a turn that was too short, so that its flood costs others little time."""
SECONDS_PER_WAKE: Final = 0.002
UNSENT_MESSAGES: Final = 1000
"""libzmq's own default."""
UNSENT_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 256 * 1024
_RETRY_SECONDS: Final = 0.015
_LONGEST_RETRY: Final = 1.0
_LONGEST_PATH: Final = 107
"""Bytes; unix(7)."""


class ChannelSocket(Protocol):
    """The socket that `connection` needs. Call all methods on the loop's thread; none blocks."""

    def send(self, frames: Sequence[bytes]) -> None:
        """Send one message, or keep it until the kernel accepts it. Raises KernelDied if too many wait."""

    def pause(self) -> None:
        """Stop reading, so that further messages wait in the kernel's memory."""

    def resume(self) -> None:
        """Read again after `pause`."""

    def rest(self, seconds: float) -> None:
        """Read nothing until `wake`, or for at most `seconds`, to read several messages together."""

    def wake(self) -> None:
        """Read all bytes that have arrived, now, whether the socket was resting or not."""

    def close(self) -> None:
        """Release everything. The receiver is not called any more."""


class LocalSocket(ChannelSocket):
    """A Unix socket. It connects when the kernel has bound its side, and reconnects when it is cut."""

    def __init__(
        self,
        path: str,
        socket_type: bytes,
        identity: bytes,
        receive: Receiver,
        decoder: Callable[[], Decoder] = Decoder,
    ) -> None:
        self._path = path
        self._new_decoder = decoder
        self._hello = hello(socket_type, identity)
        self._subscribes = socket_type == b"SUB"
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._decoder = decoder()
        self._ready = False
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._paused = False
        self._resting: asyncio.TimerHandle | None = None
        self._delivery: asyncio.Handle | None = None
        self._closed = False
        self._met = False
        self._was_left = False
        guard = Supervisor(failed=self._failed).guard
        self._guarded_readable = guard(self._readable, "kernel's socket")
        self._guarded_writable = guard(self._writable, "kernel's socket")
        self._guarded_deliver = guard(self._deliver, "kernel's messages")
        self._guarded_wake = guard(self.wake, "kernel's socket")
        self._delay = _RETRY_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, "The path of a kernel's socket is too long", path)
        self._connect()

    def _connect(self) -> None:
        self._timer = None
        try:
            connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            # Too many files are open just now.
            self._again()
            return
        try:
            connect_to(connecting, self._path)
            # A new socket's buffer takes these hundred bytes whole.
            connecting.send(self._hello)
        except OSError:
            # Not bound yet, not accessible yet, gone, or not a socket: all of these are simply retried.
            connecting.close()
            self._again()
            return
        self._socket = connecting
        self._decoder = self._new_decoder()
        self._watch()

    def _begin(self) -> None:
        """Send the waiting messages: the kernel is ready."""
        self._ready = True
        if self._subscribes:
            self._unsent.appendleft(SUBSCRIPTION)
            self._unsent_bytes += len(SUBSCRIPTION)
        self._write()

    def send(self, frames: Sequence[bytes]) -> None:
        if len(self._unsent) >= UNSENT_MESSAGES or self._unsent_bytes >= UNSENT_BYTES:
            raise KernelDied("The kernel takes no more messages; interrupt or restart it.")
        is_long = any(len(frame) >= NOT_COPIED for frame in frames)
        parts = encode_parts(frames) if is_long else (encode(frames),)
        waiting = bool(self._unsent)
        self._unsent.extend(parts)
        self._unsent_bytes += sum(map(len, parts))
        if self._ready and not waiting:
            self._write()

    def _write(self) -> None:
        assert self._socket is not None
        while self._unsent:
            data = self._unsent[0]
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._cut()
                return
            self._unsent_bytes -= sent
            if sent < len(data):
                # A view: copying the rest of a large message at each step would cost the square of its size.
                self._unsent[0] = memoryview(data)[sent:]
                break
            self._unsent.popleft()
        if self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._guarded_writable)

    def _writable(self) -> None:
        assert self._socket is not None
        self._loop.remove_writer(self._socket.fileno())
        self._write()

    def _readable(self) -> None:
        assert self._socket is not None
        if self._delivery is not None:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._cut()
            return
        self._decoder.feed(data)
        self._deliver(SECONDS_PER_TURN)

    def _deliver(self, seconds: float = SECONDS_OF_FLOOD) -> None:
        """Deliver the messages read, up to the limits for one turn of the loop."""
        self._delivery = None
        size, decoder, end = 0, self._decoder, monotonic() + seconds
        for _ in range(MESSAGES_PER_TURN):
            if self._closed or self._paused:
                return
            if size > BYTES_PER_TURN or monotonic() > end:
                break
            try:
                frames = decoder.next()
            except ProtocolError as error:
                self._leave(error)
                return
            if not self._ready and decoder.ready:
                self._begin()
            if frames is None:
                if decoder.more:
                    break
                return
            size += decoder.received
            self._delay = _RETRY_SECONDS
            self._receive(frames, decoder.left_out)
        self._delivery = self._loop.call_soon(self._guarded_deliver)

    def _failed(self, name: str, error: Exception) -> None:
        """Start over after an internal error: how far the stream was read is unknown."""
        if not self._closed:
            self._cut()

    def _leave(self, error: ProtocolError) -> None:
        """Disconnect from a socket that does not speak the kernels' protocol, and log that once."""
        if not self._was_left:
            self._was_left = True
            logger.warning(
                "The connection to a kernel's socket at %s is closed: %s", self._path, error.message
            )
        self._cut()

    def _cut(self) -> None:
        """Cut the connection: the other side is gone, or is not a kernel."""
        self._met = True
        self._disconnect()
        self._again()

    def _again(self) -> None:
        """Reconnect: soon while the kernel starts, then at growing intervals until it sends something."""
        if self._met:
            self._delay = min(_LONGEST_RETRY, self._delay * 2)
        self._timer = self._loop.call_later(self._delay, guarded(self._connect, "kernel's socket"))

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._decoder.close()
        self._ready = False
        self._unsent.clear()
        self._unsent_bytes = 0

    def _watch(self) -> None:
        """Watch for incoming data, unless paused or resting."""
        if self._socket is None:
            return
        if self._paused or self._resting is not None:
            self._loop.remove_reader(self._socket.fileno())
        else:
            self._loop.add_reader(self._socket.fileno(), self._guarded_readable)

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._watch()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._watch()
            if self._delivery is None:
                self._delivery = self._loop.call_soon(self._guarded_deliver)

    def rest(self, seconds: float) -> None:
        if self._ready and self._resting is None:
            self._resting = self._loop.call_later(seconds, self._guarded_wake)
            self._watch()

    def wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
            self._watch()
        if self._delivery is not None:
            # Messages that were read but left for the next turn are older than the caller's reason to wake.
            self._delivery.cancel()
            self._deliver(SECONDS_PER_WAKE)
        elif self._socket is not None and not self._paused:
            self._readable()

    def close(self) -> None:
        self._closed = True
        for timer in (self._timer, self._resting, self._delivery):
            if timer is not None:
                timer.cancel()
        self._disconnect()


def socket_path(info: Mapping[str, Any], channel: Channel) -> str:
    """Return a channel's socket path by jupyter_client's "Connection files" for the transport ipc."""
    return f"{info['ip']}-{info[f'{channel}_port']}"


def open_socket(
    info: Mapping[str, Any],
    channel: Channel,
    identity: str,
    receive: Receiver,
    most_bytes: int = MOST_BYTES,
    budget: PartOfBudget | None = None,
    most_next: Callable[[Sequence[bytes]], int] | None = None,
) -> ChannelSocket:
    """Return a socket that connects to a kernel's channel as `identity`, to which input_requests come.

    `most_bytes`: of a message. `budget`: for incomplete messages of all sockets. `most_next`: the limit of
    the next frame, given the earlier ones; see `Decoder`.
    """
    path, decoder = socket_path(info, channel), partial(Decoder, most_bytes, budget, most_next)
    if channel is Channel.IOPUB:
        return LocalSocket(path, b"SUB", b"", receive, decoder)
    return LocalSocket(path, b"DEALER", identity.encode(), receive, decoder)


def as_bytes(value: bytes | str) -> bytes:
    """Return a key of a connection info as bytes; it may come as either type."""
    return value if isinstance(value, bytes) else value.encode()
