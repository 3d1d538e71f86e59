"""Workspace folders: what a session's files are kept in while its kernels come and go.

A running kernel has its own folder, made before anybody knew whose kernel it will be. When the kernel ends,
its folder becomes the session's kept folder, whose name holds the session's random id: no other session, and
no session of a record that was restored from a backup, can have the same. When the session gets another
kernel the entries are renamed into that kernel's folder. User code wrote these folders, so they are touched
by ``cellgate_kernels.trees`` alone, and only after the kernel that could race with us is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

from cellgate.record.rows import SessionRow
from cellgate.wire.errors import storage
from cellgate_kernels import trees
from cellgate_kernels.leftovers import Leftovers, is_leftover
from cellgate_kernels.provisioners.folders import patiently
from cellgate_kernels.provisioners.set_id import clear_set_ids
from cellgate_kernels.tasks import Supervisor

logger = logging.getLogger(__name__)

KEPT, ORPHANS = "session-", "orphans"
LATER = ".later"
"""Ends the name of a folder that could not be looked through yet, and is to be kept under the name before."""
_MOVED = "The session's files can't be moved"

P = ParamSpec("P")
T = TypeVar("T")


def new_folder() -> str:
    """What tells a new session's folder from all others, also from those that a restored record forgot."""
    return secrets.token_hex(16)


def folder_of(row: SessionRow) -> str:
    """The name of a session's kept folder."""
    return folder_name(row.id, row.folder)


def folder_name(session_id: int, folder: str) -> str:
    """As `folder_of`. A session of an older record has no random id, and is named by its number."""
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
        """Keep an ended kernel's folder for the session's next kernel, if anything is in it.

        For want of open files it is kept under another name, and given to the next kernel all the same. What
        else can't be kept is set aside, so that the removal of the kernel's folder does not take it along.
        Raises StorageError then; where not even that worked, the files are in the kernel's folder still.
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
        """Give what `keep` kept to a new kernel's folder, all or nothing; whether there was anything."""
        with storage(_MOVED):
            return await self._work(_restore, self.path, self._later, target)

    async def remove(self, source: Path | None = None) -> None:
        """Remove what `keep` kept, and with it an ended kernel's folder; what can't be now is later."""
        await self._leftovers.remove(self.path, self._later, *([] if source is None else [source]))

    async def _work(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """In a thread, to its end: a cancelled caller must not go on while files still move."""
        return await self._tasks.complete(patiently(work, *arguments, **options), self.path.name)


class WorkspaceStore:
    """The kept folders of sessions without a kernel, below one root. All file work happens in threads."""

    def __init__(self, root: Path, leftovers: Leftovers | None = None) -> None:
        self._root = root
        self._leftovers = Leftovers() if leftovers is None else leftovers
        self._tasks = Supervisor()

    def of(self, name: str) -> KeptFolder:
        """The kept folder of this name, which may not be there."""
        return KeptFolder(self._root, name, self._leftovers, self._tasks)

    async def gone(self, *names: str) -> None:
        """Return when nothing is left of folders of these names that were to be removed."""
        await self._leftovers.gone(*(self._root / name for name in names))

    async def tidy(self, known: Collection[str], left: Mapping[str, str], living: Collection[str]) -> None:
        """At the start: keep what ended kernels left, and set aside what belongs to no recorded session.

        `known` are the recorded sessions' folders, `left` maps kernels to the folders of their sessions,
        `living` are kernels whose folders are in use. What is set aside is never removed and never given to
        anybody: the record may be an older one than the files, restored from a backup.
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
    # Nothing that a kernel left is a program with somebody's rights, here or where it is exported to.
    clear_set_ids(source)
    try:
        source.rename(kept)
    except OSError:
        if not trees.is_folder(kept):
            raise
        # Left from a keeping that failed half way.
        trees.move_entries(source, kept)


def _keep_for_later(source: Path, later: Path) -> bool:
    """Move a folder, unseen, to a name that nothing has yet; whether it was. Takes no open file."""
    if later.exists():
        return False
    source.rename(later)
    return True


def _remove_empty(folder: Path) -> bool:
    """Remove a folder that nothing is in; whether nothing is there now. Takes no open file.

    Code without isolation may have swapped its folder for a link, which goes too.
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
    """Move a folder to the orphans, unless it is empty: then it is removed. Where it is now.

    Takes no open file: for want of them this is called.
    """
    if _remove_empty(folder):
        return None
    orphans.mkdir(mode=0o700, exist_ok=True)
    place = orphans / f"{folder.name}-{secrets.token_hex(4)}"
    folder.rename(place)
    return place
