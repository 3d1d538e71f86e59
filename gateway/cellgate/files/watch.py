"""Detects a cell's changes of the workspace's files by comparing their states before and after it.

States are compared, not contents: size, times and inode number (`FileState.identity`). A few files are
scanned directly, because a thread would cost a cell more than the scan; many files in a thread; an empty
workspace, as most are, needs no scan. It records nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellgate.files import tree
from cellgate.files.tree import FileIdentity, FileState
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.trees import is_empty

FEW_ENTRIES = 32
MAX_CHANGES = 1000
MAX_HASHED = 256 * MIB


class WorkspaceWatch:
    """The files of one workspace as last seen."""

    def __init__(self) -> None:
        self._known: dict[str, FileIdentity] = {}

    async def begin(self, root: Path) -> None:
        """Start from the files as they are now."""
        found, _ = await asyncio.to_thread(tree.scan, root)
        self._known = _identities(found)

    def begin_with(self, files: Mapping[str, FileIdentity]) -> None:
        """Start from these files, known from another look, by path."""
        self._known = dict(files)

    def know(self, path: str, state: FileState | None) -> None:
        """Note a change that was not made by a cell; None: the file was removed."""
        if state is None:
            self._known.pop(path, None)
        else:
            self._known[path] = state.identity

    async def changes(self, root: Path) -> list[dict[str, Any]]:
        """Return files created, changed and deleted since the last call, by path; at most 1,000.

        Each as `{"path", "size", "sha256", "action"}`. Deleted files, and those beyond 256 MiB in total, have
        no hash.
        """
        if not self._known and is_empty(root):
            return []
        found, complete = dict[str, FileState](), False
        if len(self._known) <= FEW_ENTRIES:
            found, complete = tree.scan(root, FEW_ENTRIES)
        if not complete:
            found, complete = await asyncio.to_thread(tree.scan, root)
        known = self._known
        # A file that could not be seen this time is not new when it is seen again.
        seen = _identities(found)
        self._known = seen if complete else {**known, **seen}
        changed = [
            (path, state, "changed" if path in known else "created")
            for path, state in found.items()
            if path not in known or known[path] != state.identity
        ]
        deleted = sorted(known.keys() - found.keys()) if complete else []
        if not changed and not deleted:
            return []
        changes = await asyncio.to_thread(_describe, root, sorted(changed, key=lambda c: c[0])[:MAX_CHANGES])
        gone = [{"path": path, "size": None, "sha256": None, "action": "deleted"} for path in deleted]
        return (changes + gone)[:MAX_CHANGES]


def _identities(found: Mapping[str, FileState]) -> dict[str, FileIdentity]:
    return {path: state.identity for path, state in found.items()}


def _describe(root: Path, changed: list[tuple[str, FileState, str]]) -> list[dict[str, Any]]:
    left = MAX_HASHED
    changes = []
    for path, state, action in changed:
        sha256 = None
        if state.size <= left:
            left -= state.size
            sha256 = _digest(root, path)
        changes.append({"path": path, "size": state.size, "sha256": sha256, "action": action})
    return changes


def _digest(root: Path, path: str) -> str | None:
    """Return the hash; None if the file is gone by now."""
    try:
        return tree.digest(root, tree.parse_path(path))[1]
    except CellgateError:
        return None
