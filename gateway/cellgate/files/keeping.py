"""Moves, copies and sets aside the folders of workspaces: each step whole, or repeated by a later one.

``workspace`` says which folders and when. User code wrote what is in them. Blocks.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cellgate.files.copying import copy_tree, data_bytes
from cellgate.files.data import Stop
from cellgate.files.owed import owed_folder
from cellgate_kernels.base import trees
from cellgate_kernels.walls.set_id import DEEPEST, MOST, clear_set_ids

GROWTH = 64 * 1024 * 1024
"""Bytes by which shared files may grow, beyond twice their size, while they are copied."""


def keep(source: Path, kept: Path) -> None:
    """Make a folder the kept one, without set-id programs; an empty one is removed. Raises OSError."""
    if remove_empty(source):
        return
    # A kernel must leave no set-id program, neither here nor in an export.
    clear_set_ids(source)
    try:
        trees.rename(source, kept)
    except OSError:
        if not trees.is_folder(kept):
            raise
        # An earlier attempt to keep it failed half way.
        trees.move_entries(source, kept)


def keep_copy(source: Path, draft: Path, kept: Path, stop: Stop) -> None:
    """Make a copy of a folder the kept one, or add to that what it lacks. A missing folder is no error.

    `draft`: a path for the copy until it is complete. Raises OSError and the errors of `copy_tree`.
    """
    if not trees.is_folder(source):
        return
    # Remains of a gateway that ended while it copied.
    trees.remove(draft)
    draft.mkdir(mode=0o700)
    try:
        # Others still use the folder: however they exchange its files, the copy stays about as small.
        most_bytes = 2 * data_bytes(source, deepest=DEEPEST, most=MOST, stop=stop) + GROWTH
        copy_tree(source, draft, most_bytes, deepest=DEEPEST, most=MOST, stop=stop)
        if not trees.is_folder(kept):
            keep(draft, kept)
            return
        # A gateway that ended just then had made the copy, or the session got newer files meanwhile.
        for entry in draft.iterdir():
            if not os.path.lexists(kept / entry.name):
                trees.rename(entry, kept / entry.name)
        trees.remove(draft)
    except BaseException:
        trees.remove(draft)
        raise


def keep_for_later(source: Path, later: Path) -> bool:
    """Move a folder to an unused name without looking inside; return whether it did. Opens no file."""
    if later.exists():
        return False
    trees.rename(source, later)
    return True


def remove_empty(folder: Path) -> bool:
    """Remove an empty folder; return whether the path is free now. Opens no file.

    Code without isolation may have replaced its folder by a link, which is removed too.
    """
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        folder.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def restore_unless_owed(
    owed: Path, kept: Path, others: Sequence[Path], target: Path
) -> tuple[Path | None, bool]:
    """Return the folder with owed files, if there is one; else whether there were files to restore.

    Both in one thread, because every session that starts waits for it.
    """
    folder = owed_folder(owed)
    return folder, folder is None and restore_all(kept, others, target)


def restore_all(kept: Path, others: Sequence[Path], target: Path) -> bool:
    """Move the entries of the kept folder, and of `others` in its place, into another; all or none.

    Return whether there were any. Raises OSError.
    """
    for other in others:
        keep(other, kept)
    if not trees.is_folder(kept):
        return False
    try:
        trees.move_entries(kept, target)
    except OSError:
        trees.move_entries(target, kept)
        raise
    kept.rmdir()
    return True


def set_aside(folder: Path, orphans: Path) -> Path | None:
    """Move a folder to the orphans and return its new path; an empty one is removed instead.

    Opens no file, because it is called when no more files can be opened.
    """
    if remove_empty(folder):
        return None
    orphans.mkdir(mode=0o700, exist_ok=True)
    place = orphans / f"{folder.name}-{secrets.token_hex(4)}"
    trees.rename(folder, place)
    return place
