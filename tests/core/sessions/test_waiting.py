"""Waiting in line for a kernel: whose turn it is, what counts against a cell's timeout, and what is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun
from cellgate.sessions.registry import AcceptedExecution
from cellgate.sessions.session import Session
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.errors import DeadlinePassed, PoolExhausted
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.testing import starts_after, virtual_time
from tests.core.world import World

ADA, BOB = "ada", "bob"

Asked = asyncio.Task[AcceptedExecution]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A gateway with one kernel at most. Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open(max_kernels=1, weight_of=lambda name: 2.0 if name == "heavy" else 1.0))
        yield made
        made.run(made.close())
        made.check()


def ask(world: World, who: str, key: str, code: str = "hello", *, timeout: float | None = None) -> Asked:
    """Ask for a cell, as a request over HTTP does."""
    asked = world.loop.create_task(world.manager.execute(who, key, ExecuteRequest(code, timeout=timeout)))
    # Not all of them are looked at: some are refused when the gateway closes.
    asked.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
    return asked


def run_of(asked: Asked) -> ExecutionRun:
    """The execution that was accepted."""
    run = asked.result().execution
    assert isinstance(run, ExecutionRun)
    return run


def end_of(asked: Asked) -> tuple[Status, str | None]:
    """How it ended; it has."""
    run = run_of(asked)
    assert run.end.done.done()
    outcome = run.machine.outcome()
    return outcome.status, outcome.cause


def holder(world: World) -> Session:
    """A session that has the only kernel."""
    asked = ask(world, ADA, "holder")
    world.pass_time(1)
    assert end_of(asked) == ("ok", None)
    return asked.result().session


def free(world: World, session: Session) -> None:
    """The session ends, and its kernel's place becomes free."""
    world.run(session.end("deleted"))


def recorded(world: World, session: Session) -> list[dict[str, Any]]:
    """What is recorded of a session."""
    world.run(world.manager.close(0.1))
    world.run(world.journal.commit())
    return world.events()[session.row.id]


def dead(world: World) -> Session:
    """A session of bob's whose kernel died, while ada has the only one there may be."""
    asked = ask(world, BOB, "s", "dies 0")
    world.pass_time(2)
    assert end_of(asked)[0] == "died"
    waiting = ask(world, ADA, "holder", "slow 20")
    world.pass_time(1)
    # The dead kernel keeps its place until the session's next cell; ada's claim is before that one.
    assert not waiting.done()
    return asked.result().session


# ---- new sessions


def test_a_cell_whose_timeout_passes_in_line_is_refused_and_leaves_nothing(world: World) -> None:
    holder(world)
    asked = ask(world, BOB, "s", timeout=5)
    world.pass_time(4.9)
    assert not asked.done()
    assert world.pool.statistics().waiting == 1
    world.pass_time(0.2)
    refusal = asked.exception()
    assert isinstance(refusal, DeadlinePassed)
    assert (refusal.reason, refusal.retry_after) == ("pool_exhausted", 5.0)
    world.pass_time(1)
    assert world.pool.statistics().waiting == 0
    assert world.manager.counts()["starting"] == 0
    assert world.run(world.journal.reads.session("bob", "s")) is None


def test_a_cell_without_a_timeout_of_its_own_waits_as_long_as_a_claim_does(world: World) -> None:
    holder(world)
    asked = ask(world, BOB, "s")
    world.pass_time(29)
    assert not asked.done()
    world.pass_time(2)
    assert type(asked.exception()) is PoolExhausted


def test_who_leaves_the_line_leaves_it_to_those_who_wait_for_the_same_session(world: World) -> None:
    session = holder(world)
    impatient = ask(world, BOB, "s", timeout=5)
    patient = ask(world, BOB, "s", timeout=20)
    world.pass_time(10)
    assert isinstance(impatient.exception(), DeadlinePassed)
    assert not patient.done()
    free(world, session)
    world.pass_time(1)
    assert end_of(patient) == ("ok", None)


def test_a_request_that_comes_as_the_last_one_leaves_opens_the_session_again(world: World) -> None:
    session = holder(world)
    first = ask(world, BOB, "s", timeout=5)
    world.pass_time(1)
    later: list[Asked] = []
    first.add_done_callback(lambda _: later.append(ask(world, BOB, "s", timeout=20)))
    world.pass_time(5)
    assert isinstance(first.exception(), DeadlinePassed)
    free(world, session)
    world.pass_time(1)
    assert end_of(later[0]) == ("ok", None)


@pytest.mark.parametrize(("code", "status"), [("slow 3", "ok"), ("slow 5", "timeout")])
def test_the_time_in_line_is_part_of_the_timeout(world: World, code: str, status: str) -> None:
    session = holder(world)
    asked = ask(world, BOB, "s", code, timeout=10)
    world.pass_time(6)
    free(world, session)
    world.pass_time(3.9)
    assert run_of(asked).end.done.done() is (status == "ok")
    world.pass_time(1)
    assert end_of(asked)[0] == status


def test_the_time_that_a_kernel_takes_to_start_is_not(world: World) -> None:
    world.kernels_wanted = starts_after(20)
    asked = ask(world, BOB, "s", "slow 3", timeout=5)
    world.pass_time(19)
    assert not asked.done()
    world.pass_time(5)
    assert end_of(asked) == ("ok", None)


def test_a_cell_of_a_live_session_has_its_whole_timeout(world: World) -> None:
    session = holder(world)
    asked = ask(world, BOB, "s", timeout=10)
    world.pass_time(6)
    free(world, session)
    world.pass_time(1)
    assert end_of(asked) == ("ok", None)
    behind = ask(world, BOB, "s", "slow 20"), ask(world, BOB, "s", "slow 9", timeout=10)
    world.pass_time(40)
    assert [end_of(each) for each in behind] == [("ok", None), ("ok", None)]


@pytest.mark.parametrize("record", [True, False])
def test_a_one_shot_waits_no_longer_than_its_timeout(world: World, record: bool) -> None:
    session = holder(world)

    def once() -> asyncio.Task[tuple[Session, ExecutionRun]]:
        request = ExecuteRequest("slow 3", timeout=5)
        return world.loop.create_task(world.manager.execute_once(BOB, SessionBody(), request, record=record))

    late = once()
    world.pass_time(6)
    assert isinstance(late.exception(), DeadlinePassed)
    assert world.pool.statistics().waiting == 0
    asked = once()
    world.pass_time(3)
    free(world, session)
    world.pass_time(10)
    made, run = asked.result()
    assert run.machine.outcome().status == "timeout", "three seconds of the five were spent in line"
    world.do(world.manager.end_later, made, "one_shot")


# ---- sessions that lost their kernel


def test_a_cell_whose_timeout_passes_in_line_for_a_new_kernel_ends_as_timeout(world: World) -> None:
    session = dead(world)
    asked = ask(world, BOB, "s", timeout=5)
    world.pass_time(4.9)
    assert not run_of(asked).end.done.done()
    world.pass_time(0.2)
    assert end_of(asked) == ("timeout", "no_kernel")
    behind = ask(world, BOB, "s")
    world.run(world.manager.delete("ada", "holder"))
    world.pass_time(5)
    assert end_of(behind) == ("ok", None)
    events = recorded(world, session)
    (end,) = [e for e in events if e["type"] == "finished" and e["execution"] == run_of(asked).id]
    assert end["error"]["ename"] == "CellTimeout"
    assert "in line" in end["error"]["evalue"]
    assert end["started_at"] is None


@pytest.mark.parametrize(("code", "status"), [("slow 3", "ok"), ("slow 6", "timeout")])
def test_the_time_in_line_for_a_new_kernel_is_part_of_the_timeout(
    world: World, code: str, status: str
) -> None:
    dead(world)
    asked = ask(world, BOB, "s", code, timeout=10)
    world.pass_time(5)
    world.run(world.manager.delete("ada", "holder"))
    world.pass_time(10)
    assert end_of(asked)[0] == status


def test_cells_that_wait_for_a_restart_end_at_their_deadlines(world: World) -> None:
    session = holder(world)
    other = ask(world, BOB, "bobs", "slow 50")
    world.pass_time(1)
    world.restart(session)
    world.pass_time(1)
    assert not run_of(other).end.done.done()
    first = ask(world, ADA, "holder", timeout=5)
    second = ask(world, ADA, "holder", timeout=8)
    third = ask(world, ADA, "holder", "slow 3", timeout=8)
    world.pass_time(5.1)
    assert end_of(first) == ("timeout", "no_kernel")
    world.pass_time(7.8)
    # The clock of the second runs since it is first.
    assert not run_of(second).end.done.done()
    world.pass_time(0.2)
    assert end_of(second) == ("timeout", "no_kernel")
    world.pass_time(4)
    world.run(world.manager.delete("bob", "bobs"))
    world.pass_time(3.5)
    assert end_of(third) == ("ok", None)


def test_a_cancelled_cell_passes_its_place_to_the_next(world: World) -> None:
    session = holder(world)
    ask(world, BOB, "bobs", "slow 20")
    world.pass_time(1)
    world.restart(session)
    world.pass_time(1)
    first = ask(world, ADA, "holder", timeout=5)
    second = ask(world, ADA, "holder", timeout=5)
    world.pass_time(2)
    world.do(session.stop, run_of(first).id)
    world.pass_time(4.9)
    assert end_of(first) == ("cancelled", "cancelled")
    assert not run_of(second).end.done.done()
    world.pass_time(0.2)
    assert end_of(second) == ("timeout", "no_kernel")


# ---- what is told


def test_an_execution_tells_its_position_as_it_changes(world: World) -> None:
    session = dead(world)
    asked = ask(world, BOB, "s", "hello")
    world.pass_time(2)
    ask(world, ADA, "another")
    world.pass_time(3)
    world.run(world.manager.delete("ada", "holder"))
    world.pass_time(3)
    assert end_of(asked) == ("ok", None)
    events = [e for e in recorded(world, session) if e["execution"] == run_of(asked).id]
    queued = [event for event in events if event["type"] == "queued"]
    assert [(e["position"], e["code"], e.get("waiting_for")) for e in queued] == [
        (0, "hello", None),
        (1, "", "kernel"),
        (0, "", "kernel"),
    ]
    assert [e["type"] for e in events[: len(queued)]] == ["queued"] * len(queued)


def test_who_asks_for_a_session_that_is_not_there_yet_is_told_its_position(world: World) -> None:
    session = holder(world)
    told: dict[str, list[int]] = {"first": [], "second": [], "late": [], "once": []}

    def execute(key: str, name: str) -> Asked:
        request = ExecuteRequest("hello")
        return world.loop.create_task(world.manager.execute(BOB, key, request, moved=told[name].append))

    first = execute("a", "first")
    world.pass_time(2)
    second = execute("b", "second")
    world.pass_time(2)
    late = execute("b", "late")
    once = world.loop.create_task(
        world.manager.execute_once(
            ADA, SessionBody(), ExecuteRequest("x"), record=False, moved=told["once"].append
        )
    )
    world.pass_time(2)
    free(world, session)
    world.pass_time(2)
    assert end_of(first) == ("ok", None)
    free(world, first.result().session)
    world.pass_time(2)
    made, _ = once.result()
    world.do(world.manager.end_later, made, "one_shot")
    world.pass_time(2)
    assert end_of(second) == end_of(late) == ("ok", None)
    assert told == {"first": [0], "second": [1, 2, 1, 0], "late": [1, 2, 1, 0], "once": [1, 0]}
    queued = [event for event in recorded(world, second.result().session) if event["type"] == "queued"]
    assert [event.get("waiting_for") for event in queued] == [None, None], "there was no record yet"


# ---- whose turn


def test_a_flood_of_sessions_delays_another_by_one_at_the_most(world: World) -> None:
    session = holder(world)
    flood = [ask(world, ADA, f"flood-{number}") for number in range(50)]
    world.pass_time(0.1)
    asked = ask(world, BOB, "s")
    world.pass_time(0.1)
    free(world, session)
    world.pass_time(1)
    done = [each for each in flood if each.done()]
    assert asked.done()
    assert done == []
    for each in flood:
        each.cancel()


def test_a_principals_weight_is_asked_for_at_each_claim(world: World) -> None:
    session = holder(world)
    asked = [ask(world, "heavy", f"h-{number}") for number in range(4)]
    asked += [ask(world, BOB, f"b-{number}") for number in range(4)]
    world.pass_time(0.1)
    free(world, session)
    order: list[str] = []
    for _ in range(6):
        world.pass_time(1)
        (live,) = [
            task.result().session for task in asked if task.done() and not task.result().session.ending
        ]
        order.append(live.row.principal)
        free(world, live)
    assert (order.count("heavy"), order.count("bob")) == (4, 2)
