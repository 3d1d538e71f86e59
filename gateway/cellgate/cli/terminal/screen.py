"""The display of ``cellgate run``: cells' outputs as they arrive, and how each cell has ended.

`Plain` writes lines, the cells' output to stdout and everything about the run to stderr, so that
``cellgate run x.py > out.txt`` saves the output only; `Silent` is for programs, which want the result alone.
``live_screen`` has the one for a terminal. None knows the gateway; all receive the client's events.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from cellgate.cli.terminal.guard import Outlet
from cellgate.cli.terminal.images import SUFFIXES, Pictures, TerminalPicture
from cellgate.client import (
    DisplayData,
    ErrorRaised,
    Event,
    Finished,
    Queued,
    Started,
    Stream,
    UpdateDisplayData,
)
from cellgate.client.loss import describe_loss
from cellgate.wire.endings import describe_end
from cellgate_kernels.codec.telling import chart_of, tell

_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[ -/]++[0-~]|[@-Z\\-_])")


def note_wait(position: int) -> None:
    """Say on stderr how many others get a kernel before the command's new session."""
    sys.stderr.write(f"{waits(position)}\n")
    sys.stderr.flush()


def waits(position: int | None) -> str:
    """Return the words about a session in line for a kernel."""
    return f"waits for a kernel, {position or 0} before it"


class Screen(Protocol):
    """Shows a run. `begin` and `end` are called once for each cell, `event` in between."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, number: int, code: str) -> None:
        """Cell `number` (from 1) is about to be sent."""

    def event(self, event: Event) -> None:
        """Show an output of the running cell."""

    def end(self, number: int, finished: Finished) -> None:
        """Cell `number` has ended."""

    def note(self, text: str) -> None:
        """Show a remark about the run."""


class Seen:
    """What a cell's events have shown, and so what is left to be said at its end."""

    def __init__(self) -> None:
        self._started = False
        self._error = False

    def event(self, event: Event) -> None:
        """Note an event of the cell."""
        self._started |= isinstance(event, Started)
        self._error |= isinstance(event, ErrorRaised)

    def remarks(self, finished: Finished) -> Iterator[str]:
        """Why the cell ended, if no output says so, and what was lost with its kernel."""
        if why := describe_end(finished, started=self._started, error_shown=self._error):
            yield without_colours(why)
        if loss := describe_loss(finished.kernel):
            yield loss


class Silent:
    """A screen for programs, which want the result alone: nothing is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close nothing: nothing is open."""

    def begin(self, number: int, code: str) -> None:
        """Show nothing of a cell's beginning."""

    def event(self, event: Event) -> None:
        """Show nothing of a cell's events."""

    def end(self, number: int, finished: Finished) -> None:
        """Show nothing of a cell's end."""

    def note(self, text: str) -> None:
        """Show nothing of a note."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What a cell is called at its end: the how manieth of how many, and its place in a notebook."""

    total: int
    places: Sequence[int]

    def of(self, number: int) -> str:
        """Return the heading of the cell with this number, from 1."""
        return f"[{number}/{self.total}]" + (f" cell {self.places[number - 1]}:" if self.places else "")


class Plain:
    """Lines only."""

    def __init__(self, total: int, pictures: Pictures, places: Sequence[int] = ()) -> None:
        self._heading = Heading(total, places)
        self._pictures = pictures
        self._count: int | None = None
        self._open: Outlet | None = None
        self._out = Outlet(sys.stdout)
        self._err = Outlet(sys.stderr)
        self._seen = Seen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_line()

    def begin(self, number: int, code: str) -> None:
        """Show nothing: a plain log has one line for each cell, at its end."""
        self._seen = Seen()

    def event(self, event: Event) -> None:
        """Stream output is written to the stream it was written to, unchanged if that is no terminal."""
        self._seen.event(event)
        if isinstance(event, Stream):
            stream = self._err if event.name == "stderr" else self._out
            stream.write(event.text)
            self._open = None if event.text.endswith("\n") else stream
        elif isinstance(event, Started):
            self._count = event.execution_count
        elif isinstance(event, Queued) and event.waiting_for == "kernel":
            self.note(waits(event.position))
        elif shown := present(event, self._pictures, self._count):
            self._end_line()
            if shown.sequence:
                sys.stdout.write(shown.sequence)
                sys.stdout.flush()
            else:
                self._out.line(without_colours(shown.note))

    def end(self, number: int, finished: Finished) -> None:
        """Write a line to stderr, and others for an end that no output explains."""
        self.note(f"{self._heading.of(number)} {summary(finished)}")
        self.explain(finished)

    def explain(self, finished: Finished) -> None:
        """Write lines to stderr that say why the cell ended and what was lost, if no output does."""
        for line in self._seen.remarks(finished):
            self.note(line)

    def note(self, text: str) -> None:
        """Write one line to stderr."""
        self._end_line()
        self._err.note(text)

    def _end_line(self) -> None:
        self._out.end()
        self._err.end()
        if self._open is not None:
            self._open.write("\n")
            self._open = None


def without_colours(text: str) -> str:
    """`text` without terminal control sequences."""
    return _ANSI.sub("", text)


def present(event: Event, pictures: Pictures, count: int | None) -> TerminalPicture | None:
    """Return an output as text or picture, None if nothing is shown. `count`: the cell's prompt number."""
    if isinstance(event, DisplayData) and not isinstance(event, UpdateDisplayData):
        return present_data(event.data, pictures, count)
    text = describe(event)
    return TerminalPicture(text) if text else None


def present_data(data: Mapping[str, Any], pictures: Pictures, count: int | None) -> TerminalPicture | None:
    """Return a MIME bundle as text, or as a picture that is shown; None for an empty one."""
    mime = next((mime for mime in SUFFIXES if isinstance(data.get(mime), str)), None)
    if mime is None:
        text = describe_data(data)
        return TerminalPicture(text) if text else None
    picture = pictures.take(mime, data[mime], count)
    text = describe_data(data if chart_of(data) else {mime: data[mime]})
    if picture.sequence:
        return picture
    return TerminalPicture(f"{text[:-1]} {picture.note}]" if picture.note else text)


def describe(event: Event) -> str:
    """Return an output as text: an image as one line, a traceback in full; "" if nothing is shown."""
    if isinstance(event, ErrorRaised):
        return "\n".join(event.traceback) or f"{event.ename}: {event.evalue}"
    if isinstance(event, DisplayData) and not isinstance(event, UpdateDisplayData):
        return describe_data(event.data)
    return ""


def describe_data(data: Mapping[str, Any]) -> str:
    """Return a MIME bundle as text: ``[image/png 640x480]``, anything else as results tell it."""
    images = [mime for mime in data if mime.startswith("image/")]
    # A chart with its still is a chart.
    if images and chart_of(data) is None:
        return f"[{images[0]} {_image_size(images[0], data[images[0]])}]"
    return tell(data)


def _image_size(mime: str, content: object) -> str:
    text = str(content)
    if mime == "image/png":
        with contextlib.suppress(binascii.Error, struct.error):
            # The IHDR chunk comes first: width and height are bytes 16 to 24 of every PNG.
            head = base64.b64decode("".join(text[:64].split())[:32])
            width, height = struct.unpack(">II", head[16:24])
            return f"{width}x{height}"
    size = len(text) if mime == "image/svg+xml" else len(text) * 3 // 4
    return f"{max(1, round(size / 1024))} KB"


def summary(finished: Finished) -> str:
    """Describe a cell's end in a few words: ``ok 0.12 s``, ``timeout (cell_timeout) 60.00 s``."""
    words: list[str] = [finished.status]
    if finished.cause:
        words.append(f"({finished.cause})")
    if finished.duration_ms is not None:
        words.append(f"{finished.duration_ms / 1000:.2f} s")
    if finished.truncated:
        words.append("output cut")
    return " ".join(words)
