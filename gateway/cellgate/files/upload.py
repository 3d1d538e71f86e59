"""An upload: written and hashed outside the workspaces, then placed as a whole or not at all.

Bytes are hashed and written in threads, one piece while the next is received, so an upload keeps at most
three pieces in memory, whatever its size. Space is reserved before bytes are accepted. It knows no session
and no HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from cellgate.errors import StorageError, not_written
from cellgate.files.ledger import UploadReservation
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.base.trees import free

PIECE = 4 * 1024 * 1024
AT_ONCE = 256 * 1024
"""Bytes written by one system call; more would need large contiguous memory, which can be scarce."""

Piece = bytes | memoryview


class Upload:
    """One file. `write` it, `finish` it, and always `discard` it: a placed file has left the staging folder.

    `reservation`: its space. `reserve`: bytes to keep free on the disk of `staging`.
    """

    def __init__(self, staging: Path, reservation: UploadReservation, reserve: int, lane: Lane) -> None:
        self.size = 0
        self._reservation = reservation
        self._reserve = reserve
        self._lane = lane
        self._hash = hashlib.sha256()
        self._pieces: list[Piece] = []
        self._waiting = 0
        self._writing: asyncio.Future[None] | None = None
        try:
            self._descriptor, name = tempfile.mkstemp(dir=staging)
        except OSError as error:
            raise _explained(error) from error
        self.path = Path(name)

    @property
    def sha256(self) -> str:
        """The hash of the content, once it is finished."""
        return self._hash.hexdigest()

    async def write(self, chunk: Piece) -> None:
        """Add a chunk; a memoryview has `PIECE` bytes or is the last, and may change after the next call.

        Raises QuotaExceeded, StorageFull and QueueFull, and errors from writing an earlier chunk.
        """
        self._reservation.take(len(chunk))
        self.size += len(chunk)
        self._pieces.append(chunk)
        self._waiting += len(chunk)
        if self._waiting >= PIECE:
            await self._settle()
            self._begin()

    def _begin(self) -> None:
        pieces = self._pieces
        self._pieces = []
        self._waiting = 0
        writing = self._lane.run(self._write, pieces)
        self._writing = Supervisor().share(writing, "upload", errors=(OSError,))

    def _write(self, pieces: Sequence[Piece]) -> None:
        # The disk may have filled up since the space was reserved, and the record needs its reserve.
        if free(self._descriptor) - self._reserve < sum(map(len, pieces)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for piece in pieces:
            self._hash.update(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(self._descriptor, view[:AT_ONCE]) :]

    async def _settle(self) -> None:
        if self._writing is None:
            return
        try:
            await asyncio.shield(self._writing)
        except OSError as error:
            raise _explained(error) from error

    async def finish(self) -> None:
        """Write the rest. Raises as `write`."""
        await self._settle()
        self._begin()
        await self._settle()
        os.fchmod(self._descriptor, 0o644)
        # Exact to the nanosecond, where the system's is the same for all that is written within some ms. So a
        # file that comes to this inode in the same instant has another time.
        now = time.time_ns()
        os.utime(self._descriptor, ns=(now, now))

    async def discard(self) -> None:
        """Close the file, and remove it if it is still there. May be called more than once."""
        # Don't close the descriptor during a write: its number may soon belong to another file.
        while (writing := self._writing) is not None:
            await asyncio.gather(writing, return_exceptions=True)
            if writing is self._writing:
                self._writing = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            await self._lane.run(self.path.unlink, missing_ok=True)


def _explained(error: OSError) -> StorageError:
    full = "There is no room on the gateway's disk for this file"
    return not_written(error, full, "The file can't be written")
