"""The kernel of a session: claimed from the pool, listened to, replaced together with its files.

It knows the pool, the folders of files and packages, and how to throttle a kernel. It does not know
executions or the session's state; ``session`` decides when a kernel is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cellgate.egress.proxy import SessionProxy
from cellgate.errors import Conflict, StorageError, storage
from cellgate.files.watch import WorkspaceWatch
from cellgate.files.workspace import KeptFolder
from cellgate.packages.session import SessionPackages
from cellgate.sessions.checkpoints import Checkpoint, RolledBack
from cellgate.sessions.neighbours import Neighbour, Neighbours
from cellgate.sessions.network_way import NetworkWay
from cellgate.sessions.secrets import SessionSecrets
from cellgate.sessions.undo import SessionUndo
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import DeadlinePassed, KernelDied
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.pool.pool import KernelPool

logger = logging.getLogger(__name__)

Placed = Callable[[], Awaitable[None]]
"""Is awaited once a session has a kernel, before the kernel gets the session's files."""


@dataclass(frozen=True, slots=True)
class KernelCallbacks:
    """A session's callbacks and values for its kernels.

    `attend` is called with each new kernel before its use, and `exited` when it ends. `key`: the session's.
    `neighbours`: the sessions whose kernels share its sandbox. `room` returns once more output can be
    accepted. `moved` gets the number of claims ahead in line. `claimant`: the principal in line.
    """

    key: str
    secrets: SessionSecrets | None
    neighbours: Neighbours
    room: Callable[[], Awaitable[None]]
    attend: Callable[[Kernel], None]
    exited: Callable[[Kernel], None]
    moved: Callable[[int], None]
    claimant: Callable[[], Claimant]


class SessionKernel:
    """Holds at most one kernel at a time. `proxy`: the kernels' way to a network, if they have one.

    `profile`: the kernels', without the values of secrets. `secrets`: the session's, if it has any. Attaching
    and removing a kernel always run to completion, even if the caller is cancelled, so its files are never
    left half moved.
    """

    def __init__(
        self,
        profile: KernelProfile,
        pool: KernelPool,
        files: KeptFolder,
        packages: SessionPackages,
        callbacks: KernelCallbacks,
        proxy: SessionProxy | None,
    ) -> None:
        self.current: Kernel | None = None
        self.moving = asyncio.Lock()
        """Held while files are moved; acquire it to use `workspace`."""
        self.packages = packages
        self.has_files = False
        """Whether there were files to give to the current kernel."""
        self.watch = WorkspaceWatch()
        self.in_line = False
        """Whether the session is in line for a kernel; False while a kernel starts for it."""
        self._left_line_at = 0.0
        self._time = asyncio.get_running_loop().time
        self.profile = profile
        self._pool = pool
        self._files = files
        self._callbacks = callbacks
        self.secrets = callbacks.secrets
        self._neighbours = callbacks.neighbours
        self._network = NetworkWay(proxy, callbacks.neighbours)
        self._tasks = Supervisor(packages.ids)
        self._throttle: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a kernel that can run a cell."""
        return self.current is not None and self.current.alive

    @property
    def workspace(self) -> Path:
        """The folder that holds the session's files now; without a kernel it may not exist."""
        return self.current.workspace if self.current else self._files.place

    def waited(self, since: float) -> float:
        """Return the seconds in line for a kernel since `since`, a time by the loop's clock."""
        until = self._time() if self.in_line else self._left_line_at
        return max(0.0, until - since)

    async def claim(self, patience: float | None = None, placed: Placed | None = None) -> Kernel:
        """Return a fresh kernel with the session's files; waits in line for it at most `patience` seconds.

        `placed` is awaited before the kernel gets the files, and not if there is no kernel. The kernel may
        share a folder with others. On the errors of the pool and of `placed`, and StorageError, there is no
        kernel.
        """
        assert self.current is None
        profile = self.profile
        if self.secrets is not None:
            profile = replace(profile, secrets=self.secrets.current())
        joined = self._time()
        self.in_line = True
        try:
            async with self._entered(patience) as folder:
                claimant = self._callbacks.claimant()
                left = None if patience is None else max(0.0, patience - (self._time() - joined))
                there = replace(profile, workspace=folder)
                kernel = await self._pool.claim(there, claimant, self._moved, patience=left)
        except BaseException:
            if self.in_line:
                self._leave_line(self._time())
            raise
        if self.in_line:
            # The kernel was a warm one.
            self._leave_line(joined)
        try:
            await self._tasks.complete(self._equip(kernel, folder, placed), f"equip kernel {kernel.id}")
        except asyncio.CancelledError:
            await self.drop()
            raise
        return kernel

    @asynccontextmanager
    async def _entered(self, patience: float | None) -> AsyncGenerator[Path | None, None]:
        """Yields the folder in which kernels of other sessions have the files, if any; left if the block
        raises.

        Waits `patience` seconds if another session is about to get the first kernel there.
        """
        try:
            async with asyncio.timeout(patience):
                folder = await self._files.enter()
        except TimeoutError:
            raise DeadlinePassed(patience or 0.0) from None
        try:
            yield folder
        except BaseException:
            if folder is None:
                self._files.forgo()
            else:
                await self._files.keep(folder)
            raise

    def _moved(self, position: int | None) -> None:
        if position is None:
            self._leave_line(self._time())
        else:
            self._callbacks.moved(position)

    def _leave_line(self, moment: float) -> None:
        self.in_line = False
        self._left_line_at = moment

    async def _equip(self, kernel: Kernel, folder: Path | None, placed: Placed | None) -> None:
        """Give a kernel the session's files, packages and network. `folder`: see `_entered`."""
        async with self.moving:
            try:
                if placed is not None:
                    await placed()
                if folder is None:
                    self.has_files = (await self._files.restore(kernel.workspace)).found
                else:
                    self.has_files = await self._files.has_any(folder)
                if self.has_files:
                    with storage("The session's files can't be given to its kernel"):
                        await kernel.files_given()
                    await self.watch.begin(kernel.workspace)
                else:
                    self.watch = WorkspaceWatch()
                await self.packages.restore(kernel)
                self._network.open(kernel)
                self._attend(kernel)
            except BaseException:
                try:
                    await self._give_back(kernel, keep_files=True)
                finally:
                    if folder is None:
                        self._files.forgo()
                raise
            if folder is None:
                self._files.settle(kernel.workspace)
            self._arrived(kernel)

    def _arrived(self, kernel: Kernel) -> None:
        self.current = kernel
        neighbour = Neighbour(self._callbacks.key, lambda: self._network.serve(self.current))
        self._neighbours.arrive(kernel, neighbour)

    # Branches

    @property
    def neighbours(self) -> list[str]:
        """The keys of the sessions whose kernels share this one's sandbox."""
        found = [] if self.current is None else self._neighbours.of(self.current)
        return sorted(each.session for each in found)

    @property
    def sharers(self) -> list[str]:
        """The keys of the sessions whose kernels have the same files."""
        found = [] if self.current is None else self._neighbours.in_workspace_of(self.current)
        return sorted(each.session for each in found)

    @property
    def inherits_paths(self) -> bool:
        """Whether absolute paths of the workspace are those of the session from which this one branched."""
        return self.current is not None and not self.current.has_own_names

    async def branch(self, spec: BranchSpec, most_bytes: int) -> Kernel:
        """Return a branch for another session; its `COPY` of the files has at most `most_bytes`.

        The caller holds `moving`, so the files stay where they are. Raises KernelDied, the errors of the
        pool's `branch`, QuotaExceeded and StorageError; then the kernel goes on as before.
        """
        kernel = self.current
        if kernel is None or not kernel.alive:
            raise KernelDied("The session has no kernel now, so there is nothing to branch")

        async def fill(folder: Path) -> None:
            await self._files.copy(kernel.workspace, folder, most_bytes)

        branch = await self._pool.branch(kernel, replace(spec, fill=fill))
        if branch.workspace == kernel.workspace:
            self._files.join(branch.workspace)
        return branch

    async def take(self, kernel: Kernel, parent: SessionKernel) -> None:
        """Continue with a branch of another session's kernel, which has its files already."""
        async with self.moving:
            self.packages.share(parent.packages, kernel)
            # Another session serves the sandbox's way to a network.
            self._files.arrive(kernel.workspace)
            self._arrived(kernel)
            self.has_files = parent.has_files
            self._attend(kernel)
            await self.watch.begin(kernel.workspace)

    # Rollbacks

    @property
    def shares_files(self) -> bool:
        """Whether other sessions use the same files."""
        return self.current is not None and self._files.is_shared(self.current.workspace)

    async def roll_back(
        self, undo: SessionUndo, point: Checkpoint, end_programs: Callable[[], Awaitable[None]]
    ) -> RolledBack:
        """Continue with a kernel made from a checkpoint, and restore the files.

        `end_programs` ends the programs beside the kernel, which must not write to the files either. Raises
        as `SessionUndo.roll_back`, Conflict when other sessions use the files, and KernelDied without a
        kernel. The kernel stays on errors, unless files could not be restored: the next one gets them
        completed.
        """
        return await self._tasks.complete(self._roll_back(undo, point, end_programs), "roll back")

    async def _roll_back(
        self, undo: SessionUndo, point: Checkpoint, end_programs: Callable[[], Awaitable[None]]
    ) -> RolledBack:
        async with self.moving:
            former = self.current
            if former is None:
                raise KernelDied("The session has no kernel now, and its checkpoints ended with it")

            async def end_former() -> None:
                await self._detach()
                self._neighbours.leave(former)
                await end_programs()
                # The pool removes the former kernel's remains; here its writes must have stopped.
                ending = self._tasks.share(former.shutdown(), f"end kernel {former.id}")
                either: set[asyncio.Future[Any]] = {ending, former.exited}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    ending.result()

            try:
                async with self._files.alone(former.workspace) as alone:
                    if not alone:
                        raise Conflict(
                            "Another session uses the same files, which a rollback would change for it"
                        )
                    found = await undo.roll_back(point, former, end_former)
            except BaseException:
                if self.current is None:
                    await self._give_back(former, keep_files=True)
                raise
            kernel = found.kernel
            try:
                self._pool.release(former)
                self.has_files = True
                self.watch.begin_with(found.files)
                self._network.open(kernel)
                self._attend(kernel)
            except BaseException:
                await self._give_back(kernel, keep_files=True)
                raise
            self._arrived(kernel)
            return found

    async def adopt(self, kernel: Kernel) -> Kernel:
        """Continue with a kernel of a previous gateway, which already has the session's files."""
        self._pool.adopt(kernel)
        self._files.arrive(kernel.workspace)
        self._arrived(kernel)
        await self.watch.begin(kernel.workspace)
        await self.packages.load()
        self._network.open(kernel)
        self._attend(kernel)
        return kernel

    def _attend(self, kernel: Kernel) -> None:
        if self.secrets is not None:
            if not kernel.connection.masks:
                kernel.connection.mask(self.secrets.masker())
            # Runs before all other callbacks of the kernel's exit.
            kernel.exited.add_done_callback(lambda _: kernel.connection.show_rest())
        self._callbacks.attend(kernel)
        kernel.exited.add_done_callback(lambda _: self._callbacks.exited(kernel))

    async def changed_files(self) -> list[dict[str, Any]]:
        """Return the files' changes since the last call; see `WorkspaceWatch.changes`."""
        return [] if self.current is None else await self.watch.changes(self.current.workspace)

    async def drop(self) -> None:
        """End the kernel, if there is one, and keep its files and packages for the next.

        Raises StorageError when files or packages can't be kept; the kernel is gone even then.
        """
        await self._tasks.complete(self._drop(keep_files=True, keep_packages=True), "drop kernel")

    async def _drop(self, *, keep_files: bool, keep_packages: bool) -> None:
        async with self.moving:
            kernel = await self._detach()
            if kernel is not None:
                await self._give_back(kernel, keep_files=keep_files, keep_packages=keep_packages)

    async def _give_back(self, kernel: Kernel, *, keep_files: bool, keep_packages: bool = True) -> None:
        """Release the kernel in steps, each taken even if an earlier one failed; the pool removes the rest.

        Files that could not be moved or copied stay for the session's next kernel, even under the next
        gateway.
        """
        spared = {kernel.workspace} if keep_files else set[Path]()
        if keep_packages and kernel.packages is not None:
            spared.add(kernel.packages)
        self._neighbours.leave(kernel)
        try:
            await self._network.close(kernel)
            await kernel.shutdown()
        finally:
            try:
                if keep_packages:
                    await self.packages.keep(kernel)
                    spared -= {kernel.packages}
                else:
                    await self.packages.leave(kernel)
            finally:
                try:
                    if keep_files:
                        await self._files.keep(kernel.workspace)
                        spared -= {kernel.workspace}
                    else:
                        await self._files.remove(kernel.workspace)
                finally:
                    if self._files.is_used(kernel.workspace):
                        spared.add(kernel.workspace)
                    self._pool.release(kernel, spared=spared)

    async def detach(self) -> None:
        """Leave the kernel, if there is one, and its files to the next gateway."""
        async with self.moving:
            kernel = await self._detach()
            if kernel is not None:
                self._neighbours.leave(kernel)
                self._pool.detach(kernel)

    async def _detach(self) -> Kernel | None:
        kernel = self.current
        self.current = None
        await self._stop_throttle()
        await self._network.close(kernel)
        return kernel

    async def _stop_throttle(self) -> None:
        if self._throttle is not None:
            self._throttle.cancel()
            await asyncio.wait([self._throttle])
            self._throttle = None

    async def end(self, *, keep_files: bool) -> None:
        """Like `drop`, for good: packages are removed, and files too unless `keep_files` is set."""
        try:
            await self._tasks.complete(
                self._drop(keep_files=keep_files, keep_packages=False), "drop kernel for good"
            )
        finally:
            try:
                if not keep_files:
                    await self._files.remove()
            finally:
                await self.packages.forget()

    def hold_back(self) -> None:
        """Hold output back in the kernel's memory for a while: it arrives too fast for the disk."""
        if self._throttle is None and self.current is not None:
            self._throttle = self._tasks.start(self._hold_back(self.current), "throttle")

    async def _hold_back(self, kernel: Kernel) -> None:
        kernel.connection.pause()
        try:
            await self._callbacks.room()
        except StorageError as error:
            # The error reaches all waiters for the session's next commit.
            logger.debug("A kernel is not held back any more: %s", error.message)
        finally:
            kernel.connection.resume()
            self._throttle = None
