"""A kernel's sleep: frozen, its memory given back to the system, and woken by the next message to it.

A frozen kernel keeps everything: variables, threads, connections, open files. Whatever is sent to it waits
in its sockets until it is thawed, so waking loses nothing and need not come first. It is not told that it
slept: clocks went on. Without swap a kernel is frozen only. ``sessions.sleep`` decides who sleeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from cellgate_kernels.connection import KernelConnection
from cellgate_kernels.messages import Message
from cellgate_kernels.provisioners.control_group import ControlGroup
from cellgate_kernels.provisioners.read_back import LARGE, read_back
from cellgate_kernels.tasks import Supervisor
from cellgate_kernels.threads import Lane

logger = logging.getLogger(__name__)

FREEZE_TIMEOUT = 1.0
FREEZE_PAUSE = 0.01


class Sleep:
    """One sleep of one kernel. `over` from the moment it is woken."""

    def __init__(self, group: ControlGroup, connection: KernelConnection, lane: Lane) -> None:
        self.over = False
        self._group = group
        self._lane = lane
        self._given_back = 0
        self._tasks = Supervisor()
        self._stop_listening: Callable[[], None] = connection.listen(_ignore, self._sent, types=frozenset())

    async def begin(self) -> bool:
        """Freeze the kernel and give its memory back; returns whether it sleeps when that is done.

        It does not when it was woken in the meantime, or could not be frozen: then it goes on as before.
        """
        try:
            self._group.freeze()
            await self._until_frozen()
            if not self.over:
                await self._lane.run(self._give_back)
        except (OSError, TimeoutError) as error:
            logger.info("A kernel can't be put to sleep: %s", error or "it does not stop")
            self.wake()
        return not self.over

    async def _until_frozen(self) -> None:
        async with asyncio.timeout(FREEZE_TIMEOUT):
            while not self.over and not self._group.frozen:  # noqa: ASYNC110 - the system tells nobody
                await asyncio.sleep(FREEZE_PAUSE)

    def _give_back(self) -> None:
        before = self._group.memory_used()
        self._group.give_memory_back(lambda: self.over)
        self._given_back = before - self._group.memory_used()

    def _sent(self, _: Message) -> None:
        self.wake()

    def wake(self) -> None:
        """Let the kernel go on, now. Idempotent. One that has ended has nothing to wake."""
        if self.over:
            return
        self.over = True
        self._stop_listening()
        with suppress(FileNotFoundError, ProcessLookupError):
            self._group.thaw()
        if self._given_back > LARGE:
            self._tasks.start(self._read_back(), "read back")

    async def _read_back(self) -> None:
        """Bring its memory back in order: by itself it would wait for each page when it needs it."""
        try:
            processes = self._group.processes()
            await self._lane.run(read_back, processes)
        except OSError as error:
            logger.debug("A kernel's memory comes back as it needs it: %s", error)

    async def close(self) -> None:
        """Wake it, and let nothing be left to do."""
        self.wake()
        await self._tasks.cancel()


def _ignore(_: Message) -> None:
    """What it sent before it slept."""
