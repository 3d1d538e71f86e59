"""ZeroMQ's wire protocol for a client of one local socket: bytes in, messages out, and back.

Pure: no sockets and no clock; ``sockets`` reads and writes. Only what a kernel's own sockets need is here:
the NULL mechanism and the socket types DEALER and SUB. What frames mean is known to ``messages``.
Source: ZeroMQ RFC 23, "ZMTP 3.0" (https://rfc.zeromq.org/spec/23/).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.errors import CellgateError

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
"""A longer message is passed over: whoever runs code in a kernel can send what he likes."""
MAX_FRAMES = 100_000

_SIGNATURE = b"\xff\0\0\0\0\0\0\0\0\x7f"
_MECHANISM = b"NULL".ljust(20, b"\0")
_GREETING_SIZE = 64
_MORE, _LONG, _COMMAND = 1, 2, 4
_SMALL_REST = 64 * 1024
"""A frame that lacks no more than this many bytes waits in the buffer; a greater one is gathered apart."""


class ProtocolError(CellgateError):
    """The other side does not speak ZMTP 3 with the NULL mechanism."""

    reason = "protocol_error"


SUBSCRIPTION = b"\0\x01\x01"
"""A SUB's first message once the other side is ready: it wants everything."""


def hello(socket_type: bytes, identity: bytes = b"") -> bytes:
    """What a client says first: greeting and READY. Messages may follow when the other side is ready too."""
    ready = b"\x05READY" + _property(b"Socket-Type", socket_type)
    if identity:
        ready += _property(b"Identity", identity)
    return _SIGNATURE + b"\x03\0" + _MECHANISM + bytes(32) + bytes((_COMMAND, len(ready))) + ready


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def encode(frames: Sequence[bytes]) -> bytes:
    """One message as it goes over the wire."""
    parts: list[bytes] = []
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        size, flags = len(frame), _MORE if number < last else 0
        if size < 256:
            parts.append(bytes((flags, size)))
        else:
            parts.append(bytes((flags | _LONG,)) + size.to_bytes(8, "big"))
        parts.append(frame)
    return b"".join(parts)


class Decoder:
    """Cuts what was received into messages. `feed` it, then take messages until there is none.

    `ready`: whether the other side has said that it is, and takes messages.
    """

    def __init__(self) -> None:
        self.ready = False
        self._buffer = b""
        self._position = 0
        self._greeted = False
        self._frames: list[bytes] = []
        self._size = 0
        self._too_long = False
        # Of a great frame: its flags, what is there of it (None: passed over), and how many bytes lack.
        self._flags = 0
        self._gathered: bytearray | None = None
        self._lacking = 0

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        if self._lacking:
            part = data[: self._lacking]
            self._lacking -= len(part)
            if self._gathered is not None:
                self._gathered += part
            data = data[len(part) :]
        rest = self._buffer[self._position :]
        self._buffer = rest + data if rest else data
        self._position = 0

    def next(self) -> list[bytes] | None:
        """The frames of the next whole message, none if it was too long; None when more must be received.

        Raises ProtocolError.
        """
        if self._lacking or not (self._greeted or self._greet()):
            return None
        if self._flags & _LONG:
            flags, self._flags = self._flags, 0
            frame = b"" if self._gathered is None else bytes(self._gathered)
            self._gathered = None
            if (message := self._add(flags, frame)) is not None:
                return message
        buffer, end = self._buffer, len(self._buffer)
        while (start := self._position + 2) <= end:
            flags, size = buffer[start - 2], buffer[start - 1]
            if flags & _LONG:
                start += 7
                if start > end:
                    break
                size = int.from_bytes(buffer[start - 8 : start], "big")
            if start + size > end:
                if start + size - end > _SMALL_REST:
                    self._gather(flags | _LONG, start, size)
                break
            self._position = start + size
            if (message := self._add(flags, buffer[start : start + size])) is not None:
                return message
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
        self._flags = flags
        self._too_long = self._too_long or self._size + size > MAX_MESSAGE_BYTES
        self._gathered = None if self._too_long else bytearray(self._buffer[start:])
        self._lacking = start + size - len(self._buffer)
        self._buffer, self._position = b"", 0

    def _add(self, flags: int, frame: bytes) -> list[bytes] | None:
        """Add a frame to the message; the message if it is whole."""
        if flags & _COMMAND:
            # Of PING and the like a kernel's libzmq sends none unless it is told to.
            self.ready = self.ready or frame.startswith(b"\x05READY")
            return None
        frames = self._frames
        frames.append(frame)
        self._size += len(frame)
        if self._size > MAX_MESSAGE_BYTES or len(frames) > MAX_FRAMES:
            self._too_long = True
        if self._too_long:
            frames.clear()
        if flags & _MORE:
            return None
        self._frames, self._size, self._too_long = [], 0, False
        return frames
