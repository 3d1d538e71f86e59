"""One kernel's four channels on the server's event loop: one reader each, many listeners.

It signs what it sends, checks what it receives, and hands every message to every listener in order.
It is not a client of the protocol: what a request means is known to ``execution`` and to the gateway.
It talks to ``messages`` and to ``sockets``; ``kernel`` owns it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import zmq

from kernels.errors import KernelDied
from kernels.messages import Channel, MalformedMessage, Message, Signer, new_message
from kernels.sockets import ChannelSocket, as_bytes, open_socket

logger = logging.getLogger(__name__)

Listener = Callable[[Message], None]


class KernelConnection:
    """The four channels of one kernel. Use it only on the loop's thread, from `open` to `close`."""

    def __init__(
        self, info: Mapping[str, Any], context: zmq.Context[zmq.Socket[bytes]], *, session: str = ""
    ) -> None:
        # A kernel answers to the identity that asked: who goes on with a cell of another must be that one.
        self.session = session or uuid.uuid4().hex
        self.malformed = 0
        self._info = dict(info)
        self._signer = Signer(as_bytes(info["key"]))
        self._context = context
        self._sockets: dict[Channel, ChannelSocket] = {}
        self._listeners: list[Listener] = []
        self._sent_listeners: list[Listener] = []

    @property
    def closed(self) -> bool:
        """Whether the sockets are gone (or not made yet)."""
        return not self._sockets

    def open(self) -> None:
        """Connect all channels; the kernel may bind its side later."""
        try:
            for channel in Channel:
                receive = partial(self._receive, channel)
                self._sockets[channel] = open_socket(
                    self._info, channel, self.session, receive, self._context
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets and forget the listeners. May be called again."""
        for socket in self._sockets.values():
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
        socket.send(self._signer.serialize(message))
        for listener in tuple(self._sent_listeners):
            listener(message)

    def request(self, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> str:
        """Send a new message of our own; returns its msg_id."""
        message = new_message(channel, msg_type, content, session=self.session)
        self.send(message)
        return message.header.msg_id

    def ask(self, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> asyncio.Future[Message]:
        """As `request`; the future is the kernel's answer. Cancel it to listen no more."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        msg_id = self.request(channel, msg_type, content)

        def receive(message: Message) -> None:
            if message.channel is channel and message.parent.msg_id == msg_id and not answer.done():
                answer.set_result(message)

        stop = self.listen(receive)
        answer.add_done_callback(lambda _: stop())
        return answer

    def rest(self, seconds: float) -> None:
        """Let the kernel's output wait for the next reply, but no longer, to be read with it at one go."""
        if socket := self._sockets.get(Channel.IOPUB):
            socket.rest(seconds)

    def wake(self) -> None:
        """Hear at once all that has come."""
        for socket in tuple(self._sockets.values()):
            socket.wake()

    def pause(self) -> None:
        """Stop reading iopub, so that what the kernel prints waits in the kernel's own memory."""
        if socket := self._sockets.get(Channel.IOPUB):
            socket.pause()

    def resume(self) -> None:
        """Read iopub again after `pause`."""
        if socket := self._sockets.get(Channel.IOPUB):
            socket.resume()

    def _receive(self, channel: Channel, frames: list[bytes]) -> None:
        if channel is Channel.SHELL or channel is Channel.STDIN:
            # The output that came before a reply or a question is heard before it.
            self._sockets[Channel.IOPUB].wake()
        try:
            message = self._signer.parse(channel, frames)
        except MalformedMessage as error:
            self.malformed += 1
            if self.malformed == 1:
                logger.warning("Dropped a malformed message of a kernel: %s", error.message)
            return
        for listener in tuple(self._listeners):
            listener(message)
