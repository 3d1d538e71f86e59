"""Safe names for files and folders inside one of our folders: a plain name that can't lead elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from cellgate.errors import PackageError

MOST_BYTES = 255


def inside(folder: Path, name: str) -> Path:
    """Return the path of this name in `folder`. Raises PackageError unless it is one plain name."""
    fits = name not in {"", ".", ".."} and not {"/", "\0"} & set(name)
    place = folder / name
    if not fits or len(os.fsencode(name)) > MOST_BYTES or place.parent != folder:
        raise PackageError("A package has a name that can't be one of a file")
    return place
