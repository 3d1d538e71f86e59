"""Branches as a pool's caller sees them, with fake kernels: places, refusals, folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import (
    CannotBranch,
    KernelBusy,
    KernelDied,
    KernelStartFailed,
    PoolExhausted,
)
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.pool.pool import KernelPool, PoolStatistics
from cellgate_kernels.protocol.messages import Channel
from cellgate_kernels.testing import FakeKernel, FakeLauncher

PYTHON3 = KernelProfile("python3")
OTHER = KernelProfile("other")
THREAD = Obstacle(ObstacleKind.THREAD, "Thread-1 (work)")
PLAIN = BranchSpec()


class Branches:
    """A pool, a kernel claimed from it, and what a test asks of them."""

    def __init__(self, folder: Path, settings: PoolSettings) -> None:
        self.launcher = FakeLauncher(folder, kernelspecs=("python3", "other"))
        self.pool = KernelPool(self.launcher, settings, [PYTHON3] if settings.size else [])

    async def parent(self) -> FakeKernel:
        kernel = await self.pool.claim(PYTHON3)
        assert isinstance(kernel, FakeKernel)
        return kernel

    async def branch(self, kernel: FakeKernel, spec: BranchSpec = PLAIN) -> FakeKernel:
        branch = await self.pool.branch(kernel, spec)
        assert isinstance(branch, FakeKernel)
        return branch

    async def ended(self, kernel: FakeKernel) -> None:
        """Release it, and return when its folder is removed."""
        self.pool.release(kernel)
        while self.pool.statistics().ending:  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0)


def below(folder: Path) -> list[Path]:
    """All folders and files of workspaces."""
    return sorted(folder.rglob("*/*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workspaces"
    folder.mkdir()
    return folder


@pytest.fixture
async def branches(folder: Path) -> AsyncIterator[Branches]:
    made = Branches(folder, PoolSettings(size=0, max_kernels=3))
    yield made
    await made.pool.close()
    assert made.launcher.existing == 0


async def test_a_branch_is_a_kernel_of_the_pool(branches: Branches) -> None:
    parent = await branches.parent()
    branch = await branches.branch(parent, BranchSpec(seed=7))
    assert branches.pool.statistics() == PoolStatistics(warm=0, starting=0, in_use=2, ending=0, waiting=0)
    assert branch.branched is not None
    assert (branch.branched.parent, branch.branched.seed) == (parent.id, 7)
    assert parent.branched is None
    assert branch.shares_sandbox_with == (parent.id,)
    assert parent.shares_sandbox_with == (branch.id,)
    branches.pool.release(parent)
    await asyncio.wait_for(parent.exited, 5)
    assert branch.alive
    assert branch.shares_sandbox_with == ()


async def test_a_branch_takes_no_place_of_those_in_line(branches: Branches) -> None:
    parent = await branches.parent()
    others = [await branches.branch(parent), await branches.branch(parent)]
    with pytest.raises(PoolExhausted):
        await branches.branch(parent)
    waiting = asyncio.ensure_future(branches.pool.claim(OTHER))
    await asyncio.sleep(0)
    branches.pool.release(others[0])
    with pytest.raises(PoolExhausted):
        await branches.branch(parent)
    assert (await waiting).alive


async def test_a_kernel_that_ends_makes_room_before_one_that_sleeps(branches: Branches) -> None:
    asked: list[int] = []

    def yielding(count: int) -> tuple[FakeKernel, ...]:
        asked.append(count)
        return ()

    branches.pool.let_yield(yielding)
    parent = await branches.parent()
    others = [await branches.branch(parent), await branches.branch(parent)]
    branches.pool.release(others[0])
    assert branches.pool.statistics().ending == 1
    assert (await branches.branch(parent)).alive
    branches.pool.release(others[1])
    await branches.pool.room_for_branch(60)
    assert asked == []


async def test_a_warm_kernel_makes_room(folder: Path) -> None:
    made = Branches(folder, PoolSettings(size=1, max_kernels=2))
    made.pool.start()
    parent = await made.parent()
    while made.pool.statistics().warm < 1:  # noqa: ASYNC110 - the pool tells nobody
        await asyncio.sleep(0)
    branch = await made.branch(parent)
    assert made.launcher.most == 2
    assert made.pool.statistics() == PoolStatistics(warm=0, starting=0, in_use=2, ending=0, waiting=0)
    assert branch.alive
    await made.pool.close()


async def test_obstacles_refuse_or_are_overruled(branches: Branches, folder: Path) -> None:
    parent = await branches.parent()
    parent.obstacles = (THREAD,)
    parent.children = ("17 sleep",)
    before = below(folder)
    with pytest.raises(CannotBranch) as refused:
        await branches.branch(parent)
    assert refused.value.obstacles == (THREAD,)
    assert "Thread-1 (work)" in refused.value.message
    assert below(folder) == before
    assert branches.pool.statistics().in_use == 1
    branch = await branches.branch(parent, BranchSpec(anyway=True))
    assert branch.branched is not None
    assert (branch.branched.overruled, branch.branched.children) == ((THREAD,), ("17 sleep",))


async def test_what_can_not_branch_says_so_anyway(branches: Branches) -> None:
    parent = await branches.parent()
    parent.facts = replace(parent.facts, can_branch=False)
    with pytest.raises(CannotBranch) as refused:
        await branches.branch(parent, BranchSpec(anyway=True))
    assert refused.value.obstacles == (Obstacle(ObstacleKind.KERNEL, "python3"),)


async def test_a_busy_kernel_and_a_failed_fork_leave_nothing(branches: Branches) -> None:
    parent = await branches.parent()
    parent.connection.request(Channel.SHELL, "execute_request", {"code": "never"})
    while parent.cell is None:  # noqa: ASYNC110 - a fake tells nobody
        await asyncio.sleep(0)
    with pytest.raises(KernelBusy):
        await branches.branch(parent)
    parent.interrupt()
    while parent.cell is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    parent.branch_error = KernelStartFailed("It did not become ready.")
    with pytest.raises(KernelStartFailed):
        await branches.branch(parent)
    assert branches.launcher.existing == 1
    assert branches.pool.statistics() == PoolStatistics(warm=0, starting=0, in_use=1, ending=0, waiting=0)
    parent.die()
    with pytest.raises(KernelDied):
        await branches.branch(parent)


async def test_files_are_copied_or_shared(branches: Branches) -> None:
    parent = await branches.parent()

    async def fill(workspace: Path) -> None:
        (workspace / "data").write_text("here")

    copied = await branches.branch(parent, BranchSpec(fill=fill))
    assert copied.workspace != parent.workspace
    assert (copied.workspace / "data").read_text() == "here"
    assert copied.shares_workspace_with == ()
    shared = await branches.branch(parent, BranchSpec(BranchWorkspace.SHARED))
    assert shared.workspace == parent.workspace
    assert (shared.shares_workspace_with, parent.shares_workspace_with) == ((parent.id,), (shared.id,))
    await branches.ended(parent)
    assert shared.workspace.is_dir()
    await branches.ended(shared)
    assert not shared.workspace.exists()


async def test_a_failed_fill_is_no_branch(branches: Branches) -> None:
    parent = await branches.parent()
    places: list[Path] = []

    async def fill(workspace: Path) -> None:
        places.append(workspace)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await branches.branch(parent, BranchSpec(fill=fill))
    assert not places[0].exists()
    assert parent.shares_sandbox_with == ()
