"""Input and output of jobs in unnamed files, on disk rather than in memory.

A session's notebook can be as large as all its outputs together, and so can the result of a job. Files are
written and read in threads, and disappear when closed. They may be asked to give way to others before that
(``spill_ledger``), as long as they wait for a turn or for a client just as while they are used. This module
knows no jobs; ``jobs`` runs them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import BinaryIO, Self

from cellgate.errors import StorageError, StorageFull, not_written
from cellgate.record.spill import STALLED, write_all
from cellgate.record.spill_ends import SpillEnds
from cellgate.record.spill_ledger import Opener
from cellgate_kernels.base.errors import in_words

PART = 512 * 1024
GIVEN_WAY = "Others got the room on the gateway's disk that this had; try again later"


class JobFile:
    """A job's stdin, which is written in order and then finished, or its stdout, which the job writes.

    A context manager that closes the file. `open_space`: for what it takes on the disk, which is its
    principal's. `ends`: closes it; the threads there read and write it, too.
    """

    def __init__(self, folder: Path, open_space: Opener, ends: SpillEnds) -> None:
        self._space = open_space(self)
        self._lane = ends.lane
        self._ends = ends
        self._using = Lock()
        self._gave_way = False
        self._last_read: float | None = None
        try:
            # Without a buffer, which could not be written any more when the disk is full.
            self.file: BinaryIO = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - `_close`
        except OSError as error:
            raise self.explained(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.end(self._close, self._space)

    # In threads: a call whose caller was cancelled runs on, and the file's descriptor may be another's then.

    def _close(self) -> None:
        with self._using:
            self.file.close()

    def _write(self, part: bytes) -> None:
        self._space.take(len(part))
        with self._using:
            if not self.file.closed:
                write_all(self.file, part)

    def _rewind(self) -> None:
        with self._using:
            if not self.file.closed:
                self.file.seek(0)

    def _empty(self) -> None:
        with self._using:
            if not self.file.closed:
                self.file.truncate(0)

    # The ledger

    def stalled_since(self) -> float | None:
        """When it was last read, if a client reads it and that is long ago."""
        read = self._last_read
        return read if read is not None and time.monotonic() - read >= STALLED else None

    def give_way(self, *, to_own: bool) -> bool:
        """Be empty from now on, to make room for others; not for the same principal, unless nobody reads it.

        Whoever uses it then fails, whatever a job has made of it in the meantime.
        """
        if self._gave_way or not self._space.held or (to_own and self.stalled_since() is None):
            return False
        self._gave_way = True
        self._ends.empty(self._empty, self._space)
        return True

    def check(self) -> None:
        """Raise StorageFull if it gave way."""
        if self._gave_way:
            raise StorageFull(GIVEN_WAY)

    # Its users

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self.file.fileno()).st_size

    @property
    def room(self) -> int:
        """How many bytes it may still grow."""
        return self._space.room

    async def write(self, part: bytes) -> None:
        """Append a part. Raises StorageError."""
        self.check()
        try:
            await self._lane.run(self._write, part)
        except OSError as error:
            raise self.explained(error) from error
        self.check()

    async def count(self) -> None:
        """Count what a job has written. Raises StorageError."""
        self.check()
        try:
            await self._lane.run(self._space.take, max(0, self.size - self._space.held))
        except OSError as error:
            raise self.explained(error) from error

    async def take(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Append all parts as they are generated. Raises StorageError, and what generating them raises."""
        async with aclosing(parts):
            async for part in parts:
                await self.write(part)

    async def finish(self) -> None:
        """Make it ready to be read from the start. Raises StorageError."""
        self.check()
        try:
            await self._lane.run(self._rewind)
        except OSError as error:
            raise self.explained(error) from error

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Its content in parts of 512 KiB. Raises StorageError."""
        offset = 0
        self._last_read = time.monotonic()
        while part := await self._read(PART, offset):
            yield part
            offset += len(part)
            self._last_read = time.monotonic()

    async def read(self) -> bytes:
        """Its whole content. Raises StorageError."""
        return await self._read(self.size, 0)

    async def _read(self, count: int, offset: int) -> bytes:
        self.check()
        try:
            part = await self._lane.run(os.pread, self.file.fileno(), count, offset)
        except OSError as error:
            raise StorageError(
                f"A copy of this session can't be read: {in_words(error, file=False)}"
            ) from error
        # It may be shorter by now.
        self.check()
        return part

    @staticmethod
    def explained(error: OSError) -> StorageError:
        """The error for a file that can't be written."""
        full = "There is no room on the gateway's disk for a copy of this session's notebook"
        return not_written(error, full, "A copy of this session's notebook can't be written")
