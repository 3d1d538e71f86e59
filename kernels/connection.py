"""One kernel's ZeroMQ sockets on the server's event loop: one reader each, many listeners.

It signs what it sends, checks what it receives, and hands every message to every listener in order.
It is not a client of the protocol: what a request means is known to ``execution`` and to the gateway.
It talks to ``messages`` and to pyzmq; ``kernel`` owns it.

The sockets are read through their edge-triggered file descriptor (zmq_getsockopt(3), ZMQ_FD): after a
wake-up and after each send they are drained until they have no more. A drain stops after a bounded
number of messages and goes on at the loop's next turn, so a flooding kernel can't starve the others.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import zmq

from kernels.errors import KernelDied
from kernels.messages import Channel, MalformedMessage, Message, Signer, new_message

logger = logging.getLogger(__name__)

Listener = Callable[[Message], None]

_SOCKET_TYPES: Final = {
    Channel.SHELL: zmq.DEALER,
    Channel.CONTROL: zmq.DEALER,
    Channel.STDIN: zmq.DEALER,
    Channel.IOPUB: zmq.SUB,
}
# Plain numbers: arithmetic with pyzmq's enums costs more than the calls they are for.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_SNDMORE: Final = int(zmq.SNDMORE) | _NOBLOCK
_RCVMORE: Final = int(zmq.RCVMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_MESSAGES_PER_TURN: Final = 64
_BYTES_PER_TURN: Final = 1024 * 1024
_UNREAD_MESSAGES: Final = 24
_RECONNECT_MILLISECONDS: Final = 15


def endpoint(info: Mapping[str, Any], channel: Channel) -> str:
    """The zmq address of a channel by a kernel's connection info (jupyter_client, "Connection files")."""
    port = info[f"{channel}_port"]
    if info["transport"] == "ipc":
        return f"ipc://{info['ip']}-{port}"
    return f"{info['transport']}://{info['ip']}:{port}"


class KernelConnection:
    """The four channels of one kernel. Use it only on the loop's thread, from `open` to `close`."""

    def __init__(
        self, info: Mapping[str, Any], context: zmq.Context[zmq.Socket[bytes]], *, session: str = ""
    ) -> None:
        # A kernel answers to the identity that asked: who goes on with a cell of another must be that one.
        self.session = session or uuid.uuid4().hex
        self.malformed = 0
        self._info = dict(info)
        self._signer = Signer(_bytes(info["key"]))
        self._context = context
        self._sockets: dict[Channel, zmq.Socket[bytes]] = {}
        self._listeners: list[Listener] = []
        self._sent_listeners: list[Listener] = []
        self._paused = False
        self._loop = asyncio.get_running_loop()

    @property
    def closed(self) -> bool:
        """Whether the sockets are gone (or not made yet)."""
        return not self._sockets

    def open(self) -> None:
        """Connect all channels; the kernel may bind its side later."""
        try:
            for channel, kind in _SOCKET_TYPES.items():
                self._connect(channel, kind)
        except BaseException:
            self.close()
            raise

    def _connect(self, channel: Channel, kind: int) -> None:
        socket = self._sockets[channel] = self._context.socket(kind)
        socket.linger = 0
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            # What we have not read yet waits in the kernel's memory, which is limited, rather than in ours.
            socket.setsockopt(zmq.RCVHWM, _UNREAD_MESSAGES)
        else:
            # The kernel sends an input_request to the stdin socket with the identity of the requester.
            socket.setsockopt(zmq.ROUTING_ID, self.session.encode())
        if curve := self._info.get("curve_publickey"):
            # ipykernel's own pair serves both sides, as in jupyter_client: it is the shared secret.
            socket.curve_serverkey = socket.curve_publickey = _bytes(curve)
            socket.curve_secretkey = _bytes(self._info["curve_secretkey"])
        socket.connect(endpoint(self._info, channel))
        self._loop.add_reader(socket.FD, self._drain, channel)

    def close(self) -> None:
        """Close the sockets and forget the listeners. May be called again."""
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.FD)
            socket.close()
        self._sockets.clear()
        self._listeners.clear()
        self._sent_listeners.clear()

    def listen(self, received: Listener, sent: Listener | None = None) -> Callable[[], None]:
        """Call `received` with each message of the kernel, `sent` with each one sent to it.

        Listeners run on the loop, must be quick and must not raise. Returns the function that ends it.
        """
        self._listeners.append(received)
        if sent is not None:
            self._sent_listeners.append(sent)

        def stop() -> None:
            if received in self._listeners:
                self._listeners.remove(received)
            if sent in self._sent_listeners:
                self._sent_listeners.remove(sent)

        return stop

    def send(self, message: Message) -> None:
        """Send to the message's channel without waiting. Raises KernelDied when that can't be done."""
        socket = self._sockets.get(message.channel)
        if socket is None:
            raise KernelDied("The kernel is gone; the session's next execution gets a fresh one.")
        try:
            _send(socket, self._signer.serialize(message))
        except zmq.Again:
            raise KernelDied("The kernel takes no more messages; interrupt or restart it.") from None
        for listener in tuple(self._sent_listeners):
            listener(message)
        # Sending may consume the edge of ZMQ_FD, so messages that arrived meanwhile must be asked for.
        if _readable(socket):
            self._loop.call_soon(self._drain, message.channel)

    def request(self, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> str:
        """Send a new message of our own; returns its msg_id."""
        message = new_message(channel, msg_type, content, session=self.session)
        self.send(message)
        return message.header.msg_id

    def pause(self) -> None:
        """Stop reading iopub, so that what the kernel prints waits in the kernel's own memory."""
        if not self._paused and (socket := self._sockets.get(Channel.IOPUB)):
            self._paused = True
            self._loop.remove_reader(socket.FD)

    def resume(self) -> None:
        """Read iopub again after `pause`."""
        if self._paused and (socket := self._sockets.get(Channel.IOPUB)):
            self._paused = False
            self._loop.add_reader(socket.FD, self._drain, Channel.IOPUB)
            self._loop.call_soon(self._drain, Channel.IOPUB)

    def _drain(self, channel: Channel) -> None:
        """Read what is there, up to a bound for one turn of the loop."""
        size = 0
        for _ in range(_MESSAGES_PER_TURN):
            socket = self._sockets.get(channel)
            if socket is None or size > _BYTES_PER_TURN or (self._paused and channel is Channel.IOPUB):
                break
            if not _readable(socket):
                return
            frames = _recv(socket)
            size += sum(map(len, frames))
            self._receive(channel, frames)
        if channel in self._sockets and not (self._paused and channel is Channel.IOPUB):
            self._loop.call_soon(self._drain, channel)

    def _receive(self, channel: Channel, frames: list[bytes]) -> None:
        try:
            message = self._signer.parse(channel, frames)
        except MalformedMessage as error:
            self.malformed += 1
            if self.malformed == 1:
                logger.warning("Dropped a malformed message of a kernel: %s", error.message)
            return
        for listener in tuple(self._listeners):
            listener(message)


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


def _recv(socket: zmq.Socket[bytes]) -> list[bytes]:
    """One whole message of a readable socket; zmq never gives a part of one."""
    frames = [socket.recv(_NOBLOCK)]
    while socket.getsockopt(_RCVMORE):
        frames.append(socket.recv(_NOBLOCK))
    return frames


def _send(socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
    """One whole message. Raises zmq.Again, having sent nothing, when there is no room for it."""
    for frame in frames[:-1]:
        socket.send(frame, _SNDMORE)
    socket.send(frames[-1], _NOBLOCK)
