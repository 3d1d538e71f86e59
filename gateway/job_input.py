"""What a job is given, on disk rather than in memory: an unnamed file that becomes the job's stdin.

A session's notebook can be as large as its outputs together. It is written as it is exported, in threads, and
is gone with the file. It knows no job; ``jobs`` runs them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.record.errors import StorageError, not_written


class JobInput:
    """Write all of it in order, then hand it to a job; as a context manager it closes itself.

    `reserve`: bytes that stay free on the folder's disk, because the record needs them more.
    """

    def __init__(self, folder: Path, reserve: int) -> None:
        self._reserve = reserve
        try:
            self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise _explained(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.file.close()

    async def write(self, part: bytes) -> None:
        """Add to it. Raises StorageError."""
        try:
            await asyncio.to_thread(self._write, part)
        except OSError as error:
            raise _explained(error) from error

    def _write(self, part: bytes) -> None:
        disk = os.fstatvfs(self.file.fileno())
        if disk.f_bavail * disk.f_frsize < self._reserve + len(part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.file.write(part)

    async def take(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Add all parts, each when it is made. Raises StorageError, and what making them raises."""
        async with aclosing(parts):
            async for part in parts:
                await self.write(part)

    async def finish(self) -> None:
        """Make it ready to be read from its beginning. Raises StorageError."""
        try:
            # Also writes what is still in the buffer.
            await asyncio.to_thread(self.file.seek, 0)
        except OSError as error:
            raise _explained(error) from error


def _explained(error: OSError) -> StorageError:
    full = "There is no room on the gateway's disk for a copy of this session's notebook"
    return not_written(error, full, "A copy of this session's notebook can't be written")
