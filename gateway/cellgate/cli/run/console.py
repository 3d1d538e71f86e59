"""``cellgate console``: a prompt for one session, in a terminal.

Each entry is a cell: an execution of the session, recorded like any other. The kernel provides completions
and says whether an entry is complete; the history is from the record. Cells' output goes through
``terminal.cell_output``; prompt_toolkit does line editing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import aclosing

from cellgate.cli.base import UsageError
from cellgate.cli.run.cell_options import TimeoutOption
from cellgate.cli.run.undone import undone_text
from cellgate.cli.run.widgets import LastWidgets
from cellgate.cli.terminal.cell_output import TerminalCellOutput
from cellgate.cli.terminal.images import Pictures
from cellgate.cli.terminal.screen import note_wait
from cellgate.client import Finished, Gateway, GatewayError, InputRequest

_HISTORY = 1000
_HISTORY_TIMEOUT = 5.0
_UNDO = re.compile(r"\s*%undo\s*")
_LEAVE = re.compile(r"\s*(?:exit|quit)(?:\(\s*\))?\s*")


@contextlib.contextmanager
def _keys_kept(descriptor: int) -> Iterator[None]:
    """While a cell runs, keys are not echoed into its output, and wait unchanged for the next prompt."""
    saved = termios.tcgetattr(descriptor)
    attributes = termios.tcgetattr(descriptor)
    attributes[0] &= ~termios.ICRNL
    attributes[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)


class ConsoleApp(TimeoutOption):
    """``cellgate console``."""

    name = "cellgate-console"
    usage = "SESSION [options]"
    description = """
        A prompt for the session, which is created if missing. Each entry runs as a cell and is recorded;
        entries of several lines, %%magics, colours, progress bars and input() work as in IPython.

        Tab completes, arrow up recalls earlier entries. Enter runs a complete entry, otherwise it starts a
        line; Alt-Enter always starts one. Ctrl-C interrupts the running cell, Ctrl-D leaves. The session
        stays, with its variables.

        %undo takes back the last cell, with what it did to variables and files, in a session that makes
        checkpoints: create it with --checkpoints.
    """
    examples = """
        cellgate console work
        cellgate console work --images figures
        cellgate console careful --checkpoints   %undo takes back the last cell
    """

    async def run_command(self) -> int:
        (name,) = self.arguments("SESSION")
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("console needs a terminal; use cellgate exec")
        gateway = self.gateway()
        model = await gateway.create_session(
            name,
            on_wait=note_wait,
            kernel=self.kernel or None,
            environment=self.kernel_environment or None,
            checkpoint=self.checkpoint,
        )
        self.print(f"{model.session}: {model.kernel}, isolation {model.isolation}. Ctrl-D leaves.")
        pictures = self.pictures(name)
        pictures.prepare()
        await Console(gateway, model.session, pictures, self.timeout).run()
        return 0


class Console:
    """One user at one session's prompt."""

    def __init__(self, gateway: Gateway, session: str, pictures: Pictures, timeout: float | None) -> None:
        self._gateway = gateway
        self._session = session
        self._pictures = pictures
        self._timeout = timeout
        self._execution: str | None = None
        self._interrupts: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Prompt for cells and run them until the user leaves."""
        from cellgate.cli.run.prompt import Prompt  # noqa: PLC0415 - slow to import

        self._prompt = Prompt(self._gateway, self._session)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            with _keys_kept(sys.stdin.fileno()):
                await self._prompt.start(await self._history())
                while (code := await self._prompt.cell()) is not None and not _LEAVE.fullmatch(code):
                    if _UNDO.fullmatch(code):
                        await self._undo()
                    elif code.strip():
                        await self._cell_to_its_end(code)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            await self._prompt.close()

    async def _history(self) -> list[str]:
        """Earlier entries, oldest first; none if getting them takes too long."""
        with contextlib.suppress(TimeoutError, GatewayError):
            async with asyncio.timeout(_HISTORY_TIMEOUT):
                notebook = await self._gateway.provenance(self._session)
                # Those that were undone are raw cells.
                cells = [cell for cell in notebook["cells"] if "execution" in cell["metadata"]["cellgate"]]
                return ["".join(cell["source"]) for cell in cells[-_HISTORY:]]
        return []

    async def _cell_to_its_end(self, code: str) -> None:
        """Run a cell. A refusal by the gateway is shown, and the prompt continues."""
        output = TerminalCellOutput(sys.stdout, self._pictures)
        try:
            await self._cell(code, output)
        except GatewayError as error:
            output.note(f"{error.reason}: {error.message}")
        finally:
            self._execution = None
            for task in self._interrupts:
                task.cancel()
            await asyncio.gather(*self._interrupts, return_exceptions=True)

    async def _undo(self) -> None:
        """Take back the last cell, or say why that is not possible."""
        output = TerminalCellOutput(sys.stdout, self._pictures)
        try:
            output.note(undone_text(await self._gateway.undo(self._session)))
        except GatewayError as error:
            output.note(f"{error.reason}: {error.message}")

    async def _cell(self, code: str, output: TerminalCellOutput) -> None:
        stream = self._gateway.stream_execute(
            self._session, code, timeout=self._timeout, on_disconnect="interrupt"
        )
        widgets = LastWidgets()
        async with aclosing(stream) as events:
            async for event in events:
                self._execution = event.execution or self._execution
                for shown in widgets.passed(event):
                    output.event(shown)
                if isinstance(event, InputRequest):
                    await self._answer(event, output)
                elif isinstance(event, Finished):
                    output.end(event)

    async def _answer(self, request: InputRequest, output: TerminalCellOutput) -> None:
        """Ask the user; without an answer (Ctrl-C, Ctrl-D) the cell is interrupted."""
        line = await self._prompt.answer(output.guarded(request.prompt), password=request.password)
        try:
            if line is None:
                await self._gateway.cancel(self._session, str(request.execution))
            else:
                await self._gateway.answer_input(self._session, str(request.execution), line)
        except GatewayError as error:
            if error.status != 409:  # the cell has ended in the meantime
                raise

    def _interrupt(self) -> None:
        if self._execution is not None and not self._interrupts:
            task = asyncio.create_task(self._cancel(self._execution))
            self._interrupts.add(task)
            task.add_done_callback(self._interrupts.discard)

    async def _cancel(self, execution: str) -> None:
        # Whether it has ended by itself or the gateway does not answer, the cell's own stream will show it.
        with contextlib.suppress(GatewayError):
            await self._gateway.cancel(self._session, execution)
