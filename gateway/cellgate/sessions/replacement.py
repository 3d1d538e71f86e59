"""Gives a session another kernel: a fresh one in place of a lost one, or one made from a checkpoint.

It records the losses, reports them to clients and programs, and watches over the first queued cell while the
session waits in line. ``kernel_slot`` claims and ends kernels; others decide when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import UNSET

from cellgate.execution.run import ExecutionRun
from cellgate.sessions.checkpoints import Checkpoint, RolledBack
from cellgate.sessions.machine import Occupant, Step
from cellgate.sessions.state import SessionCore, SessionState
from cellgate.wire.events import Loss
from cellgate_kernels.base.errors import CellgateError, DeadlinePassed, GatewayFault, in_words
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Status

logger = logging.getLogger(__name__)

CHOSEN = "chosen"
"""The cause of a session's state after it continued as one of its alternatives."""
ROLLED_BACK = "rolled_back"
"""The cause of the ends that a rollback brings, and of the state after it."""
NO_KERNEL = "no_kernel"
"""The cause of a cell's timeout that passed in line for a kernel."""

Moved = Callable[[int], None]
"""Gets the number of claims that are ahead in line."""


class KernelReplacement:
    """Replaces the kernels of one session.

    `opener` gets the position in line for the first kernel, before there is an execution. `transient`: the
    session ends with its first cell, so a kernel that is given up is not replaced.
    """

    def __init__(self, core: SessionCore) -> None:
        self.opener: Moved | None = None
        self.transient = False
        self._core = core
        self._now = asyncio.get_running_loop().time
        # The first queued execution and its timer, while a restart waits in line for a kernel.
        self._watched: tuple[ExecutionRun, asyncio.TimerHandle, float] | None = None

    async def replace(self, cause: str, patience: float | None = None) -> None:
        """Continue with a fresh kernel and the same files; wait in line at most `patience` seconds."""
        self._core.machine.came(occupant=Occupant.REPLACING)
        self.watch_first()
        self._give_up(cause)
        try:
            try:
                await self._core.slot.drop()
            finally:
                self._core.record.set(SessionState.DEAD, cause, None)
            await self._core.undo.kernel_replaced(self._core.slot.workspace)
            kernel = await self._core.slot.claim(patience)
        except BaseException:
            self._core.door.tell("dead")
            raise
        finally:
            self._core.machine.went(occupant=Occupant.REPLACING)
            self._unwatch()
        missing = UNSET if self._core.record.loss is None else self._core.record.loss.missing
        self._core.record.loss = Loss(cause=cause, files=self.files_left, missing=missing)
        self._core.record.attached(kernel, self._core.record.loss)
        self._core.record.set(SessionState.IDLE, cause, kernel)
        self._core.undo.attached()
        self._core.door.kernel_ready(kernel)

    async def exchange(
        self, point: Checkpoint, cause: str, tell: Callable[[RolledBack], Awaitable[None]]
    ) -> RolledBack:
        """Continue with a kernel made from a checkpoint; `tell` records the result."""
        self._core.machine.came(occupant=Occupant.REPLACING)
        try:
            found = await self._core.slot.roll_back(
                self._core.undo, point, partial(self._core.processes.kill, cause)
            )
        except BaseException:
            if self._core.kernel is None:
                self._give_up(cause)
                self._core.record.set(SessionState.DEAD, cause, None)
                self._core.door.tell("dead")
            raise
        finally:
            self._core.machine.went(occupant=Occupant.REPLACING)
        self._give_up(cause)
        try:
            await tell(found)
        finally:
            self._core.record.attached(found.kernel, self._core.record.loss)
            self._core.record.change(SessionState.IDLE, cause, found.kernel)
            self._core.report("A session has gone to a checkpoint", cause=cause)
            self._core.door.kernel_ready(found.kernel)
        return found

    async def after_loss(self, run: ExecutionRun, step: Step) -> bool:
        """Replace a kernel that was given up at a deadline. A dead one is replaced at the next execution.

        Returns whether the session has a fresh kernel now.
        """
        kernel = self._core.kernel
        assert kernel is not None
        if step is Step.NOTE_DEATH:
            self._core.queue.cancel_all("kernel_died")
            self._core.record.set(SessionState.DEAD, kernel.exited.result().cause, kernel)
            return False
        self._core.queue.cancel_all("kernel_replaced")
        if kernel.alive:
            self._died(kernel, GatewayFault.reason if run.broken else "cell_timeout")
        if step is Step.GIVE_UP:
            return False
        try:
            async with asyncio.timeout(self._core.settings.execution.interrupt_grace):
                await self.replace(GatewayFault.reason if run.broken else "cell_timeout")
        except (TimeoutError, CellgateError) as error:
            logger.warning("Session %s has no kernel for now: %s", self._core.row.key, in_words(error))
            return False
        return True

    def _give_up(self, cause: str) -> None:
        """End the programs and ports of a kernel that is given up, and tell its clients."""
        self._core.processes.lose(cause)
        self._core.ports.lose()
        self._core.door.kernel_gone(asked=cause in {"kernel_restarted", ROLLED_BACK, CHOSEN})

    def revive(self) -> None:
        """Get a fresh kernel if there is none, as Jupyter does; only a few times in a row without a cell.

        Does nothing while there are checkpoints with the lost variables: a fresh kernel would end them.
        """
        undo = self._core.undo
        step = self._core.machine.missed(
            alive=self._core.slot.alive, checkpoints=undo.automatic and bool(undo.alive)
        )
        if step is Step.TELL_DEAD:
            self._core.door.tell("dead")
        elif step is Step.RESTART:
            self._core.queue.put_restart(self._core.record.cause or "kernel_exit")

    def kernel_exited(self, kernel: Kernel) -> None:
        """Handle the exit of a kernel, the session's or a former one."""
        if not kernel.dismissed:
            self._died(kernel, kernel.exited.result().cause)
        step = self._core.machine.kernel_exited(
            same=kernel is self._core.kernel, clients=bool(self._core.door.connections)
        )
        if step is not Step.NOTHING:
            self.take_note(step, kernel)

    def _died(self, kernel: Kernel, cause: str) -> None:
        self._core.observer.kernel_died(cause)
        self._core.report("A kernel died", kernel=kernel.id, cause=cause)

    def take_note(self, step: Step, kernel: Kernel | None) -> None:
        """Record a kernel's death between cells, if there is one, and get another kernel if the step says so.

        A kernel's death during a cell is handled by the run.
        """
        if kernel is not None:
            self._core.record.set(SessionState.DEAD, kernel.exited.result().cause, kernel)
        if step is not Step.NOTE_DEATH:
            self.revive()

    def moved(self, position: int) -> None:
        """Report the session's position in line to the execution that needs the kernel."""
        run = self._core.runs.current
        if run is None or run.machine.finished:
            run = self._core.queue.first
        if run is not None:
            run.record.moved(position)
        elif self.opener is not None:
            self.opener(position)

    def watch_first(self) -> None:
        """Let the first queued execution end at its deadline while the session waits in line for a kernel.

        Needed during a restart; otherwise a kernel is claimed for the first execution, with its patience.
        """
        if self._watched is not None and self._watched[0] is self._core.queue.first:
            return
        self._unwatch()
        first = self._core.queue.first
        # An execution that stands in line has a timer of its own.
        patience = None if first is None or first.deadline.stands_in_line else first.deadline.patience
        step = self._core.machine.first_waits(limited=patience is not None)
        if first is not None and patience is not None and step is Step.WATCH:
            timer = asyncio.get_running_loop().call_later(
                patience,
                self._core.tasks.guard(self._too_late, "deadline in line", execution=first.id),
                first,
            )
            self._watched = first, timer, self._now()

    def _unwatch(self) -> None:
        """Charge the execution for its time as the first in line."""
        if self._watched is not None:
            run, timer, since = self._watched
            timer.cancel()
            run.deadline.deduct(self._core.slot.waited(since))
            self._watched = None

    def _too_late(self, run: ExecutionRun) -> None:
        step = self._core.machine.first_late(
            in_line=self._core.slot.in_line, first=run is self._core.queue.first
        )
        if step is Step.TIME_OUT:
            run.message = DeadlinePassed(run.deadline.timeout or 0.0).message
            self._core.queue.remove(run, NO_KERNEL, Status.TIMEOUT)
            self._core.finish_later(run)
            self.watch_first()

    @property
    def files_left(self) -> str:
        """Return whether the files are still there, in the record's words."""
        return "kept" if self._core.slot.has_files else "none"
