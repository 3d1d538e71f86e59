"""Checkpoints: everything that a kernel has in memory, kept as it was at a moment by a fork of its process.

What is known of one, and what can be done with it (`HeldFork`). Values only: ``kernel.Kernel.checkpoint``
makes them, ``pool.KernelPool.restore`` makes a live kernel of one, as often as is wanted;
``inside/branch.py`` forks and holds. The files of the workspace are no part of it.

A held fork is a process in its kernel's sandbox or container that waits, and runs nothing. It belongs to the
same principal and counts towards the same limits: where memory is limited for a whole sandbox, the system may
end a kernel for what held forks keep, so whoever takes checkpoints must keep well within the limit. It ends
with the last kernel of its sandbox and with the gateway that asked for it: the next one does not find it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from cellgate_kernels.base.branching import Obstacle
from cellgate_kernels.launch.base import KernelExit


class HeldFork(Protocol):
    """One kernel as it was. Keep it until `close`."""

    @property
    def id(self) -> str:
        """The checkpoint's id, which no kernel has."""

    @property
    def made_of(self) -> str:
        """The id of the kernel that was forked."""

    @property
    def workspace(self) -> Path:
        """The folder of the kernel's files, which may be gone by now."""

    @property
    def overruled(self) -> tuple[Obstacle, ...]:
        """In spite of what it was made; a kernel made of it does not have that."""

    @property
    def ended(self) -> asyncio.Future[KernelExit]:
        """Completed once, when its process is gone, whoever ended it. Shield it when you await it."""

    @property
    def alive(self) -> bool:
        """Whether a kernel can be made of it: it is neither closed nor ended."""

    async def memory(self) -> int:
        """Bytes that it keeps, and that the kernels of its sandbox don't use any more.

        What several held forks keep together is divided among them, so that the sum is what all of them cost.
        It takes the system some milliseconds for each gigabyte. Raises KernelDied when it has ended.
        """

    def close(self) -> None:
        """End the held fork. Idempotent."""
