"""Frames waiting to be written to one WebSocket: in memory at first, then in an unlinked temporary file.

Frames are added without waiting and taken in order as chunks of whole frames, so that a slow client delays
neither the record nor other clients. It knows no socket: ``client`` writes the chunks. Disk work is done in
threads. Beyond its limits, an outbox is discarded as a whole, with a reason, because a client is better off
knowing of a loss than missing a message in the middle.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cellgate_kernels.errors import in_words
from cellgate_kernels.limits import GIB, MIB
from cellgate_kernels.tasks import Supervisor
from cellgate_kernels.threads import Lane

CHUNK = 256 * 1024
SPILL = 4 * MIB
CROWDED = 8 * MIB
"""With more bytes than this waiting to be written to the file, the kernel should wait for the disk."""


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """In bytes. `memory`: before the file is used; `unwritten`: waiting to be written to it; `total`: all."""

    memory: int = 8 * MIB
    unwritten: int = 128 * MIB
    total: int = GIB


class OutboxLost(Exception):
    """The client was too slow or the disk failed; pending frames are gone. The message is for the client."""


class Outbox:
    """Frames of one client. Its only reader repeats: `take`, write, `written`.

    `size`: pending bytes; `limit`: their maximum; `lost`: why pending frames were discarded, if they were.
    """

    def __init__(self, folder: Path, limits: OutboxLimits, lane: Lane) -> None:
        self.size = 0
        self.limit = limits.total
        self._folder = folder
        self._limits = limits
        self._lane = lane
        self._head: deque[bytes] = deque()
        self._head_size = 0
        self._file: BinaryIO | None = None
        self._chunks: deque[int] = deque()
        self._read_at = 0
        self._write_at = 0
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._taken: bytes | None = None
        self._tasks = Supervisor()
        self._spill: asyncio.Task[None] | None = None
        self.lost: str | None = None
        self._ended = False
        self._wake = asyncio.Event()
        self._uncrowded = asyncio.Event()
        self._uncrowded.set()

    @property
    def crowded(self) -> bool:
        """Whether frames arrive faster than the disk can take them, however slowly the client reads."""
        return not self._uncrowded.is_set()

    async def room(self) -> None:
        """Return when it is not `crowded`."""
        await self._uncrowded.wait()

    def put(self, frame: bytes) -> bool:
        """Add a frame; returns whether this made the outbox lost. Does nothing once it is lost or ended."""
        if self.lost is not None or self._ended:
            return False
        size = len(frame)
        # The file is reused from its start only after it was read to its end, so it could grow without limit
        # for a client that never catches up.
        if self.size and (self.size + size > self.limit or self._write_at > 4 * self._limits.total):
            self._give_up(f"This client reads too slowly: {self.size} bytes wait for it")
            return True
        self.size += size
        spilling = bool(self._tail or self._chunks or self._spill)
        if not spilling and (not self._head or self._head_size + size <= self._limits.memory):
            self._head.append(frame)
            self._head_size += size
        else:
            self._tail.append(frame)
            self._tail_size += size
            if self._tail_size > CROWDED:
                self._uncrowded.clear()
            if self._spill is None:
                self._spill = self._tasks.start(
                    self._write_tail(),
                    "outbox",
                    lambda _: self._give_up("What waits for this client was lost"),
                )
            elif self._tail_size > self._limits.unwritten:
                self._give_up("This client reads too slowly, and the disk can't keep what waits for it")
                return True
        self._wake.set()
        return False

    def end(self) -> None:
        """Accept no more frames; `take` returns what is left and then None."""
        self._ended = True
        self._wake.set()

    async def take(self) -> bytes | None:
        """Wait for the next frames; returns the same ones until `written` is called. None after `end`.

        Raises OutboxLost.
        """
        while self._taken is None:
            self._wake.clear()
            if self.lost is not None:
                raise OutboxLost(self.lost)
            if self._head:
                self._taken = self._from(self._head)
                self._head_size -= len(self._taken)
            elif self._chunks:
                self._taken = await self._from_file()
            elif self._tail and self._spill is None:
                self._taken = self._from(self._tail)
                self._tail_size -= len(self._taken)
            elif self._ended and self._spill is None:
                return None
            else:
                await self._wake.wait()
        return self._taken

    def written(self) -> None:
        """Note that the frames last taken have been written."""
        if self._taken is not None:
            self.size -= len(self._taken)
            self._taken = None

    def _from(self, frames: deque[bytes]) -> bytes:
        first = frames.popleft()
        size = len(first)
        if not frames or size >= CHUNK:
            return first
        chunk = [first]
        while frames and size + len(frames[0]) <= CHUNK:
            size += len(frames[0])
            chunk.append(frames.popleft())
        return b"".join(chunk)

    async def _from_file(self) -> bytes | None:
        assert self._file is not None
        size = self._chunks[0]
        try:
            chunk = await self._lane.run(os.pread, self._file.fileno(), size, self._read_at)
        except OSError as error:
            self._give_up(f"What waited for this client can't be read: {in_words(error, file=False)}")
            return None
        if self.lost is not None:
            return None
        self._chunks.popleft()
        self._read_at += size
        if not self._chunks and self._spill is None:
            self._close_file()
        return chunk

    async def _write_tail(self) -> None:
        """Move the tail into the file until it is empty."""
        try:
            while self._tail:
                chunks = []
                size = 0
                # Many at once, so that a flood does not outrun the disk just because the loop is busy.
                while self._tail and size < SPILL:
                    chunks.append(self._from(self._tail))
                    size += len(chunks[-1])
                self._tail_size -= size
                if self._tail_size < CROWDED // 2:
                    self._uncrowded.set()
                if self._file is None:
                    self._file = await self._lane.run(_unlinked, self._folder)
                await self._lane.run(_write, self._file, chunks, self._write_at)
                self._write_at += size
                self._chunks.extend(map(len, chunks))
                self._wake.set()
        except OSError as error:
            self._give_up(f"What waits for this client can't be kept: {in_words(error, file=False)}")
        finally:
            self._spill = None
            self._uncrowded.set()
            self._wake.set()

    def _give_up(self, why: str) -> None:
        self.lost = why
        for frames in (self._head, self._tail, self._chunks):
            frames.clear()
        self._head_size = self._tail_size = self.size = 0
        self._uncrowded.set()
        self._wake.set()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._read_at = 0
            self._write_at = 0

    async def close(self) -> None:
        """Discard what is left; call it when nobody takes frames any more."""
        self.end()
        if self._spill is not None:
            self._tail.clear()
            await asyncio.gather(self._spill, return_exceptions=True)
        self._give_up("closed")
        self._close_file()


def _unlinked(folder: Path) -> BinaryIO:
    return tempfile.TemporaryFile(dir=folder, prefix="outbox-", buffering=0)


def _write(file: BinaryIO, chunks: Sequence[bytes], offset: int) -> None:
    """Write all chunks in one call: each call would wait for the GIL again while the loop handles a flood."""
    views = [memoryview(chunk) for chunk in chunks]
    while views:
        count = os.pwritev(file.fileno(), views, offset)
        offset += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views:
            views[0] = views[0][count:]
