"""A session's events on the screen as they happen, for ``cellgate session watch``.

`Transcript` turns events into text; it talks to no gateway. `watch` follows a session, and says at the end
how to go on from there.
"""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TextIO

from cellgate.cli.terminal.escaping import printed, printed_line
from cellgate.cli.terminal.guard import RESET, Guard
from cellgate.cli.terminal.screen import Seen, describe, summary, waits, without_colours
from cellgate.cli.terminal.tables import json_line
from cellgate.client import (
    ConnectionOver,
    ErrorRaised,
    Event,
    ExecuteResult,
    FileChanged,
    Finished,
    Gateway,
    InputRequest,
    PackagesChanged,
    Queued,
    SessionChanged,
    SessionModel,
    Started,
    Stream,
)


async def watch(gateway: Gateway, session: str, *, after: int | None, json: bool, again: str) -> None:
    """Show the session's events after `after` until it ends; by default from the running cell on.

    `json`: each event as one line of JSON. `again`: the command that goes on, without its last word.
    """
    model = await gateway.get_session(session)
    start = await _running_since(gateway, model) if after is None else after
    transcript = None if json else Transcript(sys.stdout)
    if transcript is not None:
        _tell(f"{printed(session)} is {model.state}; watching from event {start + 1} on, Ctrl-C leaves")
    last = start
    ended = False
    try:
        async with aclosing(gateway.events(session, after=start)) as events:
            async for event in events:
                if transcript is None:
                    sys.stdout.write(json_line(event))
                    sys.stdout.flush()
                else:
                    transcript.show(event)
                last = event.seq
        ended = True
    finally:
        if transcript is not None:
            transcript.end_line()
        if not ended:
            _tell(f"to go on from here: {again} {last}")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


async def _running_since(gateway: Gateway, model: SessionModel) -> int:
    """Return the event before the running cell's first; without one, the newest event."""
    if model.state == "busy":
        async for execution in gateway.executions(model.session):
            if execution.status == "running":
                return execution.first_seq - 1
    return model.seq


class Transcript:
    """Writes events as a reader of a notebook sees them: cells, their output, and remarks in brackets.

    On a terminal output keeps its colours, and of its control sequences those that can't leave its lines.
    Elsewhere there are none.
    """

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._terminal = screen.isatty()
        self._guard = Guard()
        self._seen = Seen()
        self._running: str | None = None
        self._at_start = True

    def show(self, event: Event) -> None:
        """Show an event; kinds that show nothing are ignored."""
        match event:
            case Started():
                self._begin(event)
            case Finished():
                self._end(event)
            case _:
                if event.execution == self._running:
                    self._seen.event(event)
                self._shown(event)

    def _begin(self, event: Started) -> None:
        self._running = event.execution
        self._guard = Guard()
        self._seen = Seen()
        self._seen.event(event)
        self._line(_cell(event))

    def _end(self, event: Finished) -> None:
        self._note(summary(event))
        # One that was cancelled while another runs has shown nothing.
        seen = self._seen if event.execution == self._running else Seen()
        for remark in seen.remarks(event):
            self._note(remark)

    def _shown(self, event: Event) -> None:
        match event:
            case Stream():
                self._write(event.text)
            case InputRequest():
                self._note(f"waits for input: {'a password' if event.password else event.prompt}")
            case ErrorRaised():
                self._output(describe(event))
            case ExecuteResult():
                self._output(f"Out[{_count(event.execution_count)}]: {describe(event)}")
            case _:
                if note := _remark(event):
                    self._note(note)
                elif text := describe(event):
                    self._output(text)

    def end_line(self) -> None:
        """Leave the screen at the start of a line."""
        if not self._at_start:
            self._write("\n")
        if self._terminal:
            self._put(RESET)

    def _write(self, text: str) -> None:
        """Write a cell's own text."""
        allowed = self._guard.feed(text)
        if not self._terminal:
            allowed = without_colours(allowed).replace("\r\n", "\n").replace("\r", "\n")
        if allowed:
            self._put(allowed)
            self._at_start = allowed.endswith("\n")

    def _output(self, text: str) -> None:
        self.end_line()
        self._write(f"{text}\n")

    def _note(self, text: str) -> None:
        self._line(f"[{printed_line(text)}]")

    def _line(self, text: str) -> None:
        """Write a line of the command's own."""
        self.end_line()
        self._put(f"\x1b[2m{text}{RESET}\n" if self._terminal else f"{text}\n")

    def _put(self, text: str) -> None:
        self._screen.write(text)
        self._screen.flush()


def _cell(event: Started) -> str:
    """Return a cell's code, with Jupyter's prompt."""
    prompt = f"In [{_count(event.execution_count)}]: "
    below = "...: ".rjust(len(prompt))
    first, *rest = printed(event.code).splitlines() or [""]
    return "\n".join([prompt + first, *(below + line for line in rest)])


def _count(count: int | None) -> str:
    return " " if count is None else str(count)


def _remark(event: Event) -> str:
    """Describe an event that is no cell's, in a few words; empty for one that is shown otherwise."""
    match event:
        case SessionChanged():
            return f"session {event.state}" + (f": {event.cause}" if event.cause else "")
        case FileChanged():
            size = "" if event.size is None else f", {event.size} bytes"
            return f"file {event.action}: {event.path}{size}"
        case PackagesChanged():
            names = ", ".join(f"{package.name} {package.version}" for package in event.packages)
            return f"packages {event.action}: {names}"
        case ConnectionOver():
            return f"connection {event.verdict}: {event.host}:{event.port}"
        case Queued():
            if event.waiting_for == "kernel":
                return waits(event.position)
    return ""
