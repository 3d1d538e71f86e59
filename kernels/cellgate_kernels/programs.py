"""A program beside a kernel, in its sandbox: started by the kernel's keeper, one connection for each.

The keeper's half is ``image/programs.py``, which tells the protocol. What comes from there is from a sandbox,
where anybody may have taken the keeper's place: a frame's size and kind are checked before it is read, and it
becomes a typed value. While nobody calls `next`, nothing is read, and the program waits at its full pipes.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cellgate_kernels.errors import InvalidInput, KernelDied
from cellgate_kernels.frames import HEAD, MOST_REASON, NUMBER, Ask, Told, frame
from cellgate_kernels.sockets import open_stream

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

_MOST_BYTES: Final[Mapping[int, int]] = {
    **dict.fromkeys((Told.STARTED, Told.EXITED, Told.SIGNALLED, Told.TAKEN), NUMBER.size),
    Told.FAILED: MOST_REASON,
    **dict.fromkeys((Told.STDOUT, Told.STDERR), MOST_OUTPUT),
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
        """As the keeper takes it."""
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

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        self.pid = pid
        """Its number in the kernel's own namespace."""
        self._reader = reader
        self._writer = writer
        self._untaken = 0

    async def next(self) -> ProgramOutput | ProgramExit:
        """What it does next. Raises KernelDied when its sandbox, or whoever answers there, is gone."""
        while True:
            kind, payload = await _receive(self._reader)
            match kind:
                case Told.STDOUT | Told.STDERR:
                    name = StreamName.STDOUT if kind is Told.STDOUT else StreamName.STDERR
                    return ProgramOutput(name, payload)
                case Told.EXITED:
                    return ProgramExit(_number(payload, 255), None)
                case Told.SIGNALLED:
                    return ProgramExit(None, _number(payload, 64))
                case Told.TAKEN:
                    self._untaken = max(0, self._untaken - _number(payload, MOST_UNTAKEN))
                case _:
                    raise _gone()

    def write(self, data: bytes) -> None:
        """Give it input. Raises InputNotTaken when it leaves too much of it unread."""
        if self._untaken + len(data) > MOST_UNTAKEN:
            raise InputNotTaken("The program does not read its input; more of it can't be kept")
        self._untaken += len(data)
        self._send(Ask.INPUT, data)

    def end_input(self) -> None:
        """Let it read the end of its input."""
        self._send(Ask.END_OF_INPUT)

    def signal(self, number: int) -> None:
        """Send a signal to the program and all of its process group."""
        self._send(Ask.SIGNAL, bytes((number,)))

    def terminate(self) -> None:
        """End its process group: by SIGTERM, and a few seconds later by SIGKILL. `next` tells its end."""
        self._send(Ask.TERMINATE)

    def close(self) -> None:
        """Close the connection; a program that still runs is terminated."""
        self._writer.transport.abort()

    def _send(self, kind: Ask, payload: bytes = b"") -> None:
        if self._writer.transport.get_write_buffer_size() > 2 * MOST_UNTAKEN:
            # A keeper reads at any time.
            self.close()
        if not self._writer.is_closing():
            self._writer.write(frame(kind, payload))


async def start_program(path: str, spec: ProgramSpec) -> Program:
    """Start a program by the keeper whose socket is at `path`.

    Raises InvalidInput if it can't be started or its description is too long, KernelDied if nobody answers.
    """
    words = spec.words()
    if sum(map(len, words)) > MOST_WORDS:
        raise InvalidInput("The program's arguments and variables are too long")
    start = frame(Ask.START, b"".join(NUMBER.pack(len(word)) + word for word in words))
    try:
        return await _begin(path, start)
    except _Refused as error:
        name = spec.argv[0][:_MOST_NAME]
        place = f" in the folder {spec.folder[:_MOST_NAME]!r}" if spec.folder else ""
        hint = _ONE_BY_ONE if len(spec.argv) == 1 and len(spec.argv[0].split()) > 1 else ""
        raise InvalidInput(f"The program {name!r} can't be started{place}: {error}{hint}") from None


async def keep_kernel(path: str, pid: int, *, held: bool = False) -> Program:
    """A kernel of the keeper whose socket is at `path`, treated as a program: `next` tells how it ends.

    A branch becomes one of the keeper's kernels by this; a `held` fork is none, so the keeper does not stay
    for it. Closing the connection kills a kernel that still runs, unless it is the sandbox's first. `pid` is
    its number in its own namespace. Raises InvalidInput if there is no such kernel, KernelDied if nobody
    answers.
    """
    try:
        return await _begin(path, frame(Ask.HOLD if held else Ask.KEEP, NUMBER.pack(pid)))
    except _Refused as error:
        raise InvalidInput(f"The kernel with the number {pid} can't be kept: {error}") from None


async def end_other_kernels(path: str) -> None:
    """End all kernels of the keeper whose socket is at `path` but its first, and all forks that are held;
    return when they have ended.

    Raises KernelDied if nobody says that they have.
    """
    try:
        program = await _begin(path, frame(Ask.ALONE))
    except _Refused:
        raise _gone() from None
    try:
        async with asyncio.timeout(START_SECONDS):
            told = await program.next()
    except TimeoutError:
        raise _gone() from None
    finally:
        program.close()
    if not isinstance(told, ProgramExit):
        raise _gone()


async def _begin(path: str, first: bytes) -> Program:
    """Open a connection with its first frame. Raises _Refused, KernelDied."""
    try:
        reader, writer = await open_stream(path, 2 * MOST_OUTPUT)
    except OSError:
        raise KernelDied(
            "The kernel's sandbox takes no programs: it has ended, or its image is older than this gateway."
        ) from None
    try:
        writer.write(first)
        async with asyncio.timeout(START_SECONDS):
            kind, payload = await _receive(reader)
        if kind is Told.FAILED:
            raise _Refused(payload.decode(errors="replace"))
        if kind is not Told.STARTED:
            raise _gone()
        return Program(reader, writer, _number(payload, _MOST_PID))
    except TimeoutError:
        writer.transport.abort()
        raise _gone() from None
    except BaseException:
        writer.transport.abort()
        raise


async def _receive(reader: asyncio.StreamReader) -> tuple[Told, bytes]:
    """One frame. Raises KernelDied when there is none, or none that the protocol has."""
    with suppress(OSError, asyncio.IncompleteReadError):
        number, size = HEAD.unpack(await reader.readexactly(HEAD.size))
        if size <= _MOST_BYTES.get(number, -1):
            return Told(number), await reader.readexactly(size)
    raise _gone()


def _number(payload: bytes, most: int) -> int:
    """The number of a frame. Raises KernelDied for none, or a larger one."""
    if len(payload) != NUMBER.size or (number := int(NUMBER.unpack(payload)[0])) > most:
        raise _gone()
    return number


def _gone() -> KernelDied:
    return KernelDied("The program's kernel has ended")
