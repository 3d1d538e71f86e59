"""Decides when a session's checkpoints are made, how much they may take, and where an undo goes.

``checkpoints`` makes them and goes back to them; this module decides, and counts cells, by which they are
ordered. A session has no checkpoints, at no cost, until the first is requested, or made after a cell of a
session created with automatic ones. This module knows no cells and no record: ``session`` calls it for both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from cellgate.errors import Conflict, NotFound, SnapshotsFull
from cellgate.fairness.reservation import Reservation
from cellgate.files.snapshots import Snapshots
from cellgate.quotas.usage import Account
from cellgate.sessions.checkpoints import (
    DENSE,
    Checkpoint,
    CheckpointForks,
    Position,
    RolledBack,
    SessionCheckpoints,
    automatic_name,
    check_name,
)
from cellgate.wire.answers import CheckpointModel
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.kernel.kernel import Kernel

logger = logging.getLogger(__name__)

THIN_AFTER = 1.0
"""Seconds from a checkpoint to the check of old ones, which would delay a request that follows at once."""
MOST_UNSEEN = 2 * DENSE
"""Number of checkpoints above which old ones are checked at once."""
MEMORY_SHARE = 2
"""The session's limit of memory, divided by this, is the most that all its checkpoints may keep."""
_TOO_LARGE = "Those that were asked for kept more memory than the session may have, and the oldest were ended"
_ENDS = (
    "They end when the kernel is restarted or replaced, and the oldest first when they take too much memory"
    " or disk"
)


class SessionUndo:
    """The checkpoints of one session. `close` it before the session's files go.

    `cells`: how many have begun and are not undone. `due`: the next automatic checkpoint is to be made before
    another cell begins. `open_snapshots`: opens its folder of snapshots, with a limit in bytes. `automatic`:
    whether a checkpoint is made after each cell. `used`: there is or was a checkpoint, or will be.
    """

    def __init__(
        self,
        forks: CheckpointForks,
        open_snapshots: Callable[[int], Awaitable[Snapshots]],
        account: Account,
        limits: ResourceLimits,
        *,
        automatic: bool,
    ) -> None:
        self.automatic = self.used = automatic
        self.cells = 0
        self.due = False
        self._forks = forks
        self._open_snapshots = open_snapshots
        self._account = account
        self._limits = limits
        self._points: SessionCheckpoints | None = None
        self._reserved: Reservation | None = None
        self._one_at_a_time = asyncio.Lock()
        self._tasks = Supervisor()
        self._closed = False
        # Set to check old checkpoints now, without the delay.
        self._hurry = asyncio.Event()
        self._thinning = False
        # The reason why there is no newer automatic checkpoint.
        self._why_not = ""

    @property
    def alive(self) -> list[Checkpoint]:
        """The checkpoints that can be gone back to, oldest first."""
        return [] if self._points is None else self._points.alive

    def models(self) -> list[CheckpointModel]:
        """Return the checkpoints as the wire has them."""
        return [model_of(each) for each in self.alive]

    # When

    def attached(self) -> None:
        """Note that the session has a kernel now."""
        self.due = self.automatic

    def cell_ended(self) -> None:
        """Note the end of a cell that a kernel had started; needed if there are checkpoints."""
        self.due = self.automatic
        if self._points is not None and not self.due:
            # A checkpoint keeps the memory that the kernel has changed since.
            self._thin_soon(self._points)

    # Making

    async def make(self, kernel: Kernel, at: Position, name: str, *, anyway: bool) -> Checkpoint:
        """Make a checkpoint of the kernel and its files; it stays until somebody ends it.

        Raises as `SessionCheckpoints.make`, and PrincipalQuotaExceeded if its files have no room.
        """
        check_name(name)
        async with self._one_at_a_time:
            return await (await self._open()).make(kernel, at, name, anyway=anyway)

    async def make_of_branch(self, kernel: Kernel, at: Position, *, anyway: bool) -> Checkpoint:
        """Make a checkpoint of a branch to continue with, at this session's `at`. Raises as `make`."""
        async with self._one_at_a_time:
            points = await self._open()
            return await points.make(kernel, at, automatic_name(at), automatic=True, anyway=anyway)

    async def make_automatic(self, kernel: Kernel, at: Position) -> None:
        """Make the checkpoint after a cell. An obstacle is stored, to be reported when an undo fails."""
        self.due = False
        async with self._one_at_a_time:
            try:
                points = await self._open()
                while True:
                    try:
                        await points.make(kernel, at, automatic_name(at), automatic=True)
                    except SnapshotsFull:
                        if not await points.end_oldest_automatic():
                            raise
                    else:
                        break
            except CellgateError as error:
                self._why_not = error.message
                return
        self._why_not = ""
        self._thin_soon(points)

    def _thin_soon(self, points: SessionCheckpoints) -> None:
        """Check the memory of all checkpoints after a delay, once for all cells until then."""
        if len(points.alive) > MOST_UNSEEN:
            self._hurry.set()
        if not self._thinning:
            self._thinning = True
            self._tasks.start(self._thin(points), "thinning of checkpoints")

    async def _thin(self, points: SessionCheckpoints) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(THIN_AFTER):
                    await self._hurry.wait()
            async with self._one_at_a_time:
                self._hurry.clear()
                if not self._closed and await points.thin():
                    self._why_not = _TOO_LARGE
        except CellgateError as error:
            logger.warning("Old checkpoints could not be ended: %s", error.message)
        finally:
            self._thinning = False

    async def _open(self) -> SessionCheckpoints:
        if self._closed:
            raise Conflict("The session is ending, and keeps no more checkpoints")
        if self._points is None:
            reserved = self._account.reserve_disk(self._limits.disk)
            try:
                snapshots = await self._open_snapshots(self._limits.disk)
            except BaseException:
                reserved.release()
                raise
            self._reserved = reserved
            self.used = True
            self._points = SessionCheckpoints(self._forks, snapshots, self._limits.memory // MEMORY_SHARE)
        return self._points

    # Going back

    def find(self, name: str | None) -> Checkpoint:
        """Return the checkpoint of this name, by default the newest. Raises NotFound."""
        if self._points is None or not self.alive:
            raise NotFound(self._none())
        return self._points.find(name)

    def before_last_cell(self, running: int) -> Checkpoint:
        """Return the newest one from before the last cell; `running`: how many run now. Raises NotFound."""
        if self._points is None or not self.alive:
            raise NotFound(self._none())
        try:
            return self._points.before_last_cell(self.cells + running)
        except NotFound as error:
            why = self._why_not or (_ENDS if self.automatic and self.cells + running else "")
            raise NotFound(f"{error.message}. {why}".removesuffix(". ")) from None

    def _none(self) -> str:
        if not self.automatic and not self._why_not:
            return (
                "The session has no checkpoint: make one, or create the session with `checkpoint` `auto`,"
                " which makes one after each cell"
            )
        return f"The session has no checkpoint to go back to. {self._why_not or _ENDS}"

    async def roll_back(
        self, point: Checkpoint, kernel: Kernel, end_kernel: Callable[[], Awaitable[object]]
    ) -> RolledBack:
        """See `SessionCheckpoints.roll_back`. Raises NotFound too, if the checkpoint has ended."""
        async with self._one_at_a_time:
            if self._points is None or not point.held.alive:
                raise NotFound(f"The checkpoint {point.name!r} has ended")
            found = await self._points.roll_back(point, self.cells, kernel, end_kernel)
            self.cells = point.at.cells
            # A checkpoint of this very moment exists.
            self.due = False
            return found

    # Ending

    async def end(self, name: str) -> None:
        """End the checkpoint of this name. The last one frees the disk. Raises NotFound, StorageError."""
        async with self._one_at_a_time:
            if self._points is None:
                raise NotFound(f"There is no checkpoint {name[:64]!r}")
            await self._points.end(name)
            if not self.alive:
                await self._close(None)

    async def forget(self, point: Checkpoint) -> None:
        """End a checkpoint, if it has not ended. Raises StorageError."""
        async with self._one_at_a_time:
            if self._points is not None:
                await self._points.forget(point)

    def move(self, point: Checkpoint, at: Position) -> None:
        """Move a checkpoint's position in the record; see `Checkpoints.move`."""
        if self._points is not None:
            self._points.move(point, at)

    async def kernel_replaced(self, workspace: Path) -> None:
        """Give up the checkpoints of a kernel that is gone for good; its files are in this folder.

        They are ended here, because branches in their sandbox would keep them alive. If an earlier rollback
        could not restore all files, they are completed first. Raises StorageError.
        """
        if self._points is None:
            return
        async with self._one_at_a_time:
            await self._points.complete(workspace)
            await self._points.end_all()

    async def close(self, workspace: Path | None) -> None:
        """End all checkpoints and remove their files; see `SessionCheckpoints.close`. Raises StorageError."""
        self._closed = True
        self._hurry.set()
        if self._points is not None:
            # Before the first await: a caller that waits for a stopped fork gets its answer now.
            self._points.end_forks()
        async with self._one_at_a_time:
            await self._close(workspace)
        await self._tasks.finished()

    async def _close(self, workspace: Path | None) -> None:
        points, self._points = self._points, None
        reserved, self._reserved = self._reserved, None
        try:
            if points is not None:
                await points.close(workspace)
        finally:
            if reserved is not None:
                reserved.release()


def model_of(point: Checkpoint) -> CheckpointModel:
    """Return the wire's model of a checkpoint."""
    return CheckpointModel(
        name=point.name,
        seq=point.at.seq,
        head=point.at.head,
        cells=point.at.cells,
        created_at=point.created_at,
        automatic=point.automatic,
        memory=point.memory,
        files=point.method.value,
    )
