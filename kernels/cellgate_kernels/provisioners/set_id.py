"""Takes set-user-ID and set-group-ID bits from files in a workspace, which is a folder of the host.

The filters of system calls (``seccomp``, ``engine_profile``) let no kernel set them; this is for kernels
without such a filter: on gVisor, or without isolation. Names are user code's, so nothing is changed but what
was opened and found to lie in the folder. Blocking.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from cellgate_kernels import trees
from cellgate_kernels.provisioners.seccomp import SET_ID

DEEPEST = 1000
MOST = 1 << 24


def clear_set_ids(root: Path) -> None:
    """Take the bits from all files below a folder that no kernel uses any more.

    What its owner made unreadable stays as it is: nobody else can enter it. Raises OSError for a lack of open
    files: then some may still have them.
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
    """Take the bits from one file. Does nothing if it is gone, a link, or not below `root` any more."""
    with suppress(OSError):
        _clear(path, None, root.resolve())


def _clear(name: str, folder: int | None, root: Path | None) -> None:
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        link = Path(f"/proc/self/fd/{descriptor}")
        # A folder above a path may have been replaced by a link while we came here.
        inside = root is None or link.readlink().is_relative_to(root)
        if stat.S_ISREG(mode) and inside:
            # The link leads to the open file, whatever has its name by now.
            link.chmod(stat.S_IMODE(mode) & ~SET_ID)
    finally:
        os.close(descriptor)
