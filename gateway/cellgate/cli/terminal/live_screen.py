"""The display of ``cellgate run`` on a terminal: what `Plain` shows, above a progress bar.

It is apart from ``screen`` because rich takes long to import, and commands that draw no bar need none of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from cellgate.cli.terminal.escaping import printed
from cellgate.cli.terminal.guard import Guard
from cellgate.cli.terminal.images import Pictures
from cellgate.cli.terminal.screen import (
    Heading,
    Plain,
    Screen,
    Seen,
    present,
    summary,
    waits,
    without_colours,
)
from cellgate.client import Event, Finished, Queued, Started, Stream

_LONG_LINE = 16 * 1024  # characters of an unfinished line that are held back


def make_screen(total: int, pictures: Pictures, places: Sequence[int] = ()) -> Screen:
    """Return a live screen if stdout and stderr are terminals that can move the cursor, else plain lines.

    `places`: those of the cells in their notebook, if they are named by them.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return Live(console, total, pictures, places)
    return Plain(total, pictures, places)


class Live:
    """Lines above a progress bar. An unfinished line is shown beside the bar."""

    def __init__(self, console: Console, total: int, pictures: Pictures, places: Sequence[int] = ()) -> None:
        self._console = console
        self._pictures = pictures
        self._count: int | None = None
        self._heading = Heading(total, places)
        self._open = ""
        self._seen = Seen()
        self._progress = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_line()
        self._progress.stop()

    def begin(self, number: int, code: str) -> None:
        """Name the cell in the bar by its first line."""
        self._seen = Seen()
        self._progress.update(self._task, completed=number - 1, description=_beside_bar(code.strip()))

    def event(self, event: Event) -> None:
        """Whole lines go above the bar; of text overwritten by carriage returns only the last is shown."""
        self._seen.event(event)
        if isinstance(event, Stream):
            *ended, self._open = (self._open + event.text).split("\n")
            for line in ended:
                self._print(_last_overwrite(line))
            if len(self._open) > _LONG_LINE:
                self._end_line()
            elif self._open:
                # A carriage return at the end overwrites nothing until more text arrives.
                pending = "\r" if self._open.endswith("\r") else ""
                self._open = _last_overwrite(self._open) + pending
                self._progress.update(self._task, description=_beside_bar(self._open))
        elif isinstance(event, Started):
            self._count = event.execution_count
        elif isinstance(event, Queued) and event.waiting_for == "kernel":
            self.note(waits(event.position))
        elif shown := present(event, self._pictures, self._count):
            self._end_line()
            if shown.sequence:
                self._draw(shown.sequence)
            else:
                self._print(shown.note)

    def end(self, number: int, finished: Finished) -> None:
        """Move the bar; write a line for a cell that failed, or whose end no output explains."""
        self._end_line()
        self._progress.update(self._task, completed=number)
        if finished.status != "ok":
            self.note(f"{self._heading.of(number)} {summary(finished)}")
        for line in self._seen.remarks(finished):
            self.note(line)

    def note(self, text: str) -> None:
        """Write a dim line above the bar."""
        self._end_line()
        self._progress.console.print(Text(printed(text), style="dim"))

    def _end_line(self) -> None:
        if self._open:
            self._print(_last_overwrite(self._open))
            self._open = ""

    def _draw(self, sequence: str) -> None:
        # The bar would be drawn again in the middle of the picture.
        self._progress.stop()
        sys.stdout.write(sequence)
        sys.stdout.flush()
        self._progress.start()

    def _print(self, text: str) -> None:
        # Of what the guard lets pass a Text keeps the colours: a cell can't repaint the user's terminal.
        self._progress.console.print(Text.from_ansi(Guard().whole(text)))


def _last_overwrite(line: str) -> str:
    """Return the part of a line with carriage returns that a terminal would show."""
    return line.rstrip("\r").rpartition("\r")[2]


def _beside_bar(text: str) -> str:
    return without_colours(Guard().whole(text[:_LONG_LINE].partition("\n")[0]))[:60]
