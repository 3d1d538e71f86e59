"""A file without a name on the gateway's disk, which threads write and read: it is gone once it is closed.

A call whose caller was cancelled runs on in its thread, and the descriptor's number may belong to another
file by then. So each call checks whether the file is still open, and the file is closed when no call is in
progress. It counts nothing: its owner (``spill``, ``jobs``, ``channels.frame_log``) takes room from
``spill_ledger`` first, and has its `SpillEnds` close it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
from typing import BinaryIO


class UnnamedFile:
    """An empty file in `folder`. Its methods are for threads and raise OSError, also once it is closed."""

    def __init__(self, folder: Path) -> None:
        # Without a buffer, which could not be flushed when the disk is full.
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - `close`
        self._calls = 0
        self._closing = False
        self._idle = Condition()

    @property
    def size(self) -> int:
        """The size in bytes; don't read it where another thread may close the file."""
        return os.fstat(self._file.fileno()).st_size

    def fileno(self) -> int:
        """Return the descriptor, for a process that starts while nobody closes the file."""
        return self._file.fileno()

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Keep the descriptor open during a call."""
        with self._idle:
            if self._closing:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._calls += 1
        try:
            yield self._file.fileno()
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def write(self, parts: Iterable[bytes | bytearray], offset: int | None = None) -> None:
        """Write all parts at `offset`, or at the end; a reader's position does not change.

        Makes one system call of them: each call would wait for the GIL again while the loop handles a flood.
        """
        views = [memoryview(part) for part in parts]
        with self._open() as descriptor:
            start = os.fstat(descriptor).st_size if offset is None else offset
            while views:
                count = os.pwritev(descriptor, views, start)
                start += count
                while views and count >= len(views[0]):
                    count -= len(views.pop(0))
                if views:
                    views[0] = views[0][count:]

    def read(self, count: int, offset: int) -> bytes:
        """Return so many bytes from `offset` on; raises OSError if there are fewer."""
        with self._open() as descriptor:
            found = os.pread(descriptor, count, offset)
        if len(found) < count:
            raise OSError("the file became shorter")
        return found

    def empty(self) -> None:
        """Free all disk space of the file, unless it is closed and has none any more."""
        with self._idle:
            if not self._closing:
                self._file.truncate(0)

    def close(self) -> None:
        """Free the file and its descriptor, after the calls in progress. The system may take long."""
        with self._idle:
            self._closing = True
            self._idle.wait_for(lambda: not self._calls)
            self._file.close()
