"""Sizes of terminals: one is given at a time, and of those that wait the last."""

from __future__ import annotations

import asyncio

import pytest

from cellgate.errors import Conflict
from cellgate.sessions.terminal_sizes import Size, TerminalSizes
from cellgate_kernels.testing import virtual_time


def test_of_the_sizes_that_wait_the_last_is_given() -> None:
    given: list[tuple[str, Size]] = []
    at_once = 0

    async def give(terminal: str, size: Size) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(1)
        given.append((terminal, size))
        at_once -= 1

    with virtual_time() as loop:

        async def work() -> None:
            sizes = TerminalSizes()

            def want(terminal: str, rows: int) -> asyncio.Task[None]:
                return loop.create_task(sizes.want(terminal, (rows, 80), lambda size: give(terminal, size)))

            first = want("a", 1)
            await asyncio.sleep(0.5)
            rest = [want("a", rows) for rows in range(2, 50)] + [want("b", 7)]
            await asyncio.gather(first, *rest)

        loop.run_until_complete(work())
    assert given == [("a", (1, 80)), ("a", (49, 80)), ("b", (7, 80))]


def test_who_waits_is_told_that_it_could_not_be_given() -> None:
    async def fail(_: Size) -> None:
        await asyncio.sleep(1)
        raise Conflict("no")

    async def succeed(_: Size) -> None:
        return

    with virtual_time() as loop:

        async def work() -> None:
            sizes = TerminalSizes()
            both = [sizes.want("a", (rows, 80), fail) for rows in (1, 2)]
            found = await asyncio.gather(*both, return_exceptions=True)
            assert [type(each) for each in found] == [Conflict, Conflict]
            await sizes.want("a", (3, 80), succeed)
            with pytest.raises(Conflict):
                await sizes.want("a", (3, 80), fail)

        loop.run_until_complete(work())
