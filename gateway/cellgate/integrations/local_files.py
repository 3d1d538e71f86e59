"""Where files of a session may be written on the machine of the program that asks for them."""

from __future__ import annotations

from pathlib import Path


def is_below(path: Path, folder: Path) -> bool:
    """Return whether `path`, which a session chose, stays below the folder, whatever links are in there.

    The gateway gives paths below the workspace alone; what a link of this machine's leads to is not the
    session's. A link at `path` itself is replaced by a file, not followed.
    """
    return ".." not in path.parts and path.parent.resolve().is_relative_to(folder.resolve())
