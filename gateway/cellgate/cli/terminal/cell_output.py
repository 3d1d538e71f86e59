"""A cell's output on the user's terminal, which may set colours and overwrite its own lines, but no more.

A cell is not trusted: ``guard`` filters what it writes. It receives the client's events and knows no gateway;
``console`` and ``exec`` ask for input and send the cells.
"""

from __future__ import annotations

from typing import TextIO

from cellgate.cli.terminal.guard import RESET, Guard
from cellgate.cli.terminal.images import Pictures
from cellgate.cli.terminal.screen import Seen, present_data, summary, waits
from cellgate.client import (
    ClearOutput,
    DisplayData,
    ErrorRaised,
    Event,
    ExecuteResult,
    Finished,
    Queued,
    Started,
    Stream,
)


class TerminalCellOutput:
    """Shows one cell's events on `screen`. `prompts`: results have Jupyter's ``Out[1]:``."""

    def __init__(self, screen: TextIO, pictures: Pictures, *, prompts: bool = True) -> None:
        self._screen = screen
        self._pictures = pictures
        self._prompts = prompts
        self._guard = Guard()
        self._seen = Seen()
        self._at_start = True
        self._count: int | None = None

    def event(self, event: Event) -> None:
        """Show an event; kinds that show nothing are ignored."""
        self._seen.event(event)
        match event:
            case Started():
                self._count = event.execution_count
            case Queued() if event.waiting_for == "kernel":
                self.note(waits(event.position))
            case Stream():
                self.write(event.text)
            case ClearOutput():
                self.write("\r\x1b[2K")
            case ErrorRaised():
                self._line("\n".join(event.traceback) or f"{event.ename}: {event.evalue}")
            case ExecuteResult() if self._prompts:
                self._display(event, f"\x1b[31mOut[{event.execution_count}]:\x1b[0m ")
            case DisplayData():
                self._display(event)

    def write(self, text: str) -> None:
        """Write a cell's text, filtered."""
        allowed = self._guard.feed(text)
        self._screen.write(allowed)
        self._screen.flush()
        if allowed:
            self._at_start = allowed.endswith("\n")

    def ask(self, prompt: str) -> None:
        """Write a prompt, filtered; the user's answer ends its line."""
        self.write(prompt)
        self._at_start = True

    def guarded(self, text: str) -> str:
        """Return `text` without control sequences that a terminal must not get, for the caller to show."""
        return self._guard.feed(text)

    def end(self, finished: Finished) -> None:
        """Leave the terminal with colours reset, at the start of a line; report an unusual end."""
        self._line("")
        if finished.status not in {"ok", "error"} or finished.truncated:
            self.note(summary(finished))
        for line in self._seen.remarks(finished):
            self.note(line)

    def note(self, text: str) -> None:
        """Write a remark, which is not the cell's output."""
        self._line(f"\x1b[2m[{text}]\x1b[0m")

    def _line(self, text: str) -> None:
        if not self._at_start:
            self.write("\n")
        self.write(f"{text}{RESET}\n" if text else RESET)
        self._at_start = True

    def _display(self, event: DisplayData, prompt: str = "") -> None:
        shown = present_data(event.data, self._pictures, self._count)
        if shown is None or not shown.sequence:
            text = "" if shown is None else shown.note
            # What has several lines, such as a table, begins below the prompt.
            self._line(f"{prompt}\n{text}" if prompt and "\n" in text else f"{prompt}{text}")
            return
        if prompt or not self._at_start:
            self._line(prompt)
        self._screen.write(shown.sequence)
        self._screen.flush()
