"""A program beside a kernel, in its sandbox: started by the kernel's keeper, one connection for each.

The keeper's half is ``image/programs.py``, which tells the protocol. What comes from there is from a sandbox,
where anybody may have taken the keeper's place: a frame's size and kind are checked before it is read, and it
becomes a typed value. While nobody calls `next`, nothing is read, and the program waits at its full pipes.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from cellgate_kernels.errors import InvalidInput, KernelDied
from cellgate_kernels.sockets import connect_to

START_SECONDS: Final = 10.0
MOST_OUTPUT: Final = 32 * 1024
"""Bytes of output in one frame."""
MOST_UNTAKEN: Final = 1024 * 1024
"""Input that a program has not taken yet."""
MOST_WORDS: Final = 128 * 1024
"""Bytes of a program's arguments, variables and folder together."""
_MOST_REASON: Final = 256
_MOST_PID: Final = 2**22
_HEAD: Final = struct.Struct(">BI")
_NUMBER: Final = struct.Struct(">I")


class _Ask(IntEnum):
    START = 1
    INPUT = 2
    END_OF_INPUT = 3
    SIGNAL = 4
    TERMINATE = 5


class _Told(IntEnum):
    STARTED = 33
    FAILED = 34
    STDOUT = 35
    STDERR = 36
    EXITED = 37
    SIGNALLED = 38
    TAKEN = 39


_MOST_BYTES: Final[Mapping[int, int]] = {
    **dict.fromkeys((_Told.STARTED, _Told.EXITED, _Told.SIGNALLED, _Told.TAKEN), _NUMBER.size),
    _Told.FAILED: _MOST_REASON,
    **dict.fromkeys((_Told.STDOUT, _Told.STDERR), MOST_OUTPUT),
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
                case _Told.STDOUT | _Told.STDERR:
                    name = StreamName.STDOUT if kind is _Told.STDOUT else StreamName.STDERR
                    return ProgramOutput(name, payload)
                case _Told.EXITED:
                    return ProgramExit(_number(payload, 255), None)
                case _Told.SIGNALLED:
                    return ProgramExit(None, _number(payload, 64))
                case _Told.TAKEN:
                    self._untaken = max(0, self._untaken - _number(payload, MOST_UNTAKEN))
                case _:
                    raise _gone()

    def write(self, data: bytes) -> None:
        """Give it input. Raises InputNotTaken when it leaves too much of it unread."""
        if self._untaken + len(data) > MOST_UNTAKEN:
            raise InputNotTaken("The program does not read its input; more of it can't be kept")
        self._untaken += len(data)
        self._send(_Ask.INPUT, data)

    def end_input(self) -> None:
        """Let it read the end of its input."""
        self._send(_Ask.END_OF_INPUT)

    def signal(self, number: int) -> None:
        """Send a signal to the program and all of its process group."""
        self._send(_Ask.SIGNAL, bytes((number,)))

    def terminate(self) -> None:
        """End its process group: by SIGTERM, and a few seconds later by SIGKILL. `next` tells its end."""
        self._send(_Ask.TERMINATE)

    def close(self) -> None:
        """Close the connection; a program that still runs is terminated."""
        self._writer.transport.abort()

    def _send(self, kind: _Ask, payload: bytes = b"") -> None:
        if self._writer.transport.get_write_buffer_size() > 2 * MOST_UNTAKEN:
            # A keeper reads at any time.
            self.close()
        if not self._writer.is_closing():
            self._writer.write(_HEAD.pack(kind, len(payload)) + payload)


async def start_program(path: str, spec: ProgramSpec) -> Program:
    """Start a program by the keeper whose socket is at `path`.

    Raises InvalidInput if it can't be started or its description is too long, KernelDied if nobody answers.
    """
    words = spec.words()
    if sum(map(len, words)) > MOST_WORDS:
        raise InvalidInput("The program's arguments and variables are too long")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connect_to(connection, path)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=2 * MOST_OUTPUT)
    except OSError:
        connection.close()
        raise KernelDied(
            "The kernel's sandbox takes no programs: it has ended, or its image is older than this gateway."
        ) from None
    except BaseException:
        connection.close()
        raise
    try:
        writer.write(_frame(_Ask.START, words))
        async with asyncio.timeout(START_SECONDS):
            kind, payload = await _receive(reader)
        if kind is _Told.FAILED:
            raise InvalidInput(f"The program can't be started: {payload.decode(errors='replace')}")
        if kind is not _Told.STARTED:
            raise _gone()
        return Program(reader, writer, _number(payload, _MOST_PID))
    except TimeoutError:
        writer.transport.abort()
        raise _gone() from None
    except BaseException:
        writer.transport.abort()
        raise


def _frame(kind: _Ask, words: Iterable[bytes]) -> bytes:
    payload = b"".join(_NUMBER.pack(len(word)) + word for word in words)
    return _HEAD.pack(kind, len(payload)) + payload


async def _receive(reader: asyncio.StreamReader) -> tuple[_Told, bytes]:
    """One frame. Raises KernelDied when there is none, or none that the protocol has."""
    with suppress(OSError, asyncio.IncompleteReadError):
        number, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if size <= _MOST_BYTES.get(number, -1):
            return _Told(number), await reader.readexactly(size)
    raise _gone()


def _number(payload: bytes, most: int) -> int:
    """The number of a frame. Raises KernelDied for none, or a larger one."""
    if len(payload) != _NUMBER.size or (number := int(_NUMBER.unpack(payload)[0])) > most:
        raise _gone()
    return number


def _gone() -> KernelDied:
    return KernelDied("The program's kernel has ended")
