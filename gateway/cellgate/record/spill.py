"""Spills: answers that are made but not sent yet, in memory and above a limit in an unnamed file.

A thread writes an answer at its own pace and a client reads it at its own, so a client that reads slowly, or
not at all, occupies only disk space. ``spill_ledger`` limits this space, and may have a spill give way: one
that has not been read for long or, if others need the room, any of the principal with the most bytes. The
content of the bytes does not matter here; ``http.listener`` decides when a client has been silent for too
long, if nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from cellgate.errors import StorageError, StorageFull, not_written
from cellgate.record.spill_ledger import SpillEnds, SpillLedger
from cellgate.record.unnamed_file import UnnamedFile
from cellgate_kernels.base.errors import CellgateError, in_brief
from cellgate_kernels.base.threads import Lane

MEMORY = 256 * 1024
"""Bytes of an answer that stay in memory."""
PART = 256 * 1024
"""Bytes that a reader of a file gets at a time."""
STALLED = 30.0
"""Seconds without a read after which a spill is discarded, if others need its room."""
GIVEN_WAY = "This answer was not read for so long that others got its room"


class Spills:
    """All spills of a gateway. Files: in `folder`, read by threads of `lane`, closed by `ends`."""

    def __init__(self, folder: Path, ledger: SpillLedger, lane: Lane) -> None:
        self.folder = folder
        self.lane = lane
        self.ends = SpillEnds(lane)
        self._ledger = ledger

    def open(self, principal: str) -> Spill:
        """Return an empty spill, for an answer to this principal."""
        return Spill(self, self._ledger, principal)


class Spill:
    """The bytes of one answer. A thread may `write` inside `writing`; then the loop calls `end`. `parts` is
    for one reader, on the loop. The spill is gone when the reader and the thread are done.
    """

    def __init__(self, spills: Spills, ledger: SpillLedger, principal: str) -> None:
        self._spills = spills
        self._space = ledger.open(principal, self)
        self._news = asyncio.Event()
        self._lock = Lock()
        self._memory = bytearray()
        self._file: UnnamedFile | None = None
        self._size = 0
        self._ended = False
        self._gone = False
        self._error: CellgateError | None = None
        self._users = 1
        self.last_read = time.monotonic()

    # The writer

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the spill for the writing thread, even if its reader leaves."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            self._leave()

    def write(self, part: bytes) -> None:
        """Add bytes. Raises StorageFull and StorageError."""
        try:
            if self._error is not None:
                raise self._error
            if self._file is None and self._size + len(part) <= MEMORY:
                with self._lock:
                    self._memory += part
                    self._size += len(part)
                return
            self._write(part)
        except OSError as error:
            full = "There is no room on the gateway's disk for this export"
            raise not_written(error, full, "This export can't be written") from error
        self._space.loop.call_soon_threadsafe(self._news.set)

    def _write(self, part: bytes) -> None:
        if self._file is None:
            file = UnnamedFile(self._spills.folder)
            try:
                self._space.take(len(self._memory))
                file.write([self._memory])
            except BaseException:
                file.close()
                raise
            with self._lock:
                self._file = file
                self._memory = bytearray()
        self._space.take(len(part))
        self._file.write([part])
        with self._lock:
            self._size += len(part)

    def end(self, error: CellgateError | None = None) -> None:
        """Note that all bytes are written, or the `error` that prevents it."""
        with self._lock:
            self._error = self._error or error
            self._ended = True
        self._news.set()

    # The ledger

    def stalled_since(self) -> float | None:
        """Return the time of the last read if the file is complete and the read long ago; else None."""
        stalled = self._ended and self._users == 1 and time.monotonic() - self.last_read >= STALLED
        return self.last_read if stalled else None

    def give_way(self, *, to_own: bool) -> bool:
        """End with an error, to make room; for the same principal only if nobody reads the spill."""
        if to_own and self.stalled_since() is None:
            return False
        with self._lock:
            if self._file is None or self._gone or self._error is not None:
                return False
            self._error = StorageFull(GIVEN_WAY)
            self._space.leave(self._space.held)
            # Its reader has nothing more to read, but may return late.
            nobody_reads = self._users == 1 and self._ended
        if nobody_reads:
            self._end()
        self._news.set()
        return True

    # The reader

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield all bytes: once complete, or as they come if there are many. Always close the iterator.

        Raises the writer's error at once, so that a part is never mistaken for the whole.
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
                return await self._spills.lane.run(self._read, self._file, offset)
            if ended:
                # Handed over: from now on these bytes count as held for the client.
                with self._lock:
                    rest = self._memory
                    self._memory = bytearray()
                return bytes(rest)
            await self._news.wait()

    def _read(self, file: UnnamedFile, offset: int) -> bytes:
        try:
            return file.read(min(PART, self._size - offset), offset)
        except OSError as error:
            unread = StorageError(f"This export can't be read: {in_brief(error)}")
            raise self._error or unread from error

    def _leave(self) -> None:
        """Close the file with its last user."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._memory = bytearray()
        self._end()

    def _end(self) -> None:
        with self._lock:
            if self._gone:
                return
            self._gone = True
        self._spills.ends.end(None if self._file is None else self._file.close, self._space)
