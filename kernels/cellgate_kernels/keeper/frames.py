"""The frames between the gateway and the keeper of a kernel's sandbox, shared by ``programs`` and ``ports``.

A frame is its kind, the size of its payload, and the payload. ``inside/programs.py`` describes the protocol.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

HEAD: Final = struct.Struct(">BI")
NUMBER: Final = struct.Struct(">I")
MOST_REASON: Final = 256
"""The largest payload of a `FAILED` frame in bytes."""


class ToKeeper(IntEnum):
    """The kinds of frames that the gateway sends."""

    START = 1
    INPUT = 2
    END_OF_INPUT = 3
    SIGNAL = 4
    TERMINATE = 5
    CONNECT = 6
    KEEP = 7
    ALONE = 8
    HOLD = 9
    JOIN = 10


class FromKeeper(IntEnum):
    """The kinds of frames that the keeper sends."""

    STARTED = 33
    FAILED = 34
    STDOUT = 35
    STDERR = 36
    EXITED = 37
    SIGNALLED = 38
    TAKEN = 39
    CONNECTED = 40


def frame(kind: ToKeeper, payload: bytes = b"") -> bytes:
    """Return a frame for the keeper."""
    return HEAD.pack(kind, len(payload)) + payload
