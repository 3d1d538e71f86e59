"""The place of a run of tests: a home, XDG folders and a temporary folder that are nobody else's.

What the user has set up or is running changes nothing for the tests then, and all that they leave in the
file system is below one folder. A run that was killed leaves its place behind, a run with failed tests leaves
it to be looked at; the next one removes it, with what ``leftovers`` finds of it in the system.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX = "cgt-"
"""Short: paths of sockets have 107 bytes (unix(7)), and are below it."""
_KEPT = (".gitconfig", ".npmrc", ".pip", ".cache", ".config/pip", ".config/uv")
"""Of the user's home: where packages come from, and how git is to be used."""


class Place:
    """A new place, this process's for as long as it lives or until it is let go."""

    def __init__(self) -> None:
        self.folder, self._lock = _made()
        # Some tests are other users, and pass through.
        self.folder.chmod(0o755)
        temporary, home = self.folder / "tmp", self.folder / "home"
        temporary.mkdir()
        temporary.chmod(0o1777)
        (home / ".config").mkdir(parents=True)
        for name in _KEPT:
            if (kept := Path.home() / name).exists():
                (home / name).symlink_to(kept)
        self.variables = {
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_DATA_HOME": str(home / ".local/share"),
            "XDG_STATE_HOME": str(home / ".local/state"),
        }
        """Of this process and all that it starts, once it has entered."""

    def enter(self) -> None:
        """Use it from now on."""
        os.environ.update(self.variables)
        os.environ.pop("XDG_RUNTIME_DIR", None)
        tempfile.tempdir = None

    def let_go(self) -> None:
        """Let others remove it."""
        self._lock.close()


def abandoned(around: Path) -> Iterator[Path]:
    """The places of this user in a folder that no process has any more; each is locked until the next one."""
    for folder in sorted(around.glob(f"{PREFIX}*")):
        if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
            continue
        lock = None
        with suppress(OSError):  # another run removes it in this moment
            lock = _lock(folder)
        if lock is not None:
            with lock:
                yield folder


def _made() -> tuple[Path, IO[bytes]]:
    """Make a new folder and its lock; another one if a run took it for abandoned before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):
            lock = _lock(folder)
            if lock is not None:
                if os.fstat(lock.fileno()).st_nlink:
                    return folder, lock
                lock.close()


def _lock(folder: Path) -> IO[bytes] | None:
    """The lock of a place, as an open file; None if another process has it."""
    file = (folder / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
