"""How much disk a kernel holds: the files of its workspace, and those it deleted and keeps open.

A bind-mounted folder has no quota, so somebody must look; ``engine`` does, again and again, in a thread. User
code wrote what is read here: nothing is opened but folders, no link is followed, and whatever is made so that
it can't be measured counts as too much.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ENTRY_BYTES = 4096
"""What a name costs at least, so that a million empty files are not free."""

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESRCH)


def used_bytes(workspace: Path, process: int | None, *, enough: int) -> int:
    """Bytes on disk of `workspace` and of the deleted files that `process` and those below it keep open.

    Stops soon after `enough`. Processes that this user may not look into count nothing.
    """
    total = _tree_bytes(workspace, enough)
    if process is not None and total <= enough:
        with suppress(OSError):
            total += _deleted_bytes(process, workspace.lstat().st_dev)
    return total


def _tree_bytes(workspace: Path, enough: int) -> int:
    total = 0
    linked: set[int] = set()
    folders = [str(workspace)]
    while folders and total <= enough:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    if status.st_nlink == 1 or entry.is_dir(follow_symlinks=False):
                        total += max(status.st_blocks * 512, ENTRY_BYTES)
                    elif status.st_ino not in linked:
                        linked.add(status.st_ino)
                        total += max(status.st_blocks * 512, ENTRY_BYTES)
                    if total > enough:
                        break
        except OSError as error:
            if error.errno not in _GONE:
                return enough + 1
    return total


def _deleted_bytes(process: int, device: int) -> int:
    found: dict[int, int] = {}
    for pid in _family(process):
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in descriptors:
                with suppress(OSError):
                    status = descriptor.stat()
                    if status.st_nlink == 0 and status.st_dev == device:
                        found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _family(process: int) -> Iterator[int]:
    """A process and all below it: the first of a pid namespace inherits every orphan."""
    waiting = [process]
    while waiting:
        pid = waiting.pop()
        yield pid
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    waiting += map(int, (thread / "children").read_text().split())
