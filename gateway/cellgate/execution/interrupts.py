"""Interrupts one cell: never before its start or after its end, and never the next cell.

ipykernel ignores SIGINT outside its handlers, and a late SIGINT hits whatever is running then. So all pending
messages of the kernel are read before it is interrupted, and the next cell waits until the kernel confirms
the interrupt. ``run`` decides when to interrupt; a client's own interrupt_request is not handled here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Execution, Phase
from cellgate_kernels.protocol.messages import Message

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT = 2.0
"""Seconds that a kernel may take to confirm an interrupt once the cell is over."""


class CellInterrupts:
    """Interrupts the cell with the state `machine`. A `silent` cell reports its start only by `busy`."""

    def __init__(self, machine: Execution, *, silent: bool) -> None:
        self._machine = machine
        self._silent = silent
        self._early = False
        self._sent: asyncio.Future[Message] | None = None

    @property
    def _begun(self) -> bool:
        return self._machine.started or (self._silent and self._machine.phase is Phase.BUSY)

    def send(self, kernel: Kernel) -> None:
        """Interrupt now, or once the cell has started. Raises KernelDied.

        ipykernel sends `busy` before it enters the handler, and execute_input from inside it.
        """
        kernel.connection.wake()
        machine = self._machine
        over = machine.finished or machine.replied or machine.idle
        self._early = not (over or self._begun)
        if self._begun and not over:
            self._forget()
            self._sent = kernel.interrupt()

    def received(self, kernel: Kernel) -> None:
        """Send a deferred interrupt, after a message of the cell was received."""
        if self._early and self._begun:
            self._early = False
            # Only after the other messages of the same read: one of them may be the cell's end.
            asyncio.get_running_loop().call_soon(guarded(self._send_late, "late interrupt"), kernel)

    def _send_late(self, kernel: Kernel) -> None:
        try:
            self.send(kernel)
        except KernelDied as error:
            logger.info("An interrupt came too late: %s", error.message)

    async def answered(self, kernel: Kernel) -> None:
        """Return when the kernel has confirmed all interrupts, is gone, or the time is up."""
        if self._sent is not None:
            waited: set[asyncio.Future[Any]] = {self._sent, kernel.exited}
            await asyncio.wait(waited, timeout=ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            self._forget()

    def _forget(self) -> None:
        """Stop waiting for an earlier reply: requests are handled in order, so the last reply covers all."""
        if self._sent is not None:
            self._sent.cancel()
