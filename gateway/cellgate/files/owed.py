"""Files that are owed to a session: still in the folder of a kernel that has ended.

A link beside the session's kept folder names that folder; a later start moves the files. ``workspace`` makes
the links and follows them. Nothing here looks into the folders.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from pathlib import Path

from cellgate_kernels.base import trees
from cellgate_kernels.base.branching import BRANCHES

OWED = ".owed"
"""Suffix of a link to the ended kernel's folder where a session's files still are."""


def owe(mark: Path, source: Path) -> None:
    """Note that a session's files are in this folder of an ended kernel. Opens no file."""
    if not trees.is_folder(source):
        return
    place = Path(source.name)
    for around in source.parents:
        if not around.name.endswith(BRANCHES):
            break
        place = around.name / place
    mark.unlink(missing_ok=True)
    mark.symlink_to(place)


def owed_folder(mark: Path) -> Path | None:
    """Return the folder with files that are owed; None if there is none."""
    try:
        place = mark.readlink()
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.EINVAL}:
            return None
        raise
    *around, name = place.parts
    is_ours = name not in {"..", "/"} and all(each.endswith(BRANCHES) for each in around)
    return mark.parent / place if is_ours and trees.is_folder(mark.parent / place) else None


def all_owed(root: Path, names: Collection[str], known: Collection[str]) -> dict[str, list[str]]:
    """Return the recorded sessions that are owed files, by folder name, and remove other marks."""
    found: dict[str, list[str]] = {}
    for name in names:
        session = name.removesuffix(OWED)
        if session == name:
            continue
        place = owed_folder(root / name) if session in known else None
        if place is None:
            (root / name).unlink(missing_ok=True)
        else:
            found.setdefault(place.name, []).append(session)
    return found
