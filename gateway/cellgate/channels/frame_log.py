"""A log on disk of the frames that a kernel's clients have not read: one copy, however many clients need it.

`KernelFrames` belongs to one session. It has a `FrameLog` for each format that its clients have negotiated,
and counts the bytes that wait in memory for all of them. A log is a sequence of bytes with addresses: frames
are added at its end, written to unlinked files in threads, and read from any address. Files that all readers
have passed are removed. ``record.spill_ledger`` limits the space; when it needs room, the reader that is
furthest behind gives way.

This module knows no socket and no message; ``outbox`` is the reader.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cellgate.errors import is_full
from cellgate.record.spill_ledger import Opener, SpillEnds
from cellgate.record.unnamed_file import UnnamedFile
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.resources import GIB, MIB
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane, work_for
from cellgate_kernels.protocol.websocket import Subprotocol

CHUNK = 256 * 1024
SPILL = 4 * MIB
CROWDED = 8 * MIB
"""The bytes waiting to be written to the file beyond which the kernel should wait for the disk."""
SMALLEST_FILE, LARGEST_FILE = 4 * MIB, 64 * MIB
"""The bounds of a file, which is an eighth of its log: then files are few, and soon passed by all readers."""

NO_ROOM = "This client reads too slowly: others need the space on disk"
STANDING = "This client reads too slowly, and the disk can't keep what waits for it"


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """Limits in bytes. `memory`: of all clients of a kernel, before files are used; `unwritten`: waiting for
    a file; `total`: of one client.
    """

    memory: int = 8 * MIB
    unwritten: int = 128 * MIB
    total: int = GIB


class Reader(Protocol):
    """A reader of a log."""

    @property
    def position(self) -> int | None:
        """The address of the first frame that it has not read; None if it has read all of its frames."""

    def lose(self, why: str) -> None:
        """Discard the reader's frames, for this reason."""

    def wake(self) -> None:
        """Check again whether frames can be read."""


@dataclass(slots=True, eq=False)
class _File:
    """A part of a log: from `start` to `end`. `ends`: the addresses at which its chunks of frames end."""

    file: UnnamedFile
    start: int
    ends: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.start

    @property
    def size(self) -> int:
        return self.end - self.start


class FrameLog:
    """The frames of one format. Addresses are never reused."""

    def __init__(self, frames: KernelFrames, open_space: Opener) -> None:
        self._lane = frames.lane
        self._folder = frames.folder
        self.limits = frames.limits
        self.memory = frames.memory
        self._space = open_space(self)
        self._readers: dict[Reader, None] = {}
        self._files: deque[_File] = deque()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._written = self._end = 0
        self._last: bytes | None = None
        self._ends = SpillEnds(frames.lane)
        self._tasks = Supervisor()
        self._writing: asyncio.Task[None] | None = None
        self._uncrowded = asyncio.Event()
        self._uncrowded.set()

    @property
    def crowded(self) -> bool:
        """Whether frames arrive faster than the disk can store them, however slowly clients read."""
        return not self._uncrowded.is_set()

    async def room(self) -> None:
        """Wait until the log is not `crowded`."""
        await self._uncrowded.wait()

    @property
    def size(self) -> int:
        """The log's bytes on disk."""
        return sum(file.size for file in self._files)

    def join(self, reader: Reader) -> None:
        """Keep the frames that this reader has not read."""
        self._readers[reader] = None

    def leave(self, reader: Reader) -> None:
        """Keep no frames for this reader any more."""
        self._readers.pop(reader, None)
        self.tidy()

    def add(self, frame: bytes) -> tuple[int, int]:
        """Add a frame; return its start and end. Readers of the same frame share it."""
        if frame is self._last:
            return self._end - len(frame), self._end
        if self._tail and self._tail_size + len(frame) > self.limits.unwritten:
            self._lose_all(STANDING)
        start, self._end = self._end, self._end + len(frame)
        self._last = frame
        self._tail.append(frame)
        self._tail_size += len(frame)
        if self._tail_size > CROWDED:
            self._uncrowded.clear()
        if self._writing is None:
            self._writing = self._tasks.start(
                self._write_tail(), "outbox", lambda _: self._lose_all("What waits for this client was lost")
            )
        return start, self._end

    async def read(self, start: int, end: int) -> bytes | None:
        """Return the next whole frames from `start` up to `end`; None if not written yet. Raises OSError.

        `start` and `end` are bounds of frames.
        """
        if start >= self._written:
            return None
        file = next(file for file in self._files if file.end > start)
        end = min(end, file.ends[bisect_right(file.ends, start)])
        return await self._lane.run(file.file.read, end - start, start - file.start)

    # Space

    def stalled_since(self) -> float | None:
        """Return None: slow clients of a kernel are not distinguished by time."""
        return None

    def give_way(self, *, to_own: bool) -> bool:
        """Discard the frames of the reader that is furthest behind."""
        behind = [(position, reader) for reader in self._readers if (position := reader.position) is not None]
        if not behind:
            return False
        first = min(position for position, _ in behind)
        # All readers at the same place: one by one, only the last would free space.
        for position, reader in behind:
            if position == first:
                reader.lose(NO_ROOM)
        self.tidy()
        return True

    def tidy(self) -> None:
        """Remove the files that all readers have passed."""
        positions = [position for reader in self._readers if (position := reader.position) is not None]
        if not positions:
            self._tail.clear()
            self._tail_size = 0
            self._last = None
            self._uncrowded.set()
        first = min(positions, default=self._end)
        # The last file is still written to, so it is removed only when the log is empty.
        while self._files and self._files[0].end <= first and self._may_go(first):
            gone = self._files.popleft()
            self._ends.free(gone.file.close, self._space, gone.size)

    def _may_go(self, first: int) -> bool:
        return len(self._files) > 1 or (self._writing is None and first == self._end)

    # Writing

    async def _write_tail(self) -> None:
        """Move the tail into files until it is empty."""
        work_for(self._space.principal)
        try:
            while self._tail:
                await self._write_some()
        except OSError as error:
            why = "the disk is full" if is_full(error) else in_brief(error)
            self._lose_all(f"What waits for this client can't be kept: {why}")
        finally:
            self._writing = None
            self._uncrowded.set()
            self.tidy()
            self._wake()

    async def _write_some(self) -> None:
        chunks: list[bytes] = []
        size = 0
        # Many at once, so that a flood does not outrun the disk just because the loop is busy.
        while self._tail and size < SPILL:
            chunks.append(joined(self._tail))
            size += len(chunks[-1])
        self._tail_size -= size
        if not self._tail:
            self._last = None
        if self._tail_size < CROWDED // 2:
            self._uncrowded.set()
        # Other readers may give way for it; so may all readers of these frames.
        self._space.take(size)
        written = False
        try:
            file = await self._file_for(size)
            await self._lane.run(file.file.write, chunks, file.size)
            written = True
        finally:
            if not written:
                self._space.gone(size)
        for chunk in chunks:
            file.ends.append(file.end + len(chunk))
        self._written = file.end
        self.tidy()
        self._wake()

    async def _file_for(self, size: int) -> _File:
        start = self._end - self._tail_size - size
        most = max(SMALLEST_FILE, min(LARGEST_FILE, self.size // 8))
        last = self._files[-1] if self._files else None
        # Frames without readers were not written: the next file begins after them.
        if last is None or last.end != start or (last.size and last.size + size > most):
            last = _File(await self._lane.run(UnnamedFile, self._folder), start)
            self._files.append(last)
        return last

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()

    def _lose_all(self, why: str) -> None:
        for reader in tuple(self._readers):
            if reader.position is not None:
                reader.lose(why)
        self.tidy()

    async def close(self) -> None:
        """Remove all files; no reader is left."""
        self._readers.clear()
        self.tidy()
        await self._tasks.finished()
        self.tidy()
        await self._ends.finished()
        self._space.close()


class Waiting:
    """The number of bytes that wait in memory, for all clients of a kernel."""

    def __init__(self) -> None:
        self.size = 0


class KernelFrames:
    """The frames that wait for the clients of one session: some in memory, the others in logs."""

    def __init__(self, folder: Path, limits: OutboxLimits, lane: Lane, open_space: Opener) -> None:
        self.folder = folder
        self.limits = limits
        self.lane = lane
        self.memory = Waiting()
        self._open_space = open_space
        self._logs: dict[Subprotocol, FrameLog] = {}

    def log(self, frames: Subprotocol) -> FrameLog:
        """Return the log of frames in this format."""
        found = self._logs.get(frames)
        if found is None:
            found = self._logs[frames] = FrameLog(self, self._open_space)
        return found

    @property
    def crowded(self) -> bool:
        """Whether frames arrive faster than the disk can store them, however slowly clients read."""
        return any(log.crowded for log in self._logs.values())

    async def room(self) -> None:
        """Wait until no log is `crowded`."""
        for log in tuple(self._logs.values()):
            await log.room()

    async def close(self) -> None:
        """Remove all files; no reader is left."""
        for log in self._logs.values():
            await log.close()


def joined(frames: deque[bytes]) -> bytes:
    """Remove and return the first frames: as many as fit into a chunk, at least one."""
    first = frames.popleft()
    size = len(first)
    if not frames or size >= CHUNK:
        return first
    chunk = [first]
    while frames and size + len(frames[0]) <= CHUNK:
        size += len(frames[0])
        chunk.append(frames.popleft())
    return b"".join(chunk)
