"""A cell's output on the user's terminal, which may set colours and overwrite its own lines, but no more.

A cell is not trusted: of its control sequences only those pass that set colours, erase a line, or move the
cursor within the cell's own output. Pictures become files. It receives the client's events and knows no
gateway; ``console`` asks for input and sends the cells.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import TextIO

from cellgate.cli.screen import Seen, describe_data, summary
from cellgate.client import (
    ClearOutput,
    DisplayData,
    ErrorRaised,
    Event,
    ExecuteResult,
    Finished,
    Started,
    Stream,
)

_ESCAPE = re.compile(
    r"\x1b\[(?P<colour>[0-9;:]*)m"
    r"|\x1b\[(?P<erase>[012]?)K"
    r"|\x1b\[(?P<up>[0-9]*)A"
    r"|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-Z\\^-~])"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"
    r"|(?P<line>\n)"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z")
_LONGEST = 4096  # characters of a sequence that may be split between two events
_RESET = "\x1b[0m"
_SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
}


class Guard:
    """A filter for one cell's output. It remembers a control sequence that `feed` ended in the middle of."""

    def __init__(self) -> None:
        self._rest = ""
        self._below = 0  # lines between the cell's first and the cursor

    def feed(self, text: str) -> str:
        """The part of `text` that may go to the terminal."""
        text = self._rest + text
        cut = _UNFINISHED.search(text, max(0, len(text) - _LONGEST))
        end = len(text) if cut is None else cut.start()
        self._rest = text[end:]
        return _ESCAPE.sub(self._judge, text[:end])

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


class CellOutput:
    """Shows one cell's events on `screen`; pictures are written to the folder `images`."""

    def __init__(self, screen: TextIO, images: Path) -> None:
        self._screen = screen
        self._images = images
        self._guard = Guard()
        self._seen = Seen()
        self._at_start = True
        self._count: int | None = None
        self._pictures = 0

    def event(self, event: Event) -> None:
        """Shows an event; kinds that show nothing are ignored."""
        self._seen.event(event)
        match event:
            case Started():
                self._count = event.execution_count
            case Stream():
                self.write(event.text)
            case ClearOutput():
                self.write("\r\x1b[2K")
            case ErrorRaised():
                self._line("\n".join(event.traceback) or f"{event.ename}: {event.evalue}")
            case ExecuteResult():
                self._line(f"\x1b[31mOut[{event.execution_count}]:\x1b[0m {self._data(event)}")
            case DisplayData():
                self._line(self._data(event))

    def write(self, text: str) -> None:
        """Writes a cell's text, filtered."""
        allowed = self._guard.feed(text)
        self._screen.write(allowed)
        self._screen.flush()
        if allowed:
            self._at_start = allowed.endswith("\n")

    def guarded(self, text: str) -> str:
        """`text`, filtered, to be shown by the caller."""
        return self._guard.feed(text)

    def end(self, finished: Finished) -> None:
        """Leaves the terminal with colours reset, at the start of a line; reports an unusual end."""
        self._line("")
        if finished.status not in {"ok", "error"} or finished.truncated:
            self.note(summary(finished))
        for line in self._seen.remarks(finished):
            self.note(line)

    def note(self, text: str) -> None:
        """Writes a remark, which is not the cell's output."""
        self._line(f"\x1b[2m[{text}]\x1b[0m")

    def _line(self, text: str) -> None:
        if not self._at_start:
            self.write("\n")
        self.write(f"{text}{_RESET}\n" if text else _RESET)
        self._at_start = True

    def _data(self, event: DisplayData) -> str:
        mime = next((mime for mime in _SUFFIXES if isinstance(event.data.get(mime), str)), None)
        if mime is None:
            text = describe_data(event.data)
            return f"\n{text}" if isinstance(event, ExecuteResult) and "\n" in text else text
        saved = self._save(mime, event.data[mime])
        return f"{describe_data({mime: event.data[mime]})[:-1]} {saved}]"

    def _save(self, mime: str, content: str) -> str:
        """Writes a picture; returns its name, or why it was not saved."""
        try:
            data = content.encode() if mime == "image/svg+xml" else base64.b64decode(content)
            self._images.mkdir(parents=True, exist_ok=True)
            while True:
                self._pictures += 1
                path = self._images / f"{self._count or 0}-{self._pictures}{_SUFFIXES[mime]}"
                try:
                    with path.open("xb") as file:
                        file.write(data)
                except FileExistsError:
                    continue
                return f"saved: {path}"
        except (OSError, binascii.Error) as error:
            return f"not saved: {getattr(error, 'strerror', None) or error}"
