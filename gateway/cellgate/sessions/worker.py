"""Works through a session's queue: one task that runs its cells, one after the other, and its restarts.

This is the one place that sends a cell, but for those in Jupyter's subshells, which run beside. ``state``
says when none may begin, ``replacement`` gets kernels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cellgate.errors import ShuttingDown
from cellgate.execution.run import ExecutionRun
from cellgate.sessions.checkpoints import Checkpoint, RolledBack
from cellgate.sessions.holds import SessionHolds
from cellgate.sessions.queue import Restart
from cellgate.sessions.replacement import NO_KERNEL, KernelReplacement
from cellgate.sessions.state import Act, SessionCore, SessionState
from cellgate_kernels.base.errors import CellgateError, DeadlinePassed, GatewayFault
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Status

END_PATIENCE = 2.0
NO_TURN = (
    "The cell's timeout passed while it waited for other cells of its principal, and it did not run:"
    " the quota `running` limits how many run at once."
)
FAULT = GatewayFault.reason
MOST_FAULTS = 3


class SessionFaults:
    """Carries on after internal errors of a session's worker and of what it depends on, logged before.

    Such an error ends what the session was doing, with a cause, and the session continues with a fresh
    worker, which `resume` starts; after more than `MOST_FAULTS` of them with no cell completed in between, as
    `count` says, `end` begins its end. The session's other tasks are short, and each has a failure handler of
    its own that ends whatever waits for it.
    """

    def __init__(self, core: SessionCore, end: Callable[[str], object]) -> None:
        self.count = 0
        self.resume: Callable[[], None] = lambda: None
        self._core = core
        self._end = end

    def of_cell(self, _: Exception) -> None:
        """End the cell that the worker failed at, or that could not be sent."""
        current = self._core.runs.current
        if current is not None and current.broken:
            # Ending it failed as well. Its waiters can be told, but the end can't be recorded.
            current.end.fail(GatewayFault())
            self._core.runs.current = None
        else:
            self._break_off()
        if self._goes_on():
            self.resume()

    def of_listener(self, _: Exception) -> None:
        """Give up the kernel: a message was lost, so those that follow could be misinterpreted."""
        current, kernel = self._core.runs.current, self._core.kernel
        self._break_off()
        if not self._goes_on():
            return
        if kernel is not None and not kernel.connection.closed:
            kernel.connection.close()
            if current is None or not current.gave_up:
                self._core.queue.put_restart(FAULT)
        self.resume()

    def _break_off(self) -> None:
        self.count += 1
        if self._core.runs.current is not None:
            self._core.runs.current.break_off()

    def _goes_on(self) -> bool:
        """Cancel what waits, and end the session if that was too much; returns whether it goes on."""
        self._core.queue.cancel_all(FAULT)
        self._core.queue.refuse_restarts(GatewayFault())
        if not self._core.ending and self.count > MOST_FAULTS:
            self._end(FAULT)
        return not self._core.ending


class SessionWorker:
    """A session's worker; `task` works. `keep` makes an automatic checkpoint, `go_back` returns to one."""

    def __init__(
        self,
        core: SessionCore,
        holds: SessionHolds,
        replacement: KernelReplacement,
        keep: Callable[[], Awaitable[None]],
        go_back: Callable[[Checkpoint], Awaitable[RolledBack]],
        faults: SessionFaults,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._core = core
        self._holds = holds
        self._replacement = replacement
        self._keep = keep
        self._go_back = go_back
        self._faults = faults
        faults.resume = self.resume
        self._now = asyncio.get_running_loop().time

    def start(self) -> None:
        """Start the task of the worker."""
        self.task = self._core.tasks.start(self._work(), "worker", self._faults.of_cell)

    def resume(self) -> None:
        """Begin again, if the former task has failed."""
        if self.task is None or self.task.done():
            self.start()

    def begin(self, run: ExecutionRun) -> ExecutionRun:
        """Queue a cell; if nothing is ahead of it, send it now, a loop iteration before the worker would."""
        if not self._try_now(run):
            self._core.queue.put(run)
            self._replacement.watch_first()
        return run

    def _try_now(self, run: ExecutionRun) -> bool:
        """Send the cell if nothing is ahead of it and it needs no preparation; returns whether it is sent."""
        prepared = run.request.env or self._core.hooks
        free = self._core.slot.alive and not self._core.occupancy.forbids(Act.SEND)
        turn = run.end.place is None or run.end.place.running
        kernel = self._core.kernel
        if kernel is None or prepared or not free or not turn:
            return False
        self._core.runs.current = run
        self._core.record.state = SessionState.BUSY
        # The worker has nothing to do until the cell ends or times out; the run wakes it then.
        self._core.tasks.guard(run.send, "sending a cell", self._faults.of_cell, execution=run.id)(kernel)
        return True

    async def _work(self) -> None:
        if self._core.runs.current is not None and self._core.runs.current.broken:
            # The previous worker failed at this run.
            await self._wrap_up(self._core.runs.current)
        while not self._core.ending:
            if self._core.undo.due and not self._core.occupancy.forbids(Act.KEEP):
                await self._keep()
                continue
            item = self._core.runs.current or self._next()
            if isinstance(item, Restart):
                await self._do_restart(item)
            elif item is None:
                self._core.runs.quiet.set()
                await self._core.queue.wait()
            elif item.machine.finished and item is not self._core.runs.current:
                await self._core.finish_cancelled(item)
            else:
                with self._core.observer.within(item.end.origin):
                    await self._execute(item)

    def _next(self) -> ExecutionRun | Restart | None:
        """Return the next thing to do. A cell waits in the queue until its principal may run one more."""
        if self._core.occupancy.forbids(Act.TAKE):
            return self._core.queue.take_cancelled()
        while (item := self._core.queue.take_urgent()) is None and (
            run := self._core.queue.first
        ) is not None:
            if run.deadline.late:
                run.message = NO_TURN
                self._core.queue.end_first(Status.TIMEOUT, "running_quota")
            elif run.end.place is None or run.end.place.begin(self._core.queue.wake):
                run.deadline.leave_line()
                return self._core.queue.take()
            else:
                run.deadline.stand_in_line()
                return None
        return item

    async def _do_restart(self, request: Restart) -> None:
        found = None
        try:
            if request.point is None:
                await self._replacement.replace(request.cause)
            else:
                found = await self._roll_back_or_restart(request, request.point)
        except CellgateError as error:
            request.refuse(error)
        except asyncio.CancelledError:
            request.refuse(ShuttingDown("The session has ended"))
            raise
        except BaseException:
            request.refuse(GatewayFault())
            raise
        else:
            request.grant(found)
        self._core.record.touch()

    async def _roll_back_or_restart(self, request: Restart, point: Checkpoint) -> RolledBack:
        """Roll back; if that fails and the kernel still runs a cell that was given up, replace it."""
        former = self._core.kernel
        try:
            return await self._go_back(point)
        except CellgateError:
            if request.insists and self._core.slot.alive and self._core.kernel is former:
                await self._replacement.replace(request.cause)
            raise

    async def _execute(self, run: ExecutionRun) -> None:
        already_sent = self._core.runs.current is run
        self._core.runs.current = run
        self._replacement.revivals = 0
        try:
            if not already_sent:
                self._core.record.check_writable()
                if not self._core.slot.alive:
                    since = self._now()
                    await self._replacement.replace(
                        self._core.record.cause or "kernel_exit", run.deadline.patience
                    )
                    run.deadline.deduct(self._core.slot.waited(since))
            assert self._core.kernel is not None
            self._core.record.state = SessionState.BUSY
            await self._run(run, self._core.kernel)
        except DeadlinePassed as error:
            run.message = error.message
            run.abandon(Status.TIMEOUT, NO_KERNEL)
        except CellgateError as error:
            run.message = error.message
            run.abandon(Status.DIED, error.reason)
        self._core.record.note_files(run, await self._core.slot.changed_files())
        await self._wrap_up(run)
        if not run.broken:
            self._faults.count = 0

    async def _run(self, run: ExecutionRun, kernel: Kernel) -> None:
        for hook in self._core.hooks:
            await hook.before(run)
        await run.run(kernel)
        if run.request.env:
            await run.clean_up(kernel)
        for hook in self._core.hooks:
            await hook.after(run)

    async def _wrap_up(self, run: ExecutionRun) -> None:
        """Record the current execution's end and, if necessary, get a kernel for the next one."""
        lost = run.gave_up or not self._core.slot.alive
        if lost and not self._core.ending and not run.broken and await self._replacement.after_loss(run):
            run.lose(self._core.record.take_loss())
        await self._core.finish(run)
        self._core.runs.current = None
        if not self._core.ending and run.broken:
            await self._replacement.after_loss(run)
        if self._core.record.state is SessionState.BUSY:
            self._core.record.state = SessionState.IDLE
            self._core.record.cause = None
        self._core.record.begin_idleness()
        if self._core.kernel is not None and self._core.kernel.exited.done():
            self._replacement.exited(self._core.kernel)
        elif self._core.kernel is None and self._core.door.connections:
            self._replacement.revive()

    def begin_beside(self, run: ExecutionRun, kernel: Kernel) -> None:
        """Run a cell in a subshell while others run."""
        self._core.runs.begin_beside(run)
        self._core.tasks.start(
            self._run_beside(run, kernel),
            f"subshell {run.id}",
            lambda _: self._break_off_beside(run),
            execution=run.id,
        )

    async def _run_beside(self, run: ExecutionRun, kernel: Kernel) -> None:
        """Run a cell in a subshell; if the shared kernel ends, so do all cells."""
        await run.run(kernel)
        if run.gave_up and kernel is self._core.kernel:
            self._holds.restart("kernel_restarted")
        await self._core.finish(run)
        self._core.runs.end_beside(run)
        self._core.record.touch()
        self._core.runs.quiet.set()

    def _break_off_beside(self, run: ExecutionRun) -> None:
        run.break_off()
        self._core.runs.end_beside(run)
        self._core.finish_later(run)
        self._core.runs.quiet.set()

    def remove(self, run: ExecutionRun, cause: str) -> None:
        """Take a cell out of the queue."""
        self._core.queue.remove(run, cause)
        self._core.finish_later(run)
        self._replacement.watch_first()

    async def stop(self) -> None:
        """Give the worker a moment to finish before it is cancelled."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=END_PATIENCE)
            self.task.cancel()
            await asyncio.wait([self.task])
