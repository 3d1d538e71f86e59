"""Words of others on the user's terminal: each stream of the command that is one has a guard of its own.

Cells, programs and gateways are not trusted with a terminal: of their control sequences only those pass that
set colours, erase a line, or move the cursor within the lines that they wrote. What goes into a file or a
pipe is left as it is. It knows no cells and no gateway; ``screen``, ``cell_output`` and ``program_run`` write
by it.
"""

from __future__ import annotations

import re
from typing import TextIO

from cellgate.cli.terminal.escaping import printed

_ESCAPE = re.compile(
    r"\x1b\[(?P<colour>[0-9;:]*+)m"
    r"|\x1b\[(?P<erase>[012]?)K"
    r"|\x1b\[(?P<up>[0-9]*+)A"
    r"|\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[PX^_][^\x1b]*+\x1b\\|[ -/]*+[0-Z\\^-~])"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"
    r"|(?P<line>\n)"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+|\][^\x07\x1b]*+\x1b?|[PX^_][^\x1b]*+\x1b?|[ -/]*+)\Z")
_LONGEST = 4096  # characters of a sequence that may be split between two events
RESET = "\x1b[0m"


class Guard:
    """A filter for one cell's output. It remembers a control sequence that `feed` ended in the middle of."""

    def __init__(self) -> None:
        self._rest = ""
        self._below = 0  # lines between the cell's first and the cursor

    def feed(self, text: str) -> str:
        """Return the part of `text` that may go to the terminal."""
        text = self._rest + text
        cut = _UNFINISHED.search(text, max(0, len(text) - _LONGEST))
        end = len(text) if cut is None else cut.start()
        self._rest = text[end:]
        return _ESCAPE.sub(self._judge, text[:end])

    def finish(self) -> str:
        """Return what may go to the terminal of a sequence that was begun, and never ended: its text."""
        rest, self._rest = self._rest, ""
        return _ESCAPE.sub(self._judge, rest)

    def whole(self, text: str) -> str:
        """Return the part of a text that may go to the terminal, if nothing comes after it."""
        return self.feed(text) + self.finish()

    def _judge(self, found: re.Match[str]) -> str:
        if found["line"]:
            self._below += 1
        elif found["up"] is not None:
            lines = min(int(found["up"][:4] or 1), self._below)
            self._below -= lines
            return f"\x1b[{lines}A" if lines else ""
        elif found["colour"] is None and found["erase"] is None:
            return ""
        return found[0]


class Outlet:
    """One of the command's streams, for what others wrote. `write` a part of it, `line` what is whole.

    `note` is for a remark of the command's own that has their words in it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._guard = Guard() if stream.isatty() else None
        self._has_sequences = False

    def write(self, text: str) -> None:
        """Write a part of a text, of which more may come."""
        if self._guard is not None:
            text = self._guard.feed(text)
            self._has_sequences |= "\x1b" in text
        self._put(text)

    def line(self, text: str) -> None:
        """Write a text that is whole, and end its line."""
        self.end()
        self._put((text if self._guard is None else Guard().whole(text)) + "\n")

    def note(self, text: str) -> None:
        """Write a remark of ours; on a terminal control characters in it are shown."""
        self.end()
        self._put((text if self._guard is None else printed(text)) + "\n")

    def end(self) -> None:
        """Write the text of a control sequence that was not ended, and go back to the usual colours."""
        if self._guard is not None:
            if rest := self._guard.finish():
                self._put(rest)
            self._guard = Guard()
            if self._has_sequences:
                self._has_sequences = False
                self._put(RESET)

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
