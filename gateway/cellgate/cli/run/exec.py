"""``cellgate exec``: runs one piece of code through the gateway and shows its output as it arrives.

It does with one cell what `run` does with a file's cells; Ctrl-C and timeouts are handled by the same code.
On a terminal the cell's output passes through ``terminal.cell_output``, elsewhere it is written as it is.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from traitlets import Bool, Unicode

from cellgate.cli.base import UsageError, switches
from cellgate.cli.run.cell_options import SessionOptions
from cellgate.cli.run.cell_run import Run, RunOptions
from cellgate.cli.run.cells import CellFile, CellKind, SourceCell
from cellgate.cli.run.input import Answers, Lines
from cellgate.cli.run.script import wants_a_person
from cellgate.cli.terminal.cell_output import TerminalCellOutput
from cellgate.cli.terminal.escaping import printed
from cellgate.cli.terminal.images import Pictures
from cellgate.cli.terminal.screen import Plain, Screen, Silent, note_wait, summary
from cellgate.cli.terminal.tables import as_json
from cellgate.client import Event, Finished
from cellgate.wire.words import language_name

_RUNNABLE = frozenset({".py", ".ipynb", ".md"})
"""Extensions of files that people give to `exec`, and that are for `run`."""


class ExecApp(SessionOptions):
    """``cellgate exec``."""

    name = "cellgate-exec"
    usage = "CODE [options]"
    description = """
        Runs CODE as one cell and shows its output as it comes. If CODE is "-", it is read from stdin;
        otherwise stdin answers the cell's input(), line by line.

        Exit code: 0 it ended well, 1 it did not, 2 wrong usage or no gateway, 130 after Ctrl-C.
    """
    examples = """
        cellgate exec 'print(6 * 7)'
        cellgate exec 'x = 5' --session work      keeps the session: variables stay for the next one
        cellgate exec - --session work < step.py
        cellgate exec 'ls -l' --language bash --session work
        echo Ada | cellgate exec 'print("Hello", input())'
        cellgate exec '6 * 7' --json              the whole result, for programs
    """

    carried = MappingProxyType(
        dict.fromkeys(("c", "code"), "CODE stands alone: cellgate exec CODE")
        | dict.fromkeys(("f", "file"), "a file is for another command: cellgate run FILE")
    )

    language = Unicode(help="The language of CODE; default: that of the session's kernel.").tag(
        config=True, metavar="NAME"
    )
    json = Bool(False, help="Print the result as JSON at the cell's end, and nothing else.").tag(config=True)

    aliases: Any = {  # noqa: RUF012
        "language": "ExecApp.language",
        **SessionOptions.aliases,
    }
    flags = {**switches("ExecApp", json=json), **SessionOptions.flags}  # noqa: RUF012

    async def run_command(self) -> int:
        (code,) = self.arguments("CODE")
        lines = Lines(sys.stdin.fileno()) if sys.stdin is not None and code != "-" else None
        if code == "-":
            # Not by a thread, whose end Ctrl-C would wait for.
            code = "" if sys.stdin is None else await Lines(sys.stdin.fileno()).rest()
        if not code.strip():
            raise UsageError("there is no code to run")
        gateway = self.gateway()
        session = self.session or f"exec-{secrets.token_hex(4)}"
        language = language_name(self.language)
        if not self.session:
            await gateway.create_session(
                session,
                on_wait=None if self.json else note_wait,
                kernel=self.kernel or None,
                language=language,
                environment=self.kernel_environment or None,
                checkpoint=self.checkpoint,
            )
        elif language is None or self.kernel or self.kernel_environment or self.checkpoints:
            # Otherwise the execution creates it: an existing one may have another language.
            await gateway.create_session(
                session,
                on_wait=None if self.json else note_wait,
                kernel=self.kernel or None,
                environment=self.kernel_environment or None,
                checkpoint=self.checkpoint,
            )
        output = self._output()
        answers = None if lines is None else Answers(gateway, session, lines, output.prompt)
        options = RunOptions(self.timeout, language=language, answers=answers)
        run = Run(gateway, session, CellFile((SourceCell(CellKind.CODE, code),)), options)
        try:
            with output:
                failed = await run.cells(output)
                for hint in (wants_a_person(run.error), _meant_file(code) if failed else None):
                    if hint is not None:
                        output.note(hint)
            if self.json:
                self.print(as_json(await gateway.result(session, str(run.last_execution), max_text=0)))
            return 1 if failed else 0
        finally:
            if not self.session:
                await gateway.delete_session(session)

    def _output(self) -> ExecOutput:
        if self.json:
            return OnlyPrompts()
        pictures = self.pictures(self.session or "exec")
        return OnTerminal(pictures) if sys.stdout.isatty() else Piped(pictures)


def _meant_file(code: str) -> str | None:
    """Return a hint for a cell that failed because it is the name of a file; None for others."""
    name = code.strip()
    # Path's own is_file raises for what is too long to be a name.
    if Path(name).suffix.lower() not in _RUNNABLE or not os.path.isfile(name):  # noqa: PTH113
        return None
    return f"{name} is a file here: cellgate run {shlex.quote(name)}"


class ExecOutput(Screen, Protocol):
    """Shows one cell, and the prompts of its input()."""

    def prompt(self, text: str) -> None:
        """Show the prompt of input()."""


class OnlyPrompts(Silent):
    """Shows nothing but prompts, on stderr."""

    def prompt(self, text: str) -> None:
        """Write to stderr: stdout is for the result."""
        _prompt_on_stderr(text)


class Piped(Plain):
    """The cell's output only, and of its end only what the output does not show."""

    def __init__(self, pictures: Pictures) -> None:
        super().__init__(1, pictures)

    def end(self, number: int, finished: Finished) -> None:
        """Write to stderr that the cell did not end by itself, if so, and why."""
        if finished.status not in {"ok", "error"}:
            self.note(summary(finished))
        self.explain(finished)

    def prompt(self, text: str) -> None:
        """Write to stderr: stdout is for the cell's output."""
        _prompt_on_stderr(text)


class OnTerminal(Silent):
    """The same on a terminal: with colours and pictures, without what would repaint the user's screen."""

    def __init__(self, pictures: Pictures) -> None:
        self._output = TerminalCellOutput(sys.stdout, pictures, prompts=False)

    def event(self, event: Event) -> None:
        """Show an output, if it passes the filter."""
        self._output.event(event)

    def end(self, number: int, finished: Finished) -> None:
        """Say how the cell ended if its output does not."""
        self._output.end(finished)

    def note(self, text: str) -> None:
        """Show a remark in brackets."""
        self._output.note(text)

    def prompt(self, text: str) -> None:
        """Show the prompt where the cell's output is."""
        self._output.ask(text)


def _prompt_on_stderr(text: str) -> None:
    sys.stderr.write(printed(text))
    sys.stderr.flush()
