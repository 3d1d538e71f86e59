"""Input and output of jobs in unnamed files, on disk rather than in memory.

A session's notebook can be as large as all its outputs together, and so can the result of a job. Files are
written and read in threads, and disappear when closed. This module knows no jobs; ``jobs`` runs them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from cellgate.errors import StorageError, not_written
from cellgate.record.spill_ledger import Space
from cellgate_kernels.errors import in_words
from cellgate_kernels.threads import Lane

PART = 512 * 1024


class JobFile:
    """A job's stdin, which is written in order and then finished, or its stdout, which the job writes.

    A context manager that closes the file. `space`: what it takes on the disk, which is its principal's.
    `lane`: the threads that read and write it.
    """

    def __init__(self, folder: Path, space: Space, lane: Lane) -> None:
        self._space = space
        self._lane = lane
        try:
            self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
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
        self.file.close()
        self._space.gone(self._space.held)

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
        try:
            await self._lane.run(self._write, part)
        except OSError as error:
            raise self.explained(error) from error

    def _write(self, part: bytes) -> None:
        self._space.take(len(part))
        self.file.write(part)

    async def count(self) -> None:
        """Count what a job has written. Raises StorageError."""
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
        try:
            # This also flushes the buffer.
            await self._lane.run(self.file.seek, 0)
        except OSError as error:
            raise self.explained(error) from error

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Its content in parts of 512 KiB. Raises StorageError."""
        offset = 0
        while part := await self._read(PART, offset):
            yield part
            offset += len(part)

    async def read(self) -> bytes:
        """Its whole content. Raises StorageError."""
        return await self._read(self.size, 0)

    async def _read(self, count: int, offset: int) -> bytes:
        try:
            return await self._lane.run(os.pread, self.file.fileno(), count, offset)
        except OSError as error:
            raise StorageError(
                f"A copy of this session can't be read: {in_words(error, file=False)}"
            ) from error

    @staticmethod
    def explained(error: OSError) -> StorageError:
        """The error for a file that can't be written."""
        full = "There is no room on the gateway's disk for a copy of this session's notebook"
        return not_written(error, full, "A copy of this session's notebook can't be written")
