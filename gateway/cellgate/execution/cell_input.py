"""The answers to a cell's `input()`: lines from its request, or from a client.

Pure: ``run`` sends them to the kernel.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cellgate_kernels.base.errors import InvalidInput

END_OF_FILE = "\x04"


@dataclass(slots=True)
class CellInput:
    """The input of one cell. `awaited`: whether a client has to answer.

    `lines`: all lines, as in a pipe, so that `input()` raises EOFError after the last one; None if clients
    answer.
    """

    lines: deque[str] | None
    awaited: bool = False

    def next_line(self) -> str | None:
        """Return the next line for `input()`; None if a client has to send it."""
        if self.lines is None:
            self.awaited = True
            return None
        return self.lines.popleft() if self.lines else END_OF_FILE

    def take_answer(self) -> None:
        """Accept a client's answer. Raises InvalidInput if none is awaited."""
        if not self.awaited:
            raise InvalidInput("This execution does not wait for input")
        self.awaited = False
