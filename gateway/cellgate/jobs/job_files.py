"""Input and output of jobs in unnamed files, on disk rather than in memory.

A session's notebook can be as large as all its outputs together, and so can the result of a job. Files are
written and read in threads, and disappear when closed. Before that they may have to give way to others
(``spill_ledger``), while they wait for a turn or for a client as well as in use. This module knows no jobs;
``jobs`` runs them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from cellgate.errors import StorageError, StorageFull, not_written
from cellgate.record.spill import STALLED
from cellgate.record.spill_ledger import Opener, SpillEnds
from cellgate.record.unnamed_file import UnnamedFile
from cellgate_kernels.base.errors import in_brief

PART = 512 * 1024
GIVEN_WAY = "Others got the room on the gateway's disk that this had; try again later"


class JobFile:
    """A job's stdin, which is written in order, or its stdout, which the job writes.

    A context manager that closes the `file`. `open_space`: opens its principal's space on the disk. `ends`:
    closes the file; its threads read and write the file, too.
    """

    def __init__(self, folder: Path, open_space: Opener, ends: SpillEnds) -> None:
        self._space = open_space(self)
        self._lane = ends.lane
        self._ends = ends
        self._gave_way = False
        self._last_read: float | None = None
        try:
            self.file = UnnamedFile(folder)
        except OSError as error:
            raise self.explained(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.end(self.file.close, self._space)

    # The ledger

    def stalled_since(self) -> float | None:
        """Return the time of the last read if a client reads the file and has paused for long; else None."""
        read = self._last_read
        return read if read is not None and time.monotonic() - read >= STALLED else None

    def give_way(self, *, to_own: bool) -> bool:
        """Empty the file for good, to make room for others; for the same principal only if nobody reads it.

        Its users then fail, whatever a job has written meanwhile.
        """
        if self._gave_way or not self._space.held or (to_own and self.stalled_since() is None):
            return False
        self._gave_way = True
        self._ends.free(self.file.empty, self._space, self._space.held)
        return True

    def check(self) -> None:
        """Raise StorageFull if the file gave way."""
        if self._gave_way:
            raise StorageFull(GIVEN_WAY)

    # Its users

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.file.size

    @property
    def room(self) -> int:
        """The number of bytes by which the file may still grow."""
        return self._space.room

    async def write(self, part: bytes) -> None:
        """Append a part. Raises StorageError."""
        self.check()
        try:
            await self._lane.run(self._write, part)
        except OSError as error:
            raise self.explained(error) from error
        self.check()

    def _write(self, part: bytes) -> None:
        self._space.take(len(part))
        self.file.write([part])

    async def count(self) -> None:
        """Count a job's written bytes. Raises StorageError."""
        self.check()
        try:
            await self._lane.run(self._space.take, max(0, self.size - self._space.held))
        except OSError as error:
            raise self.explained(error) from error

    async def take(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Append all parts as they are generated. Raises StorageError, and the errors of the generator."""
        async with aclosing(parts):
            async for part in parts:
                await self.write(part)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the file's content in parts of 512 KiB. Raises StorageError."""
        self.check()
        size = self.size
        self._last_read = time.monotonic()
        for offset in range(0, size, PART):
            yield await self._read(min(PART, size - offset), offset)
            self._last_read = time.monotonic()

    async def read(self) -> bytes:
        """Return the file's whole content. Raises StorageError."""
        return await self._read(self.size, 0)

    async def _read(self, count: int, offset: int) -> bytes:
        self.check()
        try:
            part = await self._lane.run(self.file.read, count, offset)
        except OSError as error:
            self.check()
            raise StorageError(f"A copy of this session can't be read: {in_brief(error)}") from error
        # The file may have been emptied during the read.
        self.check()
        return part

    @staticmethod
    def explained(error: OSError) -> StorageError:
        """Return the error for a file that can't be written."""
        full = "There is no room on the gateway's disk for a copy of this session's notebook"
        return not_written(error, full, "A copy of this session's notebook can't be written")
