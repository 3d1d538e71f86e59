"""One channel's socket to a kernel: local ones by asyncio itself, others by libzmq.

It moves frames and knows nothing of what they say. ``connection`` signs, checks and hands out what comes;
the bytes of a local socket are ``zmtp``'s.

Why local sockets are not libzmq's: its own thread wakes for every packet and then wakes ours, which costs
more than all the rest that is done to a message (docs/benchmarks.md). CurveZMQ, which TCP needs, stays there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import zmq

from kernels.errors import KernelDied
from kernels.messages import Channel
from kernels.zmtp import SUBSCRIPTION, Decoder, ProtocolError, encode, hello

Receiver = Callable[[list[bytes]], None]

MESSAGES_PER_TURN: Final = 64
BYTES_PER_TURN: Final = 1024 * 1024
UNSENT_MESSAGES: Final = 1000
"""As many as libzmq keeps by itself."""
UNSENT_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 256 * 1024
_RETRY_SECONDS: Final = 0.015
_LONGEST_RETRY: Final = 1.0
_LONGEST_PATH: Final = 107
"""Bytes; unix(7)."""
_UNREAD_MESSAGES: Final = 24
# Plain numbers: arithmetic with pyzmq's enums costs more than the calls they are for.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_SNDMORE: Final = int(zmq.SNDMORE) | _NOBLOCK
_RCVMORE: Final = int(zmq.RCVMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)


class ChannelSocket(Protocol):
    """What `connection` needs. All methods belong to the loop's thread; none waits."""

    def send(self, frames: Sequence[bytes]) -> None:
        """Send one message, or keep it until the kernel takes it. Raises KernelDied when too many wait."""

    def pause(self) -> None:
        """Read no more, so that what comes waits in the kernel's memory."""

    def resume(self) -> None:
        """Read again after `pause`."""

    def rest(self, seconds: float) -> None:
        """Read nothing before `wake`, but no longer than `seconds`: what comes is then read at one go."""

    def wake(self) -> None:
        """Read at once what has come, whether it rested or not."""

    def close(self) -> None:
        """Give everything back. The receiver is not called any more."""


class LocalSocket:
    """A Unix socket. It connects when the kernel has bound its side, and again when it was cut."""

    def __init__(self, path: str, socket_type: bytes, identity: bytes, receive: Receiver) -> None:
        self._path = path
        self._hello = hello(socket_type, identity)
        self._subscribes = socket_type == b"SUB"
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._decoder = Decoder()
        self._ready = False
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._paused = False
        self._resting: asyncio.TimerHandle | None = None
        self._delivering = False
        self._closed = False
        self._met = False
        self._delay = _RETRY_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, "The path of a kernel's socket is too long", path)
        self._connect()

    def _connect(self) -> None:
        self._timer = None
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connecting.connect(self._path)
        except OSError:
            # Not bound yet, not yet open to us, or gone: which of them, only time can tell.
            connecting.close()
            self._again()
            return
        self._socket = connecting
        self._decoder = Decoder()
        # A new socket's buffer takes these hundred bytes whole.
        connecting.send(self._hello)
        self._watch()

    def _begin(self) -> None:
        """The kernel is ready: send what waits."""
        self._ready = True
        self._delay = _RETRY_SECONDS
        if self._subscribes:
            self._unsent.appendleft(SUBSCRIPTION)
            self._unsent_bytes += len(SUBSCRIPTION)
        self._write()

    def send(self, frames: Sequence[bytes]) -> None:
        """See `ChannelSocket`."""
        if len(self._unsent) >= UNSENT_MESSAGES or self._unsent_bytes >= UNSENT_BYTES:
            raise KernelDied("The kernel takes no more messages; interrupt or restart it.")
        data = encode(frames)
        waiting = bool(self._unsent)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
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
                self._unsent[0] = data[sent:]
                break
            self._unsent.popleft()
        if self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        assert self._socket is not None
        self._loop.remove_writer(self._socket.fileno())
        self._write()

    def _readable(self) -> None:
        assert self._socket is not None
        if self._delivering:
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
        self._deliver()

    def _deliver(self) -> None:
        """Hand out what was read, up to a bound for one turn of the loop."""
        self._delivering = False
        size = 0
        for _ in range(MESSAGES_PER_TURN):
            if self._closed or self._paused:
                return
            if size > BYTES_PER_TURN:
                break
            try:
                frames = self._decoder.next()
            except ProtocolError:
                self._cut()
                return
            if not self._ready and self._decoder.ready:
                self._begin()
            if frames is None:
                return
            size += sum(map(len, frames))
            self._receive(frames)
        self._delivering = True
        self._loop.call_soon(self._deliver)

    def _cut(self) -> None:
        """The other side is gone, or is no kernel's."""
        self._met = True
        self._disconnect()
        self._again()

    def _again(self) -> None:
        """Try again: soon while the kernel starts, ever more slowly once it was there."""
        if self._met:
            self._delay = min(_LONGEST_RETRY, self._delay * 2)
        self._timer = self._loop.call_later(self._delay, self._connect)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._ready = False
        self._unsent.clear()
        self._unsent_bytes = 0

    def _watch(self) -> None:
        """Be told of what comes, unless that is to wait."""
        if self._socket is None:
            return
        if self._paused or self._resting is not None:
            self._loop.remove_reader(self._socket.fileno())
        else:
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def pause(self) -> None:
        """See `ChannelSocket`."""
        if not self._paused:
            self._paused = True
            self._watch()

    def resume(self) -> None:
        """See `ChannelSocket`."""
        if self._paused:
            self._paused = False
            self._watch()
            if not self._delivering:
                self._delivering = True
                self._loop.call_soon(self._deliver)

    def rest(self, seconds: float) -> None:
        """See `ChannelSocket`."""
        if self._ready and self._resting is None:
            self._resting = self._loop.call_later(seconds, self.wake)
            self._watch()

    def wake(self) -> None:
        """See `ChannelSocket`."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
            self._watch()
        if self._socket is not None and not self._paused:
            self._readable()

    def close(self) -> None:
        """See `ChannelSocket`."""
        self._closed = True
        for timer in (self._timer, self._resting):
            if timer is not None:
                timer.cancel()
        self._disconnect()


class ZmqSocket:
    """A socket of libzmq, read through its edge-triggered file descriptor (zmq_getsockopt(3), ZMQ_FD).

    After a wake-up and after each send it is drained until it has no more.
    """

    def __init__(
        self,
        zmq_socket: zmq.Socket[bytes],
        info: Mapping[str, Any],
        channel: Channel,
        identity: bytes,
        receive: Receiver,
    ) -> None:
        self._socket = zmq_socket
        self._receive = receive
        self._paused = False
        self._loop = asyncio.get_running_loop()
        zmq_socket.linger = 0
        zmq_socket.setsockopt(zmq.RECONNECT_IVL, int(_RETRY_SECONDS * 1000))
        if channel is Channel.IOPUB:
            zmq_socket.setsockopt(zmq.SUBSCRIBE, b"")
            # What we have not read yet waits in the kernel's memory, which is limited, rather than in ours.
            zmq_socket.setsockopt(zmq.RCVHWM, _UNREAD_MESSAGES)
        else:
            zmq_socket.setsockopt(zmq.ROUTING_ID, identity)
        if curve := info.get("curve_publickey"):
            # ipykernel's own pair serves both sides, as in jupyter_client: it is the shared secret.
            zmq_socket.curve_serverkey = zmq_socket.curve_publickey = as_bytes(curve)
            zmq_socket.curve_secretkey = as_bytes(info["curve_secretkey"])
        zmq_socket.connect(endpoint(info, channel))
        self._loop.add_reader(zmq_socket.FD, self._drain)

    def send(self, frames: Sequence[bytes]) -> None:
        """See `ChannelSocket`."""
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, _SNDMORE)
            self._socket.send(frames[-1], _NOBLOCK)
        except zmq.Again:
            raise KernelDied("The kernel takes no more messages; interrupt or restart it.") from None
        # Sending may consume the edge of ZMQ_FD, so messages that arrived meanwhile must be asked for.
        self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Read what is there, up to a bound for one turn of the loop."""
        size = 0
        for _ in range(MESSAGES_PER_TURN):
            if self._socket.closed or self._paused:
                return
            if size > BYTES_PER_TURN:
                break
            if not int(self._socket.getsockopt(_EVENTS)) & _POLLIN:
                return
            frames = [self._socket.recv(_NOBLOCK)]
            while self._socket.getsockopt(_RCVMORE):
                frames.append(self._socket.recv(_NOBLOCK))
            size += sum(map(len, frames))
            self._receive(frames)
        self._loop.call_soon(self._drain)

    def pause(self) -> None:
        """See `ChannelSocket`."""
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self._socket.FD)

    def resume(self) -> None:
        """See `ChannelSocket`."""
        if self._paused:
            self._paused = False
            self._loop.add_reader(self._socket.FD, self._drain)
            self._loop.call_soon(self._drain)

    def rest(self, seconds: float) -> None:
        """Nothing: libzmq's thread would read on."""

    def wake(self) -> None:
        """See `ChannelSocket`."""
        if not self._paused:
            self._drain()

    def close(self) -> None:
        """See `ChannelSocket`."""
        if not self._socket.closed:
            self._loop.remove_reader(self._socket.FD)
            self._socket.close()


def endpoint(info: Mapping[str, Any], channel: Channel) -> str:
    """The zmq address of a channel by a kernel's connection info (jupyter_client, "Connection files")."""
    port = info[f"{channel}_port"]
    if info["transport"] == "ipc":
        return f"ipc://{info['ip']}-{port}"
    return f"{info['transport']}://{info['ip']}:{port}"


def open_socket(
    info: Mapping[str, Any],
    channel: Channel,
    identity: str,
    receive: Receiver,
    context: zmq.Context[zmq.Socket[bytes]],
) -> ChannelSocket:
    """A socket that connects to a kernel's channel. `identity`: whom the kernel answers to.

    The kernel sends an input_request to the stdin socket with the identity of the requester.
    """
    kind = zmq.SUB if channel is Channel.IOPUB else zmq.DEALER
    if info["transport"] == "ipc" and not info.get("curve_publickey"):
        path = endpoint(info, channel).removeprefix("ipc://")
        return LocalSocket(path, kind.name.encode(), b"" if kind == zmq.SUB else identity.encode(), receive)
    zmq_socket = context.socket(kind)
    try:
        return ZmqSocket(zmq_socket, info, channel, identity.encode(), receive)
    except BaseException:
        zmq_socket.close()
        raise


def as_bytes(value: bytes | str) -> bytes:
    """A key of a connection info, which comes as either."""
    return value if isinstance(value, bytes) else value.encode()
