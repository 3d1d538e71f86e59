"""What bash's terminal shows of a cell, read in pieces: text, files to display, and the prompt that ends it.

It knows no terminal and opens no file; ``bash_cells`` reads the one and shows the other. What is found
depends on the whole output, never on where the terminal happened to split it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

MARKS = tuple(f"bash_kernel: saved {kind} data to: " for kind in ("image", "html", "javascript"))
"""What bash_kernel's `display`, `displayHTML` and `displayJS` write before the name of the file to show."""
MOST_NAME = 8192
"""Characters of a name; after a longer line, what looks like a mark is just text."""

_MARK = re.compile("|".join(map(re.escape, MARKS)))


class FileLine(NamedTuple):
    """A mark with what follows it in its line, the line's end included."""

    line: str


class CellOutput:
    """The output of one cell. `ended`: the prompt has been read; `late` is what came after it."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._held = ""
        self.ended = False
        self.late = ""

    def feed(self, text: str) -> Iterator[str | FileLine]:
        """Yield the output that is certain by now; keep the rest until more text comes."""
        self._held += text
        output, prompt, late = self._held.partition(self._prompt)
        if prompt:
            self.ended = True
            self.late = late
            self._held = output
            yield from self.end()
            return
        while (found := _MARK.search(self._held)) is not None and (taken := self._line(found)):
            yield from taken
        end = len(self._held) if found is None else found.start()
        if found is None:
            end -= self._begun()
        text, self._held = self._held[:end], self._held[end:]
        if text:
            yield text

    def end(self) -> Iterator[str | FileLine]:
        """Yield the text that was kept, as nothing more follows."""
        while (found := _MARK.search(self._held)) is not None:
            yield from self._line(found, final=True)
        if self._held:
            yield self._held
            self._held = ""

    def _line(self, found: re.Match[str], *, final: bool = False) -> list[str | FileLine]:
        """Return the first marked line, with the text before it, taken out; nothing if it is unfinished."""
        held = self._held
        newline = held.find("\n", found.end())
        stop = len(held) if newline < 0 else newline
        if stop - found.end() > MOST_NAME:
            self._held = held[found.end() :]
            return [held[: found.end()]]
        if newline < 0 and not final:
            return []
        # `printf` may have written something like a mark before `display` did: the last one of a line counts.
        start = max(held.rfind(mark, found.start(), stop) for mark in MARKS)
        self._held = held[stop + 1 :]
        line = FileLine(held[start : stop + 1])
        return [held[:start], line] if start else [line]

    def _begun(self) -> int:
        """Return how many of the last kept characters may begin a mark or the prompt."""
        held, wanted = self._held, (*MARKS, self._prompt)
        longest = max(map(len, wanted)) - 1
        for length in range(min(longest, len(held)), 0, -1):
            tail = held[-length:]
            if any(word.startswith(tail) for word in wanted):
                return length
        return 0
