"""Answers that are made but not sent yet: in memory, and above a limit in an unnamed file.

A thread writes an answer at its own pace and a client reads it at its own, so a client that reads slowly, or
not at all, occupies only disk space. All spills together take at most half of the free space, not counting
the reserve that the record needs; when that is not enough, the one that has not been read for longest is
discarded. The content of the bytes does not matter here; ``http.listener`` decides when a client that nobody
else waits for has been silent for too long.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from weakref import WeakSet

from cellgate.errors import StorageError, StorageFull, not_written
from cellgate.record.space import free
from cellgate_kernels.errors import CellgateError, in_words
from cellgate_kernels.threads import Lane

MEMORY = 256 * 1024
"""Bytes of an answer that stay in memory."""
PART = 256 * 1024
"""Bytes that a reader of a file gets at a time."""
STALLED = 30.0
"""Seconds without a read after which a spill is discarded, if others need its room."""


class Spills:
    """All spills of a gateway; their files are in `folder` and read by threads of `lane`."""

    def __init__(self, folder: Path, reserve: int, lane: Lane) -> None:
        self.folder = folder
        self.lane = lane
        self._reserve = reserve
        self._used = 0
        self._lock = Lock()
        self._open: WeakSet[Spill] = WeakSet()

    def open(self) -> Spill:
        """An empty spill."""
        spill = Spill(self, asyncio.get_running_loop())
        with self._lock:
            self._open.add(spill)
        return spill

    def take(self, count: int, file: BinaryIO) -> None:
        """Reserve bytes for a file. Raises OSError when there is no room for them."""
        with self._lock:
            while self._used + count > (free(file.fileno()) + self._used - self._reserve) // 2:
                if not self._give_up_stalled():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._used += count

    def _give_up_stalled(self) -> bool:
        """Discard the complete spill that was not read for longest; False if none has stalled."""
        for spill in sorted(self._open, key=lambda spill: spill.last_read):
            if time.monotonic() - spill.last_read < STALLED:
                return False
            if taken := spill.give_up():
                self._used -= taken
                return True
        return False

    def give_back(self, count: int) -> None:
        """A file of this many bytes is gone."""
        with self._lock:
            self._used -= count

    @property
    def used(self) -> int:
        """Bytes of all files together."""
        return self._used


class Spill:
    """The bytes of one answer. A thread may `write` inside `writing`; then the loop calls `end`. `parts` is
    for one reader, on the loop. The spill is gone when the reader and the thread are done.
    """

    def __init__(self, spills: Spills, loop: asyncio.AbstractEventLoop) -> None:
        self._spills = spills
        self._loop = loop
        self._news = asyncio.Event()
        self._lock = Lock()
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._size = 0
        self._taken = 0
        self._ended = False
        self._error: CellgateError | None = None
        self._users = 1
        self.last_read = time.monotonic()

    # The writer

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the spill for the thread that writes, even if its reader leaves."""
        self._stay()
        try:
            yield
        finally:
            self._leave()

    def write(self, part: bytes) -> None:
        """Add bytes. Raises StorageFull and StorageError."""
        try:
            if self._file is None and self._size + len(part) <= MEMORY:
                with self._lock:
                    self._memory += part
                    self._size += len(part)
                return
            self._write(part)
        except OSError as error:
            full = "There is no room on the gateway's disk for this export"
            raise not_written(error, full, "This export can't be written") from error
        self._tell()

    def _write(self, part: bytes) -> None:
        if self._file is None:
            file = tempfile.TemporaryFile(dir=self._spills.folder, buffering=0)  # noqa: SIM115
            try:
                self._take(len(self._memory), file)
                _write_all(file, self._memory)
            except BaseException:
                file.close()
                raise
            with self._lock:
                self._file = file
                self._memory = bytearray()
        self._take(len(part), self._file)
        _write_all(self._file, part)
        with self._lock:
            self._size += len(part)

    def _take(self, count: int, file: BinaryIO) -> None:
        self._spills.take(count, file)
        self._taken += count

    def end(self, error: CellgateError | None = None) -> None:
        """Nothing more will come: all was written, or `error` says why not."""
        with self._lock:
            self._error = self._error or error
            self._ended = True
        self._news.set()

    def give_up(self) -> int:
        """Close the file to make room for others, unless it is in use; returns the bytes that this frees."""
        with self._lock:
            if self._users != 1 or not self._ended or self._file is None:
                return 0
            self._error = StorageFull("This answer was not read for so long that others got its room")
            self._file.close()
            taken = self._taken
            self._taken = 0
            return taken

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    # The reader

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """All bytes: once complete, or as they come when they are many. Always close the iterator.

        Raises the writer's error as soon as there is one, so that nobody mistakes a part for the whole.
        """
        offset = 0
        try:
            while part := await self._part(offset):
                offset += len(part)
                yield part
        finally:
            self._leave()

    async def _part(self, offset: int) -> bytes:
        self.last_read = time.monotonic()
        while True:
            self._news.clear()
            ended = self._ended
            if self._error is not None:
                raise self._error
            if self._file is not None and (ended or self._size - offset >= PART):
                return await self._spills.lane.run(self._read, offset)
            if ended:
                # Handed over: from now on these bytes count as held for the client.
                with self._lock:
                    rest = self._memory
                    self._memory = bytearray()
                return bytes(rest)
            await self._news.wait()

    def _read(self, offset: int) -> bytes:
        self._stay()
        try:
            if self._error is not None:
                raise self._error
            if self._file is None or self._file.closed:
                raise StorageError("This export can't be read: it was discarded")
            part = os.pread(self._file.fileno(), min(PART, self._size - offset), offset)
        except OSError as error:
            raise StorageError(f"This export can't be read: {in_words(error, file=False)}") from error
        finally:
            self._leave()
        if not part and offset < self._size:
            raise StorageError("This export can't be read: its file became shorter")
        return part

    def _stay(self) -> None:
        with self._lock:
            self._users += 1

    def _leave(self) -> None:
        """The last user closes the file: its descriptor may be reused after that."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._memory = bytearray()
            taken = self._taken
            self._taken = 0
        if self._file is not None:
            self._file.close()
        self._spills.give_back(taken)


def _write_all(file: BinaryIO, data: bytes | bytearray) -> None:
    with memoryview(data) as whole:
        done = 0
        while done < len(whole):
            done += file.write(whole[done:])
