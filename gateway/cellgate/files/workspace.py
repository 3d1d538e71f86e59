"""Workspace folders: where a session's files are kept while its kernels come and go.

A running kernel has its own folder, created before it was assigned to a session. When the kernel ends, its
folder becomes the session's kept folder, whose name contains the session's random id: no other session, and
no session of a record restored from a backup, can have the same. When the session gets another kernel, the
entries are renamed into that kernel's folder. User code wrote these folders, so only
``cellgate_kernels.base.trees`` touches them, and only after the kernel that could race with it is gone.

Sessions that share a workspace for good have one kept folder, and their kernels share a folder too; `Home`
has its path. The first of them to get a kernel brings that kernel's folder, and the last to leave takes the
files back.

Branches are the exception. Other kernels of a branch's sandbox can write to its folder even when its own
kernel is gone, and several sessions may use a kernel's folder; ``folder_users`` counts them, and all but the
last to leave get a copy, by ``copying``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from cellgate.errors import storage
from cellgate.files import keeping
from cellgate.files.copying import copy_tree
from cellgate.files.folder_users import FolderUsers
from cellgate.files.owed import OWED, all_owed, owe, owed_folder
from cellgate.files.snapshots import Snapshots, is_unfinished
from cellgate.record.rows import SessionRow
from cellgate_kernels.base import trees
from cellgate_kernels.base.branching import BRANCHES
from cellgate_kernels.base.errors import CellgateError, in_words
from cellgate_kernels.base.leftovers import Leftovers, is_leftover
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.launch.folders import patiently

logger = logging.getLogger(__name__)

KEPT = "session-"
ORPHANS = "orphans"
COPY = ".copy"
"""Suffix of a copy that is not complete."""
SNAPSHOTS = ".snapshots"
"""Suffix of the folder with the files of a session's checkpoints."""
MOVED = ".moved"
"""Suffix of a kept folder that comes from another gateway, and may not be the session's here yet."""
LATER = ".later"
"""Suffix of a folder that could not be processed yet and will be kept under the name without it."""
_MOVED = "The session's files can't be moved"

P = ParamSpec("P")
T = TypeVar("T")


def new_folder() -> str:
    """Return a random id that distinguishes a new session's folder from all others, recorded or not."""
    return secrets.token_hex(16)


def folder_of(row: SessionRow) -> str:
    """Return the name of a session's kept folder."""
    return folder_name(row.folder)


def snapshots_of(row: SessionRow) -> str:
    """Return the name of a session's snapshots: its own, even if several sessions have one kept folder."""
    return f"{folder_of(row)}.{row.id}"


def kernel_folder_of(row: SessionRow) -> str:
    """Return the name of the folder that the session's last kernel had."""
    return str(row.environment.get("workspace_of", row.environment.get("kernel_id")))


def folder_name(folder: str) -> str:
    """Return the name of the kept folder of sessions that have this random id in their rows."""
    return f"{KEPT}{folder}"


class CopyPatience:
    """The time that copies may take: unlimited, until the gateway shuts down."""

    def __init__(self) -> None:
        self._until = math.inf

    def end_in(self, seconds: float) -> None:
        """Give up all copies that are not complete in so many seconds."""
        self._until = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Return whether to give up now. Safe in any thread."""
        return time.monotonic() >= self._until


@dataclass(slots=True, eq=False, weakref_slot=True)
class Home:
    """The place of a kept folder's files while kernels use them.

    `folder`: the first kernel's, which all of them use; `users`: their number. `turn`: held while the files
    move into that folder, or out of it. `everybody`: the users of all kernels' folders.
    """

    everybody: FolderUsers
    folder: Path | None = None
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class RestoredFiles:
    """The files that a session's next kernel got.

    `found`: whether there were any. `alone`: whether files that were still owed to the session were in a
    folder that it alone used.
    """

    found: bool
    alone: bool


class KeptFolder:
    """The place of one session's files while it has no kernel. Methods raise StorageError."""

    def __init__(
        self,
        root: Path,
        name: str,
        leftovers: Leftovers,
        tasks: Supervisor,
        home: Home,
        patience: CopyPatience,
    ) -> None:
        self.path = root / name
        self._later = root / f"{name}{LATER}"
        self._moved = root / f"{name}{MOVED}"
        self._copy = root / f"{name}{COPY}"
        self._owed = root / f"{name}{OWED}"
        self._root = root
        self._home = home
        self._users = home.everybody
        self._leftovers = leftovers
        self._tasks = tasks
        self._patience = patience

    @property
    def place(self) -> Path:
        """The present folder of the files, which may not exist."""
        return self._home.folder or self.path

    def is_used(self, folder: Path) -> bool:
        """Return whether a kernel of a session with this kept folder uses this folder of a kernel."""
        return self._home.folder == folder

    async def enter(self) -> Path | None:
        """Use the kernel's folder that has the files; None if no kernel has them.

        Then the caller `settle`s in a new kernel's folder or `forgo`es it; other callers wait until then.
        """
        home = self._home
        await home.turn.acquire()
        if home.folder is None:
            return None
        self._arrive(home.folder)
        home.turn.release()
        return home.folder

    def settle(self, folder: Path) -> None:
        """Note the kernel's folder that has the files now."""
        self._arrive(folder)
        self._home.turn.release()

    def forgo(self) -> None:
        """Let the next caller have its turn, because there will be no kernel."""
        self._home.turn.release()

    def arrive(self, folder: Path) -> None:
        """Assign a kernel whose folder already has the files to the session."""
        self._arrive(folder)

    def _arrive(self, folder: Path) -> None:
        home = self._home
        if home.users:
            self._users.join(folder)
        home.folder = folder
        home.users += 1

    @asynccontextmanager
    async def _leaving(self, folder: Path) -> AsyncGenerator[tuple[bool, bool], None]:
        """Yield whether this session is the last user of the folder, and whether it is the last of those
        with its kept folder. On exit it uses the folder no longer.
        """
        home = self._home
        if home.folder != folder:
            # The kernel was not given to the session in the end, or ended in an earlier life.
            async with self._users.leaving(folder) as last:
                yield last, True
            return
        async with home.turn:
            try:
                async with self._users.leaving(folder) as last:
                    yield last, home.users == 1
            finally:
                home.users -= 1
                if not home.users:
                    home.folder = None

    async def keep(self, source: Path) -> bool:
        """Keep an ended kernel's folder for the session's next kernel, unless it is empty.

        Returns whether it was the session's alone. If others still use it, a copy is kept, unless they are
        sessions with the same kept folder: then the files stay in place. If no more files can be opened, it
        is kept under another name, and still given to the next kernel. A folder that can't be kept for
        another reason is set aside, so that it is not removed with the kernel's folder, and StorageError is
        raised. If even that fails, or a copy, the files stay in the kernel's folder, and are owed to the
        session: no later user of the folder takes or removes them, and the next `restore` or start of a
        gateway tries again.
        """
        return await self._tasks.complete(self._leave_with_files(source), self.path.name)

    async def _leave_with_files(self, source: Path) -> bool:
        try:
            async with self._leaving(source) as (last, alone):
                if last:
                    await self._keep(source)
                elif alone:
                    with storage("The session's files can't be copied"):
                        await self._keep_copy(source)
        except (CellgateError, OSError):
            with storage("The session's files can't be marked"):
                await asyncio.to_thread(owe, self._owed, source)
            raise
        return last

    async def _keep(self, source: Path) -> None:
        with storage(_MOVED):
            try:
                await self._work(keeping.keep, source, self.path)
            except OSError as error:
                waits = error.errno in trees.NO_OPEN_FILES
                if waits and await self._work(keeping.keep_for_later, source, self._later):
                    return
                place = await self._work(keeping.set_aside, source, self._root / ORPHANS)
                why = in_words(error)
                logger.error("Files of %s could not be kept (%s); they are in %s", self.path.name, why, place)
                raise

    def join(self, folder: Path) -> None:
        """Count one more session that uses a kernel's folder."""
        self._users.join(folder)

    def is_shared(self, folder: Path) -> bool:
        """Return whether other sessions use a kernel's folder too."""
        return self._users.others_use(folder)

    @asynccontextmanager
    async def alone(self, folder: Path) -> AsyncGenerator[bool, None]:
        """Yield whether no other session uses a kernel's folder; sessions that would `enter` it wait until
        the exit, and none can leave it meanwhile.
        """
        async with self._home.turn:
            yield not self.is_shared(folder)

    async def has_any(self, folder: Path) -> bool:
        """Return whether this folder of a kernel has any entries."""
        with storage("The session's files can't be looked at"):
            return bool(await self._work(trees.names_in, folder))

    async def move_in(self, source: Path) -> None:
        """Take a folder of another gateway, on the same disk, for the next `restore`.

        Nothing of the session's may be here but such a folder: a repeat takes the same one again.
        """
        with storage(_MOVED):
            if source != self._moved:
                await self._work(trees.rename, source, self._moved)

    async def _keep_copy(self, source: Path) -> None:
        await self._work(keeping.keep_copy, source, self._copy, self.path, self._patience.is_over)

    async def is_there(self) -> bool:
        """Return whether there is a folder with the session's files, even an empty one."""
        with storage("The session's files can't be looked at"):
            return await self._work(trees.is_folder, self.place)

    async def restore(self, target: Path) -> RestoredFiles:
        """Move the kept files into a new kernel's folder, all or nothing.

        This includes files that are still owed to the session; for them it raises as `keep` does.
        """
        owed, found = await self._restore(target)
        if owed is None:
            return RestoredFiles(found, alone=True)
        alone = await self.keep(owed)
        await asyncio.to_thread(self._owed.unlink, missing_ok=True)
        _, found = await self._restore(target)
        return RestoredFiles(found, alone)

    async def _restore(self, target: Path) -> tuple[Path | None, bool]:
        with storage(_MOVED):
            return await self._work(
                keeping.restore_unless_owed, self._owed, self.path, (self._moved, self._later), target
            )

    async def copy(self, source: Path, target: Path, most_bytes: int) -> None:
        """Copy a kernel's folder into another, empty one; see `copy_tree`."""
        with storage("The session's files can't be copied"):
            await self._work(copy_tree, source, target, most_bytes, stop=self._patience.is_over)

    async def take_copy(self, source: Path) -> None:
        """Keep a copy of a folder, too, which may still be written to; of two files, the one kept already.

        The copy is complete or not there. A missing folder is no error.
        """
        with storage("The session's files can't be copied"):
            await self._keep_copy(source)

    async def remove(self, source: Path | None = None) -> None:
        """Remove the kept files and, if given, an ended kernel's folder; failures are retried later.

        If other sessions still use that folder, it stays.
        """
        if source is None:
            await self._leftovers.remove(self.path, self._later, self._moved)
            await self._waive()
            return
        async with self._leaving(source) as (last, alone):
            if alone:
                await self._leftovers.remove(self.path, self._later, self._moved, *([source] if last else []))

    async def remove_old(self, found: Collection[Path]) -> None:
        """Remove the kept files as `remove` does, but not a folder that is `found` to have present ones."""
        if self._moved not in found:
            await self.remove()
            return
        await self._leftovers.remove(self.path, self._later)

    async def _waive(self) -> None:
        """Give up files that are owed to the session, if any."""
        folder = await asyncio.to_thread(owed_folder, self._owed)
        if folder is None:
            return
        async with self._users.leaving(folder) as last:
            if last:
                await self._leftovers.remove(folder)
            await asyncio.to_thread(self._owed.unlink, missing_ok=True)

    async def leave(self, source: Path) -> bool:
        """Count one session less for an ended kernel's folder; return whether it was the last one."""
        async with self._leaving(source) as (last, _):
            return last

    async def _work(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Do work in a thread, to completion: a cancelled caller must not continue while files still move."""
        return await self._tasks.complete(patiently(work, *arguments, **options), self.path.name)


class WorkspaceStore:
    """The kept folders of sessions without a kernel, below one root. All file work happens in threads.

    `reserve`: bytes of the disk that snapshots leave free.
    """

    def __init__(
        self,
        root: Path,
        leftovers: Leftovers | None = None,
        users: FolderUsers | None = None,
        *,
        reserve: int = 0,
    ) -> None:
        self.users = FolderUsers() if users is None else users
        """The users of kernels' folders."""
        self._root = root
        self._leftovers = Leftovers() if leftovers is None else leftovers
        self._reserve = reserve
        self._tasks = Supervisor()
        self._homes: WeakValueDictionary[str, Home] = WeakValueDictionary()
        self.patience = CopyPatience()
        """With copies of files that several sessions use."""

    def of(self, name: str) -> KeptFolder:
        """Return the kept folder of this name, which may not exist."""
        home = self._homes.setdefault(name, Home(self.users))
        return KeptFolder(self._root, name, self._leftovers, self._tasks, home, self.patience)

    async def snapshots(self, name: str, most_bytes: int) -> Snapshots:
        """Return snapshots that a session made of its files, by its `snapshots_of`. Raises StorageError."""
        return await self.snapshots_in(self._root / f"{name}{SNAPSHOTS}", most_bytes)

    async def snapshots_in(self, folder: Path, most_bytes: int) -> Snapshots:
        """Return the snapshots in a folder, which may be another gateway's. Raises StorageError."""
        return await self._tasks.complete(
            patiently(Snapshots, folder, most_bytes, reserve=self._reserve, stop=self.patience.is_over),
            f"open {folder.name}",
        )

    async def gone(self, *names: str) -> None:
        """Return when pending removals of folders with these names have completed."""
        await self._leftovers.gone(*(self._root / name for name in names))

    async def tidy(
        self, known: Collection[str], left: Mapping[str, Sequence[str]], living: Collection[str]
    ) -> None:
        """At startup: keep the files of ended kernels, and set aside folders of no recorded session.

        `known`: the recorded sessions' folders; `left` maps kernels, whose folders have their names, to the
        folders of the sessions that lost them; `living`: kernels whose folders are in use. Folders set aside
        are never removed or given to a session: the record may be older than the files, restored from a
        backup. A folder that can't be processed is logged and stays: user code made it, and neither others'
        files nor the start may wait for it.
        """
        with storage("The sessions' folders can't be looked through"):
            names = await asyncio.to_thread(os.listdir, self._root)
            owed = await asyncio.to_thread(all_owed, self._root, names, known)
        left = _united(left, owed)
        for name in names:
            if (
                name in known
                or name == ORPHANS
                or is_leftover(name)
                or name.endswith((MOVED, OWED, SNAPSHOTS))
            ):
                continue
            if name.endswith(COPY):
                await self._leftovers.remove(self._root / name)
                continue
            try:
                await self._tidy(name, known, left, living)
            except (CellgateError, OSError) as error:
                logger.error("The folder %s could not be processed and stays: %s", name, in_words(error))
        for name in names:
            if name.endswith(SNAPSHOTS):
                await self._complete_rollback(name.removesuffix(SNAPSHOTS), known)

    async def _complete_rollback(self, name: str, known: Collection[str]) -> None:
        """Bring back files whose rollback was interrupted by its gateway's end. `name`: see `snapshots`;
        older gateways used the kept folder's alone.

        The snapshots are useless afterwards. They stay until that works.
        """
        folder = self._root / f"{name}{SNAPSHOTS}"
        kept = name if name in known else name.rpartition(".")[0]
        try:
            if kept in known and await asyncio.to_thread(is_unfinished, folder):
                snapshots = await self.snapshots(name, 0)
                await self._tasks.complete(patiently(snapshots.recover, self._root / kept), name)
        except (CellgateError, OSError) as error:
            logger.error("A rollback of %s could not be completed: %s", name, in_words(error))
            return
        await self._leftovers.remove(folder)

    async def _tidy(
        self, name: str, known: Collection[str], left: Mapping[str, Sequence[str]], living: Collection[str]
    ) -> None:
        folder = self._root / name
        all_kept = True
        if name.endswith(BRANCHES):
            all_kept = await self._rescue_branches(folder, left, living)
        elif name in left:
            all_kept = await self._rescue(folder, left[name], used=name in living)
        if name.removesuffix(BRANCHES) in living or not all_kept:
            return
        if (kept := name.removesuffix(LATER)) != name and kept in known:
            await self.of(kept).keep(folder)
        with storage("A folder of nobody can't be set aside"):
            place = await asyncio.to_thread(keeping.set_aside, folder, self._root / ORPHANS)
        if place is not None:
            logger.warning("The folder %s belongs to no recorded session; it is now %s", name, place)

    async def _rescue_branches(
        self, folder: Path, left: Mapping[str, Sequence[str]], living: Collection[str]
    ) -> bool:
        """Keep the workspaces of branches in one sandbox, or of kernels in a shared container with their
        branches. Returns whether that is done and no living kernel of another sandbox works there.
        """
        all_kept = True
        with storage("The folder of branches can't be looked through"):
            names = await asyncio.to_thread(trees.names_in, folder)
        for name in names:
            if name in left:
                all_kept &= await self._rescue(folder / name, left[name], used=name in living)
            elif name.endswith(BRANCHES) and not folder.parent.name.endswith(BRANCHES):
                all_kept &= await self._rescue_branches(folder / name, left, living)
                await asyncio.to_thread(keeping.remove_empty, folder / name)
            all_kept &= name not in living
        return all_kept

    async def _rescue(self, folder: Path, sessions: Sequence[str], *, used: bool) -> bool:
        """Keep a kernel's files for each session; return whether that is done. `used`: by another session."""
        for _ in range(len(sessions) - 1 + used):
            self.users.join(folder)
        all_kept = True
        for session in sessions:
            try:
                await self.of(session).keep(folder)
                await asyncio.to_thread((self._root / f"{session}{OWED}").unlink, missing_ok=True)
            except (CellgateError, OSError) as error:
                logger.error("Files of %s could not be kept: %s", session, in_words(error))
                all_kept = False
        return all_kept


def _united(left: Mapping[str, Sequence[str]], owed: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {name: [*dict.fromkeys([*left.get(name, ()), *owed.get(name, ())])] for name in {**left, **owed}}
