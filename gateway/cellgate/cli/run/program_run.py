"""A program beside a session's cells, followed from the shell as if it ran here.

`show_events` writes what it writes; `Feed` sends it what comes on stdin; `ProgramRun` does both, and passes
on signals. It talks to the gateway through the client only, and starts nothing: that is ``process``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from cellgate.cli.terminal.guard import Outlet
from cellgate.cli.terminal.tables import json_line
from cellgate.client import Event, Gateway, GatewayError, ProcessExited, ProcessModel, ProcessOutput

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BY_SIGNAL = 128
"""What a shell adds to the number of the signal that ended a program, for its exit code."""
BAD_REQUEST = 400
PIECE = 64 * 1024
PAUSE = 0.2
"""Seconds until a program is offered again what it had no room for."""


def piped_stdin(*, asked: bool) -> int | None:
    """Return the descriptor of our stdin if the program is to get it; a terminal only if `asked` for."""
    if sys.stdin is None or (sys.stdin.isatty() and not asked):
        return None
    return sys.stdin.fileno()


async def show_events(events: AsyncGenerator[Event], *, json: bool = False, shown: bool = True) -> int:
    """Print the program's output until it ends; return the exit code. `json`: all events instead."""
    out = Outlet(sys.stdout)
    err = Outlet(sys.stderr)
    async with aclosing(events) as received:
        async for event in received:
            if json:
                sys.stdout.write(json_line(event))
                sys.stdout.flush()
            elif shown and isinstance(event, ProcessOutput):
                (out if event.name == "stdout" else err).write(event.text)
            if isinstance(event, ProcessExited):
                if not json and (remark := _remark(event)):
                    err.note(f"cellgate: {remark}")
                return exit_code(event)
    raise GatewayError(0, "connection_lost", "The gateway ended the stream before the program had ended")


def exit_code(event: ProcessExited) -> int:
    """Return the program's exit code as a shell would give it; 1 if it ended with its kernel."""
    if event.exit_code is not None:
        return event.exit_code
    number = getattr(signal, event.signal or "", None)
    return BY_SIGNAL + number if isinstance(number, signal.Signals) else 1


def _remark(event: ProcessExited) -> str:
    """Describe an end beyond output and exit code; empty if these say all."""
    parts = []
    if event.cause == "timeout":
        parts.append("the program ran longer than its --timeout")
    elif event.exit_code is None:
        parts.append(f"the program was ended by {event.signal or event.cause or 'the end of its kernel'}")
    if event.truncated:
        parts.append("a part of its output was left out, because it was too much")
    return "; ".join(parts)


class Feed:
    """What comes on a descriptor, sent to a program as its input."""

    def __init__(self, gateway: Gateway, process: ProcessModel, descriptor: int) -> None:
        self._gateway = gateway
        self._process = process
        self._descriptor = descriptor

    async def run(self) -> None:
        """Send all input, and its end. Returns early when the program has ended."""
        with suppress(GatewayError):  # whoever follows the program learns what is wrong
            while data := await self._read():
                await self._send(data)
            await self._gateway.write_program(self._process.session, self._process.process, close=True)

    async def _send(self, data: bytes) -> None:
        while True:
            try:
                await self._gateway.write_program(self._process.session, self._process.process, data)
            except GatewayError as error:
                # The one thing that can be wrong with a piece: the program has not read those before it.
                if error.status != BAD_REQUEST:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                return

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._descriptor, ready.set)
        except PermissionError:  # epoll's word for a file, which never lets one wait
            return os.read(self._descriptor, PIECE)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, PIECE)


class ProgramRun:
    """A program that was started for the user who waits for it: it does not outlive this command."""

    def __init__(self, gateway: Gateway, process: ProcessModel) -> None:
        self._gateway = gateway
        self._session = process.session
        self._process = process.process
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def to_its_end(self, feed: Feed | None, *, shown: bool) -> int:
        """Show the program's output, and return its exit code."""
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            loop.add_signal_handler(number, self._signals.put_nowait, number)
        beside = [asyncio.create_task(self._pass_on())]
        if feed is not None:
            beside.append(asyncio.create_task(feed.run()))
        try:
            return await show_events(self._gateway.follow_program(self._session, self._process), shown=shown)
        except BaseException:
            # Whoever read its output has left, or the connection is gone.
            with suppress(GatewayError):
                await self._gateway.end_program(self._session, self._process)
            raise
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            for number in PASSED_ON:
                loop.remove_signal_handler(number)

    async def _pass_on(self) -> None:
        """Pass the first signal on to the program, and end the program at the next one."""
        number = await self._signals.get()
        with suppress(GatewayError):  # it has ended by itself
            await self._gateway.signal_program(self._session, self._process, number.name)
        await self._signals.get()
        with suppress(GatewayError):
            await self._gateway.end_program(self._session, self._process)
