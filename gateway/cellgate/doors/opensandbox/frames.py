"""What cells and commands do, in the daemon's server-sent events: events of the record in, frames out. Pure.

A frame is one line of data, an object with a `type`. The forms of a cell's result pass as they are in the
record, undecoded. A command's output is told by the line, without its end, as clients expect: they put it
back between two lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from io import StringIO
from typing import Final

import msgspec

from cellgate.doors.sandbox.cell_event import ENDED, CellEvent
from cellgate.http.message import encode
from cellgate.record.rows import EventRow
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.protocol.outputs import strip_ansi

TEXT: Final = "text/plain"
LONGEST: Final = 2 * MIB
"""Characters after which a line is told before it ends. Agents print files of 500 KiB as a line of JSON."""
KILLED: Final = -1
"""The exit code of a command that a signal has ended, as Go has it."""
FAILED: Final = "CommandExecError"


class _ProcessEvent(msgspec.Struct):
    """An event of a program: the fields that are told of any type."""

    at: str = ""
    name: str = ""
    text: str = ""
    exit_code: int | None = None
    signal: str | None = None
    cause: str | None = None
    duration_ms: float = 0.0


def frame(kind: str, at: int | None = None, **fields: object) -> bytes:
    """Return an event as it is sent. `at`: its time in milliseconds, by default now."""
    told = {"type": kind, **fields, "timestamp": _now() if at is None else at}
    return b"data: %s\n\n" % encode(told)


def failure(name: str, value: str, traceback: Iterable[str] = (), at: int | None = None) -> bytes:
    """Return the event of an error."""
    told = {"ename": name, "evalue": strip_ansi(value), "traceback": [strip_ansi(line) for line in traceback]}
    return frame("error", at, error=told)


class CellFrames:
    """The events of one cell. Call it with those of the record in their order."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(CellEvent).decode
        self._raised = False

    def __call__(self, rows: Iterable[EventRow]) -> list[bytes]:
        """Return the frames that follow."""
        return [each for row in rows for each in self._told(row.type, self._decode(row.body))]

    def _told(self, kind: str, event: CellEvent) -> Iterator[bytes]:
        at = _milliseconds(event.at)
        match kind:
            case "started":
                yield frame("status", at, text="busy")
                if event.execution_count is not None:
                    yield frame("execution_count", at, execution_count=event.execution_count)
            case "stream" if not event.widget:
                yield frame(event.name, at, text=event.text)
            case "display_data" | "execute_result" if not event.widget:
                yield frame("result", at, results=_forms(event.data))
            case "error":
                self._raised = True
                yield failure(event.ename, event.evalue, event.traceback, at)
            case "finished":
                yield from self._end(event, at)

    def _end(self, event: CellEvent, at: int) -> Iterator[bytes]:
        is_own = event.status not in ENDED
        if event.status != "ok" and not (is_own and self._raised):
            yield failure(*event.why, (), at)
        if is_own:
            yield frame("status", at, text="idle")
            yield frame("execution_complete", at, execution_time=round(event.duration_ms or 0))


class CommandFrames:
    """The events of one command. Call it with those of its program in their order."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_ProcessEvent).decode
        self._begun: dict[str, StringIO] = {}
        """The lines that have no end yet, by the streams' names."""

    def __call__(self, rows: Iterable[EventRow]) -> list[bytes]:
        """Return the frames that follow."""
        return [each for row in rows for each in self._told(row.type, self._decode(row.body))]

    def _told(self, kind: str, event: _ProcessEvent) -> Iterator[bytes]:
        at = _milliseconds(event.at)
        if kind == "process_output":
            yield from self._lines(event.name, event.text, at)
        elif kind == "process_exited":
            for name, begun in self._begun.items():
                if rest := begun.getvalue():
                    yield frame(name, at, text=rest)
            yield ended(
                event.exit_code, ending(event.exit_code, event.signal, event.cause), at, event.duration_ms
            )

    def _lines(self, name: str, text: str, at: int) -> Iterator[bytes]:
        first, *others = text.split("\n")
        begun = self._begun.setdefault(name, StringIO(newline=""))
        begun.write(first)
        for line in others:
            yield frame(name, at, text=begun.getvalue().removesuffix("\r"))
            begun = self._begun[name] = StringIO(newline="")
            begun.write(line)
        if begun.tell() > LONGEST:
            yield frame(name, at, text=begun.getvalue())
            self._begun[name] = StringIO(newline="")


def ending(code: int | None, signal: str | None, cause: str | None) -> str:
    """Return how a program ended, in words; empty if it succeeded."""
    if cause == "timeout":
        return "the command ran longer than its time"
    if code is None:
        return f"signal: {signal or cause}"
    return f"exit status {code}" if code else ""


def ended(code: int | None, how: str, at: int, duration: float) -> bytes:
    """Return the last event of a command. `how`: in words, if it did not succeed."""
    if not how:
        return frame("execution_complete", at, execution_time=round(duration))
    return failure(FAILED, str(KILLED if code is None else code), [how], at)


def _forms(data: Mapping[str, msgspec.Raw]) -> dict[str, object]:
    """Return the forms of a result by their media types, but the text."""
    return {"text" if kind == TEXT else kind: content for kind, content in data.items()}


def _milliseconds(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp() * 1000) if at else _now()


def _now() -> int:
    return time.time_ns() // 1_000_000
