"""Folders as hostile code makes them, and a process of an ordinary user to meet them in."""

# ruff: noqa: PTH102
# Names that are no text, and descriptors, are nothing for pathlib.

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import format_exc

import pytest

from cellgate_kernels.base import trees

NOBODY = 65534


def server_at_a_fixed_port() -> socket.socket:
    """A server for an attack to aim at, at a port that nothing inside a sandbox was given by chance.

    A kernel's own sockets get ports of the range that the system hands out, in a network of their own: one
    with the number of a server outside would look like a way out (seen once with Deno's kernel).
    """
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(handed_out - 1, 1024, -1):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise RuntimeError("no port is free below those that the system hands out")


@contextmanager
def place_of_nobody(*, in_memory: bool = False) -> Iterator[Path]:
    """A folder that `nobody` may write to; all in it is removed afterwards."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="cellgate-test-", dir=memory if in_memory else None))
    try:
        if os.geteuid() == 0:
            os.chown(place, NOBODY, NOBODY)
        yield place
    finally:
        trees.remove(place)


def run_as(user: str, work: Callable[[], None]) -> None:
    """Do the work; as `nobody` in a process of that user, which is what an ordinary gateway is."""
    if user == "ourselves":
        work()
        return
    if os.geteuid() != 0:
        pytest.skip("we are an ordinary user anyway")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
        except BaseException:  # noqa: BLE001 - it goes to the parent
            said = format_exc()
        os.write(writing, said.encode()[-60_000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    if said:
        pytest.fail(said, pytrace=False)


def nested(root: Path, depth: int = 3000) -> None:
    """So many folders in one another, whose path is longer than any path may be."""
    folder = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("last", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)


def closed_folders(root: Path) -> None:
    """Folders with something in them that their owner may not read, write or enter."""
    for mode in (0o000, 0o111, 0o222, 0o444, 0o555):
        for folder in (root / f"{mode:o}", root / f"{mode:o}" / "inner"):
            folder.mkdir()
            (folder / "file").touch()
        (root / f"{mode:o}" / "inner").chmod(mode)
        (root / f"{mode:o}").chmod(mode)


def odd_things(root: Path) -> None:
    """Whatever a name can stand for, under whatever a name can be."""
    (root / "file").write_text("x")
    os.mkfifo(root / "fifo")
    # `bind` takes short paths only, and a relative one leads through folders that may not be this user's.
    os.mknod(root / "socket", stat.S_IFSOCK | 0o600)
    (root / "loop").symlink_to("loop")
    (root / "out").symlink_to("/etc")
    (root / "up").symlink_to("..")
    for name in (b"line\nbreak", b"\xff\xfe", b"x" * 255, b" ", b"-rf", b"\x1b[31m"):
        os.mkdir(os.fsencode(root) + b"/" + name)
        os.close(os.open(os.fsencode(root) + b"/" + name + b"/" + name, os.O_CREAT | os.O_WRONLY))


def closed_itself(root: Path) -> None:
    """The workspace itself can't be read or written."""
    (root / "file").write_text("x")
    root.chmod(0o000)


HOSTILE: list[Callable[[Path], None]] = [closed_folders, odd_things, nested, closed_itself]
