"""Asks the operator's hook about a session's cells, before each is sent to the kernel.

A cell that may not run ends with an error that says why, like one whose packages can't be had. ``program``
has the conversation with the operator's program.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Protocol

from cellgate.execution.run import ExecutionRun, refuse
from cellgate.hook.program import CellHookFailed, HookProgram, HookQuestion
from cellgate.record.rows import SessionRow
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.kernel.kernel import Kernel

JUPYTER = "jupyter"
"""The door of cells that come over a kernel's channels."""
LONGEST_DOOR = 40


class HookedSession(Protocol):
    """The session, as its hook sees it."""

    @property
    def row(self) -> SessionRow:
        """The session's row in the record."""

    @property
    def kernel(self) -> Kernel | None:
        """The current kernel, if any."""

    def report(self, text: str, **more: object) -> None:
        """Log a line for operators."""


class CellHook:
    """A hook for a session's cells, also those in subshells: shows each to the program."""

    beside: ClassVar[bool] = True

    def __init__(self, program: HookProgram, session: HookedSession, principal: str) -> None:
        self._program = program
        self._session = session
        self._principal = principal

    async def before(self, run: ExecutionRun) -> None:
        """Return once the cell may run, or has ended because it may not."""
        if run.was_sent or run.request.own or run.machine.finished:
            return
        asked = self._program.ask(self._question(run))
        tasks = Supervisor()
        unwanted = tasks.start(run.unwanted.wait(), f"cell hook for {run.id}", execution=run.id)
        try:
            await asyncio.wait({asked, unwanted}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._program.leave(run.id, asked)
            raise
        finally:
            await tasks.cancel()
        if run.unwanted.is_set():
            self._program.leave(run.id, asked)
            return
        try:
            await outcome(asked, lambda: CellHookFailed("The gateway is shutting down"))
        except CellgateError as error:
            refuse(run, error)
            self._session.report("A cell may not run", execution=run.id, cause=error.reason)

    async def after(self, run: ExecutionRun) -> None:
        """Do nothing: the program sees cells before they run."""

    def _question(self, run: ExecutionRun) -> HookQuestion:
        row, kernel, request = self._session.row, self._session.kernel, run.request
        told = {} if kernel is None else kernel.facts.info.get("language_info") or {}
        door = JUPYTER if request.message is not None else row.metadata.get("door")
        return HookQuestion(
            id=run.id,
            principal=self._principal,
            session=row.key,
            door=door[:LONGEST_DOOR] if isinstance(door, str) else None,
            language=str(told.get("name", "")),
            code=request.code,
            user_expressions=dict(request.expressions),
        )
