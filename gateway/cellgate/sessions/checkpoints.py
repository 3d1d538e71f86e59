"""The checkpoints of one session: copies of its kernel and its files, to go back to.

Each is a held fork and a snapshot of the files, made while no cell runs. They form a sequence: going back to
one ends all later ones, which belong to the undone cells. A requested checkpoint stays until somebody ends
it, or until its sandbox ends. Of the checkpoints made after each cell the newest stay, and ever fewer of
older ones, within a limit of memory.

The checkpoints keep no record and know cells only by their number; the session lets no cell begin meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from cellgate.errors import Conflict, NotFound, StorageError
from cellgate.files.snapshots import Method, SnapshotId, Snapshots
from cellgate.files.tree import FileIdentity
from cellgate.record.events import now
from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from cellgate_kernels.base.errors import InvalidInput, KernelDied
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.launch.folders import patiently

logger = logging.getLogger(__name__)

MOST_NAMED = 16
"""Most requested checkpoints of one session."""
DENSE = 8
"""So many of the newest automatic checkpoints stay; of older ones, one for each doubling of the age."""
AUTOMATIC = "auto-"
"""The beginning of an automatic checkpoint's name; the number of cells before it follows."""
MEASURED_WITHIN = 2.0
"""Seconds in which a held fork reports how much memory it keeps."""
P = ParamSpec("P")
T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class CheckpointForks(Protocol):
    """Holds forks and makes kernels of them: ``KernelPool``."""

    async def checkpoint(self, kernel: Kernel, *, anyway: bool = False) -> HeldFork:
        """Make a checkpoint; see ``KernelPool.checkpoint``."""

    async def restore(
        self,
        held: HeldFork,
        spec: BranchSpec,
        *,
        instead_of: Kernel | None = None,
        beside: asyncio.Future[None] | None = None,
    ) -> Kernel:
        """Restore a held fork; see ``KernelPool.restore``."""

    def release(self, kernel: Kernel, *, spared: Collection[Path] = ()) -> None:
        """Release a kernel; see ``KernelPool.release``."""


@dataclass(frozen=True, slots=True)
class Position:
    """A moment of a session: its last event `seq`, the chain's `head` (hex), `cells` begun and not undone."""

    seq: int
    cells: int
    head: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """One checkpoint. `memory`: the bytes that its fork kept at the last measurement.

    `method`: how the files that had changed since the previous checkpoint were copied.
    """

    name: str
    at: Position
    created_at: str
    automatic: bool
    held: HeldFork
    snapshot: SnapshotId
    memory: int
    method: Method = Method.NONE


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The result of a rollback: new kernel, checkpoint used, number of undone cells, and the files now."""

    kernel: Kernel
    checkpoint: Checkpoint
    undone: int
    files: Mapping[str, FileIdentity]


def check_name(name: str) -> str:
    """Return the name of a requested checkpoint. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "A checkpoint's name has 1 to 64 letters, digits, dots, hyphens and underscores, and begins with"
            " none of the dots and hyphens"
        )
    if name.startswith(AUTOMATIC):
        raise InvalidInput(f"Names that begin with {AUTOMATIC!r} are those of automatic checkpoints")
    return name


def automatic_name(at: Position) -> str:
    """Return the name of an automatic checkpoint."""
    return f"{AUTOMATIC}{at.cells}"


def surplus(found: Sequence[Checkpoint], most_bytes: int) -> list[Checkpoint]:
    """Return the checkpoints to end: automatic ones too close for their age, and ones above the memory limit.

    `found`: all, oldest first. Requested checkpoints use up the memory of automatic ones. They stay unless
    they alone keep twice the limit; then the oldest go first, because a sandbox may have no limit of its own.
    """
    automatic = [each for each in found if each.automatic]
    kept: dict[int, Checkpoint] = {}
    if automatic:
        newest = automatic[-1].at.cells
        for each in automatic:
            age = newest - each.at.cells
            # The oldest of each doubling stays: it ages into the next one.
            kept.setdefault(age if age < DENSE else DENSE + age.bit_length(), each)
    named = [each for each in found if not each.automatic]
    while sum(each.memory for each in named) > 2 * most_bytes:
        named.pop(0)
    stay = list(kept.values())
    total = sum(each.memory for each in (*named, *stay))
    while stay and total > most_bytes:
        total -= stay.pop(0).memory
    return [each for each in found if each not in stay and each not in named]


class SessionCheckpoints:
    """Makes, lists and ends checkpoints, and goes back to them. `close` it before the session's files go.

    Make one call at a time, and call `make` and `roll_back` while no cell begins. `most_bytes`: the memory
    that all checkpoints may keep.
    """

    def __init__(self, forks: CheckpointForks, snapshots: Snapshots, most_bytes: int) -> None:
        self._forks = forks
        self._snapshots = snapshots
        self._most_bytes = most_bytes
        self._points: list[Checkpoint] = []
        self._tasks = Supervisor()

    @property
    def alive(self) -> list[Checkpoint]:
        """The checkpoints that can be gone back to, oldest first."""
        return [each for each in self._points if each.held.alive]

    def find(self, name: str | None = None) -> Checkpoint:
        """Return the checkpoint of this name, by default the newest. Raises NotFound."""
        for each in reversed(self.alive):
            if name in {None, each.name}:
                return each
        raise NotFound(
            "The session has no checkpoint" if name is None else f"There is no checkpoint {name[:64]!r}"
        )

    def before_last_cell(self, cells: int) -> Checkpoint:
        """Return the newest checkpoint from before the last of this many cells. Raises NotFound."""
        for each in reversed(self.alive):
            if each.at.cells < cells:
                return each
        raise NotFound("There is no checkpoint from before the last cell")

    async def make(
        self, kernel: Kernel, at: Position, name: str, *, automatic: bool = False, anyway: bool = False
    ) -> Checkpoint:
        """Make a checkpoint of the kernel and its files as they are now.

        Raises Conflict for a name that is taken or when there are too many, as ``KernelPool.checkpoint`` and
        ``Snapshots.take`` do; then nothing has changed.
        """
        await self.forget_ended()
        if any(each.name == name for each in self._points):
            raise Conflict(f"There is a checkpoint {name!r}; end it first, or choose another name")
        named = sum(not each.automatic for each in self._points)
        if not automatic and named >= MOST_NAMED:
            raise Conflict(f"The session has {named} checkpoints; end one of them first")
        held = await self._forks.checkpoint(kernel, anyway=anyway)
        try:
            taken = await self._work(self._snapshots.take, kernel.workspace)
        except BaseException:
            held.close()
            raise
        made = Checkpoint(name, at, now(), automatic, held, taken.snapshot, 0, taken.method)
        self._points.append(made)
        return made

    async def thin(self) -> bool:
        """End surplus checkpoints, in the background; return whether a requested one was ended."""
        looked_at = self.alive
        measured = await asyncio.gather(*map(self._measured, looked_at))
        found = dict(zip((each.held.id for each in looked_at), measured, strict=True))
        # A checkpoint may have been moved meanwhile.
        self._points = [replace(each, memory=found.get(each.held.id, each.memory)) for each in self._points]
        ending = surplus(self.alive, self._most_bytes)
        for each in ending:
            await self.forget(each)
        await self.forget_ended()
        return any(not each.automatic for each in ending)

    @staticmethod
    async def _measured(point: Checkpoint) -> int:
        try:
            async with asyncio.timeout(MEASURED_WITHIN):
                return await point.held.memory()
        except KernelDied:
            return 0
        except TimeoutError:
            # A cell may have stopped the fork.
            return point.memory

    async def roll_back(
        self, point: Checkpoint, cells: int, kernel: Kernel, end_kernel: Callable[[], Awaitable[object]]
    ) -> RolledBack:
        """Return a kernel made from the checkpoint, in place of the present one, and restore the files.

        `end_kernel` ends the present kernel, which must no longer write to the files; it is called once the
        new kernel exists. Raises the errors of ``KernelPool.restore`` and ``Snapshots.check``, having changed
        nothing, and the errors of ``Snapshots.restore``, which leave the session without a kernel.
        """
        check = patiently(self._snapshots.check, point.snapshot, kernel.workspace)
        checking = self._tasks.share(check, "look at a snapshot")
        spec = BranchSpec(BranchWorkspace.SHARED, anyway=True)
        made = await self._forks.restore(point.held, spec, instead_of=kernel, beside=checking)
        try:
            await end_kernel()
            restored = await self._work(self._snapshots.restore, point.snapshot, made.workspace)
        except BaseException:
            self._forks.release(made, spared={made.workspace})
            raise
        undone = [each for each in self._points if each.at.seq > point.at.seq]
        for each in undone:
            self._let_go(each)
        # The files moved out of the workspace may be large, and nobody waits for their removal.
        self._tasks.start(self._tidy([each.snapshot for each in undone]), "removal of undone files")
        return RolledBack(made, point, cells - point.at.cells, restored.files)

    async def end(self, name: str) -> None:
        """End the checkpoint of this name. Raises NotFound, StorageError."""
        await self.forget(self.find(name))

    async def end_all(self) -> None:
        """End all checkpoints; new ones may follow. Raises StorageError."""
        for each in tuple(self._points):
            await self.forget(each)

    async def end_oldest_automatic(self) -> bool:
        """End the oldest automatic checkpoint but the newest; return whether one did. Raises StorageError."""
        automatic = [each for each in self._points if each.automatic]
        if len(automatic) > 1:
            await self.forget(automatic[0])
        return len(automatic) > 1

    async def forget(self, point: Checkpoint) -> None:
        """End this checkpoint, unless it has ended. Raises StorageError."""
        self._let_go(point)
        await self._work(self._snapshots.drop, point.snapshot)

    def move(self, point: Checkpoint, at: Position) -> None:
        """Set the position in the record that the checkpoint stands for."""
        self._points = [replace(each, at=at) if each.held is point.held else each for each in self._points]

    async def complete(self, workspace: Path) -> None:
        """Restore the files that an earlier rollback failed to restore. Raises the errors of that restore."""
        await self._work(self._snapshots.recover, workspace)

    def end_forks(self) -> None:
        """End all forks at once, whatever else is going on; `close` removes the checkpoints' files."""
        for each in self._points:
            each.held.close()

    async def close(self, workspace: Path | None) -> None:
        """End all checkpoints, and remove their files.

        If a rollback could not bring back all files, they are completed first in this `workspace`, unless it
        is to be removed too (None). Raises StorageError; a later start then completes the files.
        """
        self.end_forks()
        self._points = []
        if workspace is not None:
            await self.complete(workspace)
        await self._work(self._snapshots.remove)
        await self._tasks.finished()

    async def forget_ended(self) -> None:
        """Remove the files of checkpoints that ended with their kernel. Raises StorageError."""
        unfinished = await self._work(lambda: self._snapshots.unfinished)
        for each in [each for each in self._points if not each.held.alive and each.snapshot != unfinished]:
            await self.forget(each)

    def _let_go(self, point: Checkpoint) -> None:
        """End a checkpoint's fork, and leave its files."""
        point.held.close()
        self._points = [each for each in self._points if each.held is not point.held]

    async def _tidy(self, dropped: Sequence[SnapshotId]) -> None:
        """Remove the files that a rollback took out of the workspace, and these snapshots."""
        try:
            for snapshot in dropped:
                await self._work(self._snapshots.drop, snapshot)
            await self._work(self._snapshots.tidy)
        except StorageError as error:
            logger.warning("Files that a rollback undid are removed later: %s", error.message)

    async def _work(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Do work on files in a thread, to completion, even if the caller is cancelled."""
        return await self._tasks.complete(patiently(work, *arguments, **options), "snapshots")
