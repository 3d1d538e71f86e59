"""The text that a kernel has written and perhaps not sent: its last words, should it die.

ipykernel sends text from a thread, a hundredth of a second later, and libzmq from another one. A kernel that
is killed in between takes with it what would say why. So each text is also put into a file that is mapped
into memory, which costs a fraction of a print and outlives the process, and so is which message sent it.
``kernels/cellgate_kernels/protocol/unsent.py`` reads the file once the kernel has ended.

The file has two halves, written in turn, so that the latest text is always there. Behind them it says how
many requests came: forks of a cell see there whether it is still the latest.
"""

import errno
import mmap
import os
import struct
import threading
from contextlib import suppress

SUFFIX = "-unsent"
HALF = 256 * 1024
LONGEST_PARENT = 4096
"""Bytes of a request's header; text of requests with longer ones is not kept."""

TURN = struct.Struct(">IQ")
"""Heads a half: how many halves were begun before it, and how many bytes of text were written before that.
Its records follow, up to a zero."""
RECORD = struct.Struct(">BI")
"""Heads a record: its kind, and how many bytes follow."""
LENGTH = struct.Struct(">I")
"""The second of these."""
SENT = struct.Struct(">QH")
"""A message that was sent: how many bytes of text were written before it was made, and the length of its id.
That id follows, then the id of the request that it answers."""
COUNT = struct.Struct(">Q")
"""Follows the halves: how many requests there were."""
PARENT = 1
TEXT = {"stdout": 2, "stderr": 3}
SENDS = {"stdout": 4, "stderr": 5}


def begin(app, streams, pack):
    """Keep what is written to these streams of a kernel's application from now on; None if it can't be kept.

    `pack`: writes a request's header as JSON.
    """
    if app.transport != "ipc":
        return None
    unsent = Unsent(app.ip, pack)
    for stream in streams:
        stream.unsent = unsent
    return unsent


class Unsent:
    """The file of one process; a fork of it has to make its own.

    `prefix`: the file's path is this and the suffix. `pack`: as of `begin`.
    """

    def __init__(self, prefix, pack):
        self.pack = pack
        self.process = os.getpid()
        # The handler of a signal may print in the middle of a print of its own thread.
        self.lock = threading.RLock()
        self.parent = None
        self.parent_record = b""
        self.turn = 0
        self.at = 0
        self.end = 0
        self.open_kind = 0
        """The kind of the last record, if that can grow."""
        self.open_at = 0
        self.text = 0
        """How many bytes of text were written so far."""
        self.taken = {}
        """How many of them were there when a stream's text was last taken to be sent, by its name."""
        self.requests = 0
        self.map = None
        with suppress(OSError, ValueError):
            self.map = make_file(prefix + SUFFIX)
            self.begin_half()

    def keep(self, name, parent, text):
        """Note that this text was written to a stream, for the request with this header."""
        if self.map is None:
            return
        try:
            data = text.encode()
        except UnicodeEncodeError:
            data = text.encode(errors="backslashreplace")
        with self.lock:
            if parent is not self.parent:
                self.set_parent(parent)
            end = self.at + len(data)
            if TEXT[name] == self.open_kind and end < self.end:
                # Most texts are a few bytes, and there are many of them.
                self.map[self.at : end] = data
                self.at = end
                LENGTH.pack_into(self.map, self.open_at, end - self.open_at - LENGTH.size)
                self.text += len(data)
            elif self.parent_record:
                self.keep_in_records(TEXT[name], data)

    def keep_in_records(self, kind, data):
        """Note a text that does not go into the last record."""
        longest = HALF // 4
        for at in range(0, len(data), longest):
            piece = data[at : at + longest]
            self.put(kind, piece)
            self.open_kind, self.open_at = kind, self.at - len(piece) - LENGTH.size
            self.text += len(piece)

    def begin_cell(self, parent):
        """Count text written from now on to the request with this header, until the next one."""
        if self.map is not None:
            with self.lock:
                self.set_parent(parent)

    def count_request(self):
        """Say to forks that another request came."""
        if self.map is not None and os.getpid() == self.process:
            self.requests += 1
            COUNT.pack_into(self.map, 2 * HALF, self.requests)

    def is_of_latest_request(self):
        """Return whether this process was forked for the latest request of its parent."""
        return self.map is not None and COUNT.unpack_from(self.map, 2 * HALF) == (self.requests,)

    def take(self, name):
        """Note that all text of a stream is now taken, to be sent."""
        self.taken[name] = self.text

    def sent(self, message):
        """Note that this message is about to be sent, with what was taken of a stream."""
        name = message["content"].get("name")
        if self.map is None or name not in self.taken or os.getpid() != self.process:
            return
        own = message["header"]["msg_id"].encode()
        parent = str(message["parent_header"].get("msg_id", "")).encode()
        if len(own) + len(parent) > LONGEST_PARENT:
            return
        with self.lock:
            self.put(SENDS[name], SENT.pack(self.taken[name], len(own)) + own + parent)

    def set_parent(self, parent):
        """Set the request that the next text is written for."""
        self.parent = parent
        packed = self.pack(parent)
        self.open_kind = 0
        self.parent_record = packed if len(packed) <= LONGEST_PARENT else b""
        if self.parent_record:
            self.put(PARENT, self.parent_record)

    def put(self, kind, data):
        """Add a record, which counts once its head is there."""
        # A zero follows.
        if self.at + RECORD.size + len(data) >= self.end:
            self.turn += 1
            self.begin_half()
        self.open_kind = 0
        start = self.at + RECORD.size
        self.map[start : start + len(data)] = data
        RECORD.pack_into(self.map, self.at, kind, len(data))
        self.at = start + len(data)

    def begin_half(self):
        """Write over the older half."""
        start = self.turn % 2 * HALF
        self.at = start + TURN.size
        self.end = start + HALF
        if self.turn > 1:
            self.map[start : self.end] = bytes(HALF)
        TURN.pack_into(self.map, start, self.turn, self.text)
        if self.parent_record:
            self.put(PARENT, self.parent_record)


def make_file(path):
    """Map a new file of two halves and a count. Raises OSError, also where there is no room for it.

    Without the room a later write to the memory would end the process.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = 2 * HALF + COUNT.size
        if os.write(file, bytes(size)) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return mmap.mmap(file, size)
    except BaseException:
        os.unlink(path)  # noqa: PTH108 - nothing more is imported
        raise
    finally:
        os.close(file)
