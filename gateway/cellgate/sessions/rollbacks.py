"""Makes a session's checkpoints while no cell begins, goes back to them, and continues as a branch.

``undo`` has the checkpoints, ``replacement`` exchanges the kernel; this module records both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from cellgate.errors import Conflict
from cellgate.execution.run import ExecutionRun
from cellgate.sessions.checkpoints import Checkpoint, Position, RolledBack
from cellgate.sessions.copied_cell import copied
from cellgate.sessions.holds import SessionHolds
from cellgate.sessions.machine import Step
from cellgate.sessions.replacement import CHOSEN, ROLLED_BACK, KernelReplacement
from cellgate.sessions.state import SessionCore
from cellgate_kernels.base.errors import CellgateError, KernelDied

logger = logging.getLogger(__name__)

NAMED_BY_EVENT = "at-"
"""The beginning of the name of a checkpoint made without a name."""


class SessionRollbacks:
    """The checkpoints and rollbacks of one session."""

    def __init__(self, core: SessionCore, holds: SessionHolds, replacement: KernelReplacement) -> None:
        self._core = core
        self._holds = holds
        self._replacement = replacement

    async def checkpoint(self, name: str | None, *, anyway: bool) -> Checkpoint:
        """Make a checkpoint of variables and files, to go back to while the kernel or one made from it lives.

        Without a `name`, the number of the last event names it. Raises the errors of `held` and
        `SessionUndo.make`, and Conflict when other sessions use the files, having changed nothing.
        """
        async with self._holds.held():
            self._check_files("Another session uses the same files, so they can't be rolled back")
            assert self._core.kernel is not None
            at = await self._position()
            name = f"{NAMED_BY_EVENT}{at.seq}" if name is None else name
            point = await self._core.undo.make(self._core.kernel, at, name, anyway=anyway)
        self._core.record.checkpointed(point)
        return point

    def _check_files(self, refusal: str) -> None:
        """Check that no other session uses the files. Raises Conflict with this text."""
        if self._core.machine.files_wanted(shared=self._core.slot.shares_files) is not Step.GO:
            raise Conflict(refusal)

    async def _position(self) -> Position:
        while self._core.record.log.head_seq < self._core.record.log.last_seq:
            await self._core.record.log.chained()
        return Position(
            self._core.record.log.last_seq, self._core.undo.cells, self._core.record.log.head.hex()
        )

    async def keep(self) -> None:
        """Make the checkpoint that follows a cell before another one begins, unless that is done."""
        kernel = self._core.kernel
        step = self._core.machine.checkpoint_due(
            alive=self._core.slot.alive, shared=self._core.slot.shares_files
        )
        if kernel is None or step is Step.SKIP:
            self._core.undo.due = False
            return
        with self._holds.counted():
            async with self._core.slot.moving:
                # Another task may have made the checkpoint during the wait.
                if self._core.undo.due:
                    await self._core.undo.make_automatic(kernel, await self._position())

    def roll_back(self, name: str | None = None) -> asyncio.Future[RolledBack | None]:
        """Go back to the checkpoint of this name, by default the newest.

        The running cell ends as interrupted, queued ones are cancelled. The future is done when the session
        has the checkpoint's kernel and files. Raises NotFound, Conflict when other sessions use the files,
        ShuttingDown, StorageError and PrincipalQuotaExceeded, having changed nothing.
        """
        return self._begin_rollback(self._core.undo.find(name))

    def undo_last_cell(self) -> asyncio.Future[RolledBack | None]:
        """Go back to the newest checkpoint from before the last cell. Raises as `roll_back`."""
        return self._begin_rollback(
            self._core.undo.before_last_cell(sum(run.was_sent for run in self._core.runs.running))
        )

    def _begin_rollback(self, point: Checkpoint) -> asyncio.Future[RolledBack | None]:
        self._core.check_recordable()
        self._check_files("Another session uses the same files, which a rollback would change for it")
        self._core.record.touch()
        return asyncio.shield(self._holds.restart(ROLLED_BACK, point))

    async def take_over(self, branch: SessionRollbacks, run: ExecutionRun, *, anyway: bool) -> None:
        """Continue as a branch whose cell has ended: with its variables and files, and the cell in the
        record.

        The caller explores the session and ends the branch afterwards. Raises as `checkpoint` and
        `roll_back`, and Conflict if the branch has run other cells too; then the session goes on as before,
        unless its files could not be exchanged.
        """
        async with self._holds.held(explored=True), branch._core.slot.moving:
            self._check_files("Another session uses the same files, which the choice would change for it")
            kernel = branch._core.kernel
            if kernel is None or not kernel.alive:
                raise KernelDied("The branch's kernel has ended")
            # A client may know the branch's key; no cell begins between the fork and its snapshot.
            with branch._holds.counted():
                if branch._core.machine.chosen(cells=branch._core.undo.cells) is not Step.GO:
                    raise Conflict("The branch has run other cells too")
                at = replace(await self._position(), cells=self._core.undo.cells + 1)
                point = await self._core.undo.make_of_branch(kernel, at, anyway=anyway)

        async def tell(_: RolledBack) -> None:
            row = run.record.row(self._core.row.id)
            self._core.record.finished(
                await copied(branch._core.record.log, row, self._core.record.log, self._core.runs.take_number)
            )
            # Going back to the checkpoint must not undo the cell from which it was made.
            self._core.undo.move(point, await self._position())

        try:
            await self._go_on_as(point, CHOSEN, tell)
        except BaseException:
            await self._forget(point)
            raise
        if not self._core.undo.automatic:
            await self._forget(point)

    async def _forget(self, point: Checkpoint) -> None:
        """End a checkpoint that nobody requested."""
        try:
            await self._core.undo.forget(point)
        except CellgateError as error:
            logger.warning("A checkpoint could not be ended: %s", error.message, extra=self._core.ids())

    async def go_back(self, point: Checkpoint) -> RolledBack:
        """Go back to a checkpoint, ending all later work. Raises as `SessionKernel.roll_back`."""

        async def tell(found: RolledBack) -> None:
            self._core.record.rolled_back(found)

        return await self._go_on_as(point, ROLLED_BACK, tell)

    async def _go_on_as(
        self, point: Checkpoint, cause: str, tell: Callable[[RolledBack], Awaitable[None]]
    ) -> RolledBack:
        """Continue with a kernel made from a checkpoint, and restore the files; `tell` records the result.

        Runs to its end even if the caller is cancelled, so that the record is complete. On errors the session
        is as before, or without a kernel.
        """
        return await self._core.tasks.complete(
            self._replacement.exchange(point, cause, tell), f"{cause} {point.name}"
        )
