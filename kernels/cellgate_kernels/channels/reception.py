"""The common parts of all kernels' connections: limits, a budget of bytes, threads for large messages.

A gateway has one. A large message is checked and decoded in a thread of a small separate pool, so that
neither the loop nor other threads' work waits for it. A decoding thread holds the interpreter, so
``structure`` limits how large a message can be. ``connection`` decides which are large.

The worst message takes a thread seconds. So only one message above `LONG_BYTES` is read at a time: the other
thread is left for shorter ones. The kernel that has used the least time is next, so a kernel that rarely
sends waits for one message (start-time fair queueing: Goyal, Vin and Cheng, 1996).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from weakref import WeakValueDictionary

import msgspec
from msgspec import structs

from cellgate_kernels.base.budget import Owner, ReceiveBudget
from cellgate_kernels.base.places import FRAMES_A_TURN, Places
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.codec.structure import weigh
from cellgate_kernels.protocol.contents import with_plain_text
from cellgate_kernels.protocol.messages import (
    Channel,
    MalformedMessage,
    Message,
    Signer,
    is_utf8,
    read_content,
)
from cellgate_kernels.protocol.outputs import OutputCaps
from cellgate_kernels.protocol.policy import MessagePolicy
from cellgate_kernels.protocol.texts import read_text

THREADS = 2
LONG_BYTES = MIB
_KINDS = 8


class _Shown(msgspec.Struct):
    data: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


_shown = msgspec.json.Decoder(_Shown)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Share:
    """One principal's share of the threads. `used`: seconds, including time that it left unused."""

    used: float = 0.0


@dataclass(slots=True, eq=False)
class _Work:
    """A message to be read. `start`: at least the share's `used` when the message was queued."""

    share: Share
    start: float
    is_long: bool
    read: Callable[[], Message | None]

    @property
    def due(self) -> float:
        """The time that its share had used; the message with the least time is read next."""
        return max(self.start, self.share.used)


class Reception:
    """Limits and threads of reception. `policy`: of messages' sizes. `budget`: for bytes held unused.

    `places`: limits how many outputs of programs beside kernels are handled at once.
    """

    def __init__(self, caps: OutputCaps | None = None, *, most_held: int | None = None) -> None:
        self.places = Places(FRAMES_A_TURN)
        self.policy = MessagePolicy(OutputCaps() if caps is None else caps)
        largest = max(map(self.policy.most_bytes, Channel))
        # One message must fit, whatever the caps, plus another one that waits to be read.
        self.budget = ReceiveBudget() if most_held is None else ReceiveBudget(most_held)
        self.budget.total = max(self.budget.total, 2 * largest)
        self._threads = ThreadPoolExecutor(THREADS, "messages")
        self._lock = Lock()
        self._waiting: dict[Future[Message | None], _Work] = {}
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()
        self._start = 0.0
        self._long_is_read = False

    def share(self, owner: str) -> Share:
        """Return the share of all this principal's kernels; a new one for a kernel without a principal."""
        return self._shares.setdefault(owner, Share()) if owner else Share()

    def read(
        self,
        share: Share,
        signer: Signer,
        channel: Channel,
        frames: Sequence[bytes],
        room: int,
        mask: Callable[[Message], Message | None] | None = None,
    ) -> Future[Message | None]:
        """Read a large message in a thread, by `read_large`, and deliver what `mask` makes of it.

        A kernel has at most one in progress. Cancel the future to abandon one that is not being read yet.
        """
        is_long = sum(map(len, frames)) > LONG_BYTES
        future: Future[Message | None] = Future()
        with self._lock:
            # Unused time is not credited: otherwise a kernel could save it up and be first for long.
            start = max(self._start, share.used)
            read: Callable[[], Message | None] = partial(read_large, signer, channel, frames, room)
            if mask is not None:
                read = partial(_masked, read, mask)
            self._waiting[future] = _Work(share, start, is_long, read)
        future.add_done_callback(self._forget)
        self._threads.submit(self._read_waiting)
        return future

    def _forget(self, future: Future[Message | None]) -> None:
        """Drop an abandoned message: its bytes must not wait for a thread."""
        with self._lock:
            self._waiting.pop(future, None)

    def _read_waiting(self) -> None:
        """Read waiting messages in a thread, while one may be read now."""
        while self._read_next():
            pass

    def _read_next(self) -> bool:
        # A separate call, so that no local variable keeps the last message while the next one is read.
        found = self._next()
        if found is None:
            return False
        future, work = found
        begun = monotonic()
        try:
            message = work.read()
        except BaseException as error:  # noqa: BLE001 - any error goes to the future
            self._had(work, monotonic() - begun)
            future.set_exception(error)
        else:
            self._had(work, monotonic() - begun)
            future.set_result(message)
        return True

    def _next(self) -> tuple[Future[Message | None], _Work] | None:
        with self._lock:
            waiting = sorted(self._waiting.items(), key=lambda item: item[1].due)
            for future, work in waiting:
                if work.is_long and self._long_is_read:
                    continue
                del self._waiting[future]
                if future.set_running_or_notify_cancel():
                    work.start = work.due
                    self._start = max(self._start, work.start)
                    self._long_is_read = self._long_is_read or work.is_long
                    return future, work
            return None

    def _had(self, work: _Work, seconds: float) -> None:
        with self._lock:
            # Others of the same share may have been read at the same time.
            work.share.used = work.due + seconds
            if work.is_long:
                self._long_is_read = False

    def close(self, *, wait: bool = False) -> None:
        """End the threads after the messages being read; with `wait`, return only then."""
        for future in tuple(self._waiting):
            future.cancel()
        self._threads.shutdown(wait=wait, cancel_futures=True)


class LargeReading:
    """A large message being read in a thread, masked there if `is_masked`; it counts in the budget of all."""

    def __init__(self, channel: Channel, frames: Sequence[bytes], size: int, is_masked: bool) -> None:
        self.channel = channel
        self.frames = frames
        self.size = size
        self.is_masked = is_masked
        self.future: Future[Message | None] | None = None

    def give_up(self) -> None:
        """Abandon the message, unless it is being read already."""
        if self.future is not None:
            self.future.cancel()


Mask = Callable[[Message], Message | None]
"""Returns the part of a message that may be shown."""
ReadingEnd = Callable[[LargeReading, Future[Message | None]], None]


class LargeMessages:
    """The large messages of one kernel, of which one (`current`) is read at a time."""

    def __init__(self, reception: Reception, signer: Signer, owner: Owner, kernel_id: str) -> None:
        self.current: LargeReading | None = None
        self.signer = signer
        self.budget = reception.budget.part(owner)
        self._reception = reception
        self._owner = owner
        self._kernel_id = kernel_id
        self._share, self._share_of = Share(), ""
        self._loop = asyncio.get_running_loop()

    def begin(self, reading: LargeReading, room: int, mask: Mask | None, end: ReadingEnd) -> None:
        """Read a message; `end` gets it on the loop, unless this is closed before."""
        self.current = reading
        if self._share_of != self._owner.name:
            self._share_of = self._owner.name
            self._share = self._reception.share(self._share_of)
        reading.future = self._reception.read(
            self._share, self.signer, reading.channel, reading.frames, room, mask
        )
        self.budget.hold(reading, reading.size)
        reading.future.add_done_callback(partial(self._read, reading, end))

    def _read(self, reading: LargeReading, end: ReadingEnd, _: Future[Message | None]) -> None:
        """Hand a read message over to the loop; called in the thread."""
        with suppress(RuntimeError):  # the loop is closed
            guarded_end = guarded(self._end, "large message", kernel=self._kernel_id)
            self._loop.call_soon_threadsafe(guarded_end, reading, end)

    def _end(self, reading: LargeReading, end: ReadingEnd) -> None:
        self.budget.release(reading)
        # The future references the reading through its callback. Without this they would form a cycle, and
        # the whole message would stay in memory until the garbage collector runs, which counts objects and
        # not their bytes.
        future, reading.future = reading.future, None
        if self.current is reading and future is not None:
            self.current = None
            end(reading, future)

    def close(self) -> None:
        """Abandon the message being read."""
        if self.current is not None:
            self.budget.release(self.current)
            self.current.give_up()
            self.current = None


def _masked(read: Callable[[], Message | None], mask: Callable[[Message], Message | None]) -> Message | None:
    message = read()
    return None if message is None else mask(message)


def read_large(signer: Signer, channel: Channel, frames: Sequence[bytes], room: int) -> Message:
    """Return the message with decoded content; unread if it needs more than `room`, or is too complex.

    A stream's text is cut at `room` instead. Raises MalformedMessage as `Signer.parse` does.
    """
    message = signer.parse(channel, frames)
    message = structs.replace(message, is_text=is_utf8(message.content_frame))
    return with_plain_text(_read(message, room))


def _read(message: Message, room: int) -> Message:
    frame = message.content_frame
    if not room:
        return structs.replace(message, unread=True)
    try:
        if message.msg_type == "stream":
            stream = read_text(frame, room)
            return structs.replace(message, decoded=stream.content, weight=stream.size)
        if (weight := weigh(frame)) is None:
            return structs.replace(message, unread=True)
        if max(len(frame), weight) > room:
            return structs.replace(message, unread=True, kinds=_kinds(frame))
        return structs.replace(message, decoded=read_content(frame, message.msg_type), weight=weight)
    except MalformedMessage:
        return structs.replace(message, unread=True)


def _kinds(frame: bytes) -> tuple[str, ...]:
    """Return the first MIME types that a message shows, found without decoding their data."""
    try:
        return tuple(_shown.decode(frame).data)[:_KINDS]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
