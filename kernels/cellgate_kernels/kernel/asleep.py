"""A kernel's sleep: frozen, its memory given back to the system, and woken by the next message to it.

A frozen kernel keeps everything. Messages to it wait in its sockets until it is thawed, so waking loses
nothing and need not come first. Without swap it is only frozen. ``sessions.sleep`` decides which sleep.
"""

from __future__ import annotations

import asyncio
import errno
import logging

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.limits.control_group import ControlGroup
from cellgate_kernels.limits.read_back import LITTLE, read_back
from cellgate_kernels.protocol.messages import Message

logger = logging.getLogger(__name__)

FREEZE_TIMEOUT = 1.0
FREEZE_PAUSE = 0.01
HELD = 16 * 1024 * 1024
"""The bytes of memory that a sleeping kernel may hold to count as one that gave its memory back."""

_GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)


class Sleep:
    """One sleep of one kernel. `over`: set from the moment it is woken. `deep`: set once it has begun."""

    def __init__(self, group: ControlGroup, connection: KernelConnection, lane: Lane) -> None:
        self.over = self.deep = False
        self._group = group
        self._lane = lane
        self._given_back = 0
        self._swap_before: str | None = None
        self._processes: frozenset[int] = frozenset()
        self._tasks = Supervisor()
        self._stop_listening = connection.listen(lambda _: None, self._sent, types=frozenset())

    async def begin(self) -> bool:
        """Freeze the kernel and give its memory back; return whether it sleeps afterwards.

        It does not if it was woken meanwhile, or could not be frozen: then it goes on as before.
        """
        try:
            # Read before the freeze: a process that ends until then wakes the kernel in vain, but none is
            # missed.
            self._processes = frozenset(self._group.processes())
            self._group.freeze()
            await self._until_frozen()
            if not self.over:
                await self._lane.run(self._give_back)
                self.deep = True
        except (OSError, TimeoutError) as error:
            why = in_words(error) if error.args else "it does not stop"
            logger.info("A kernel can't be put to sleep: %s", why)
            self.wake()
        return not self.over

    async def _until_frozen(self) -> None:
        async with asyncio.timeout(FREEZE_TIMEOUT):
            while not self.over and not self._group.frozen:  # noqa: ASYNC110 - the system tells nobody
                await asyncio.sleep(FREEZE_PAUSE)

    def _give_back(self) -> None:
        before = self._group.memory_used()
        self._swap_before = self._group.allow_swap()
        if self.over:
            self._limit_swap()  # it was woken just before
        self._group.give_memory_back(lambda: self.over)
        self._given_back = before - self._group.memory_used()

    def gave_back(self) -> bool:
        """Return whether the kernel holds hardly any memory now. Blocks for a moment. Raises OSError."""
        return not self.over and self._group.memory_used() <= HELD

    def is_disturbed(self) -> bool:
        """Return whether a process of the kernel ended in its sleep, as when memory is short.

        Its keeper sleeps too, and notices only when it is woken. Blocks for a moment.
        """
        try:
            return not self.over and not self._processes <= frozenset(self._group.processes())
        except OSError:
            return True

    def _sent(self, _: Message) -> None:
        self.wake()

    def wake(self) -> None:
        """Let the kernel go on now. Idempotent. Does nothing for an ended kernel."""
        if not self.over:
            self.leave()
            if self._given_back > LITTLE:
                self._tasks.start(self._read_back(), "read back")

    def leave(self) -> None:
        """Thaw a kernel that this gateway gives up: its memory comes back as needed."""
        if self.over:
            return
        self.over = True
        self._stop_listening()
        try:
            self._group.thaw()
            self._limit_swap()
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def _limit_swap(self) -> None:
        if self._swap_before is not None:
            self._group.limit_swap(self._swap_before)

    async def _read_back(self) -> None:
        """Read the kernel's memory back in order; otherwise it would wait for each page on demand."""
        try:
            processes = self._group.processes()
            await self._lane.run(read_back, processes)
        except OSError as error:
            logger.debug("A kernel's memory comes back as it needs it: %s", in_words(error))

    async def close(self) -> None:
        """Wake the kernel, and finish all remaining work."""
        self.leave()
        await self._tasks.cancel()
