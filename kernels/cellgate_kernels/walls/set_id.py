"""Clears set-user-ID and set-group-ID bits of files in a workspace, which is a folder of the host.

The system call filters (``seccomp``, ``engine.profile``) keep kernels from setting the bits; this module is
for kernels without a filter: on gVisor, or without isolation. User code chose the names, so only files that
were opened and found to be in the folder are changed. Blocking.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from cellgate_kernels.base import trees
from cellgate_kernels.walls.seccomp import SET_ID

DEEPEST = 1000
MOST = 1 << 24


def clear_set_ids(root: Path) -> None:
    """Clear the bits of all files below a folder that no kernel uses any more.

    Folders that their owner made unreadable are skipped: no other user can enter them. Raises OSError on too
    many open files: then some files may still have the bits.
    """
    walk = trees.Walk(root, deepest=DEEPEST, most=MOST)
    for entry in walk:
        if entry.is_file and entry.found.st_mode & SET_ID:
            try:
                _clear(entry.name, entry.folder, None)
            except OSError as error:
                if error.errno in trees.NO_OPEN_FILES:
                    raise
    if walk.hindered is not None:
        raise walk.hindered


def clear_set_id(path: str, root: Path) -> None:
    """Clear the bits of one file. Does nothing if it is gone, a link, or no longer below `root`."""
    with suppress(OSError):
        _clear(path, None, root.resolve())


def _clear(name: str, folder: int | None, root: Path | None) -> None:
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        link = Path(f"/proc/self/fd/{descriptor}")
        # A folder in the path may have been replaced by a link in the meantime.
        inside = root is None or link.readlink().is_relative_to(root)
        if stat.S_ISREG(mode) and inside:
            # The link leads to the open file, even if its name now belongs to another file.
            link.chmod(stat.S_IMODE(mode) & ~SET_ID)
    finally:
        os.close(descriptor)
