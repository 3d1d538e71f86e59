"""Checkpoints as a pool's caller sees them, with fake kernels: places, ends, refusals, files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellgate_kernels.base.branching import BRANCHES, BranchSpec, BranchWorkspace, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import (
    CannotBranch,
    InvalidInput,
    KernelBusy,
    KernelDied,
    KernelStartFailed,
    PoolExhausted,
)
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.pool.pool import KernelPool, PoolStatistics
from cellgate_kernels.protocol.messages import Channel
from cellgate_kernels.testing import FakeHeldFork, FakeKernel, FakeLauncher
from tests.core.kernels.test_pool import until

PYTHON3 = KernelProfile("python3")
SHARED = BranchSpec(BranchWorkspace.SHARED)
THREAD = Obstacle(ObstacleKind.THREAD, "Thread-1 (work)")


@pytest.fixture
def launcher(tmp_path: Path) -> FakeLauncher:
    return FakeLauncher(tmp_path)


@pytest.fixture
async def pool(launcher: FakeLauncher) -> AsyncIterator[KernelPool]:
    """One with two places."""
    pool = KernelPool(launcher, PoolSettings(size=0, max_kernels=2), [])
    yield pool
    await pool.close()
    assert launcher.existing == 0


async def claimed(pool: KernelPool) -> FakeKernel:
    kernel = await pool.claim(PYTHON3)
    assert isinstance(kernel, FakeKernel)
    return kernel


def below(folder: Path) -> list[Path]:
    """All folders and files, but the one that workspaces of forked kernels come into."""
    return sorted(each for each in folder.rglob("*") if not each.name.endswith(BRANCHES))


async def restored(
    pool: KernelPool, held: HeldFork, spec: BranchSpec = SHARED, instead_of: FakeKernel | None = None
) -> FakeKernel:
    kernel = await pool.restore(held, spec, instead_of=instead_of)
    assert isinstance(kernel, FakeKernel)
    return kernel


async def test_a_full_pool_can_roll_back(pool: KernelPool, launcher: FakeLauncher) -> None:
    kernel, _ = await claimed(pool), await claimed(pool)
    held = await pool.checkpoint(kernel)
    assert pool.statistics() == PoolStatistics(warm=0, starting=0, in_use=2, ending=0, waiting=0, held=1)
    with pytest.raises(PoolExhausted):
        await pool.restore(held, SHARED)
    again = await restored(pool, held, instead_of=kernel)
    assert again.workspace == kernel.workspace
    assert again.branched is not None
    assert (again.branched.parent, again.branched.checkpoint) == (kernel.id, held.id)
    assert pool.statistics().in_use == 2
    with pytest.raises(InvalidInput):
        await pool.restore(held, SHARED, instead_of=kernel)
    pool.release(kernel)
    await asyncio.wait_for(kernel.exited, 5)
    assert again.alive
    assert held.alive
    assert again.workspace.exists()
    # Its place was taken over, so none has become free.
    assert pool.statistics().in_use == 2
    with pytest.raises(PoolExhausted):
        await pool.branch(again, SHARED)
    twice = await restored(pool, held, instead_of=again)
    assert twice.alive
    assert launcher.most <= 4


async def test_a_restore_that_fails_gives_the_place_back(pool: KernelPool, tmp_path: Path) -> None:
    kernel = await claimed(pool)
    held = await pool.checkpoint(kernel)
    assert isinstance(held, FakeHeldFork)
    held.restore_error = KernelStartFailed("It did not come up.")
    before = below(tmp_path)
    for spec in (SHARED, BranchSpec()):
        with pytest.raises(KernelStartFailed):
            await pool.restore(held, spec, instead_of=kernel)
    assert below(tmp_path) == before
    assert pool.statistics().in_use == 1
    held.restore_error = None
    # One that its owner releases while another is made instead of it takes no place with it.
    restoring = asyncio.ensure_future(pool.restore(held, SHARED, instead_of=kernel))
    await asyncio.sleep(0)
    pool.release(kernel)
    again = await restoring
    assert again.alive
    assert pool.statistics().in_use == 1


async def test_a_restore_beside_which_something_fails_gives_the_place_back(
    pool: KernelPool, launcher: FakeLauncher
) -> None:
    kernel = await claimed(pool)
    held = await pool.checkpoint(kernel)
    beside = asyncio.get_running_loop().create_future()
    restoring = asyncio.ensure_future(pool.restore(held, SHARED, instead_of=kernel, beside=beside))
    await until(lambda: launcher.existing == 2)
    beside.set_exception(InvalidInput("The files can't be brought back"))
    with pytest.raises(InvalidInput, match="files"):
        await restoring
    await until(lambda: launcher.existing == 1)
    assert kernel.alive
    assert kernel.workspace.is_dir()
    assert pool.statistics() == PoolStatistics(warm=0, starting=0, in_use=1, ending=0, waiting=0, held=1)
    again = await restored(pool, held, instead_of=kernel)
    assert again.alive


async def test_held_forks_end_with_the_last_kernel_or_their_own_close(pool: KernelPool) -> None:
    kernel = await claimed(pool)
    first, second = await pool.checkpoint(kernel), await pool.checkpoint(kernel)
    assert await first.memory() > 0
    first.close()
    first.close()
    await asyncio.wait_for(asyncio.shield(first.ended), 5)
    with pytest.raises(KernelDied):
        await first.memory()
    with pytest.raises(KernelDied):
        await pool.restore(first, SHARED)
    assert pool.statistics().held == 1
    again = await restored(pool, second, instead_of=kernel)
    kernel.die()
    again.die()
    assert second.alive
    third = await restored(pool, second, instead_of=again)
    assert third.alive, "made of what the kernel was before it died"
    for each in (kernel, again, third):
        assert second.alive
        await each.shutdown()
    assert not second.alive
    await asyncio.sleep(0)
    assert pool.statistics().held == 0


async def test_what_can_not_be_forked_is_refused(pool: KernelPool) -> None:
    kernel = await claimed(pool)
    kernel.obstacles = (THREAD,)
    with pytest.raises(CannotBranch):
        await pool.checkpoint(kernel)
    held = await pool.checkpoint(kernel, anyway=True)
    assert held.overruled == (THREAD,)
    kernel.connection.request(Channel.SHELL, "execute_request", {"code": "never"})
    while kernel.cell is None:  # noqa: ASYNC110 - a fake tells nobody
        await asyncio.sleep(0)
    with pytest.raises(KernelBusy):
        await pool.checkpoint(kernel)
    # But what hangs can be replaced.
    assert (await restored(pool, held, instead_of=kernel)).cell is None
    with pytest.raises(InvalidInput):
        await pool.restore(held, SHARED, instead_of=kernel)


async def test_a_closed_pool_holds_nothing(launcher: FakeLauncher) -> None:
    pool = KernelPool(launcher, PoolSettings(size=0), [])
    kernel = await claimed(pool)
    held = await pool.checkpoint(kernel)
    closing = asyncio.ensure_future(pool.close())
    await asyncio.sleep(0)
    with pytest.raises((PoolExhausted, KernelDied)):
        await pool.checkpoint(kernel)
    await closing
    assert held.ended.done()
    assert launcher.existing == 0
