"""Runs cells in a session, one after another, and shows their events as they come.

What ``run`` and ``exec`` have in common, Ctrl-C included. It reads and writes no files: ``exec`` waits for
whatever is imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from msgspec import structs

from cellgate.cli.run.cells import CellFile, SourceCell
from cellgate.cli.run.input import Answers
from cellgate.cli.run.run_report import CellReport
from cellgate.cli.run.script import exit_code, farewell
from cellgate.cli.run.widgets import LastWidgets
from cellgate.cli.terminal.escaping import printed
from cellgate.cli.terminal.screen import Screen
from cellgate.client import ErrorInfo, ErrorRaised, Event, Finished, Gateway, GatewayError, InputRequest
from cellgate.wire.words import LanguageName

_GRACE = 15.0  # seconds for a cell to end after Ctrl-C


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How cells are run. `language`: that of all of them, if it is not the kernel's.

    Cells that ask for input get what `answers` gives, or an end of file, as under ``python < /dev/null``.
    `is_script`: one of them that leaves by `sys.exit` ends the run, with its exit code.
    """

    timeout: float | None = None
    keep_going: bool = False
    language: LanguageName | None = None
    answers: Answers | None = None
    is_script: bool = False


class Run:
    """One run of a file's cells in a session."""

    def __init__(self, gateway: Gateway, session: str, source: CellFile, options: RunOptions) -> None:
        self.gateway = gateway
        self.session = session
        self.source = source
        self._options = options
        self.executions: list[str | None] = [None] * len(source.cells)
        """For each cell of the source the execution that ran it, if one did."""
        self.error: ErrorInfo | None = None
        """That of the last cell that failed."""
        self.exit_code: int | None = None
        """What the script has left with, if it has."""

    async def prepare(self, code: str, screen: Screen) -> None:
        """Run code that is no cell of the file, and show a loss of which its result alone tells."""
        result = await self.gateway.execute(self.session, code, silent=True)
        if result.loss:
            screen.note(result.loss)

    async def cells(self, screen: Screen) -> int:
        """Run the cells; return how many have failed."""
        failed = 0
        places = [index for index, cell in enumerate(self.source.cells) if cell.runs]
        for number, index in enumerate(places, 1):
            cell = self.source.cells[index]
            screen.begin(number, cell.source)
            finished = await self._cell_or_interrupt(index, cell, screen)
            if self._options.is_script and finished.status == "error":
                self.exit_code = exit_code(finished.error)
            if self.exit_code == 0:
                screen.end(number, structs.replace(finished, status="ok", error=None))
                break
            screen.end(number, finished)
            if self.exit_code is not None and finished.error is not None:
                if text := farewell(finished.error):
                    screen.note(printed(text))
                return failed + 1
            if finished.status == "ok" or (finished.status == "error" and cell.may_fail):
                continue
            failed += 1
            self.error = finished.error
            if not self._options.keep_going:
                break
        return failed

    async def _cell_or_interrupt(self, index: int, cell: SourceCell, screen: Screen) -> Finished:
        """Run one cell. When cancelled (Ctrl-C), interrupt the cell, show its end, then raise."""
        task = asyncio.create_task(self._cell(index, cell, screen))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if execution := self.executions[index]:
                await self._cancel(execution, task)
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _cancel(self, execution: str, task: asyncio.Task[Finished]) -> None:
        """Stop the execution and let `task` show its end; after `_GRACE` the connection is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                try:
                    await self.gateway.cancel(self.session, execution)
                except GatewayError as error:
                    if error.status != 409:  # it has ended by itself in the meantime
                        raise
                await task

    async def _cell(self, index: int, cell: SourceCell, screen: Screen) -> Finished:
        stream = self.gateway.stream_execute(
            self.session,
            cell.source,
            timeout=self._options.timeout,
            stdin=[] if self._options.answers is None else None,
            on_disconnect="interrupt",
            language=self._options.language,
        )
        widgets = LastWidgets()
        async with AsyncExitStack() as stack:
            events = await stack.enter_async_context(aclosing(stream))
            answers = self._options.answers
            if answers is not None:
                await stack.enter_async_context(answers)
            async for event in events:
                self.executions[index] = event.execution
                if not self._leaves(event):
                    for shown in widgets.passed(event):
                        screen.event(shown)
                if answers is not None and isinstance(event, InputRequest):
                    answers.ask(event)
                if isinstance(event, Finished):
                    return event
        raise GatewayError(0, "connection_lost", "The gateway ended the stream before the cell was finished")

    def _leaves(self, event: Event) -> bool:
        """Return whether a script leaves by this event, which is no error to show."""
        return self._options.is_script and isinstance(event, ErrorRaised) and event.ename == "SystemExit"

    async def reports(self) -> list[CellReport]:
        """Return the reports of the cells that were run, in their order."""
        return [
            CellReport(index, cell.may_fail, await self.gateway.result(self.session, execution, max_text=0))
            for index, (cell, execution) in enumerate(zip(self.source.cells, self.executions, strict=True))
            if execution is not None
        ]

    @property
    def not_run(self) -> int:
        """The number of cells with code that have not been begun."""
        begun = zip(self.source.cells, self.executions, strict=True)
        return sum(1 for cell, execution in begun if cell.runs and execution is None)

    @property
    def last_execution(self) -> str | None:
        """The id of the execution that was begun last."""
        return next((execution for execution in reversed(self.executions) if execution is not None), None)
