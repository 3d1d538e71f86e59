"""How much space the file system of a folder has. It only measures; ``files.ledger`` reserves."""

from __future__ import annotations

import os
from pathlib import Path

_UNKNOWN = 1 << 62
"""Stands for a size that a file system does not report; some have 0 blocks in all."""


def free(folder: Path | int) -> int:
    """Bytes that can be written to the disk of a folder or an open file."""
    found = os.statvfs(folder)
    if not found.f_blocks:
        return _UNKNOWN
    return found.f_bavail * found.f_frsize


def half_of_disk(folder: Path) -> int:
    """Half of the folder's disk, in bytes."""
    found = os.statvfs(folder)
    half = found.f_blocks * found.f_frsize // 2
    return half or _UNKNOWN
