"""Workspace folders: what a session's files are kept in while its kernels come and go.

A running kernel has its own folder, made before anybody knew whose kernel it will be. When a session
gets another kernel its entries are renamed into that kernel's folder; when the session ends they are kept
under the session's id or removed. User code wrote these folders: names are never followed, only renamed,
and only after the kernel that could race with us is gone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from kernels.provisioners.folders import remove_tree

KEPT = "session-"


class WorkspaceStore:
    """The kept folders of sessions without a kernel, below one root. All file work happens in threads."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def kept(self, session_id: int) -> Path:
        """Where `keep` keeps the files of a session without a kernel; there may be none."""
        return self._root / f"{KEPT}{session_id}"

    async def move(self, source: Path, target: Path) -> None:
        """Rename all entries of `source` into `target`, an existing folder on the same file system."""
        await asyncio.to_thread(_move_entries, source, target)

    async def keep(self, session_id: int, source: Path) -> None:
        """Keep the entries of an ended kernel's folder for the session's next kernel, if there are any."""
        await asyncio.to_thread(_keep, source, self.kept(session_id))

    async def restore(self, session_id: int, target: Path) -> bool:
        """Give what `keep` kept to a new kernel's folder; whether there was anything."""
        return await asyncio.to_thread(_restore, self.kept(session_id), target)

    async def adopt(self, left: Mapping[str, int], living: Collection[str] = ()) -> None:
        """After a crash: keep the folders of these kernels for their sessions, and remove all others.

        `left` maps kernel ids to session ids; `living` are the kernels whose folders are in use.
        """
        for folder in list(self._root.iterdir()):
            if folder.name in living:
                continue
            if folder.name in left:
                await self.keep(left[folder.name], folder)
            if not folder.name.startswith(KEPT):
                await remove_tree(folder)

    async def remove(self, session_id: int) -> None:
        """Remove what `keep` kept."""
        await remove_tree(self.kept(session_id))


def _move_entries(source: Path, target: Path) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            # A plain rename: symlinks move as they are, and no name leads out of the two folders.
            Path(entry.path).rename(target / entry.name)


def _keep(source: Path, kept: Path) -> None:
    if any(source.iterdir()):
        kept.mkdir(mode=0o700, exist_ok=True)
        _move_entries(source, kept)


def _restore(kept: Path, target: Path) -> bool:
    if not kept.is_dir():
        return False
    _move_entries(kept, target)
    kept.rmdir()
    return True
