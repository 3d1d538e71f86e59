"""The gateway's half of the workspace's names in a branch: ``/workspace`` and the links to it.

A branch is a fork in a sandbox where these names lead to the forked kernel's folder. So the branch gets a
mount namespace of its own, in which they lead to its folder. Nothing in a sandbox may make namespaces: a
program outside does (``name_maker``). The branch receives their descriptors from a socket and enters them
(``inside/names.py``). Otherwise there are no `Names`, and a branch's names lead to its parent's folder.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.launch.folders import check_socket_path

logger = logging.getLogger(__name__)

MOST_DEPTH: Final = 24
"""The greatest depth of nested user namespaces in a sandbox and its forks. Linux allows 32 in all."""

_PROGRAM: Final = Path(__file__).with_name("name_maker.py")
_TIMEOUT: Final = 10.0
_LAST_WORDS: Final = 5.0
"""The seconds that the program gets to exit."""
_MOST_SAID: Final = 500


@dataclass(frozen=True, slots=True)
class NamesRequest:
    """A mapping of one name for a branch. `first`: a process in the sandbox's own mounts, numbered as here.

    `forked`: the process that is forked; `user`, `group`: its kernels' own; all numbered as in the sandbox.
    `folder`: the path for `first` to mount at `name`. `is_machines_user`: whether both ids are the same here.
    """

    first: int
    forked: int
    folder: str
    name: str
    user: int
    group: int
    is_machines_user: bool = False


class Names:
    """The descriptors of a user namespace and its mount namespace. Call `close` when both were sent.

    `receiver`: the user and group that may receive both, if not this program's own.
    """

    def __init__(self, descriptors: tuple[int, int], receiver: tuple[int, int] | None = None) -> None:
        self._descriptors = descriptors
        self._receiver = receiver

    @asynccontextmanager
    async def offered(self, path: str) -> AsyncIterator[None]:
        """Send both to the first that connects to a socket at this path, until the end of the context.

        Raises OSError, KernelStartFailed if the socket can't be made.
        """
        check_socket_path(path)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
            # The mode of the file that `bind` makes.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(path)
            try:
                if self._receiver is not None:
                    _give(path, self._receiver)
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
                # A second connection is harmless: it can only come from the same user.
                socket.send_fds(connection, [b"\n"], list(self._descriptors))

    @property
    def descriptors(self) -> tuple[int, int]:
        """Both descriptors, to be sent before `close`."""
        return self._descriptors

    def close(self) -> None:
        """Close both descriptors. Idempotent."""
        descriptors, self._descriptors = self._descriptors, (-1, -1)
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


class NameMaking:
    """Makes the names for branches in one sandbox, one after another."""

    def __init__(self) -> None:
        # Two at a time would withdraw each other's permission to make a user namespace.
        self._turn = asyncio.Lock()
        self._was_refused = False

    async def make(self, wanted: NamesRequest) -> Names | None:
        """Return the namespaces for one branch; None, with a log line, where they can't be made."""
        try:
            async with self._turn:
                return await asyncio.to_thread(_make, wanted)
        except OSError as error:
            logger.log(
                logging.DEBUG if self._was_refused else logging.WARNING,
                "A branch keeps the names of the workspace that it was made from: %s",
                in_words(error),
            )
            self._was_refused = True
            return None


def _make(wanted: NamesRequest) -> Names:
    numbers = (wanted.first, wanted.forked, wanted.folder, wanted.name, wanted.user, wanted.group)
    command = [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, numbers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={}) as program:
        assert program.stdout is not None
        try:
            # Not by select(2), which knows the first 1,024 open files alone.
            waiting = select.poll()
            waiting.register(program.stdout, select.POLLIN)
            said = os.read(program.stdout.fileno(), 32) if waiting.poll(_TIMEOUT * 1000) else b""
            if not said.endswith(b"\n"):
                raise OSError(_why(program))
            receiver = (wanted.user, wanted.group) if wanted.is_machines_user else None
            return Names(_opened(int(said)), receiver)
        finally:
            _end(program)


def _end(program: subprocess.Popen[bytes]) -> None:
    """End the program, and give it time to forbid again any user namespaces that it has allowed."""
    assert program.stdin is not None
    program.stdin.close()
    try:
        program.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        program.kill()


def _give(path: str, user: tuple[int, int]) -> None:
    """Give a socket to the user whose folder has it. Raises OSError, also if its file was replaced."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        os.chown(f"/proc/self/fd/{descriptor}", *user)
    finally:
        os.close(descriptor)


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
