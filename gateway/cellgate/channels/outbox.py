"""Frames waiting to be written to one WebSocket: in memory at first, then in the log of its kernel's frames.

Frames are added without waiting and taken in order as chunks of whole frames, so that a slow client delays
neither the record nor other clients. ``client`` writes the chunks to a socket; ``frame_log`` has the files of
frames that a kernel's clients have not read. Beyond its limits, or when others need the room, an outbox is
discarded as a whole, with a reason: a known loss is better for a client than a missing message in the middle.

"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from cellgate.channels.frame_log import FrameLog, joined
from cellgate_kernels.base.errors import in_brief

OWN = 64 * 1024
"""The bytes that each client may have in memory, whatever other clients of its kernel use."""
MOST_RUNS = 50_000
"""The most stretches of the log that wait for one client; between them are frames for others only."""


class OutboxLost(Exception):
    """The client was too slow or the disk failed; pending frames are gone. The message is for the client."""


class Outbox:
    """Frames of one client. Its only reader repeats: `take`, write, `written`.

    `size`: pending bytes; `limit`: their maximum; `lost`: the reason why pending frames were discarded, if
    they were; `was_lost` is called then.
    """

    def __init__(self, log: FrameLog, was_lost: Callable[[], None] = lambda: None) -> None:
        self.size = 0
        self.limit = log.limits.total
        self.lost: str | None = None
        self._log = log
        self._memory = log.memory
        self._most = log.limits.memory
        self._was_lost = was_lost
        self._head: deque[bytes] = deque()
        self._head_size = 0
        # In the log: the start and end of each stretch.
        self._runs: deque[tuple[int, int]] = deque()
        self._taken: bytes | None = None
        self._is_awaited = False
        self._ended = False
        self._wake = asyncio.Event()
        log.join(self)

    @property
    def position(self) -> int | None:
        """The position in the log of the first frame that is still to be sent; None if there is none."""
        return self._runs[0][0] if self._runs else None

    def wake(self) -> None:
        """Check again whether the log has frames."""
        self._wake.set()

    def put(self, frame: bytes) -> bool:
        """Add a frame; return whether the outbox became lost by it. Does nothing once it is lost or ended."""
        if self.lost is not None or self._ended:
            return False
        size = len(frame)
        if self.size and self.size + size > self.limit:
            self.lose(f"This client reads too slowly: {self.size} bytes wait for it")
            return True
        if not self._runs and (self._fits(size) or (self._is_awaited and not self._head)):
            self._head.append(frame)
            self._head_size += size
            self._memory.size += size
        elif not self._keep(frame):
            return True
        self.size += size
        self._wake.set()
        return False

    def _fits(self, size: int) -> bool:
        """Return whether the frame fits in memory; a frame that is awaited leaves it at once."""
        return self._memory.size + size <= self._most or self._head_size + size <= OWN

    def _keep(self, frame: bytes) -> bool:
        """Add the frame to the log; return False if the outbox's limit is exceeded."""
        start, end = self._log.add(frame)
        if self.lost is not None:
            return False
        if self._runs and self._runs[-1][1] == start:
            self._runs[-1] = (self._runs[-1][0], end)
        else:
            self._runs.append((start, end))
        if len(self._runs) > MOST_RUNS:
            self.lose("This client reads too slowly: too many messages wait for it")
            return False
        return True

    def end(self) -> None:
        """Accept no more frames; `take` returns the remaining ones and then None."""
        self._ended = True
        self._wake.set()

    async def take(self) -> bytes | None:
        """Return the next frames, the same until `written` is called; None after `end`. Raises OutboxLost."""
        while self._taken is None:
            self._wake.clear()
            if self.lost is not None:
                raise OutboxLost(self.lost)
            if self._head:
                self._taken = joined(self._head)
                self._head_size -= len(self._taken)
                self._memory.size -= len(self._taken)
            elif self._runs:
                self._taken = await self._read()
                if self._taken is None:
                    await self._wake.wait()
            elif self._ended:
                return None
            else:
                await self._frames()
        return self._taken

    async def _frames(self) -> None:
        """Wait for the next frame, as there is none."""
        self._is_awaited = True
        try:
            await self._wake.wait()
        finally:
            self._is_awaited = False

    def written(self) -> None:
        """Note that the frames last taken have been written."""
        if self._taken is not None:
            self.size -= len(self._taken)
            self._taken = None

    async def _read(self) -> bytes | None:
        """Return the next frames of the log; None until there are some."""
        start, end = self._runs[0]
        try:
            chunk = await self._log.read(start, end)
        except OSError as error:
            # If the outbox was lost meanwhile, its frames were removed from the log.
            if self.lost is None:
                self.lose(f"What waited for this client can't be read: {in_brief(error)}")
            return None
        if chunk is None or self.lost is not None:
            return None
        # More frames may have been added to the run meanwhile.
        start, end = start + len(chunk), self._runs.popleft()[1]
        if start < end:
            self._runs.appendleft((start, end))
        self._log.tidy()
        return chunk

    def lose(self, why: str) -> None:
        """Discard all pending frames, and accept no more."""
        self.lost = why
        self._discard()
        self._was_lost()

    def _discard(self) -> None:
        self._memory.size -= self._head_size
        self._head_size = self.size = 0
        self._head.clear()
        self._runs.clear()
        self._log.leave(self)
        self._wake.set()

    def close(self) -> None:
        """Discard the remaining frames; called when no caller takes frames any more."""
        self.end()
        self.lost = "closed"
        self._discard()
