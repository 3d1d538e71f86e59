"""cellgate_kernels.base.tasks: no task and no callback fails without its owner, and none outlives it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from cellgate_kernels.base.errors import CellgateError, GatewayFault, KernelDied
from cellgate_kernels.base.tasks import Supervisor, guarded, outcome

Told = list[tuple[str, Exception]]


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Fails a test that leaves a task, or one whose error nobody has looked at."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}
    gc.collect()
    assert complaints == []


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def owner(told: Told) -> Supervisor:
    return Supervisor(lambda: {"session": "s", "kernel": "k"}, lambda *failure: told.append(failure))


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def succeed(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_a_failure_is_logged_with_all_ids_and_told(
    owner: Supervisor, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    error = ZeroDivisionError("oh")
    owner.start(fail(error), "work", execution="e")
    await owner.finished()
    assert told == [("work", error)]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert (record.task, record.session, record.kernel, record.execution) == ("work", "s", "k", "e")  # type: ignore[attr-defined]
    assert "ZeroDivisionError: oh" in caplog.text


async def test_what_waited_is_ended_before_the_owner_is_told(owner: Supervisor, told: Told) -> None:
    owner.start(fail(ZeroDivisionError()), "work", lambda error: told.append(("waiter", error)))
    await owner.finished()
    assert [name for name, _ in told] == ["waiter", "work"]


async def test_success_and_a_cancellation_by_the_owner_are_no_failures(owner: Supervisor, told: Told) -> None:
    task = owner.start(succeed(7), "work")
    forever = owner.start(asyncio.sleep(1000), "sleep")
    assert await task == 7
    await owner.cancel()
    assert forever.cancelled()
    assert (told, len(owner)) == ([], 0)


async def test_a_cancellation_that_nobody_asked_for_is_a_failure(owner: Supervisor, told: Told) -> None:
    """Such as that of a future that the task awaited: it would end the task as if by its owner's wish."""
    awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await awaited

    owner.start(work(), "work")
    await asyncio.sleep(0)
    awaited.cancel()
    await owner.finished()
    ((name, error),) = told
    assert (name, type(error)) == ("work", GatewayFault)


async def test_owners_and_ids_that_fail_too_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Any:
        raise LookupError("the owner")

    owner = Supervisor(broken, broken)
    owner.start(fail(ZeroDivisionError("the task")), "work", broken)
    await owner.finished()
    assert caplog.text.count("the task") >= 1
    assert caplog.text.count("LookupError: the owner") == 3


async def test_an_error_of_ours_is_told_by_start_and_not_by_share(owner: Supervisor, told: Told) -> None:
    owner.start(fail(KernelDied("x")), "started")
    owner.share(fail(KernelDied("x")), "shared")
    owner.share(fail(ZeroDivisionError()), "faulty")
    await owner.finished()
    assert sorted(name for name, _ in told) == ["faulty", "started"]


async def test_what_waiters_of_a_shared_task_get(owner: Supervisor) -> None:
    def stopped() -> CellgateError:
        return KernelDied("stopped")

    assert await outcome(owner.share(succeed(7), "well"), stopped) == 7
    with pytest.raises(KernelDied, match="refused"):
        await outcome(owner.share(fail(KernelDied("refused")), "refused"), stopped)
    with pytest.raises(GatewayFault):
        await outcome(owner.share(fail(ZeroDivisionError()), "faulty"), stopped)
    endless = owner.share(asyncio.sleep(1000), "endless")
    asyncio.get_running_loop().call_soon(endless.cancel)
    with pytest.raises(KernelDied, match="stopped"):
        await outcome(endless, stopped)


async def test_a_waiter_that_is_cancelled_leaves_the_shared_task_alone(owner: Supervisor) -> None:
    task = owner.share(succeed(7), "work")
    waiter = asyncio.ensure_future(outcome(task, GatewayFault))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert await task == 7


async def test_work_to_be_completed_is_however_often_its_caller_is_cancelled(
    owner: Supervisor, told: Told
) -> None:
    gate, steps = asyncio.Event(), []

    async def work() -> None:
        await gate.wait()
        steps.append("done")

    caller = asyncio.ensure_future(owner.complete(work(), "work"))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
    assert not caller.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (steps, told) == (["done"], [])


async def test_the_error_of_work_to_be_completed_is_the_callers_or_the_owners(
    owner: Supervisor, told: Told
) -> None:
    with pytest.raises(ZeroDivisionError):
        await owner.complete(fail(ZeroDivisionError()), "work")
    assert told == []
    caller = asyncio.ensure_future(owner.complete(fail(ZeroDivisionError()), "work"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert [name for name, _ in told] == ["work"]


async def test_what_repeats_goes_on_after_a_failure(owner: Supervisor, told: Told) -> None:
    calls: list[int] = []
    enough = asyncio.Event()

    async def step() -> float:
        calls.append(len(calls))
        if len(calls) == 2:
            raise ZeroDivisionError
        if len(calls) == 4:
            enough.set()
        return 0.0

    owner.repeat(step, "watch", pause=0.0)
    await enough.wait()
    await owner.cancel()
    assert [name for name, _ in told] == ["watch"]


async def test_a_callback_of_the_loop_tells_its_owner(owner: Supervisor, told: Told) -> None:
    error = ZeroDivisionError()

    def callback(value: int) -> None:
        if value:
            raise error

    loop = asyncio.get_running_loop()
    loop.call_soon(owner.guard(callback, "timer"), 0)
    loop.call_later(0, owner.guard(callback, "timer"), 1)
    await asyncio.sleep(0.01)
    assert told == [("timer", error)]


async def test_a_guarded_callback_without_an_owner_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def callback() -> None:
        raise ZeroDivisionError

    asyncio.get_running_loop().call_soon(guarded(callback, "reader", kernel="k"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert (record.task, record.kernel) == ("reader", "k")  # type: ignore[attr-defined]


async def test_a_task_may_end_its_own_owner(owner: Supervisor, told: Told) -> None:
    """The end of a session is one of its tasks: it ends all the others and not itself."""
    endless = owner.start(asyncio.sleep(1000), "endless")
    steps = []

    async def end() -> None:
        await owner.cancel()
        steps.append("ended")

    await owner.start(end(), "end")
    assert (steps, endless.cancelled(), told) == (["ended"], True, [])


async def test_a_task_that_takes_its_time_to_end_is_waited_for(owner: Supervisor) -> None:
    async def reluctant() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        await asyncio.sleep(0.05)

    task = owner.start(reluctant(), "reluctant")
    await asyncio.sleep(0)
    await owner.cancel()
    assert task.done()
