"""ZeroMQ's wire protocol for a client of one local socket: bytes in, messages out, and back.

Pure: ``sockets`` reads and writes. It has only the parts for a kernel's own sockets: the NULL mechanism and
the socket types DEALER and SUB. Source: ZeroMQ RFC 23, "ZMTP 3.0" (https://rfc.zeromq.org/spec/23/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import cast

from cellgate_kernels.base.budget import PartOfBudget, ReceiveBudget
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.resources import MIB

MOST_BYTES = 64 * MIB
MOST_FRAMES = 10_032
"""Most frames of a message; longer ones are passed over, because code in a kernel can send anything."""
NOT_COPIED = 1024 * 1024
FRAME_COST = 64
"""Bytes of memory that a frame takes in addition to its content."""

_SIGNATURE = b"\xff\0\0\0\0\0\0\0\0\x7f"
_MECHANISM = b"NULL".ljust(20, b"\0")
_GREETING_SIZE = 64
_MORE, _LONG, _COMMAND = 1, 2, 4
_SMALL_REST = 64 * 1024
"""A frame with at most this many bytes missing waits in the buffer; a larger one is gathered separately."""
MOST_IDLE_FRAMES = 1_000_000
"""Most frames in a row of which nothing is kept; a peer that sends more is not a kernel."""
_FRAMES_AT_ONCE = 1024
_HEAD_FRAMES = 8
_HEAD_BYTES = 512 * 1024
"""Most bytes kept of a message that is passed over: its first frames, which show its kind."""


class ProtocolError(CellgateError):
    """The other side does not speak ZMTP 3 with the NULL mechanism, or sends nothing with it."""

    reason = "protocol_error"


SUBSCRIPTION = b"\0\x01\x01"
"""A SUB's first message once the other side is ready: subscribe to everything."""


def hello(socket_type: bytes, identity: bytes = b"") -> bytes:
    """Return a client's greeting and READY. Messages may follow when the other side is ready too."""
    ready = b"\x05READY" + _property(b"Socket-Type", socket_type)
    if identity:
        ready += _property(b"Identity", identity)
    return _SIGNATURE + b"\x03\0" + _MECHANISM + bytes(32) + bytes((_COMMAND, len(ready))) + ready


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def encode(frames: Sequence[bytes]) -> bytes:
    """Return one message in wire format."""
    return b"".join(_parts(frames))


def encode_parts(frames: Sequence[bytes]) -> Sequence[bytes]:
    """Yield one message in wire format, part by part; a frame of `NOT_COPIED` bytes is a part as it is."""
    grouped = groupby(_parts(frames), lambda part: len(part) >= NOT_COPIED)
    return [part for is_long, group in grouped for part in (group if is_long else (b"".join(group),))]


def _parts(frames: Sequence[bytes]) -> list[bytes]:
    parts: list[bytes] = []
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        size, flags = len(frame), _MORE if number < last else 0
        if size < 256:
            parts.append(bytes((flags, size)))
        else:
            parts.append(bytes((flags | _LONG,)) + size.to_bytes(8, "big"))
        parts.append(frame)
    return parts


class Decoder:
    """Splits received data into messages. `feed` it, then take messages until there are none.

    A message of more than `most_bytes`, or of more than MOST_FRAMES, is passed over once that is known: a
    frame's length is announced before its bytes. So is a message with a frame longer than `most_next` allows
    after the frames before it, and one for which the `budget` for unfinished bytes has no room. More than
    MOST_IDLE_FRAMES frames of such messages and commands, before a message ends, are a ProtocolError.

    `ready`: whether the other side accepts messages. `received`: the bytes of the message that `next` has
    just returned; `left_out`: how many of them were passed over. `more`: whether `next` returned None before
    looking at all the data, to let others have their turn.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        budget: ReceiveBudget | PartOfBudget | None = None,
        most_next: Callable[[Sequence[bytes]], int] | None = None,
    ) -> None:
        self.ready = False
        self.received = 0
        self.left_out = 0
        self.more = False
        self._most_bytes = most_bytes
        self._most_next = most_next
        self._budget: ReceiveBudget | PartOfBudget = ReceiveBudget() if budget is None else budget
        self._buffer = b""
        self._position = 0
        self._greeted = False
        self._frames: list[bytes] = []
        self._size = 0
        self._passed_over = False
        self._idle = 0
        self._held = 0
        # A large frame: its flags, its bytes so far (None: passed over), and how many bytes are missing.
        self._flags = 0
        self._gathered: bytearray | None = None
        self._gathered_size = 0
        self._missing = 0

    def feed(self, data: bytes) -> None:
        """Add received data to the messages being read."""
        if self._missing:
            part = data[: self._missing]
            self._missing -= len(part)
            if self._gathered is not None:
                self._gathered += part
            data = data[len(part) :]
        rest = self._buffer[self._position :]
        self._buffer = rest + data if rest else data
        self._position = 0

    def next(self) -> list[bytes] | None:
        """Return the frames of the next complete message, or the first of one that was passed over (see
        `left_out`); None when more must be received, or there is `more`.

        Raises ProtocolError.
        """
        self.more = False
        message = None
        if not self._missing and (self._greeted or self._greet()):
            if self._flags & _LONG:
                message = self._add_gathered()
            if message is None:
                message = self._next()
        if self._frames or self._gathered is not None or self._held:
            self._account()
        return message

    def _next(self) -> list[bytes] | None:
        """Return the next message that is whole in the buffer; None if there is none."""
        buffer, end = self._buffer, len(self._buffer)
        # Limited, because frames can be two bytes long and never complete a message.
        for _ in range(_FRAMES_AT_ONCE):
            start = self._position + 2
            if start > end:
                return None
            flags, size = buffer[start - 2], buffer[start - 1]
            if flags & _LONG:
                start += 7
                if start > end:
                    return None
                size = int.from_bytes(buffer[start - 8 : start], "big")
            if start + size > end:
                if start + size - end > _SMALL_REST:
                    self._gather(flags | _LONG, start, size)
                return None
            self._position = start + size
            if flags == _MORE and not self._passed_over and len(self._frames) < MOST_FRAMES:
                # As in `_add`, at half the cost: six of the seven frames of a typical message come this way.
                self._size += size
                if self._size <= self._most_bytes:
                    self._frames.append(buffer[start : start + size])
                    continue
                self._size -= size
            if (message := self._add(flags, buffer[start : start + size], size)) is not None:
                return message
        self.more = True
        return None

    def _greet(self) -> bool:
        greeting = self._buffer[:_GREETING_SIZE]
        if len(greeting) < _GREETING_SIZE:
            return False
        if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3 or greeting[12:32] != _MECHANISM:
            raise ProtocolError("A kernel's socket does not speak ZMTP 3 with the NULL mechanism")
        self._position = _GREETING_SIZE
        self._greeted = True
        return True

    def _gather(self, flags: int, start: int, size: int) -> None:
        self._flags, self._gathered_size = flags, size
        if flags & _COMMAND:
            self._gathered = None  # READY is short, and no other command concerns us
        elif not self._passed_over and size > self._room():
            self._pass_over()
        elif not self._passed_over:
            self._gathered = bytearray(self._buffer[start:])
        self._missing = start + size - len(self._buffer)
        self._buffer, self._position = b"", 0

    def _room(self) -> int:
        """Return the most bytes that the next frame may have."""
        room = self._most_bytes - self._size
        return room if self._most_next is None else min(room, self._most_next(self._frames))

    def _add_gathered(self) -> list[bytes] | None:
        flags, self._flags = self._flags, 0
        # Not copied, to save time: nothing changes it any more, and it reads like bytes.
        frame = b"" if self._gathered is None else cast("bytes", self._gathered)
        self._gathered = None
        return self._add(flags, frame, self._gathered_size)

    def _add(self, flags: int, frame: bytes, size: int) -> list[bytes] | None:
        """Add a frame of `size` bytes to the message; returns the message if it is complete."""
        if flags & _COMMAND:
            # Unless configured, a kernel's libzmq sends no PING or other commands.
            self.ready = self.ready or frame.startswith(b"\x05READY")
            self._note_idle()
            return None
        frames = self._frames
        self._size += size
        if not self._passed_over:
            frames.append(frame)
            if self._size > self._most_bytes or len(frames) > MOST_FRAMES:
                del frames[-1]
                self._pass_over()
        if flags & _MORE:
            if self._passed_over:
                self._note_idle()
            return None
        self._idle = 0
        self.received = self._size
        self.left_out = max(1, self._size - sum(map(len, frames))) if self._passed_over else 0
        self._frames, self._size, self._passed_over = [], 0, False
        return frames

    def _note_idle(self) -> None:
        self._idle += 1
        if self._idle > MOST_IDLE_FRAMES:
            raise ProtocolError(f"More than {MOST_IDLE_FRAMES} frames came that belong to no message")

    def _pass_over(self) -> None:
        """Keep only the head of this message, up to the first frame that is long itself."""
        self._passed_over = True
        self._gathered = None
        del self._frames[_HEAD_FRAMES:]
        long = next((i for i, frame in enumerate(self._frames) if len(frame) > _HEAD_BYTES), _HEAD_FRAMES)
        del self._frames[long:]

    # The part of an incomplete message that is kept counts against the budget of all kernels.

    def _account(self) -> None:
        held = 0
        if not self._passed_over:
            held = self._size + len(self._gathered or b"") + FRAME_COST * len(self._frames)
        if held != self._held:
            self._held = held
            if held:
                self._budget.hold(self, held)
            else:
                self._budget.release(self)

    def give_up(self) -> None:
        """Called by the budget: pass over the incomplete message."""
        self._held = 0
        self._pass_over()

    def close(self) -> None:
        """Drop the buffered data: no more will come."""
        self._budget.release(self)
        self._held = 0
        self._frames, self._gathered = [], None
