"""Kernels made by forks of others: branches, held forks (checkpoints), and kernels made of those.

Each is a process in its first kernel's sandbox, whose keeper reports its end. ``launcher`` starts kernels
with a sandbox of their own; ``forking`` manages sandboxes, ``inside/branch.py`` forks.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cellgate_kernels.base.branching import (
    MOST_SEED,
    Branched,
    BranchSpec,
    BranchWorkspace,
    Obstacle,
    ObstacleKind,
)
from cellgate_kernels.base.errors import CannotBranch, InvalidInput, KernelDied, KernelStartFailed, in_words
from cellgate_kernels.channels.readiness import ready
from cellgate_kernels.forking.kept import Kept, keep
from cellgate_kernels.forking.sharing import (
    BranchPlace,
    BranchProvisioner,
    SharedSandbox,
    branch_connection,
    keeper_of,
)
from cellgate_kernels.kernel.branch_request import BranchOrder, Made, ask_for_branch
from cellgate_kernels.kernel.held import HeldFork, tie
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.kernel.manager import Manager, Workshop
from cellgate_kernels.kernel.named import KernelOrder, fork_with_names


class KernelForks:
    """Forks kernels of one gateway. `Kernel.branch` and `Kernel.checkpoint` call it."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._tasks = workshop.tasks

    async def branch(self, parent: Kernel, spec: BranchSpec) -> Kernel:
        """Do what `Kernel.branch` says."""
        _check_seed(spec)
        with _forking(parent):
            sandbox = _sandbox_of(parent)

            async def fork(order: BranchOrder) -> Made:
                made = await ask_for_branch(parent.connection, parent.exited, order)
                await self._keep_parent(parent, sandbox, made)
                return made

            def branched(made: Made) -> Branched:
                return Branched(parent.id, spec.workspace, spec.seed, made.overruled, made.children)

            return await self._forked(spec, sandbox, parent, parent, fork, branched)

    async def restore(self, held: HeldFork, spec: BranchSpec, *, like: Kernel | None = None) -> Kernel:
        """Do what ``KernelPool.restore`` says. `like`: the kernel that the new one is to replace."""
        _check_seed(spec)
        origin = held.kernel
        assert isinstance(origin, Kernel)
        parent = origin if like is None else like
        if parent.shared_sandbox is not held.sandbox:
            raise InvalidInput("The checkpoint is not one of this kernel's sandbox")
        if spec.workspace is BranchWorkspace.SHARED and not parent.workspace.is_dir():
            raise InvalidInput("The kernel's files are gone; ask for a workspace of its own")

        def branched(made: Made) -> Branched:
            return Branched(held.made_of, spec.workspace, spec.seed, held.overruled, checkpoint=held.id)

        return await self._forked(spec, held.sandbox, parent, origin, held.make, branched, held.process)

    async def checkpoint(self, parent: Kernel, anyway: bool) -> HeldFork:
        """Do what `Kernel.checkpoint` says."""
        with _forking(parent):
            return await self._hold(parent, _sandbox_of(parent), anyway)

    async def _hold(self, parent: Kernel, sandbox: SharedSandbox, anyway: bool) -> HeldFork:
        held_id = str(uuid.uuid4())
        path, inner_path = sandbox.socket_of_held(held_id)
        try:
            order = BranchOrder(inner_path, "", anyway=anyway, hold=True)
            made = await ask_for_branch(parent.connection, parent.exited, order)
            # First of all, because the fork ends if nobody connects.
            tether = await tie(path, self._tasks)
            try:
                await self._keep_parent(parent, sandbox, made)
                kept = await self._keep(sandbox, made, held=True)
            except BaseException:
                tether.close()
                raise
        finally:
            # The path may belong to another kernel.
            with suppress(OSError):
                await asyncio.to_thread(Path(path).unlink)
        return HeldFork(held_id, parent, sandbox, tether, kept, made.overruled, self._tasks)

    async def _forked(
        self,
        spec: BranchSpec,
        sandbox: SharedSandbox,
        parent: Kernel,
        origin: Kernel,
        fork: Callable[[BranchOrder], Awaitable[Made]],
        branched: Callable[[Made], Branched],
        process: int | None = None,
    ) -> Kernel:
        """Return a ready kernel in the sandbox, like the parent in all but its memory.

        `origin`: the kernel that is forked, or was. `process`: the process to fork, if not the origin's own.
        `fork` makes the new one. On any error nothing of the new kernel is left.
        """
        kernel_id = str(uuid.uuid4())
        place = sandbox.place_for(kernel_id)
        if spec.workspace is BranchWorkspace.SHARED:
            place = replace(place, workspace=parent.workspace)
        own = [place.workspace] if spec.workspace is BranchWorkspace.COPY else []
        manager = self._workshop.manager(parent.profile.kernelspec, sandbox.folders.runtime, kernel_id)
        try:
            with sandbox.filling(place.workspace):
                if own:
                    place.workspace.mkdir(mode=0o700)
                    if spec.fill is not None:
                        await spec.fill(place.workspace)
                    await parent.provisioner.branch_files_given()
                forked = sandbox.process_of(origin.id) if process is None else process
                wanted = KernelOrder(kernel_id, place.workspace, origin.outlook, forked, bool(own))
                info = branch_connection(place)
                order = BranchOrder(
                    place.inner_prefix, info["key"].decode(), seed=spec.seed, anyway=spec.anyway
                )
                try:
                    made, outlook = await fork_with_names(sandbox, wanted, order, fork)
                    joined = await self._joined(parent, sandbox, place, manager, info, made, branched(made))
                except (TimeoutError, OSError, RuntimeError) as error:
                    raise KernelStartFailed(f"The branch did not come up: {in_words(error)}") from error
                joined.outlook = outlook
                return joined
        except BaseException:
            await self._workshop.undo(manager, kernel_id, own)
            raise

    async def _joined(
        self,
        parent: Kernel,
        sandbox: SharedSandbox,
        place: BranchPlace,
        manager: Manager,
        info: dict[str, Any],
        made: Made,
        branched: Branched,
    ) -> Kernel:
        """Return the kernel whose process was made."""
        kept = await self._keep(sandbox, made)
        kernel_id = str(manager.kernel_id)
        provisioner = BranchProvisioner(kernel_id=kernel_id, kernel_spec=manager.kernel_spec, parent=manager)
        provisioner.join(sandbox, place, kept, place.workspace, parent.packages)
        manager.provisioner = provisioner
        connection = self._workshop.connection(info, kernel_id)
        try:
            connection.open()
            async with asyncio.timeout(self._workshop.start_timeout):
                await ready(connection, provisioner.exited)
        except BaseException:
            connection.close()
            raise
        facts = replace(parent.facts, can_branch=True)
        branch = Kernel(parent.profile, facts, manager, connection, place.workspace, self, parent.packages)
        branch.environment = parent.environment
        branch.branched = branched
        return branch

    async def _keep_parent(self, parent: Kernel, sandbox: SharedSandbox, made: Made) -> None:
        """Have the keeper report a forked kernel's end, if this was the kernel's first fork."""
        if not sandbox.is_kept(parent.id):
            kept = await keep(keeper_of(sandbox.folders), made.parent, self._tasks)
            if sandbox.is_kept(parent.id):
                kept.close()  # by another fork in the meantime
            else:
                sandbox.keep(parent.id, kept)

    async def _keep(self, sandbox: SharedSandbox, made: Made, *, held: bool = False) -> Kept:
        """Have the keeper report the end of a fork."""
        try:
            return await keep(keeper_of(sandbox.folders), made.pid, self._tasks, held=held)
        except InvalidInput as error:
            raise KernelStartFailed("The branch ended at once") from error


@contextmanager
def _forking(kernel: Kernel) -> Iterator[None]:
    """Keep a kernel awake while it is forked. Raises CannotBranch or KernelDied if it can't be."""
    if not kernel.facts.can_branch:
        raise CannotBranch((Obstacle(ObstacleKind.KERNEL, kernel.profile.kernelspec),))
    if not kernel.alive or kernel.connection.closed:
        raise KernelDied("The kernel has ended")
    kernel.forking += 1
    try:
        kernel.wake()
        yield
    finally:
        kernel.forking -= 1


def _sandbox_of(kernel: Kernel) -> SharedSandbox:
    return kernel.shared_sandbox or SharedSandbox(kernel.provisioner, kernel.workspace, kernel.packages)


def _check_seed(spec: BranchSpec) -> None:
    """Raise InvalidInput for a seed that some generators refuse."""
    if spec.seed is not None and not 0 <= spec.seed <= MOST_SEED:
        raise InvalidInput(f"A seed is a number from 0 to {MOST_SEED}")
