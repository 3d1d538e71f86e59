"""Mistakes of ours in every task of a session: told, ended with a cause, and the session goes on."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from cellgate.errors import NotFound, ShuttingDown
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun
from cellgate.record.store.sqlite.check import check_record
from cellgate.sessions.decisions import replay
from cellgate.sessions.machine import MOST_FAULTS
from cellgate.sessions.session import Session
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.errors import GatewayFault
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.protocol.messages import Channel
from tests.core.fakes import House
from tests.support.decisions import RecordedDecisions

T = TypeVar("T")

DEADLINE = 60.0
BODY = SessionBody(session="s")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """Afterwards all has ended, no task is left, none has failed without being told, decisions replay."""
    recorded = RecordedDecisions()
    recorded.start()
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    house = await House.open(tmp_path)
    yield house
    async with asyncio.timeout(DEADLINE):
        await house.close()
    recorded.stop()
    assert replay(recorded.lines).difference is None
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}
    gc.collect()
    assert complaints == []
    assert house.pool.in_use == set()


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(DEADLINE):
        return await work


async def opened(house: House) -> Session:
    session, _ = await soon(house.manager.get_or_create("ada", BODY))
    return session


async def ended(session: Session, code: str = "ok") -> ExecutionRun:
    """A cell of the session that has ended."""
    run = session.submit(ExecuteRequest(code=code))
    await soon(run.end.wait())
    return run


async def events_of(house: House, run: ExecutionRun) -> AsyncIterator[dict[str, Any]]:
    """The execution's events as they are in the record."""
    async for rows in house.journal.reads.event_batches(1):
        for row in rows:
            if row.execution == run.id:
                yield msgspec.json.decode(row.body)


async def recorded_end(house: House, run: ExecutionRun) -> tuple[str, str | None]:
    """Status and cause of an execution as they are in the record, where they are once."""
    found = [event async for event in events_of(house, run) if event["type"] == "finished"]
    assert len(found) == 1, found
    return found[0]["status"], found[0]["cause"]


def lines(caplog: pytest.LogCaptureFixture, task: str) -> list[logging.LogRecord]:
    """The errors that were logged of a task, all of them with the session's key."""
    found = [r for r in caplog.records if getattr(r, "task", None) == task and r.levelno == logging.ERROR]
    assert {r.session for r in found} <= {"s"}  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("what", ["rest", "workspace", "commit"])
async def test_a_fault_of_the_worker_ends_its_cell_and_the_next_runs(
    house: House, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = await opened(house)
    await ended(session)
    house.faults.arm(what)
    run = session.submit(ExecuteRequest(code="hang" if what == "rest" else "ok"))
    if what == "commit":
        with pytest.raises(GatewayFault):
            await soon(run.end.wait())
    else:
        await soon(run.end.wait())
    assert house.faults.met == [what]
    # It is the submitter that sends a cell which nothing is before.
    (line,) = lines(caplog, "sending a cell" if what == "rest" else "worker")
    assert (line.session, line.kernel) == ("s", "kernel-0")  # type: ignore[attr-defined]
    after = await ended(session)
    # What the cell did is told as it was, if it was over; else that we don't know.
    expected = ("died", "internal_error") if what == "rest" else ("ok", None)
    assert await recorded_end(house, run) == expected
    assert await recorded_end(house, after) == ("ok", None)


async def test_what_waits_behind_a_fault_ends_with_the_cause(house: House) -> None:
    session = await opened(house)
    house.faults.arm("workspace")
    runs = [session.submit(ExecuteRequest(code=code)) for code in ("ok", "hang", "hang")]
    for run in runs:
        await soon(run.end.wait())
    assert [await recorded_end(house, run) for run in runs] == [
        ("ok", None),
        ("cancelled", "internal_error"),
        ("cancelled", "internal_error"),
    ]
    assert await recorded_end(house, await ended(session)) == ("ok", None)


async def test_a_kernel_in_an_unknown_state_is_not_used_again(house: House) -> None:
    session = await opened(house)
    house.faults.arm("rest")
    await ended(session, "hang")
    await ended(session)
    assert session.kernel is not None
    assert session.kernel.id == "kernel-1"


async def test_a_cell_that_can_t_be_sent_ends(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """It is sent by whoever submits it, not by the worker."""
    session = await opened(house)
    house.faults.arm("send")
    run = await ended(session)
    assert await recorded_end(house, run) == ("died", "internal_error")
    assert len(lines(caplog, "sending a cell")) == 1
    assert await recorded_end(house, await ended(session)) == ("ok", None)


async def test_a_message_that_can_t_be_taken_ends_the_cell_and_the_kernel(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    session = await opened(house)
    run = session.submit(ExecuteRequest(code="hang"))
    await asyncio.sleep(0)
    for _ in range(100):
        house.pool.kernels[0].connection.tell_nonsense()
    await soon(run.end.wait())
    assert await recorded_end(house, run) == ("died", "internal_error")
    assert len(lines(caplog, "listener")) == 1, "one is enough: the rest is not heard any more"
    assert await recorded_end(house, await ended(session)) == ("ok", None)
    assert len(house.pool.kernels) == 2


@pytest.mark.parametrize("what", ["claim", "shutdown", "files_given"])
async def test_a_restart_that_fails_by_a_fault_is_told_to_who_waits(house: House, what: str) -> None:
    session = await opened(house)
    (house.pool.kernels[0].folder / "file").write_text("kept")
    house.faults.arm(what)
    with pytest.raises(GatewayFault):
        await soon(session.restart())
    assert await recorded_end(house, await ended(session)) == ("ok", None)
    assert (house.pool.kernels[-1].folder / "file").read_text() == "kept"
    assert len(house.pool.in_use) == 1


async def test_too_many_faults_in_a_row_end_the_session_with_the_cause(house: House) -> None:
    session = await opened(house)
    house.faults.arm("rest", times=100)
    for _ in range(MOST_FAULTS + 1):
        await ended(session, "hang")
    await soon(session.over)
    row = await house.journal.reads.session("ada", "s")
    assert row is not None
    assert (row.state, row.cause) == ("ended", "internal_error")
    with pytest.raises(NotFound):
        house.manager.live("ada", "s")
    house.faults.arm("rest", times=0)
    assert (await ended(await opened(house))).machine.outcome().status is Status.OK


async def test_a_cell_in_between_forgives_the_faults_before(house: House) -> None:
    session = await opened(house)
    for _ in range(2 * MOST_FAULTS):
        house.faults.arm("rest")
        await ended(session, "hang")
        await ended(session)
    assert not session.ending


async def test_a_record_that_fails_for_good_ends_the_session_and_nobody_waits(house: House) -> None:
    """Neither cells nor the end can be recorded, and each who waits is told."""
    session = await opened(house)
    house.faults.arm("commit", times=1000)
    for _ in range(MOST_FAULTS + 1):
        run = session.submit(ExecuteRequest(code="ok"))
        with pytest.raises(GatewayFault):
            await soon(run.end.wait())
    await soon(session.over)
    house.faults.arm("commit", times=0)
    assert house.pool.in_use == set()


@pytest.mark.parametrize(("what", "times"), [("shutdown", 1), ("commit", 100)])
async def test_a_session_ends_whatever_fails_at_its_end(
    house: House, what: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    session = await opened(house)
    run = session.submit(ExecuteRequest(code="hang"))
    await asyncio.sleep(0)
    house.faults.arm(what, times)
    with pytest.raises(GatewayFault):
        await soon(house.manager.delete("ada", "s"))
    house.faults.arm(what, 0)
    await house.journal.commit()
    assert run.end.done.done()
    assert house.manager.get("ada", "s") is None
    assert house.pool.in_use == set()
    assert {r.session for r in caplog.records if "could not end" in r.message} == {"s"}  # type: ignore[attr-defined]
    again = await opened(house)
    assert again is not session
    assert await recorded_end(house, await ended(again)) == ("ok", None)


async def test_an_open_that_fails_by_a_fault_is_told_to_all_who_wait(house: House) -> None:
    house.faults.arm("claim")
    results = await soon(
        asyncio.gather(*(house.manager.get_or_create("ada", BODY) for _ in range(3)), return_exceptions=True)
    )
    assert [type(result) for result in results] == [GatewayFault] * 3
    await ended(await opened(house))


async def test_a_purge_that_fails_by_a_fault_is_told_and_can_be_repeated(house: House) -> None:
    await ended(await opened(house))
    house.faults.arm("purge")
    with pytest.raises(GatewayFault):
        await soon(house.manager.purger.purge("ada", "s", by="ada"))
    await soon(house.manager.purger.purge("ada", "s", by="ada"))
    assert await house.journal.reads.session("ada", "s") is None


# ---- cancellations and races


async def test_a_gateway_that_stops_while_a_session_opens_leaves_no_kernel(house: House) -> None:
    house.pool.gate.clear()
    opening = asyncio.ensure_future(house.manager.get_or_create("ada", BODY))
    await soon(house.pool.asked.wait())
    await soon(house.manager.close(0))
    with pytest.raises(ShuttingDown):
        await opening


async def test_who_waited_for_an_end_opens_nothing_in_a_gateway_that_stops(house: House) -> None:
    session = await opened(house)
    async with session.slot.moving:
        house.manager.end_later(session, "idle_timeout")
        late = asyncio.ensure_future(house.manager.get_or_create("ada", BODY))
        closing = asyncio.ensure_future(house.manager.close(0))
        for _ in range(10):
            await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await soon(late)
    await soon(closing)


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_an_open_that_is_cancelled_at_any_moment_keeps_the_files(house: House, turns: int) -> None:
    """With files to move, so that it is also cancelled while they move."""
    session = await opened(house)
    for number in range(20):
        (house.pool.kernels[0].folder / str(number)).write_text("kept")
    await soon(session.end("idle_timeout"))
    opening = asyncio.ensure_future(house.manager.get_or_create("ada", BODY))
    for _ in range(turns):
        await asyncio.sleep(0.0002)
    for _, each in house.manager.keys.openings():
        each.task.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    again = await opened(house)
    assert len(list(again.slot.workspace.iterdir())) == 20
    assert len(house.pool.in_use) == 1


@pytest.mark.parametrize("turns", range(0, 30, 3))
async def test_an_end_at_any_moment_of_a_restart(house: House, turns: int) -> None:
    """The restart is granted or refused, the files are kept, and the session has ended."""
    session = await opened(house)
    for number in range(20):
        (house.pool.kernels[0].folder / str(number)).write_text("kept")
    restart = session.restart()
    for _ in range(turns):
        await asyncio.sleep(0.0002)
    await soon(session.end("lifetime"))
    result = await soon(asyncio.gather(restart, return_exceptions=True))
    assert [type(each) for each in result] in ([ShuttingDown], [type(None)])
    assert house.pool.in_use == set()
    (kept,) = house.kept()
    assert len(list(kept.iterdir())) == 20


async def test_an_end_does_not_wait_for_a_kernel_that_never_comes(house: House) -> None:
    session = await opened(house)
    house.pool.gate.clear()
    house.pool.asked.clear()
    restart = session.restart()
    await soon(house.pool.asked.wait())
    await soon(house.manager.delete("ada", "s"))
    with pytest.raises(ShuttingDown):
        await soon(restart)


async def test_a_deletion_removes_files_also_of_a_session_that_just_ended_by_itself(house: House) -> None:
    session = await opened(house)
    (house.pool.kernels[0].folder / "file").write_text("x")
    ending = asyncio.ensure_future(session.end("idle_timeout"))
    await asyncio.sleep(0)
    await soon(house.manager.delete("ada", "s"))
    await ending
    assert house.kept() == []


async def test_a_cell_whose_end_is_being_recorded_at_the_end_is_recorded_once(house: House) -> None:
    """The worker is cancelled while it waits for the disk, and the session's end goes on with its cell."""
    session = await opened(house)
    gate, begun = asyncio.Event(), asyncio.Event()
    commit = house.journal.commit

    async def slow(session_id: int | None = None, *, epoch: int | None = None) -> None:
        begun.set()
        await gate.wait()
        await commit(session_id, epoch=epoch)

    house.journal.commit = slow  # type: ignore[method-assign]
    run = session.submit(ExecuteRequest(code="ok"))
    await soon(begun.wait())
    worker = session.worker.task
    assert worker is not None
    ending = asyncio.ensure_future(session.end("lifetime"))
    async with asyncio.timeout(DEADLINE):
        while not worker.cancelling():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    gate.set()
    await soon(ending)
    assert await recorded_end(house, run) == ("ok", None)


async def test_what_a_cell_says_while_its_end_is_being_recorded_is_in_the_index_too(house: House) -> None:
    session = await opened(house)
    connection, release = house.pool.kernels[0].connection, session.log.release
    run = session.submit(ExecuteRequest(code="hang"))

    async def release_and_hear(seq: int) -> None:
        connection.say(Channel.IOPUB, "stream", {"name": "stdout", "text": "late"}, run.msg_id)
        await release(seq)

    session.log.release = release_and_hear  # type: ignore[method-assign]
    await soon(house.manager.delete("ada", "s"))
    await house.journal.applied()
    assert [
        found for found in check_record(house.workspaces.with_name("record.sqlite3")) if not found.valid
    ] == []
    assert [event["type"] async for event in events_of(house, run)][-2:] == ["finished", "stream"]


async def test_the_culler_outlives_what_it_can_t_judge(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.manager.start()
    house.manager.keys.use(("ada", "bad")).session = object()  # type: ignore[assignment]
    await asyncio.sleep(0.2)
    assert "Task 'culler' failed" in caplog.text
    house.manager.keys.use(("ada", "bad")).session = None
    session = await opened(house)
    session.record.started -= 10 * session.limits.lifetime
    await soon(session.over)
    row = await house.journal.reads.session("ada", "s")
    assert row is not None
    assert row.cause == "lifetime"
