"""KernelPool with real kernels."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from cellgate_kernels.base.errors import PoolExhausted
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.forking.server import ForkServer
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import SharedBackend
from cellgate_kernels.pool.pool import KernelPool
from tests.core.kernels.test_pool import DEADLINE, NOTHING, PYTHON3, WITH_ENV, claim, until
from tests.gateway.kernels.test_kernel import NewLauncher, folders, new_launcher, one_backend, printed
from tests.support.kernels import FORK

__all__ = ["folders", "new_launcher"]  # fixtures


@one_backend
async def test_real_kernels_come_warm_serve_once_and_are_gone_in_the_end(new_launcher: NewLauncher) -> None:
    settings = PoolSettings(size=2, burst_size=3, max_kernels=3, concurrent_starts=2, claim_timeout=DEADLINE)
    pool = KernelPool(new_launcher(), settings, [PYTHON3])
    pool.start()
    seen: list[str] = []

    async def use(number: int) -> None:
        kernel = await pool.claim(PYTHON3)
        found = await printed(kernel, "import os; print('mine' in globals(), os.listdir())")
        assert found == "False []\n"
        await printed(kernel, f"mine = {number}; open('mine', 'w').close()")
        assert await printed(kernel, "print(mine)") == f"{number}\n"
        seen.append(kernel.id)
        pool.release(kernel)

    try:
        await asyncio.gather(*(use(number) for number in range(6)))
        assert len(set(seen)) == 6
        await until(lambda: pool.statistics().warm >= 2)
    finally:
        await pool.close()
    assert pool.statistics() == NOTHING


@one_backend
async def test_a_real_pool_closes_in_the_middle_of_everything(new_launcher: NewLauncher) -> None:
    settings = PoolSettings(size=1, max_kernels=3, concurrent_starts=2)
    pool = KernelPool(new_launcher(), settings, [PYTHON3])
    pool.start()
    used = await pool.claim(PYTHON3)
    waiting = [claim(pool, WITH_ENV) for _ in range(3)]
    await until(lambda: pool.statistics().starting == 2)
    await pool.close()
    assert pool.statistics() == NOTHING
    assert not used.alive
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [PoolExhausted] * 3


@one_backend
async def test_a_real_warm_kernel_that_is_killed_is_replaced(new_launcher: NewLauncher) -> None:
    settings = PoolSettings(size=1, max_kernels=2, retry_delay=0.01)
    launcher = new_launcher()
    started: list[Kernel] = []
    start = launcher.start

    async def remember(profile: KernelProfile) -> Kernel:
        started.append(await start(profile))
        return started[-1]

    launcher.start = remember  # type: ignore[method-assign]
    pool = KernelPool(launcher, settings, [PYTHON3])
    try:
        pool.start()
        await until(lambda: pool.statistics().warm == 1)
        dead = started[0]
        await dead.provisioner.kill()
        await until(lambda: len(started) == 2 and pool.statistics().warm == 1)
        kernel = await pool.claim(PYTHON3)
        assert kernel is started[1]
        assert await printed(kernel, "print('alive')") == "alive\n"
        assert not dead.workspace.exists()
    finally:
        await pool.close()


@pytest.mark.nightly
@pytest.mark.parametrize("backend", [FORK], indirect=True)
async def test_a_burst_on_forks_gets_its_kernels_in_order_of_arrival(
    new_launcher: NewLauncher, fork_server: ForkServer
) -> None:
    launcher = new_launcher(shared=SharedBackend(None, fork_server))
    settings = PoolSettings(size=0, max_kernels=50, concurrent_starts=4, claim_timeout=DEADLINE)
    pool = KernelPool(launcher, settings, [])
    served: list[int] = []

    def moved(number: int, position: int | None) -> None:
        if position is None:
            served.append(number)

    try:
        claims = (pool.claim(PYTHON3, moved=partial(moved, number)) for number in range(50))
        kernels = await asyncio.gather(*claims)
        assert served == list(range(50))
        assert len({kernel.id for kernel in kernels}) == 50
        assert {kernel.provisioner.way for kernel in kernels} == {"fork"}
    finally:
        await pool.close()
    assert pool.statistics() == NOTHING
