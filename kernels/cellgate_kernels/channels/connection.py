"""One kernel's four channels on the server's event loop: one reader each, many listeners.

It signs outgoing messages, checks incoming ones, and delivers every message, in order, to the listeners and
to the follower of the request that it answers. A message over its limit is delivered without its content. A
large one is read in a thread of ``reception``, and the kernel's other messages wait for it. It does not
interpret messages: ``execution`` and the gateway know the meaning of a request. ``kernel`` owns it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from msgspec import structs

from cellgate_kernels.base.budget import Owner
from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.channels.reception import LargeMessages, LargeReading, Reception
from cellgate_kernels.channels.sockets import ChannelSocket, Receiver, as_bytes, open_socket
from cellgate_kernels.codec.structure import INLINE_BYTES, is_heavy
from cellgate_kernels.protocol.masking import MessageMasker
from cellgate_kernels.protocol.messages import (
    DELIMITER,
    Channel,
    MalformedMessage,
    Message,
    Signer,
    new_message,
    read_header,
)
from cellgate_kernels.protocol.policy import SMALL_BYTES, SMALL_FRAMES, MessagePolicy
from cellgate_kernels.protocol.unsent import LastText
from cellgate_kernels.protocol.waiting_questions import WaitingQuestions

logger = logging.getLogger(__name__)

_MOST_PROCESSES = 64
"""Most processes of a kernel whose latest text is remembered."""
MOST_RECENT = 256
"""Most ids of a kernel's latest messages with output that are remembered."""
_LONGEST_ID = 200
"""Most characters of an id that is remembered."""

Listener = Callable[[Message], None]
Room = Callable[[Message], int]
"""Returns how many bytes of a message's content a listener would read; the content is not read yet."""


@dataclass(frozen=True, slots=True)
class _Attendant:
    """One listener. `types`: the types that it receives; None for all."""

    received: Listener
    sent: Listener | None = None
    room: Room | None = None
    failed: Callable[[Exception], None] | None = None
    types: frozenset[str] | None = None


class Fan:
    """Delivers one kernel's messages to its listeners, with secrets masked by `masker`, if any.

    `listeners` are replaced on every change: a message goes to those that were listening when it arrived. If
    one fails, that is logged and counted as one of `failures`, and the others still get the message.
    """

    def __init__(self, kernel_id: str) -> None:
        self.failures = 0
        self.listeners: tuple[_Attendant, ...] = ()
        self.masker: MessageMasker | None = None
        self._followers: dict[str, _Attendant] = {}
        self._kernel_id = kernel_id

    def listen(
        self,
        received: Listener,
        sent: Listener | None = None,
        *,
        room: Room | None = None,
        types: frozenset[str] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> Callable[[], None]:
        """Call `received` with the kernel's messages of these `types`, `sent` with those to the kernel.

        Listeners run on the loop, must be quick and should not raise; `failed` is called if one does. `room`
        is called before a large message is decoded, with its headers only; without `room` a large message
        comes with its content unread. Returns a function that stops listening.
        """
        attendant = _Attendant(received, sent, room, failed, types)
        self.listeners = (*self.listeners, attendant)

        def stop() -> None:
            self.listeners = tuple(each for each in self.listeners if each is not attendant)

        return stop

    def follow(
        self,
        msg_id: str,
        received: Listener,
        *,
        room: Room | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> Callable[[], None]:
        """Pass answers to the request of this id to `received`, after the listeners; it has one follower."""
        follower: _Attendant | None
        self._followers[msg_id] = follower = _Attendant(received, None, room, failed)

        def stop() -> None:
            nonlocal follower
            if follower is not None and self._followers.get(msg_id) is follower:
                del self._followers[msg_id]
            # A follower usually keeps this function. If the function kept the follower in turn, the two would
            # form a cycle, and each cell would leave some thirty objects to the garbage collector.
            follower = None

        return stop

    def room(self, message: Message) -> int:
        """Return how many bytes of a large message's content some listener would read."""
        follower = self._followers.get(message.parent.msg_id)
        asked = self.listeners if follower is None else (*self.listeners, follower)
        fitting = (each for each in asked if each.types is None or message.header.msg_type in each.types)
        most = max((each.room(message) for each in fitting if each.room is not None), default=0)
        # A secret's value may be anywhere in a text, even in an unread part.
        return sys.maxsize if self.masker is not None and message.msg_type == "stream" else most

    def tell(self, message: Message | None, *, is_masked: bool = False) -> None:
        """Deliver a message, after text that was held back for it. None: nothing can be shown yet.

        `is_masked`: the message was masked when it was read.
        """
        if self.masker is not None and message is not None:
            for earlier in self.masker.before(message):
                self.deliver(earlier)
            if not is_masked:
                message = self.masker.mask(message)
        if message is not None:
            self.deliver(message)

    def deliver(self, message: Message) -> None:
        """Deliver a message to all its receivers; an error in one does not affect the others."""
        follower = self._followers.get(message.parent.msg_id)
        for listener in self.listeners if follower is None else (*self.listeners, follower):
            if listener.types is not None and message.header.msg_type not in listener.types:
                continue
            try:
                listener.received(message)
            except Exception as error:  # noqa: BLE001 - it is logged, and the others get the message
                self.note_failure(listener, message, error)

    def note_failure(self, listener: _Attendant, message: Message, error: Exception) -> None:
        """Report a listener's failure to it; without a callback, the first failure is logged."""
        self.failures += 1
        if listener.failed is not None:
            listener.failed(error)
        elif self.failures == 1:
            logger.error(
                "A listener of kernel %s failed at a %.80s of %s; further failures are only counted",
                self._kernel_id,
                message.msg_type,
                message.channel,
                exc_info=error,
                extra={"kernel": self._kernel_id, "msg_id": message.header.msg_id[:80]},
            )

    def close(self) -> None:
        """Remove the listeners and followers."""
        self.listeners = ()
        self._followers.clear()


class LastSent:
    """The ids of the latest messages with output: if the kernel dies, the spool continues after them.

    `recent`: of iopub messages. `texts`: by process, as ipykernel numbers messages: forks of cells send some.
    """

    def __init__(self) -> None:
        self.recent: deque[str] = deque(maxlen=MOST_RECENT)
        self.texts: dict[str, str] = {}

    def note(self, message: Message) -> None:
        """Remember a message that has arrived."""
        msg_id = message.header.msg_id
        if message.channel is not Channel.IOPUB or len(msg_id) > _LONGEST_ID:
            return
        self.recent.append(msg_id)
        if message.header.msg_type == "stream":
            process = msg_id.rpartition("_")[0]
            if process not in self.texts and len(self.texts) >= _MOST_PROCESSES:
                del self.texts[next(iter(self.texts))]
            self.texts[process] = msg_id

    def note_kept(self, messages: Iterable[Message]) -> None:
        """Remember messages from the kernel's spool, which were received in another way."""
        for message in messages:
            process, _, number = message.header.msg_id.rpartition("_")
            latest = self.texts.get(process, "").rpartition("_")[2]
            if message.msg_type != "stream" or (len(number), number) > (len(latest), latest):
                self.note(message)


class Intake:
    """Receives one kernel's messages, in order, each checked and within its limit.

    A large one is read in a thread, and the others wait for it. `received_at`: when bytes last came, by the
    loop's clock. Counters: `malformed` messages, and those `passed_over` because they exceed a limit.
    `all_is_read`: set while no message is being read or waits.
    """

    def __init__(
        self,
        large: LargeMessages,
        policy: MessagePolicy,
        sockets: Mapping[Channel, ChannelSocket],
        fan: Fan,
        last_sent: LastSent,
        kernel_id: str,
    ) -> None:
        self.received_at = -inf
        self.malformed = 0
        self.passed_over = 0
        self.large = large
        self.all_is_read = asyncio.Event()
        self.all_is_read.set()
        self._time = asyncio.get_running_loop().time
        self._signer = large.signer
        self._policy = policy
        self._sockets = sockets
        self._fan = fan
        self._last_sent = last_sent
        self._kernel_id = kernel_id
        self._waiting: deque[tuple[Channel, list[bytes], int]] = deque()
        self._questions = WaitingQuestions(fan.tell, self._quiet)
        self._held_back = self._rest_is_due = False
        self._resumed_at = -inf

    def receive(self, channel: Channel, frames: list[bytes], left_out: int = 0) -> None:
        """Receive a message from a channel's socket."""
        self.received_at = self._time()
        if self.large.current is None and (channel is Channel.SHELL or channel is Channel.STDIN):
            # Receive output that was sent before a reply or a question first.
            self._sockets[Channel.IOPUB].wake()
        if self.large.current is not None:
            self._waiting.append((channel, frames, left_out))
            return
        try:
            size = sum(map(len, frames))
            if size <= SMALL_BYTES and len(frames) <= SMALL_FRAMES and not left_out:
                message: Message | None = self._signer.parse(channel, frames)
            else:
                message = self._larger(channel, frames, size, left_out)
        except MalformedMessage as error:
            self._note_malformed(error)
            return
        if message is None:
            return
        self._last_sent.note(message)
        if channel is Channel.STDIN and self._questions.takes(message, self._last_sent.recent):
            return
        if self._fan.masker is None:
            self._fan.deliver(message)
        else:
            self._fan.tell(message)
        if self._questions.waiting:
            self._questions.go_on(self._last_sent.recent)

    def _quiet(self) -> float:
        """Return the seconds without any message; 0 while one is unread or being read."""
        if self._held_back or self.large.current is not None:
            return 0.0
        return self._time() - max(self.received_at, self._resumed_at)

    def _note_malformed(self, error: MalformedMessage) -> None:
        self.malformed += 1
        if self.malformed == 1:
            logger.warning("Dropped a malformed message of kernel %s: %s", self._kernel_id, error.message)

    def _larger(self, channel: Channel, frames: list[bytes], size: int, left_out: int) -> Message | None:
        """Return a message that may exceed its limit; None when it is large and will be delivered later."""
        routed = self._signer.route(channel, frames, size + left_out)
        parts = frames[frames.index(DELIMITER) + 2 :]
        if left_out or len(parts) < 4 or not self._policy.allows(channel, routed.header.msg_type, parts):
            return self._pass_over(routed)
        content = parts[3]
        if size <= INLINE_BYTES and not is_heavy(content):
            return self._signer.parse(channel, frames)
        self._last_sent.note(routed)
        room = self._fan.room(routed)
        # Until it is read, the kernel's other messages wait, to keep their order.
        self.all_is_read.clear()
        for socket in self._sockets.values():
            socket.pause()
        # This way only one thread at a time uses the masker.
        mask = None if self._fan.masker is None else self._fan.masker.mask
        self.large.begin(LargeReading(channel, frames, size, mask is not None), room, mask, self._read)
        return None

    def _pass_over(self, message: Message) -> Message:
        self.passed_over += 1
        if self.passed_over == 1:
            logger.warning(
                "Passed over a message of kernel %s: a %.80s of %d bytes is too large",
                self._kernel_id,
                message.msg_type,
                message.left_out,
            )
        return message

    def _read(self, reading: LargeReading, future: Future[Message | None]) -> None:
        """Deliver a large message that has been read, and the messages that waited for it."""
        try:
            if future.cancelled() or isinstance(future.exception(), MemoryError):
                routed = self._signer.route(reading.channel, reading.frames, reading.size)
                self._fan.tell(self._pass_over(routed))
            else:
                self._fan.tell(future.result(), is_masked=reading.is_masked)
            if self._questions.waiting:
                self._questions.go_on(self._last_sent.recent)
        except MalformedMessage as error:
            self._note_malformed(error)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self.large.current is None:
            self.receive(*self._waiting.popleft())
        if self.large.current is None:
            self.all_is_read.set()
            if self._rest_is_due:
                self._rest_is_due = False
                self.show_rest()
            for channel, socket in tuple(self._sockets.items()):
                if channel is not Channel.IOPUB or not self._held_back:
                    socket.resume()

    def show_rest(self) -> None:
        """Deliver the text that was held back to be masked: the kernel has ended."""
        if self._fan.masker is None:
            return
        if self.large.current is not None:
            # A thread is using the masker.
            self._rest_is_due = True
            return
        for message in self._fan.masker.rest():
            self._fan.deliver(message)

    def pause(self) -> None:
        """Stop reading iopub, so that the kernel's output waits in the kernel's own memory."""
        self._held_back = True
        if socket := self._sockets.get(Channel.IOPUB):
            socket.pause()

    def resume(self) -> None:
        """Read iopub again after `pause`."""
        self._held_back = False
        self._resumed_at = self._time()
        if self.large.current is None and (socket := self._sockets.get(Channel.IOPUB)):
            socket.resume()

    def close(self) -> None:
        """Drop the waiting messages, and the one being read."""
        self._waiting.clear()
        self._questions.close()
        self.large.close()
        self.all_is_read.set()


class KernelConnection:
    """The four channels of one kernel. Use it only on the loop's thread, from `open` to `close`.

    `session`: its identity; a kernel answers the asking one, even after another gateway has taken over.
    `owner`: the principal whose code the kernel runs and whose part of memory its messages take. `prefix`: of
    the kernel's sockets' paths, if any. `places`: the loop's, for output of programs, and last words.
    """

    def __init__(
        self,
        info: Mapping[str, Any],
        *,
        session: str = "",
        kernel_id: str = "",
        reception: Reception | None = None,
    ) -> None:
        self.session = session or uuid.uuid4().hex
        self.owner = Owner()
        self.prefix: str | None = info.get("ip")
        self.key = as_bytes(info["key"])
        self._info = dict(info)
        self._signer = Signer(self.key)
        self._sockets: dict[Channel, ChannelSocket] = {}
        self._reception, self._owned = (Reception(), True) if reception is None else (reception, False)
        self.places = self._reception.places
        self.fan = Fan(kernel_id)
        self.last_sent = LastSent()
        large = LargeMessages(self._reception, self._signer, self.owner, kernel_id)
        self.intake = Intake(
            large, self._reception.policy, self._sockets, self.fan, self.last_sent, kernel_id
        )
        # Offer these methods of its parts as its own.
        self.listen, self.follow = self.fan.listen, self.fan.follow
        self.pause, self.resume = self.intake.pause, self.intake.resume
        self.show_rest, self.note_received = self.intake.show_rest, self.last_sent.note_kept

    @property
    def closed(self) -> bool:
        """Whether the sockets are gone (or not made yet)."""
        return not self._sockets

    @property
    def received_at(self) -> float:
        """The time, by the loop's clock, at which the kernel last sent something."""
        return self.intake.received_at

    def open(self) -> None:
        """Connect all channels; the kernel may bind its side later."""
        try:
            for channel in Channel:
                self._sockets[channel] = self.open_channel(channel, partial(self.intake.receive, channel))
        except BaseException:
            self.close()
            raise

    def open_channel(self, channel: Channel, receive: Receiver) -> ChannelSocket:
        """Return a socket to the kernel's side of a channel; ``testing`` overrides this for fake kernels."""
        policy, budget = self._reception.policy, self.intake.large.budget
        most, most_next = policy.most_bytes(channel), partial(policy.most_next, channel)
        return open_socket(self._info, channel, self.session, receive, most, budget, most_next)

    def close(self) -> None:
        """Close the sockets and forget the listeners. Idempotent."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
        self.fan.close()
        self.intake.close()
        if self._owned:
            self._reception.close()

    @property
    def masks(self) -> bool:
        """Whether values of secrets are masked in the kernel's messages."""
        return self.fan.masker is not None

    def mask(self, masker: MessageMasker) -> None:
        """Mask values of secrets in all messages from now on, before any listener receives them."""
        self.fan.masker = masker

    async def tell_undelivered(self, messages: Iterable[Message]) -> None:
        """Deliver messages from the kernel's spool, after all that did arrive; in turns with others."""
        await self.intake.all_is_read.wait()
        for message in messages:
            if (place := self.places.take()) is not None:
                await place
            self.fan.tell(message)

    async def tell_unsent(self, unsent: Iterable[LastText]) -> None:
        """Deliver text that the kernel could no longer send, after all text that it did send."""
        await self.tell_undelivered(map(self._message_of, unsent))
        self.show_rest()

    def _message_of(self, unsent: LastText) -> Message:
        content = {"name": unsent.name, "text": unsent.text}
        message = new_message(Channel.IOPUB, "stream", content, session=self.session)
        return structs.replace(message, parent_frame=unsent.parent, parent=read_header(unsent.parent))

    def send(self, message: Message) -> None:
        """Send to the message's channel without waiting. Raises KernelDied when that can't be done."""
        socket = self._sockets.get(message.channel)
        if socket is None:
            raise KernelDied("The kernel is gone; the session's next execution gets a fresh one.")
        socket.send(self._signer.serialize(message))
        for listener in self.fan.listeners:
            if listener.sent is not None:
                try:
                    listener.sent(message)
                except Exception as error:  # noqa: BLE001 - it is logged, and the others get the message
                    self.fan.note_failure(listener, message, error)

    def request(self, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> str:
        """Send a new message of our own; return its msg_id."""
        message = new_message(channel, msg_type, content, session=self.session)
        self.send(message)
        return message.header.msg_id

    def ask(self, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> asyncio.Future[Message]:
        """Send a request and return a future of the kernel's answer. Cancel it to stop listening."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        msg_id = self.request(channel, msg_type, content)

        def receive(message: Message) -> None:
            if message.channel is channel and not answer.done():
                answer.set_result(message)

        stop = self.follow(msg_id, receive)
        answer.add_done_callback(lambda _: stop())
        return answer

    def rest(self, seconds: float) -> None:
        """Leave the kernel's output unread until the next reply or for `seconds`, to read both together."""
        if socket := self._sockets.get(Channel.IOPUB):
            socket.rest(seconds)

    def wake(self) -> None:
        """Receive everything that has arrived, now."""
        for socket in tuple(self._sockets.values()):
            socket.wake()
