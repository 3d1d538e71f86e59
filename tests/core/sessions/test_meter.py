"""What kernels use: looked at for all together, and no more often than it is worth."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellgate.sessions.meter import GOOD_FOR, SHARE, KernelMeter
from cellgate_kernels.limits.memory import MemoryUse
from cellgate_kernels.testing import virtual_time


class Direct:
    """A lane that calls in the loop; each call takes so many seconds."""

    seconds = 0.0

    async def run(self, work: Any, *arguments: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return work(*arguments)


def kernel(process: int | None) -> Any:
    return SimpleNamespace(process=process)


def test_one_look_is_for_all_and_is_good_for_a_while() -> None:
    looks: list[list[int]] = []

    def look(processes: Sequence[int]) -> list[MemoryUse]:
        looks.append(list(processes))
        return [MemoryUse(process, len(looks)) for process in processes]

    with virtual_time() as loop:
        lane = Direct()
        processes = [5, 6]

        async def work() -> None:
            meter = KernelMeter(lambda: processes, cast(Any, lane), look)
            assert meter.of(kernel(5)) is None
            await asyncio.gather(*[meter.look() for _ in range(10)])
            assert looks == [[5, 6]]
            assert meter.of(kernel(5)) == MemoryUse(5, 1)
            assert [meter.of(each) for each in (kernel(7), kernel(None), None)] == [None] * 3
            await asyncio.sleep(GOOD_FOR / 2)
            await meter.look()
            assert len(looks) == 1
            processes.remove(5)
            await asyncio.sleep(GOOD_FOR)
            await meter.look()
            assert looks[1:] == [[6]]
            assert (meter.of(kernel(5)), meter.of(kernel(6))) == (None, MemoryUse(6, 2))
            lane.seconds = 1.0
            await asyncio.sleep(GOOD_FOR)
            await meter.look()
            await asyncio.sleep(1 / SHARE - 1)
            await meter.look()
            assert len(looks) == 3, "a look that takes a second is good for longer"
            await asyncio.sleep(2)
            await meter.look()
            assert len(looks) == 4

        loop.run_until_complete(work())


def test_a_kernel_that_is_younger_than_the_last_look_is_looked_at_by_itself() -> None:
    looks: list[list[int]] = []

    def look(processes: Sequence[int]) -> list[MemoryUse]:
        looks.append(list(processes))
        return [MemoryUse(process, len(looks)) for process in processes]

    with virtual_time() as loop:
        processes = [5]
        lane = Direct()

        async def work() -> None:
            meter = KernelMeter(lambda: processes, cast(Any, lane), look)
            await meter.look([kernel(5)])
            processes.append(6)
            await meter.look([kernel(5), kernel(6), kernel(7), kernel(None), None])
            await meter.look([kernel(6)])
            assert looks == [[5], [6]]
            assert (meter.of(kernel(5)), meter.of(kernel(6))) == (MemoryUse(5, 1), MemoryUse(6, 2))
            assert meter.of(kernel(7)) is None
            lane.seconds = 0.1
            await asyncio.sleep(GOOD_FOR)
            looking = asyncio.ensure_future(meter.look())
            await asyncio.sleep(0.05)
            processes.append(8)
            await meter.look([kernel(8)])
            await looking
            assert looks[2:] == [[5, 6], [8]], "one that began while a look was made is not in it"

        loop.run_until_complete(work())


def test_a_look_that_is_later_waits_until_the_last_one_is_good_no_longer() -> None:
    looks: list[float] = []

    with virtual_time() as loop:

        def look(processes: Sequence[int]) -> list[MemoryUse]:
            looks.append(loop.time())
            return [MemoryUse() for _ in processes]

        async def work() -> None:
            meter = KernelMeter(lambda: [5], cast(Any, Direct()), look)
            await meter.look()
            before = loop.time()
            await asyncio.gather(*[meter.look_later(before) for _ in range(3)])
            assert looks == [before, before + GOOD_FOR]
            assert meter.measured_at == loop.time() == before + GOOD_FOR
            await meter.look_later(before)
            assert len(looks) == 2

        loop.run_until_complete(work())


def test_a_look_that_fails_changes_nothing_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    fails = False

    def look(processes: Sequence[int]) -> list[MemoryUse]:
        if fails:
            raise OSError(errno.EMFILE, "Too many open files")
        return [MemoryUse(process, 1) for process in processes]

    with virtual_time() as loop:

        async def work() -> None:
            nonlocal fails
            processes = [5]
            meter = KernelMeter(lambda: processes, cast(Any, Direct()), look)
            await meter.look()
            fails = True
            for _ in range(3):
                await asyncio.sleep(GOOD_FOR)
                await meter.look()
            processes.append(6)
            await meter.look([kernel(6)])
            assert (meter.of(kernel(5)), meter.of(kernel(6))) == (MemoryUse(5, 1), None)
            assert [record.getMessage() for record in caplog.records] == [
                "The use of kernels can't be measured for now: Too many open files"
            ]
            fails = False
            await asyncio.sleep(GOOD_FOR)
            await meter.look()
            assert meter.of(kernel(6)) == MemoryUse(6, 1)

        loop.run_until_complete(work())
