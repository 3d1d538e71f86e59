"""Works through a session's queue: one task runs its cells, one after the other, and its restarts.

This is the one place that sends cells, except to Jupyter's subshells, which run beside. ``machine`` decides
the next step, ``replacement`` gets kernels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cellgate.errors import ShuttingDown
from cellgate.execution.run import ExecutionRun
from cellgate.sessions.checkpoints import Checkpoint, RolledBack
from cellgate.sessions.holds import SessionHolds
from cellgate.sessions.machine import Step
from cellgate.sessions.queue import Restart
from cellgate.sessions.replacement import NO_KERNEL, KernelReplacement
from cellgate.sessions.state import SessionCore, SessionState
from cellgate_kernels.base.errors import CellgateError, DeadlinePassed, GatewayFault
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Status

END_PATIENCE = 2.0
NO_TURN = (
    "The cell's timeout passed while it waited for other cells of its principal, and it did not run:"
    " the quota `running` limits how many run at once."
)
FAULT = GatewayFault.reason


def _forgets(kernel: Kernel) -> bool:
    """Return whether another gateway may adopt the kernel and would not learn from it which cells it got.

    Such a kernel keeps no spool, so the record must know of a cell before the kernel does: otherwise a crash
    in between would let a repeat run it a second time. All kernels that keep one also tell their variables.
    """
    return kernel.stored and not kernel.facts.tells_variables


class SessionFaults:
    """Carries on after internal errors of a session's worker and of its helpers, which are logged before.

    Such an error ends the session's current work, with a cause, and `resume` starts a fresh worker. After too
    many errors with no cell completed in between, `end` begins the session's end. The session's other tasks
    are short, and each has a failure handler of its own that ends its waiters.
    """

    def __init__(self, core: SessionCore, end: Callable[[str], object]) -> None:
        self.resume: Callable[[], None] = lambda: None
        self._core = core
        self._end = end

    def of_cell(self, _: Exception) -> None:
        """End the cell at which the worker failed, or which could not be sent."""
        current = self._core.runs.current
        step = self._core.machine.failed(broken=current is not None and current.broken)
        if current is not None and step is Step.FAIL_CELL:
            # Ending the cell failed as well. Its waiters are notified, but the end can't be recorded.
            current.end.fail(GatewayFault())
            self._core.runs.current = None
        elif current is not None:
            current.break_off()
        if self._goes_on():
            self.resume()

    def of_listener(self, _: Exception) -> None:
        """Give up the kernel: a message was lost, so later ones could be misinterpreted."""
        current, kernel = self._core.runs.current, self._core.kernel
        self._core.machine.failed(broken=False)
        if current is not None:
            current.break_off()
        if not self._goes_on():
            return
        step = self._core.machine.misheard(
            connected=kernel is not None and not kernel.connection.closed,
            gave_up=current is not None and current.gave_up,
        )
        if kernel is not None and step is not Step.NOTHING:
            kernel.connection.close()
            if step is Step.RESTART:
                self._core.queue.put_restart(FAULT)
        self.resume()

    def _goes_on(self) -> bool:
        """Cancel queued cells, and end the session after too many errors; return whether it goes on."""
        self._core.queue.cancel_all(FAULT)
        self._core.queue.refuse_restarts(GatewayFault())
        step = self._core.machine.broken_off()
        if step is Step.END:
            self._end(FAULT)
        return step is Step.RESUME


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
        """Start a new task if the former one has failed."""
        if self.task is None or self.task.done():
            self.start()

    def begin(self, run: ExecutionRun) -> ExecutionRun:
        """Queue a cell; if nothing is ahead of it, send it now, a loop iteration before the worker would."""
        if not self._try_now(run):
            self._core.queue.put(run)
            self._replacement.watch_first()
        return run

    def _try_now(self, run: ExecutionRun) -> bool:
        """Send the cell if nothing is ahead and no preparation is needed; return whether it was sent."""
        kernel = self._core.slot.current
        step = self._core.machine.submitted(
            alive=kernel is not None and kernel.alive,
            prepared=bool(run.request.env or self._core.hooks) or (kernel is not None and _forgets(kernel)),
            turn=run.end.place is None or run.end.place.running,
            due=self._core.undo.due,
        )
        if kernel is None or step is Step.QUEUE:
            return False
        self._core.runs.current = run
        self._core.record.state = SessionState.BUSY
        # The worker has nothing to do until the cell ends or times out; the run wakes it then.
        self._core.tasks.guard(run.send, "sending a cell", self._faults.of_cell, execution=run.id)(kernel)
        return True

    async def _work(self) -> None:
        machine, runs, queue = self._core.machine, self._core.runs, self._core.queue
        current = runs.current
        if (
            machine.resumed(broken=current is not None and current.broken) is Step.WRAP_UP
            and current is not None
        ):
            # The previous worker failed at this run.
            await self._wrap_up(current)
        while (step := machine.free(due=self._core.undo.due)) is not Step.LEAVE:
            if step is Step.LOOK and queue.first is not None:
                step = self._look_at(queue.first)
            if step is Step.GO_ON and runs.current is not None:
                await self._execute(runs.current)
            elif step is Step.RUN:
                runs.current = queue.pop_first()
                await self._execute(runs.current, sent=False)
            elif step is Step.KEEP:
                await self._keep()
            elif step is Step.FINISH:
                await self._core.finish_cancelled(queue.pop_cancelled())
            elif step is Step.RESTART:
                await self._do_restart(queue.pop_restart())
            elif step is not Step.TIME_OUT:
                runs.quiet.set()
                await queue.wait()

    def _look_at(self, run: ExecutionRun) -> Step:
        """Try to begin the first queued cell, which waits until its principal may run one more."""
        late = run.deadline.late
        turn = not late and (run.end.place is None or run.end.place.begin(self._core.queue.wake))
        step = self._core.machine.looked(late=late, turn=turn)
        if step is Step.TIME_OUT:
            run.message = NO_TURN
            self._core.queue.end_first(Status.TIMEOUT, "running_quota")
        elif step is Step.RUN:
            run.deadline.leave_line()
        else:
            run.deadline.stand_in_line()
        return step

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
        """Roll back; if that fails and the kernel still runs a cell that was given up, replace the kernel."""
        former = self._core.kernel
        try:
            return await self._go_back(point)
        except CellgateError:
            step = self._core.machine.rollback_failed(
                insists=request.insists, alive=self._core.slot.alive, same=self._core.kernel is former
            )
            if step is Step.REPLACE:
                await self._replacement.replace(request.cause)
            raise

    async def _execute(self, run: ExecutionRun, *, sent: bool = True) -> None:
        with self._core.observer.within(run.end.origin):
            await self._do_execute(run, sent=sent)

    async def _do_execute(self, run: ExecutionRun, *, sent: bool) -> None:
        try:
            if not sent:
                self._core.record.check_writable()
                if self._core.machine.kernel_wanted(alive=self._core.slot.alive) is Step.REPLACE:
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

    async def _run(self, run: ExecutionRun, kernel: Kernel) -> None:
        for hook in self._core.hooks:
            await hook.before(run)
        if _forgets(kernel):
            await run.record.log.commit()
        await run.run(kernel)
        if run.request.env:
            await run.clean_up(kernel)
        for hook in self._core.hooks:
            await hook.after(run)

    async def _wrap_up(self, run: ExecutionRun) -> None:
        """Record the current execution's end and, if necessary, get a kernel for the next one."""
        step = self._after(run, recorded=False)
        if step is not Step.NOTHING and await self._replacement.after_loss(run, step):
            run.lose(self._core.record.take_loss())
        await self._core.finish(run)
        step = self._after(run, recorded=True)
        self._core.runs.current = None
        if step is not Step.NOTHING:
            await self._replacement.after_loss(run, step)
        if self._core.record.state is SessionState.BUSY:
            self._core.record.state = SessionState.IDLE
            self._core.record.cause = None
        self._core.record.begin_idleness()
        kernel = self._core.slot.current
        step = self._core.machine.settled(
            kernel=kernel is not None,
            exited=kernel is not None and kernel.exited.done(),
            clients=bool(self._core.door.connections),
        )
        if step is not Step.NOTHING:
            self._replacement.take_note(step, kernel)

    def _after(self, run: ExecutionRun, *, recorded: bool) -> Step:
        """Decide about the kernel of a cell that has ended."""
        kernel = self._core.slot.current
        return self._core.machine.ran(
            recorded=recorded,
            gave_up=run.gave_up,
            broken=run.broken,
            kernel=kernel is not None,
            exited=kernel is not None and kernel.exited.done(),
            transient=self._replacement.transient,
        )

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
        try:
            for hook in self._core.hooks:
                if hook.beside:
                    await hook.before(run)
            await run.run(kernel)
        except CellgateError as error:
            run.message = error.message
            run.abandon(Status.DIED, error.reason)
        step = self._core.machine.ran_beside(gave_up=run.gave_up, same=kernel is self._core.kernel)
        if step is Step.RESTART:
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
