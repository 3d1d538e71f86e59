"""Workspace folders: where a session's files are kept while its kernels come and go.

A running kernel has its own folder, created before it was assigned to a session. When the kernel ends, its
folder becomes the session's kept folder, whose name contains the session's random id: no other session, and
no session of a record restored from a backup, can have the same. When the session gets another kernel, the
entries are renamed into that kernel's folder. User code wrote these folders, so only
``cellgate_kernels.trees`` touches them, and only after the kernel that could race with it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

from cellgate.errors import storage
from cellgate.record.rows import SessionRow
from cellgate_kernels import trees
from cellgate_kernels.leftovers import Leftovers, is_leftover
from cellgate_kernels.provisioners.folders import patiently
from cellgate_kernels.provisioners.set_id import clear_set_ids
from cellgate_kernels.tasks import Supervisor

logger = logging.getLogger(__name__)

KEPT = "session-"
ORPHANS = "orphans"
LATER = ".later"
"""Suffix of a folder that could not be processed yet and will be kept under the name without it."""
_MOVED = "The session's files can't be moved"

P = ParamSpec("P")
T = TypeVar("T")


def new_folder() -> str:
    """A random id that distinguishes a new session's folder from all others, recorded or not."""
    return secrets.token_hex(16)


def folder_of(row: SessionRow) -> str:
    """The name of a session's kept folder."""
    return folder_name(row.id, row.folder)


def folder_name(session_id: int, folder: str) -> str:
    """Like `folder_of`. A session of an older record has no random id, so its number is used."""
    return f"{KEPT}{folder or session_id}"


class KeptFolder:
    """Where one session's files are while it has no kernel. Methods raise StorageError."""

    def __init__(self, root: Path, name: str, leftovers: Leftovers, tasks: Supervisor) -> None:
        self.path = root / name
        self._later = root / f"{name}{LATER}"
        self._root = root
        self._leftovers = leftovers
        self._tasks = tasks

    async def keep(self, source: Path) -> None:
        """Keep an ended kernel's folder for the session's next kernel, unless it is empty.

        If no more files can be opened, it is kept under another name, and still given to the next kernel. A
        folder that can't be kept for another reason is set aside, so that it is not removed with the kernel's
        folder, and StorageError is raised; if even that fails, the files are still in the kernel's folder.
        """
        with storage(_MOVED):
            try:
                await self._work(_keep, source, self.path)
            except OSError as error:
                waits = error.errno in trees.NO_OPEN_FILES
                if waits and await self._work(_keep_for_later, source, self._later):
                    return
                place = await self._work(_set_aside, source, self._root / ORPHANS)
                logger.error(
                    "Files of %s could not be kept (%s); they are in %s", self.path.name, error, place
                )
                raise

    async def restore(self, target: Path) -> bool:
        """Move what `keep` kept into a new kernel's folder, all or nothing; returns whether there was any."""
        with storage(_MOVED):
            return await self._work(_restore, self.path, self._later, target)

    async def remove(self, source: Path | None = None) -> None:
        """Remove what `keep` kept and, if given, an ended kernel's folder; failures are retried later."""
        await self._leftovers.remove(self.path, self._later, *([] if source is None else [source]))

    async def _work(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Do work in a thread, to completion: a cancelled caller must not continue while files still move."""
        return await self._tasks.complete(patiently(work, *arguments, **options), self.path.name)


class WorkspaceStore:
    """The kept folders of sessions without a kernel, below one root. All file work happens in threads."""

    def __init__(self, root: Path, leftovers: Leftovers | None = None) -> None:
        self._root = root
        self._leftovers = Leftovers() if leftovers is None else leftovers
        self._tasks = Supervisor()

    def of(self, name: str) -> KeptFolder:
        """The kept folder of this name, which may not exist."""
        return KeptFolder(self._root, name, self._leftovers, self._tasks)

    async def gone(self, *names: str) -> None:
        """Return when pending removals of folders with these names have completed."""
        await self._leftovers.gone(*(self._root / name for name in names))

    async def tidy(self, known: Collection[str], left: Mapping[str, str], living: Collection[str]) -> None:
        """At startup: keep what ended kernels left, and set aside what belongs to no recorded session.

        `known`: the recorded sessions' folders; `left` maps kernels to the folders of their sessions;
        `living`: kernels whose folders are in use. Folders set aside are never removed and never given to
        anybody: the record may be older than the files, restored from a backup.
        """
        with storage("The sessions' folders can't be looked through"):
            names = await asyncio.to_thread(os.listdir, self._root)
        for name in names:
            folder = self._root / name
            if name in living or name in known or name == ORPHANS or is_leftover(name):
                continue
            if name in left:
                await self.of(left[name]).keep(folder)
            elif (kept := name.removesuffix(LATER)) != name and kept in known:
                await self.of(kept).keep(folder)
            with storage("A folder of nobody can't be set aside"):
                place = await asyncio.to_thread(_set_aside, folder, self._root / ORPHANS)
            if place is not None:
                logger.warning("The folder %s belongs to no recorded session; it is now %s", name, place)


def _keep(source: Path, kept: Path) -> None:
    if _remove_empty(source):
        return
    # No file that a kernel left may be a set-id program, neither here nor where it is exported to.
    clear_set_ids(source)
    try:
        source.rename(kept)
    except OSError:
        if not trees.is_folder(kept):
            raise
        # An earlier attempt to keep it failed half way.
        trees.move_entries(source, kept)


def _keep_for_later(source: Path, later: Path) -> bool:
    """Move a folder to an unused name without looking inside; returns whether it did. Opens no file."""
    if later.exists():
        return False
    source.rename(later)
    return True


def _remove_empty(folder: Path) -> bool:
    """Remove an empty folder; returns whether nothing is there now. Opens no file.

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


def _restore(kept: Path, later: Path, target: Path) -> bool:
    _keep(later, kept)
    if not trees.is_folder(kept):
        return False
    try:
        trees.move_entries(kept, target)
    except OSError:
        trees.move_entries(target, kept)
        raise
    kept.rmdir()
    return True


def _set_aside(folder: Path, orphans: Path) -> Path | None:
    """Move a folder to the orphans and return its new path; an empty one is removed instead.

    Opens no file, because it is called when no more files can be opened.
    """
    if _remove_empty(folder):
        return None
    orphans.mkdir(mode=0o700, exist_ok=True)
    place = orphans / f"{folder.name}-{secrets.token_hex(4)}"
    folder.rename(place)
    return place
