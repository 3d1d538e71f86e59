"""A wheel that uv unpacked, made fit to be shared: checked, and without what belongs to this machine alone.

uv writes nothing outside of the folder that it is given, whatever a wheel holds: members with such names it
leaves out, and links become files. What is here all the same is checked. Scripts run under whatever
``python`` is first on the kernel's path, because kernels of several environments share them. No code of a
package runs. All functions block.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cellgate_kernels import trees

MOST_FILES = 200_000
SHEBANG = b"#!/usr/bin/env python\n"

_OF_UV = (".lock",)
_OF_THIS_INSTALL = ("direct_url.json", "uv_cache.json")
"""Where a wheel came from: an address may hold a password."""


class UnsoundWheel(Exception):
    """The wheel may not be shared; why is for the log."""


def tidy(tree: Path, interpreter: str) -> int:
    """Make the folder fit to be shared; the bytes of its files. `interpreter` is the one uv was told.

    Raises UnsoundWheel, and OSError for what the file system refuses.
    """
    for name in _OF_UV:
        (tree / name).unlink(missing_ok=True)
    walk = trees.Walk(tree, most=MOST_FILES)
    size = 0
    for entry in walk:
        if not (entry.is_file or entry.is_folder):
            raise UnsoundWheel(f"{entry.path!a} is neither a file nor a folder")
        size += entry.found.st_size if entry.is_file else 0
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
    """There is one package in it."""
    found = list(tree.glob("*.dist-info"))
    if len(found) != 1:
        raise UnsoundWheel(f"it has metadata of {len(found)} packages")
    for name in _OF_THIS_INSTALL:
        (found[0] / name).unlink(missing_ok=True)


def _make_portable(script: Path, interpreter: str, draft: Path) -> None:
    """Put our first line in the place of uv's, which names this machine's interpreter."""
    path = os.fsencode(interpreter)
    # The second is uv's way, as pip's, around paths that are too long for a first line.
    for first in (b"#!" + path + b"\n", b"#!/bin/sh\n'''exec' '" + path + b"' \"$0\" \"$@\"\n' '''\n"):
        with script.open("rb") as source:
            if source.read(len(first)) != first:
                continue
            # Not in its place: it may share its bytes with uv's cache.
            with draft.open("wb") as target:
                target.write(SHEBANG)
                shutil.copyfileobj(source, target)
        draft.chmod(0o755)
        draft.replace(script)
        return
