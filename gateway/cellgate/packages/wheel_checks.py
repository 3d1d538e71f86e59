"""Prepares a wheel that uv unpacked for sharing: checks it, and removes traces of this machine.

uv never writes outside its target folder, whatever a wheel contains: it skips members whose names lead
elsewhere, and turns links into files. The result is checked anyway. Scripts use the first ``python`` on the
kernel's path, because kernels of several environments share them. No code of a package runs. All functions
block.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cellgate_kernels.base import trees

MOST_FILES = 200_000
SHEBANG = b"#!/usr/bin/env python\n"

_OF_UV = (".lock",)
_OF_THIS_INSTALL = ("direct_url.json", "uv_cache.json")
"""Files with a wheel's source; a URL may contain a password."""


class UnsoundWheel(Exception):
    """The wheel can't be shared; the reason is for the log."""


def tidy(tree: Path, interpreter: str) -> int:
    """Prepare the folder for sharing; return the size of its files in bytes.

    `interpreter`: uv's. Raises UnsoundWheel, and OSError from the file system.
    """
    for name in _OF_UV:
        (tree / name).unlink(missing_ok=True)
    walk = trees.Walk(tree, most=MOST_FILES)
    size = 0
    for entry in walk:
        if not (entry.is_file or entry.is_folder):
            raise UnsoundWheel(f"{entry.path!a} is neither a file nor a folder")
        if entry.is_file:
            size += entry.found.st_size
    if walk.hindered is not None:
        raise walk.hindered
    if not walk.complete:
        raise UnsoundWheel("it has too many files, or they lie too deep")
    _check_metadata(tree)
    scripts = tree / "bin"
    if trees.is_folder(scripts):
        for script in scripts.iterdir():
            if script.is_file():
                _make_portable(script, interpreter, tree.parent / "script")
    return size


def _check_metadata(tree: Path) -> None:
    """Check that there is exactly one package, and drop the files that name its source."""
    found = list(tree.glob("*.dist-info"))
    if len(found) != 1:
        raise UnsoundWheel(f"it has metadata of {len(found)} packages")
    for name in _OF_THIS_INSTALL:
        if trees.is_folder(found[0] / name):
            raise UnsoundWheel(f"its {name} is a folder")
        (found[0] / name).unlink(missing_ok=True)


def _make_portable(script: Path, interpreter: str, draft: Path) -> None:
    """Replace uv's shebang, which names this machine's interpreter, with a portable one."""
    path = os.fsencode(interpreter)
    # The second form is how uv and pip work around paths that are too long for a shebang.
    for first in (b"#!" + path + b"\n", b"#!/bin/sh\n'''exec' '" + path + b"' \"$0\" \"$@\"\n' '''\n"):
        with script.open("rb") as source:
            if source.read(len(first)) != first:
                continue
            # Not in place: the file may be a hard link into uv's cache.
            with draft.open("wb") as target:
                target.write(SHEBANG)
                shutil.copyfileobj(source, target)
        draft.chmod(0o755)
        draft.replace(script)
        return
