"""``cellgate exec``: runs one piece of code through the gateway and shows its output as it arrives.

It does with one cell what `run` does with a file's cells; Ctrl-C and timeouts are handled by the same code.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import Any

from traitlets import Unicode

from cellgate.cli.base import UsageError
from cellgate.cli.cell_options import SessionOptions
from cellgate.cli.notebook_files import Cell, CellFile, CellKind
from cellgate.cli.run import Run
from cellgate.cli.screen import Plain, summary
from cellgate.client import Finished
from cellgate_kernels.errors import InvalidInput


class ExecApp(SessionOptions):
    """``cellgate exec``."""

    name = "cellgate-exec"
    usage = "CODE [options]"
    description = """
        Runs CODE as one cell and shows its output as it comes. If CODE is "-", it is read from stdin.

        Exit code: 0 it ended well, 1 it did not, 2 wrong usage or no gateway, 130 after Ctrl-C.
    """
    examples = """
        cellgate exec 'print(6 * 7)'
        cellgate exec 'x = 5' --session work      keeps the session: variables stay for the next one
        cellgate exec - --session work < step.py
        cellgate exec 'ls -l' --language bash --session work
    """

    language = Unicode(help="The language of CODE; default: that of the session's kernel.").tag(
        config=True, metavar="NAME"
    )

    aliases: Any = {  # noqa: RUF012
        "language": "ExecApp.language",
        **SessionOptions.aliases,
    }

    async def run_command(self) -> int:
        """Runs the code; returns 1 if it fails."""
        (code,) = self.arguments("CODE")
        if code == "-":
            code = await asyncio.to_thread(_read_stdin)
        if not code.strip():
            raise UsageError("there is no code to run")
        gateway = self.gateway()
        session = self.session or f"exec-{secrets.token_hex(4)}"
        language = self.language or None
        if not self.session:
            await gateway.create_session(session, kernel=self.kernel or None, language=language)
        elif language is None or self.kernel:
            # Otherwise the execution creates it: an existing one may have another language.
            await gateway.create_session(session, kernel=self.kernel or None)
        source = CellFile((Cell(CellKind.CODE, code),))
        run = Run(gateway, session, source, timeout=self.timeout, keep_going=False, language=language)
        try:
            with Output(1) as output:
                return 1 if await run.cells(output) else 0
        finally:
            if not self.session:
                await gateway.delete_session(session)


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"stdin is not text: {error}") from error


class Output(Plain):
    """The cell's output only, and of its end only what the output does not show."""

    def end(self, number: int, finished: Finished) -> None:
        """Writes a line to stderr if the cell did not end by itself, and others that say why."""
        if finished.status not in {"ok", "error"}:
            self.note(summary(finished))
        self.explain(finished)
