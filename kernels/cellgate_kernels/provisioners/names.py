"""The names of a workspace in a branch, as the gateway makes them: ``/workspace`` and the links to it.

A branch is a fork in the sandbox of the kernel that was forked, where these names are that kernel's folder.
So it gets a mount namespace of its own, in which they are the branch's. Nothing in a sandbox may make one. A
program outside does (``name_maker``), and the branch enters it by descriptors (``image/names.py``), which it
receives from us by a socket beside its others.

Where this can't be done there are no `Names`, and a branch's absolute names stay those of the kernel that it
was forked from.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cellgate_kernels.provisioners.folders import check_socket_path
from cellgate_kernels.tasks import guarded

MOST_DEPTH: Final = 24
"""How often a process of a sandbox and its forks may enter user namespaces, each in the one before. Linux
allows 32 in all.
"""

_PROGRAM: Final = Path(__file__).with_name("name_maker.py")
_TIMEOUT: Final = 10.0
_LAST_WORDS: Final = 5.0
"""Seconds that the program has for its end."""
_MOST_SAID: Final = 500


@dataclass(frozen=True, slots=True)
class NamesRequest:
    """What is to have which name. `first`: a process of the sandbox in its own mounts, numbered as here.

    `forked`: the process that is forked, numbered as there. `folder`: where the first process finds what is
    to be at `name`. `user`: the number, there, of the kernels' user.
    """

    first: int
    forked: int
    folder: str
    name: str
    user: int


class Names:
    """Two descriptors: of a user namespace, and of its mount namespace. `close` it when they were sent."""

    def __init__(self, descriptors: tuple[int, int]) -> None:
        self._descriptors = descriptors

    @asynccontextmanager
    async def offered(self, path: str) -> AsyncIterator[None]:
        """Send them to the first that connects to a socket at this path, until the end of the context.

        Raises OSError, KernelStartFailed if there can't be such a socket.
        """
        check_socket_path(path)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
            # Of what `bind` makes.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(path)
            try:
                listener.listen(1)
                loop.add_reader(listener, guarded(self._connected, "names of a branch"), listener)
                yield
            finally:
                loop.remove_reader(listener)
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108 - at once, as the other calls here

    def _connected(self, listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                # What was received twice would only be one's own.
                socket.send_fds(connection, [b"\n"], list(self._descriptors))

    def close(self) -> None:
        """Close both. Idempotent."""
        descriptors, self._descriptors = self._descriptors, (-1, -1)
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


async def make_names(wanted: NamesRequest) -> Names:
    """The namespaces for one branch. Raises OSError, saying why there are none."""
    return await asyncio.to_thread(_make, wanted)


def _make(wanted: NamesRequest) -> Names:
    numbers = (wanted.first, wanted.forked, wanted.folder, wanted.name, wanted.user)
    command = [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, numbers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={}) as program:
        assert program.stdout is not None
        try:
            ready, _, _ = select.select([program.stdout], [], [], _TIMEOUT)
            said = os.read(program.stdout.fileno(), 32) if ready else b""
            if not said.endswith(b"\n"):
                raise OSError(_why(program))
            return Names(_opened(int(said)))
        finally:
            _end(program)


def _end(program: subprocess.Popen[bytes]) -> None:
    """End it, and let it forbid again what it has allowed for a moment."""
    assert program.stdin is not None
    program.stdin.close()
    try:
        program.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        program.kill()


def _why(program: subprocess.Popen[bytes]) -> str:
    _end(program)
    assert program.stderr is not None
    said = program.stderr.read(_MOST_SAID).decode(errors="replace").strip()
    return said or f"it was not done within {_TIMEOUT:g} s"


def _opened(process: int) -> tuple[int, int]:
    flags = os.O_RDONLY | os.O_CLOEXEC
    users = os.open(f"/proc/{process}/ns/user", flags)
    try:
        return users, os.open(f"/proc/{process}/ns/mnt", flags)
    except OSError:
        os.close(users)
        raise
