"""``cellgate run``: runs a file's cells through the gateway, shows their outputs, writes the notebook.

It is a client only: the cells run in a session like any other, recorded by the gateway. ``notebook_files``
reads the file and makes the notebook, ``screen`` shows the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Any

import nbformat
from traitlets import Bool, Unicode

from cellgate.cli.base import UsageError
from cellgate.cli.cell_options import SessionOptions
from cellgate.cli.notebook_files import Cell, CellFile, read_cells, weave
from cellgate.cli.screen import Screen, make_screen
from cellgate.client import Finished, Gateway, GatewayError
from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.specs.languages import parse_language

_GRACE = 15.0  # seconds for a cell to end after Ctrl-C


def session_name(path: Path) -> str:
    """A new session's name, ``run-<stem>-<8 hex digits>``, of characters allowed in a session key."""
    stem = re.sub(r"[^A-Za-z0-9._~-]+", "-", path.stem)[:80].strip("-")
    return "-".join(filter(None, ("run", stem, secrets.token_hex(4))))


class RunApp(SessionOptions):
    """``cellgate run``."""

    name = "cellgate-run"
    usage = "FILE [options]"
    description = """
        Runs the cells of a notebook (.ipynb), of a Python script (.py, divided by "# %%" lines) or of a
        Markdown file (.md, its blocks in the session's language) one after another, and shows their outputs
        as they come. It stops at the first cell that fails. It respects the tags raises-exception and
        skip-execution of a notebook's cells.

        Exit code: 0 all cells ended well, 1 one failed, 2 wrong usage or no gateway, 130 after Ctrl-C.
    """
    examples = """
        cellgate run analysis.ipynb -o analysis-done.ipynb
        cellgate run script.py --session work     keeps the session: variables stay for the next run
        cellgate run README.md --timeout 30       check that the examples of a README work
        cellgate run guide.md --all-languages     its blocks of bash and JavaScript too
    """

    language = Unicode(help="The language of a new session, and of a Markdown file's blocks.").tag(
        config=True, metavar="NAME"
    )
    output = Unicode(help="Where to write the notebook with the outputs, even if a cell failed.").tag(
        config=True, metavar="FILE"
    )
    all_languages = Bool(False, help="Run a Markdown file's blocks in other languages too.").tag(config=True)
    keep_going = Bool(False, help="Run the remaining cells after one has failed.").tag(config=True)

    aliases: Any = {  # noqa: RUF012
        ("o", "output"): "RunApp.output",
        "language": "RunApp.language",
        **SessionOptions.aliases,
    }
    flags = {  # noqa: RUF012
        "all-languages": (
            {"RunApp": {"all_languages": True}},
            "Run a Markdown file's blocks in other languages too, as cells of the same kernel.",
        ),
        "keep-going": ({"RunApp": {"keep_going": True}}, "Run the remaining cells after one has failed."),
    }

    async def run_command(self) -> int:
        """Runs the cells. Whatever needs no gateway is checked first, so that a wrong path costs nothing."""
        path, output = self._paths()
        language = parse_language(self.language or "python")
        source = await asyncio.to_thread(read_cells, path, language, mixed=self.all_languages)
        total = sum(cell.runs for cell in source.cells)
        if not total:
            raise UsageError("; ".join((f"{path} has no code in {language} to run", *source.notices)))
        gateway = self.gateway()
        session = self.session or session_name(path)
        await gateway.create_session(session, kernel=self.kernel or None, language=self.language or None)
        run = Run(gateway, session, source, timeout=self.timeout, keep_going=self.keep_going)
        with make_screen(total) as screen:
            for notice in source.notices:
                screen.note(notice)
            try:
                failed = await run.cells(screen)
            finally:
                # After Ctrl-C too; a second Ctrl-C exits at once.
                await self._conclude(run, screen, output)
        return 1 if failed else 0

    def _paths(self) -> tuple[Path, Path | None]:
        (name,) = self.arguments("FILE")
        if not self.output:
            return Path(name), None
        output = Path(self.output).expanduser()
        if output.suffix != ".ipynb":
            raise UsageError(f"--output {self.output}: a notebook's name ends in .ipynb")
        if not output.parent.is_dir():
            raise UsageError(f"--output {self.output}: there is no folder {output.parent}")
        return Path(name), output

    async def _conclude(self, run: Run, screen: Screen, output: Path | None) -> None:
        try:
            if output is not None:
                await run.write(output)
                screen.note(f"written: {output}")
        finally:
            if not self.session:
                await run.gateway.delete_session(run.session)
            screen.note(f"the record stays: cellgate export {run.session}")


class Run:
    """One run of a file's cells in a session."""

    def __init__(
        self,
        gateway: Gateway,
        session: str,
        source: CellFile,
        *,
        timeout: float | None,
        keep_going: bool,
        language: str | None = None,
    ) -> None:
        self.gateway = gateway
        self.session = session
        self._source = source
        self._timeout = timeout
        self._keep_going = keep_going
        self._language = language
        self._executions: list[str | None] = [None] * len(source.cells)

    async def cells(self, screen: Screen) -> int:
        """Runs the cells; returns how many have failed."""
        failed = 0
        places = [index for index, cell in enumerate(self._source.cells) if cell.runs]
        for number, index in enumerate(places, 1):
            cell = self._source.cells[index]
            screen.begin(number, cell.source)
            finished = await self._cell_or_interrupt(index, cell, screen)
            screen.end(number, finished)
            if finished.status == "ok" or (finished.status == "error" and cell.may_fail):
                continue
            failed += 1
            if not self._keep_going:
                break
        return failed

    async def _cell_or_interrupt(self, index: int, cell: Cell, screen: Screen) -> Finished:
        """Runs one cell. When cancelled (Ctrl-C), it interrupts the cell, shows its end, then raises."""
        task = asyncio.create_task(self._cell(index, cell, screen))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if execution := self._executions[index]:
                await self._cancel(execution, task)
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _cancel(self, execution: str, task: asyncio.Task[Finished]) -> None:
        """Stops the execution and lets `task` show its end; after `_GRACE` the connection is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                try:
                    await self.gateway.cancel(self.session, execution)
                except GatewayError as error:
                    if error.status != 409:  # it has ended by itself in the meantime
                        raise
                await task

    async def _cell(self, index: int, cell: Cell, screen: Screen) -> Finished:
        # No input: a cell that asks for some gets an end of file, as under `python < /dev/null`.
        stream = self.gateway.stream_execute(
            self.session,
            cell.source,
            timeout=self._timeout,
            stdin=[],
            on_disconnect="interrupt",
            language=self._language,
        )
        async with aclosing(stream) as events:
            async for event in events:
                self._executions[index] = event.execution
                screen.event(event)
                if isinstance(event, Finished):
                    return event
        raise GatewayError(0, "connection_lost", "The gateway ended the stream before the cell was finished")

    async def write(self, output: Path) -> None:
        """Writes the notebook: the file's cells with the outputs that the gateway has recorded."""
        with tempfile.TemporaryDirectory(prefix="cellgate-") as folder:
            exported = Path(folder) / "exported.ipynb"
            await self.gateway.notebook(self.session, exported)
            await asyncio.to_thread(self._weave, exported, output)

    def _weave(self, exported: Path, output: Path) -> None:
        reader: Any = nbformat  # untyped
        notebook = weave(self._source, reader.read(exported, as_version=4), self._executions)
        try:
            reader.write(notebook, output)
        except OSError as error:
            raise InvalidInput(f"{output} can't be written: {error.strerror or error}") from error
