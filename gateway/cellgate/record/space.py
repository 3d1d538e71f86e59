"""How much room the file system of a folder has. It only asks; who reserves is ``files.ledger``."""

from __future__ import annotations

import os
from pathlib import Path


def free(folder: Path | int) -> int:
    """Bytes that can be written to the disk of a folder or an open file."""
    told = os.statvfs(folder)
    # Some file systems don't say: they have 0 blocks in all.
    return told.f_bavail * told.f_frsize if told.f_blocks else 1 << 62


def half_of_disk(folder: Path) -> int:
    """Half of the bytes that the folder's disk has in all."""
    told = os.statvfs(folder)
    return told.f_blocks * told.f_frsize // 2 or 1 << 62
