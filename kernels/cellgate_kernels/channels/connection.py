"""One kernel's four channels on the server's event loop: one reader each, many listeners.

It signs what it sends, checks what it receives, and delivers every message, in order, to the listeners and to
the follower of the request that it answers. A message over its limit is delivered without its content. A
large one is read in a thread of ``reception``, and the kernel's other messages wait for it; those of other
kernels do not. If a listener fails, that is logged and the other listeners still get the message. This is not
a client of the protocol: ``execution`` and the gateway know what a request means. It talks to ``messages``
and to ``sockets``; ``kernel`` owns it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from msgspec import structs

from cellgate_kernels.base.budget import Owner
from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.places import Places
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.channels.reception import Reception, Share
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
from cellgate_kernels.protocol.policy import SMALL_BYTES, SMALL_FRAMES
from cellgate_kernels.protocol.unsent import LastText
from cellgate_kernels.protocol.waiting_questions import WaitingQuestions

logger = logging.getLogger(__name__)

_MOST_PROCESSES = 64
"""Processes of a kernel's whose latest text is known."""
MOST_RECENT = 256
"""Messages with output of a kernel's, the latest, whose ids are known."""
_LONGEST_ID = 200
"""Characters; longer ids are not remembered."""

Listener = Callable[[Message], None]
Room = Callable[[Message], int]
"""How many bytes of a message's content a listener would read; the content itself is not here yet."""


@dataclass(frozen=True, slots=True)
class _Attendant:
    """Who receives messages, and how. `types`: only these; None for all."""

    received: Listener
    sent: Listener | None = None
    room: Room | None = None
    failed: Callable[[Exception], None] | None = None
    types: frozenset[str] | None = None


class _Reading:
    """A large message being read in a thread, as a holder in the budget that all kernels share."""

    def __init__(self, channel: Channel, frames: Sequence[bytes], size: int) -> None:
        self.channel = channel
        self.frames = frames
        self.size = size
        self.is_masked = False
        """Whether values of secrets are replaced in that thread."""
        self.future: Future[Message | None] | None = None

    def give_up(self) -> None:
        """Don't read it, unless it is being read already."""
        if self.future is not None:
            self.future.cancel()


class KernelConnection:
    """The four channels of one kernel. Use it only on the loop's thread, from `open` to `close`.

    Counters: `malformed` messages, those `passed_over` because they exceed a limit, and `failures` of
    listeners. `kernel_id` is for the log.
    """

    def __init__(
        self,
        info: Mapping[str, Any],
        *,
        session: str = "",
        kernel_id: str = "",
        reception: Reception | None = None,
    ) -> None:
        # A kernel answers the identity that asked, so taking over another gateway's cell requires the same.
        self.session = session or uuid.uuid4().hex
        self.malformed = 0
        self.passed_over = 0
        self.failures = 0
        self.received_at = -inf
        """When the kernel last sent something, by the loop's clock."""
        self._kernel_id = kernel_id
        self._reception, self._owned = (Reception(), True) if reception is None else (reception, False)
        self._share, self._share_of = Share(), ""
        self.owner = Owner()
        """Whose code the kernel runs: what its messages hold in memory is that principal's part."""
        self._budget = self._reception.budget.part(self.owner)
        self._loop = asyncio.get_running_loop()
        self._reading: _Reading | None = None
        self._all_is_read = asyncio.Event()
        self._all_is_read.set()
        self._waiting: deque[tuple[Channel, list[bytes], int]] = deque()
        self._held_back = False
        self._resumed_at = -inf
        self._info = dict(info)
        self._signer = Signer(as_bytes(info["key"]))
        self._sockets: dict[Channel, ChannelSocket] = {}
        # A tuple, replaced on every change: a message goes to those that were listening when it arrived.
        self._listeners: tuple[_Attendant, ...] = ()
        self._followers: dict[str, _Attendant] = {}
        self._masker: MessageMasker | None = None
        self._rest_is_due = False
        # By the process that made them, as ipykernel numbers messages: a cell's forks send text, too.
        self._latest_texts: dict[str, str] = {}
        self._recent: deque[str] = deque(maxlen=MOST_RECENT)
        self._questions = WaitingQuestions(self._tell, self._quiet)

    @property
    def prefix(self) -> str | None:
        """The prefix of the paths of the kernel's sockets; None if it has none."""
        return self._info.get("ip")

    @property
    def key(self) -> bytes:
        """The key that its messages are signed with."""
        return as_bytes(self._info["key"])

    @property
    def places(self) -> Places:
        """The loop's places for what all kernels' programs say, and for the last words of dead kernels."""
        return self._reception.places

    @property
    def closed(self) -> bool:
        """Whether the sockets are gone (or not made yet)."""
        return not self._sockets

    def open(self) -> None:
        """Connect all channels; the kernel may bind its side later."""
        try:
            for channel in Channel:
                self._sockets[channel] = self.open_channel(channel, partial(self._receive, channel))
        except BaseException:
            self.close()
            raise

    def open_channel(self, channel: Channel, receive: Receiver) -> ChannelSocket:
        """Return a socket to the kernel's side of a channel; ``testing`` overrides this for fake kernels."""
        return open_socket(
            self._info,
            channel,
            self.session,
            receive,
            self._reception.policy.most_bytes(channel),
            self._budget,
            partial(self._reception.policy.most_next, channel),
        )

    def close(self) -> None:
        """Close the sockets and forget the listeners. Idempotent."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
        self._listeners = ()
        self._followers.clear()
        self._waiting.clear()
        self._questions.close()
        if self._reading is not None:
            self._budget.release(self._reading)
            self._reading.give_up()
            self._reading = None
        self._all_is_read.set()
        if self._owned:
            self._reception.close()

    def listen(
        self,
        received: Listener,
        sent: Listener | None = None,
        *,
        room: Room | None = None,
        types: frozenset[str] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> Callable[[], None]:
        """Call `received` with each message from the kernel, or those of these `types`; `sent` with each one
        sent to it.

        Listeners run on the loop, must be quick and should not raise; `failed` is called if one does. `room`
        is asked before a large message is decoded, with its headers only; without it a large message comes
        with its content unread. Returns a function that stops listening.
        """
        attendant = _Attendant(received, sent, room, failed, types)
        self._listeners = (*self._listeners, attendant)

        def stop() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not attendant)

        return stop

    def follow(
        self,
        msg_id: str,
        received: Listener,
        *,
        room: Room | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> Callable[[], None]:
        """Pass messages that answer the request of this id to `received`, after the listeners.

        A request has one follower; a later one replaces it.
        """
        follower: _Attendant | None
        self._followers[msg_id] = follower = _Attendant(received, None, room, failed)

        def stop() -> None:
            nonlocal follower
            if follower is not None and self._followers.get(msg_id) is follower:
                del self._followers[msg_id]
            # Who follows usually keeps this function. If it kept the follower in turn, the two would form a
            # cycle, and each cell would leave some thirty objects to the garbage collector.
            follower = None

        return stop

    @property
    def masks(self) -> bool:
        """Whether values of secrets are replaced in what the kernel sends."""
        return self._masker is not None

    def mask(self, masker: MessageMasker) -> None:
        """Replace values of secrets in all messages from now on, before anybody receives them."""
        self._masker = masker

    def show_rest(self) -> None:
        """Deliver the text that was held back to be masked: the kernel has ended."""
        if self._masker is None:
            return
        if self._reading is not None:
            # A thread is using the masker.
            self._rest_is_due = True
            return
        for message in self._masker.rest():
            self._deliver(message)

    @property
    def latest_texts(self) -> frozenset[str]:
        """The ids of the latest messages with text, one for each process of the kernel's that sent some."""
        return frozenset(self._latest_texts.values())

    @property
    def recent(self) -> tuple[str, ...]:
        """The ids of the latest messages on iopub, `MOST_RECENT` at the most."""
        return tuple(self._recent)

    def note_received(self, messages: Iterable[Message]) -> None:
        """Note messages that were received in another way: the kernel had kept them."""
        for message in messages:
            process, _, number = message.header.msg_id.rpartition("_")
            latest = self._latest_texts.get(process, "").rpartition("_")[2]
            if message.msg_type != "stream" or (len(number), number) > (len(latest), latest):
                self._note(message)

    async def tell_undelivered(self, messages: Iterable[Message]) -> None:
        """Deliver messages that the kernel had kept, after all that did arrive; in turns with others."""
        await self._all_is_read.wait()
        for message in messages:
            if (place := self.places.take()) is not None:
                await place
            self._tell(message)

    async def tell_unsent(self, unsent: Iterable[LastText]) -> None:
        """Deliver text that the kernel could not send any more, as if it had, after all that it did send."""
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
        for listener in self._listeners:
            if listener.sent is not None:
                try:
                    listener.sent(message)
                except Exception as error:  # noqa: BLE001 - it is logged, and the others get the message
                    self._note_failure(listener, message, error)

    def request(self, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> str:
        """Send a new message of our own; returns its msg_id."""
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

    def pause(self) -> None:
        """Stop reading iopub, so that the kernel's output waits in the kernel's own memory."""
        self._held_back = True
        if socket := self._sockets.get(Channel.IOPUB):
            socket.pause()

    def resume(self) -> None:
        """Read iopub again after `pause`."""
        self._held_back = False
        self._resumed_at = self._loop.time()
        if self._reading is None and (socket := self._sockets.get(Channel.IOPUB)):
            socket.resume()

    def _receive(self, channel: Channel, frames: list[bytes], left_out: int = 0) -> None:
        self.received_at = self._loop.time()
        if self._reading is None and (channel is Channel.SHELL or channel is Channel.STDIN):
            # Output that was sent before a reply or a question is received before it.
            self._sockets[Channel.IOPUB].wake()
        if self._reading is not None:
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
        self._note(message)
        if channel is Channel.STDIN and self._questions.takes(message, self._recent):
            return
        if self._masker is None:
            self._deliver(message)
        else:
            self._tell(message)
        if self._questions.waiting:
            self._questions.go_on(self._recent)

    def _quiet(self) -> float:
        """Return the seconds for which nothing has come; 0 while something is unread or being read."""
        if self._held_back or self._reading is not None:
            return 0.0
        return self._loop.time() - max(self.received_at, self._resumed_at)

    def _note(self, message: Message) -> None:
        """Remember which messages with output have come, should the kernel die."""
        msg_id = message.header.msg_id
        if message.channel is not Channel.IOPUB or len(msg_id) > _LONGEST_ID:
            return
        self._recent.append(msg_id)
        if message.header.msg_type == "stream":
            process = msg_id.rpartition("_")[0]
            if process not in self._latest_texts and len(self._latest_texts) >= _MOST_PROCESSES:
                del self._latest_texts[next(iter(self._latest_texts))]
            self._latest_texts[process] = msg_id

    def _note_malformed(self, error: MalformedMessage) -> None:
        self.malformed += 1
        if self.malformed == 1:
            logger.warning("Dropped a malformed message of kernel %s: %s", self._kernel_id, error.message)

    def _larger(self, channel: Channel, frames: list[bytes], size: int, left_out: int) -> Message | None:
        """Return a message that may exceed its limit; None when it is large and will be delivered later."""
        routed = self._signer.route(channel, frames, size + left_out)
        parts = frames[frames.index(DELIMITER) + 2 :]
        policy, msg_type = self._reception.policy, routed.header.msg_type
        if left_out or len(parts) < 4 or not policy.allows(channel, msg_type, parts):
            return self._pass_over(routed)
        content = parts[3]
        if size <= INLINE_BYTES and not is_heavy(content):
            return self._signer.parse(channel, frames)
        self._note(routed)
        rooms = [each.room(routed) for each in self._attendants(routed) if each.room is not None]
        room = max(rooms, default=0)
        if self._masker is not None and routed.msg_type == "stream":
            # A value may be anywhere in the text, also where nobody would read it.
            room = sys.maxsize
        self._begin_reading(_Reading(channel, frames, size), room)
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

    def _begin_reading(self, reading: _Reading, room: int) -> None:
        """Read it in a thread. Until then no other message of this kernel is read, to keep their order."""
        self._reading = reading
        self._all_is_read.clear()
        for socket in self._sockets.values():
            socket.pause()
        # Nothing else of this kernel is read in the meantime, so the masker is used by one thread at a time.
        mask = None if self._masker is None else self._masker.mask
        reading.is_masked = mask is not None
        if self._share_of != self.owner.name:
            self._share_of = self.owner.name
            self._share = self._reception.share(self._share_of)
        reading.future = self._reception.read(
            self._share, self._signer, reading.channel, reading.frames, room, mask
        )
        self._budget.hold(reading, reading.size)
        reading.future.add_done_callback(partial(self._read, reading))

    def _read(self, reading: _Reading, _: Future[Message | None]) -> None:
        """Called in the thread when it has been read."""
        with suppress(RuntimeError):  # the loop is closed
            guarded_end = guarded(self._end_reading, "large message", kernel=self._kernel_id)
            self._loop.call_soon_threadsafe(guarded_end, reading)

    def _end_reading(self, reading: _Reading) -> None:
        self._budget.release(reading)
        # The future references the reading through its callback. Without this they would form a cycle, and
        # the whole message would stay in memory until the garbage collector runs, which counts objects and
        # not their bytes.
        future, reading.future = reading.future, None
        if self._reading is not reading or future is None:
            return  # closed in the meantime
        self._reading = None
        try:
            if future.cancelled() or isinstance(future.exception(), MemoryError):
                routed = self._signer.route(reading.channel, reading.frames, reading.size)
                message = self._pass_over(routed)
                self._tell(message)
            else:
                self._tell(future.result(), is_masked=reading.is_masked)
            if self._questions.waiting:
                self._questions.go_on(self._recent)
        except MalformedMessage as error:
            self._note_malformed(error)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Deliver the messages that waited for a large one."""
        while self._waiting and self._reading is None:
            self._receive(*self._waiting.popleft())
        if self._reading is None:
            self._all_is_read.set()
            if self._rest_is_due:
                self._rest_is_due = False
                self.show_rest()
            for channel, socket in tuple(self._sockets.items()):
                if channel is not Channel.IOPUB or not self._held_back:
                    socket.resume()

    def _attendants(self, message: Message) -> Iterator[_Attendant]:
        """Yield the listeners and the follower that a message is for."""
        for listener in self._listeners:
            if listener.types is None or message.header.msg_type in listener.types:
                yield listener
        if (follower := self._followers.get(message.parent.msg_id)) is not None:
            yield follower

    def _tell(self, message: Message | None, *, is_masked: bool = False) -> None:
        """Deliver a message, and before it what it ends the waiting of; None: nothing of it is shown yet.

        `is_masked`: what had to be replaced in it was replaced when it was read.
        """
        if self._masker is not None and message is not None:
            for earlier in self._masker.before(message):
                self._deliver(earlier)
            if not is_masked:
                message = self._masker.mask(message)
        if message is not None:
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        """Deliver a message to all who are to receive it; an error in one does not affect the others."""
        follower = self._followers.get(message.parent.msg_id)
        for listener in self._listeners if follower is None else (*self._listeners, follower):
            if listener.types is not None and message.header.msg_type not in listener.types:
                continue
            try:
                listener.received(message)
            except Exception as error:  # noqa: BLE001 - it is logged, and the others get the message
                self._note_failure(listener, message, error)

    def _note_failure(self, listener: _Attendant, message: Message, error: Exception) -> None:
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
