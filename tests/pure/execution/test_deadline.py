"""The time of a cell: in line, in its run, and for the rest of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cellgate.execution.deadline import CellDeadline
from cellgate_kernels.testing import virtual_time


class Watch:
    """A deadline, and when it called, in seconds from its start."""

    def __init__(self, timeout: float | None = 10, *, is_own: bool = True, spent: float = 0.0) -> None:
        self.called: list[float] = []
        self.deadline = CellDeadline(
            timeout, self._passed, self._failed, execution="e", is_own=is_own, spent=spent
        )
        self._began = self.deadline.now()

    def _failed(self, error: Exception) -> None:
        raise AssertionError from error

    def _passed(self) -> None:
        self.called.append(round(self.deadline.now() - self._began, 6))


def in_virtual_time(work: Coroutine[Any, Any, Watch]) -> Watch:
    with virtual_time() as loop:
        return loop.run_until_complete(work)


def after(seconds: float, make: Callable[[], Watch], act: Callable[[CellDeadline], None]) -> Watch:
    async def play() -> Watch:
        watch = make()
        act(watch.deadline)
        await asyncio.sleep(seconds)
        watch.deadline.stop()
        return watch

    return in_virtual_time(play())


@pytest.mark.parametrize(
    ("timeout", "spent", "expected"), [(10, 0, [10]), (10, 4, [6]), (10, 11, [0]), (None, 0, [])]
)
def test_a_cell_is_late_when_its_timeout_is_over(
    timeout: float | None, spent: float, expected: list[float]
) -> None:
    watch = after(20, lambda: Watch(timeout, spent=spent), CellDeadline.start)
    assert watch.called == expected
    assert watch.deadline.late is bool(expected)


@pytest.mark.parametrize(("is_own", "expected"), [(True, [7]), (False, [10])])
def test_time_in_line_for_a_kernel_counts_for_a_timeout_of_its_own_alone(
    is_own: bool, expected: list[float]
) -> None:
    def act(deadline: CellDeadline) -> None:
        deadline.deduct(3)
        deadline.start()

    assert after(20, lambda: Watch(is_own=is_own), act).called == expected


def test_who_stands_in_line_is_late_by_its_own_timeout_alone() -> None:
    own = after(20, Watch, CellDeadline.stand_in_line)
    assert (own.called, own.deadline.late) == ([10], True)
    of_the_session = after(20, lambda: Watch(is_own=False), CellDeadline.stand_in_line)
    assert (of_the_session.called, of_the_session.deadline.late) == ([], False)


def test_time_in_line_is_a_part_of_the_timeout() -> None:
    async def play() -> Watch:
        watch = Watch()
        watch.deadline.stand_in_line()
        await asyncio.sleep(4)
        watch.deadline.leave_line()
        assert not watch.deadline.stands_in_line
        watch.deadline.start()
        await asyncio.sleep(20)
        return watch

    assert in_virtual_time(play()).called == [10]


def test_an_end_that_has_begun_has_no_deadline_and_waits_from_its_last_sign() -> None:
    async def play() -> Watch:
        watch = Watch()
        watch.deadline.start()
        await asyncio.sleep(9)
        watch.deadline.end_begun(lambda: 5)
        await asyncio.sleep(4)
        watch.deadline.end_begun(lambda: 5)
        await asyncio.sleep(20)
        return watch

    watch = in_virtual_time(play())
    assert (watch.called, watch.deadline.late, watch.deadline.is_ending) == ([18], False, True)
