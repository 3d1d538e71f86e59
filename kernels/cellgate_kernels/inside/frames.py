"""The frames between the gateway and a sandbox's keeper, for ``programs`` and ``ports``.

A frame is its kind, the size of what follows, and that. ``programs`` has the protocol. The gateway's half,
``cellgate_kernels/keeper/frames.py``, has the same values.
"""

import select
import struct

HEAD = struct.Struct(">BI")
NUMBER = struct.Struct(">I")
START, INPUT, END_OF_INPUT, SIGNAL, TERMINATE, CONNECT, KEEP, ALONE, HOLD, JOIN = range(1, 11)
STARTED, FAILED, STDOUT, STDERR, EXITED, SIGNALLED, TAKEN, CONNECTED = range(33, 41)
READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
"""What poll(2) reports when something can be read, be it an end."""


class Broken(Exception):
    """The other side does not keep to the protocol, or is gone."""


def split(payload):
    """Return the strings of a message, each with its length before it. Raises Broken."""
    words = []
    at = 0
    while at < len(payload):
        if at + NUMBER.size > len(payload):
            raise Broken
        (size,) = NUMBER.unpack_from(payload, at)
        at += NUMBER.size
        if at + size > len(payload):
            raise Broken
        words.append(payload[at : at + size])
        at += size
    return words
