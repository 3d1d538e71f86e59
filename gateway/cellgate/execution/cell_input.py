"""The answers to a cell's `input()`: the lines that its request has, or a client's.

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

    `lines`: all the lines there are, as with a pipe, so that `input()` raises EOFError after the last one;
    None if clients answer.
    """

    lines: deque[str] | None
    awaited: bool = False

    def next_line(self) -> str | None:
        """Return the answer to a request for input; None if a client has to give it."""
        if self.lines is None:
            self.awaited = True
            return None
        return self.lines.popleft() if self.lines else END_OF_FILE

    def take_answer(self) -> None:
        """Note that a client answers. Raises InvalidInput if no answer is awaited."""
        if not self.awaited:
            raise InvalidInput("This execution does not wait for input")
        self.awaited = False
