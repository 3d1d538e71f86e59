"""A program beside a kernel, in its sandbox: started by the kernel's keeper, one connection for each.

The keeper's half is ``inside/programs.py``, which describes the protocol. In a sandbox user code may have
taken the keeper's place: a frame's size and kind are checked before it is decoded to a typed value. Each
frame must bring output or acknowledge input; the connection is closed at the first frame that does neither.
A program may write byte by byte, so all programs together have few frames in a turn of the loop (``places``).
While no caller awaits `next`, the connection is not read, and the program has to wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cellgate_kernels.base.errors import InvalidInput, KernelDied
from cellgate_kernels.base.local_stream import open_stream
from cellgate_kernels.base.places import FRAMES_A_TURN, Places
from cellgate_kernels.keeper.frames import HEAD, MOST_REASON, NUMBER, FromKeeper, ToKeeper, frame

logger = logging.getLogger(__name__)

START_SECONDS: Final = 10.0
MOST_OUTPUT: Final = 32 * 1024
"""The most bytes of output in one frame."""
MOST_UNTAKEN: Final = 1024 * 1024
"""The most bytes of input that a program has not read yet."""
MOST_WORDS: Final = 128 * 1024
"""The most bytes of a program's arguments, variables and folder together."""
_MOST_NAME: Final = 200
"""The most characters of a program's name that a message repeats."""
_ONE_BY_ONE: Final = ". No shell is used: give the program and each of its arguments as a word of its own"
"""The advice to a client that gave a whole command line as the program's name."""
_MOST_PID: Final = 2**22

_SIZES: Final[Mapping[int, range]] = {
    **dict.fromkeys(
        (FromKeeper.STARTED, FromKeeper.EXITED, FromKeeper.SIGNALLED, FromKeeper.TAKEN),
        range(NUMBER.size, NUMBER.size + 1),
    ),
    FromKeeper.FAILED: range(MOST_REASON + 1),
    **dict.fromkeys((FromKeeper.STDOUT, FromKeeper.STDERR), range(1, MOST_OUTPUT + 1)),
}


class StreamName(StrEnum):
    """A stream that a program writes to."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A program to start. `folder`: relative to the workspace. `env`: added to the kernel's variables."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    stdin: bool = False

    def words(self) -> list[bytes]:
        """Return the words of the start request to the keeper."""
        variables = [f"{name}={value}" for name, value in self.env.items()]
        given = ["1" if self.stdin else "0", self.folder, str(len(self.argv)), *self.argv, *variables]
        return [word.encode() for word in given]


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """A piece of output of a program, with its stream."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """How a program ended: its exit code, or else the number of the signal that ended it."""

    code: int | None
    signal: int | None

    @property
    def signal_name(self) -> str | None:
        """The name of the signal that ended the program, such as ``SIGTERM``; None if no signal did."""
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class InputNotTaken(InvalidInput):
    """The program does not read its input, and too much input waits."""


class _Refused(Exception):
    """The keeper can't do what the first frame requests, and has sent a reason."""


class Program:
    """A running program, made by `start_program`. Call `close` when no caller needs the program any more."""

    def __init__(self, connection: _Connection, pid: int) -> None:
        self.pid = pid
        """The program's process number in the kernel's own pid namespace."""
        self._connection = connection
        self._writer = connection.writer
        self._untaken = 0

    async def next(self) -> ProgramOutput | ProgramExit:
        """Wait for the program's next output or exit. Raises KernelDied when its sandbox is gone or after
        `close`, which drops all frames not yet returned.
        """
        while True:
            kind, payload = await self._connection.receive()
            match kind:
                case FromKeeper.STDOUT | FromKeeper.STDERR:
                    name = StreamName.STDOUT if kind is FromKeeper.STDOUT else StreamName.STDERR
                    return ProgramOutput(name, payload)
                case FromKeeper.EXITED:
                    return ProgramExit(self._number(payload, range(256)), None)
                case FromKeeper.SIGNALLED:
                    return ProgramExit(None, self._number(payload, range(65)))
                case FromKeeper.TAKEN:
                    self._untaken -= self._number(payload, range(1, self._untaken + 1))
                case _:
                    raise self._connection.leave(f"it says {kind.name} of a program that runs")

    async def end(self) -> ProgramExit:
        """Wait for the kernel's exit and return the exit. Raises KernelDied, also for any other frame."""
        told = await self.next()
        if isinstance(told, ProgramExit):
            return told
        raise self._connection.leave("it says that a kernel writes something")

    def _number(self, payload: bytes, possible: range) -> int:
        return self._connection.number(payload, possible)

    def write(self, data: bytes) -> None:
        """Send input to the program. Raises InputNotTaken when too much of its input waits unread."""
        if self._untaken + len(data) > MOST_UNTAKEN:
            raise InputNotTaken("The program does not read its input; more of it can't be kept")
        self._untaken += len(data)
        self._send(ToKeeper.INPUT, data)

    def end_input(self) -> None:
        """Close the program's stdin, once it has read all input."""
        self._send(ToKeeper.END_OF_INPUT)

    def signal(self, number: int) -> None:
        """Send a signal to the program and all of its process group."""
        self._send(ToKeeper.SIGNAL, bytes((number,)))

    def terminate(self) -> None:
        """Send SIGTERM to the process group, and a few seconds later SIGKILL; `next` returns the exit."""
        self._send(ToKeeper.TERMINATE)

    def close(self) -> None:
        """Close the connection; a program that still runs is terminated."""
        self._connection.close()

    def _send(self, kind: ToKeeper, payload: bytes = b"") -> None:
        if self._writer.transport.get_write_buffer_size() > 2 * MOST_UNTAKEN:
            # A keeper reads at any time.
            self.close()
        if not self._writer.is_closing():
            self._writer.write(frame(kind, payload))


class _Connection:
    """A connection to the keeper whose socket is at `path`, and the reader of its frames."""

    def __init__(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, places: Places | None
    ) -> None:
        self.writer = writer
        self._path = path
        self._reader = reader
        self._places = Places(FRAMES_A_TURN) if places is None else places
        self._closed = False

    async def receive(self) -> tuple[FromKeeper, bytes]:
        """Return the next frame. Raises KernelDied at the end of the connection and for an invalid frame."""
        kind, payload = await self._read()
        if (place := self._places.take()) is not None:
            await place
        if self._closed:
            raise _gone()
        return kind, payload

    async def _read(self) -> tuple[FromKeeper, bytes]:
        with suppress(OSError, asyncio.IncompleteReadError):
            number, size = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            if size in _SIZES.get(number, ()):
                return FromKeeper(number), await self._reader.readexactly(size)
            raise self.leave(f"it sends a frame of kind {number} with {size} bytes")
        raise _gone()

    def number(self, payload: bytes, possible: range) -> int:
        """Return the number in a frame's payload. Raises KernelDied for a number that is not possible."""
        number = int(NUMBER.unpack(payload)[0])
        if number not in possible:
            raise self.leave(f"it sends the number {number} where that can't be")
        return number

    def leave(self, why: str) -> KernelDied:
        """Close the connection to a side that breaks the protocol; return the error to raise."""
        if not self._closed:
            logger.warning("The connection to a kernel's keeper at %s is closed: %s", self._path, why)
        self.close()
        return KernelDied("What answers in the kernel's sandbox does not keep to the protocol; restart it.")

    def close(self) -> None:
        """Close the connection. Frames that were received and not read are dropped."""
        self._closed = True
        self.writer.transport.abort()


async def start_program(
    path: str, spec: ProgramSpec, places: Places | None = None, *, joins: int | None = None
) -> Program:
    """Start a program by the keeper whose socket is at `path`; all programs share the same `places`.

    `joins`: a process whose mounts the program gets, by its number in the sandbox. Raises InvalidInput if
    the program can't be started or its description is too long, KernelDied without an answer.
    """
    words = spec.words()
    if sum(map(len, words)) > MOST_WORDS:
        raise InvalidInput("The program's arguments and variables are too long")
    start = frame(ToKeeper.START, b"".join(NUMBER.pack(len(word)) + word for word in words))
    if joins is not None:
        start = frame(ToKeeper.JOIN, NUMBER.pack(joins)) + start
    try:
        return await _begin(path, start, places)
    except _Refused as error:
        name = spec.argv[0][:_MOST_NAME]
        place = f" in the folder {spec.folder[:_MOST_NAME]!r}" if spec.folder else ""
        hint = _ONE_BY_ONE if len(spec.argv) == 1 and len(spec.argv[0].split()) > 1 else ""
        raise InvalidInput(f"The program {name!r} can't be started{place}: {error}{hint}") from None


async def keep_kernel(path: str, pid: int, *, held: bool = False) -> Program:
    """Return a kernel of the keeper at `path` as a program, whose `next` returns the kernel's exit.

    This makes a branch one of the keeper's kernels. A `held` fork is not one of them, so the keeper may exit
    before the fork does. Closing the connection kills a running kernel, unless it is the sandbox's first.
    `pid`: its number in its own namespace. Raises InvalidInput for an unknown kernel, KernelDied.
    """
    try:
        return await _begin(path, frame(ToKeeper.HOLD if held else ToKeeper.KEEP, NUMBER.pack(pid)))
    except _Refused as error:
        raise InvalidInput(f"The kernel with the number {pid} can't be kept: {error}") from None


async def end_other_kernels(path: str) -> None:
    """End all held forks of the keeper at `path` and all its kernels but the first; wait until they are gone.

    Raises KernelDied if the keeper does not confirm their end.
    """
    try:
        program = await _begin(path, frame(ToKeeper.ALONE))
    except _Refused:
        raise _gone() from None
    try:
        async with asyncio.timeout(START_SECONDS):
            await program.end()
    except TimeoutError:
        raise _gone() from None
    finally:
        program.close()


async def _begin(path: str, first: bytes, places: Places | None = None) -> Program:
    """Connect to the keeper and send the first frame. Raises _Refused, KernelDied."""
    try:
        reader, writer = await open_stream(path, 2 * MOST_OUTPUT)
    except OSError:
        raise KernelDied(
            "The kernel's sandbox takes no programs: it has ended, or its image is older than this gateway."
        ) from None
    connection = _Connection(path, reader, writer, places)
    try:
        writer.write(first)
        async with asyncio.timeout(START_SECONDS):
            kind, payload = await connection.receive()
        if kind is FromKeeper.FAILED:
            raise _Refused(payload.decode(errors="replace"))
        if kind is not FromKeeper.STARTED:
            raise connection.leave(f"it says {kind.name} at first")
        return Program(connection, connection.number(payload, range(_MOST_PID + 1)))
    except TimeoutError:
        connection.close()
        raise _gone() from None
    except BaseException:
        connection.close()
        raise


def _gone() -> KernelDied:
    return KernelDied("The program's kernel has ended")
