"""A program beside a kernel, in its sandbox: started by the kernel's keeper, one connection for each.

The keeper's half is ``inside/programs.py``, which tells the protocol. In a sandbox anybody may have taken the
keeper's place: a frame's size and kind are checked before it is read, and it becomes a typed value. Each
frame brings something, output or the news of input that was taken; whoever sends one that does not is left. A
program may write byte by byte, so all programs together have few frames in a turn of the loop (``places``).
While nobody calls `next`, nothing is read, and the program waits.
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
"""Bytes of output in one frame."""
MOST_UNTAKEN: Final = 1024 * 1024
"""Input that a program has not taken yet."""
MOST_WORDS: Final = 128 * 1024
"""Bytes of a program's arguments, variables and folder together."""
_MOST_NAME: Final = 200
"""Characters of a name that a message repeats."""
_ONE_BY_ONE: Final = ". No shell is used: give the program and each of its arguments as a word of its own"
"""What to say to who gave a command line as the name of the program."""
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
        """Return the words of the request to the keeper."""
        variables = [f"{name}={value}" for name, value in self.env.items()]
        given = ["1" if self.stdin else "0", self.folder, str(len(self.argv)), *self.argv, *variables]
        return [word.encode() for word in given]


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What a program wrote."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """How a program ended: its exit code, or else the number of the signal that ended it."""

    code: int | None
    signal: int | None

    @property
    def signal_name(self) -> str | None:
        """Such as ``SIGTERM``; None if no signal ended it."""
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class InputNotTaken(InvalidInput):
    """The program does not read its input, and too much of it waits."""


class _Refused(Exception):
    """The keeper can't do what the first frame asks for, and says why."""


class Program:
    """A running program. Made by `start_program`; `close` it when nobody waits for it any more."""

    def __init__(self, connection: _Connection, pid: int) -> None:
        self.pid = pid
        """Its number in the kernel's own namespace."""
        self._connection = connection
        self._writer = connection.writer
        self._untaken = 0

    async def next(self) -> ProgramOutput | ProgramExit:
        """Wait for the program's next output or exit. Raises KernelDied when its sandbox is gone, and once
        it was closed: what came before that and was not handled is dropped.
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
        """Return the end of a kernel and nothing else. Raises KernelDied, also for anything else."""
        told = await self.next()
        if isinstance(told, ProgramExit):
            return told
        raise self._connection.leave("it says that a kernel writes something")

    def _number(self, payload: bytes, possible: range) -> int:
        return self._connection.number(payload, possible)

    def write(self, data: bytes) -> None:
        """Give it input. Raises InputNotTaken when it leaves too much of it unread."""
        if self._untaken + len(data) > MOST_UNTAKEN:
            raise InputNotTaken("The program does not read its input; more of it can't be kept")
        self._untaken += len(data)
        self._send(ToKeeper.INPUT, data)

    def end_input(self) -> None:
        """Let it read the end of its input."""
        self._send(ToKeeper.END_OF_INPUT)

    def signal(self, number: int) -> None:
        """Send a signal to the program and all of its process group."""
        self._send(ToKeeper.SIGNAL, bytes((number,)))

    def terminate(self) -> None:
        """End its process group: by SIGTERM, and a few seconds later by SIGKILL. `next` tells its end."""
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
    """A connection to the keeper whose socket is at `path`, of which frames are read."""

    def __init__(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, places: Places | None
    ) -> None:
        self.writer = writer
        self._path = path
        self._reader = reader
        self._places = Places(FRAMES_A_TURN) if places is None else places
        self._closed = False

    async def receive(self) -> tuple[FromKeeper, bytes]:
        """Return one frame. Raises KernelDied when there is none, or none that the protocol has."""
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
        """Return the number of a frame. Raises KernelDied for one that is not possible."""
        number = int(NUMBER.unpack(payload)[0])
        if number not in possible:
            raise self.leave(f"it sends the number {number} where that can't be")
        return number

    def leave(self, why: str) -> KernelDied:
        """Close it, because the other side does not keep to the protocol; returns what to raise."""
        if not self._closed:
            logger.warning("The connection to a kernel's keeper at %s is closed: %s", self._path, why)
        self.close()
        return KernelDied("What answers in the kernel's sandbox does not keep to the protocol; restart it.")

    def close(self) -> None:
        """Close it. What was received and not read is dropped."""
        self._closed = True
        self.writer.transport.abort()


async def start_program(
    path: str, spec: ProgramSpec, places: Places | None = None, *, joins: int | None = None
) -> Program:
    """Start a program by the keeper whose socket is at `path`; `places`: those that all programs share.

    `joins`: a process of the sandbox, numbered as there, whose mounts the program has. Raises InvalidInput if
    it can't be started or its description is too long, KernelDied if nobody answers.
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
    """Return a kernel of the keeper at `path`, treated as a program: `next` tells how it ends.

    A branch becomes one of the keeper's kernels by this; a `held` fork is none, so the keeper does not stay
    for it. Closing the connection kills a kernel that still runs, unless it is the sandbox's first. `pid` is
    its number in its own namespace. Raises InvalidInput for an unknown kernel, KernelDied without an answer.
    """
    try:
        return await _begin(path, frame(ToKeeper.HOLD if held else ToKeeper.KEEP, NUMBER.pack(pid)))
    except _Refused as error:
        raise InvalidInput(f"The kernel with the number {pid} can't be kept: {error}") from None


async def end_other_kernels(path: str) -> None:
    """End all kernels of the keeper whose socket is at `path` but its first, and all held forks; return then.

    Raises KernelDied if nobody says that they have.
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
    """Open a connection with its first frame. Raises _Refused, KernelDied."""
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
