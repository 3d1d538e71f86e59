"""The user's stdin for cells that ask for input, read only when one does.

`Lines` reads; `Answers` sends what it reads to the gateway while the cell's other events go on. A line that
never comes holds up neither the end of the cell nor that of the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from cellgate.client import Gateway, GatewayError, InputRequest
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.resources import MIB

END_OF_FILE = "\x04"
"""The answer to which a kernel's input() raises EOFError."""
LONGEST = MIB
_PIECE = 64 * 1024
_GONE = frozenset({404, 409})


class Lines:
    """The lines of a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._read = bytearray()
        self._ended = False

    async def next(self) -> str | None:
        """Return the next line, without its end; None after the last one. Raises InvalidInput.

        Cancelling it leaves what has been read for the next call.
        """
        while b"\n" not in self._read and not self._ended:
            if len(self._read) > LONGEST:
                raise InvalidInput(f"stdin has a line of more than {LONGEST:,} bytes")
            await self._wait()
            piece = os.read(self.descriptor, _PIECE)
            self._read += piece
            # At a terminal more may come after Ctrl-D, which ends one answer.
            self._ended = not piece and not os.isatty(self.descriptor)
            if not piece:
                break
        if not self._read:
            return None
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        try:
            return line.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InvalidInput("stdin is not UTF-8 text") from error

    async def rest(self) -> str:
        """Read the rest, at a terminal until Ctrl-D, with plain ends of lines. Raises InvalidInput."""
        pieces = [bytes(self._read)]
        self._read = bytearray()
        while not self._ended:
            await self._wait()
            pieces.append(os.read(self.descriptor, _PIECE))
            self._ended = not pieces[-1]
        try:
            return b"".join(pieces).decode().replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"stdin is not text: {error}") from error

    async def _wait(self) -> None:
        """Return when a read would not wait, which one from a file never does."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self.descriptor, ready.set)
        except PermissionError:  # epoll's word for a file
            return
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self.descriptor)


class Answers:
    """Answers the questions of one cell. `show` is called with each prompt, if a user is there to read it."""

    def __init__(self, gateway: Gateway, session: str, lines: Lines, show: Callable[[str], None]) -> None:
        self._gateway = gateway
        self._session = session
        self._lines = lines
        self._show = show
        self._answering: asyncio.Task[None] | None = None
        self._failure: CellgateError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop reading. Raises the error that made an answer impossible, if any."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        if self._failure is not None and error is None:
            raise self._failure

    def ask(self, request: InputRequest) -> None:
        """Answer this question when a line comes; a cell asks one at a time."""
        self._answering = asyncio.create_task(self._answer(request))

    async def _answer(self, request: InputRequest) -> None:
        execution = str(request.execution)
        try:
            asked = os.isatty(self._lines.descriptor)
            # Hidden before it is asked for: a quick answer must not be shown either.
            with _hidden(self._lines.descriptor) if request.password else contextlib.nullcontext():
                if asked:
                    self._show(request.prompt or ("Password: " if request.password else ""))
                line = await self._lines.next()
            if asked and (line is None or request.password):
                self._show("\n")
            answer = END_OF_FILE if line is None else line
            await self._gateway.answer_input(self._session, execution, answer)
        except CellgateError as error:
            await self._give_up(execution, error)

    async def _give_up(self, execution: str, error: CellgateError) -> None:
        """Stop the cell, which would wait for an answer; if it has ended by itself, nothing has failed."""
        try:
            await self._gateway.cancel(self._session, execution)
        except GatewayError as refusal:
            if refusal.status in _GONE:
                return
        self._failure = error


@contextlib.contextmanager
def _hidden(descriptor: int) -> Iterator[None]:
    """Hide the text that is typed, if the descriptor is a terminal."""
    if not os.isatty(descriptor):
        yield
        return
    saved = termios.tcgetattr(descriptor)
    attributes = termios.tcgetattr(descriptor)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)
