"""The frames between the gateway and the keeper of a sandbox, for ``programs`` and ``ports``: constants alone.

A frame is its kind, the size of what follows, and that. ``programs`` tells the protocol. The gateway's half is
``cellgate_kernels/frames.py``, with the same values.
"""

import select
import struct

HEAD = struct.Struct(">BI")
NUMBER = struct.Struct(">I")
START, INPUT, END_OF_INPUT, SIGNAL, TERMINATE, CONNECT, KEEP, ALONE, HOLD, JOIN = range(1, 11)
STARTED, FAILED, STDOUT, STDERR, EXITED, SIGNALLED, TAKEN, CONNECTED = range(33, 41)
READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
"""What poll(2) reports when something can be read, be it an end."""
