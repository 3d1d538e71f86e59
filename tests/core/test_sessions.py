"""Sessions in this process: each behaviour of a kernel, and what a cell's end says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellgate.channels.frames import Subprotocol
from cellgate.channels.requests import received
from cellgate.execution.request import ExecuteRequest
from cellgate.sessions.registry import AcceptedExecution
from cellgate_kernels.kernel.branch_request import REQUEST as BRANCH_REQUEST
from cellgate_kernels.protocol.messages import Channel, new_message
from cellgate_kernels.testing import Cell, virtual_time
from tests.core.world import CELL_TIMEOUT, GRACE, PRINCIPAL, SETTLE, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open())
        yield made
        made.run(made.close())
        made.check()


@pytest.mark.parametrize(
    ("code", "status", "cause"),
    [
        ("hello", "ok", None),
        ("slow 5", "ok", None),
        ("slow 61", "timeout", "cell_timeout"),
        ("never", "timeout", "cell_timeout"),
        ("ignores", "timeout", "cell_timeout"),
        ("fails", "error", None),
        ("dies 1", "died", "kernel_exit"),
        ("dies-replied", "died", "kernel_exit"),
        ("floods 5000", "ok", None),
        ("late 1", "ok", None),
        ("late 100", "ok", None),
        ("loses reply", "ok", None),
        ("loses idle", "ok", None),
        ("lies", "ok", None),
    ],
)
def test_a_cell_ends_once_and_says_why(world: World, code: str, status: str, cause: str | None) -> None:
    asked = world.ask("s", code)
    world.pass_time(2 * CELL_TIMEOUT)
    assert asked.run is not None
    assert asked.told
    outcome = asked.run.machine.outcome()
    assert (outcome.status, outcome.cause) == (status, cause)
    after = world.ask("s", "after")
    world.pass_time(1)
    assert after.told


def test_a_kernel_that_ignores_its_deadline_is_replaced_after_the_grace(world: World) -> None:
    asked = world.ask("s", "ignores", timeout=10)
    world.pass_time(10 + GRACE - 0.1)
    assert not asked.told
    world.pass_time(0.2)
    assert asked.told
    assert len(world.launcher.kernels) == 2


def test_who_stops_waiting_for_a_cell_leaves_the_others_waiting(world: World) -> None:
    first = world.ask("s", "slow 5", name="one request")
    world.pass_time(1)
    second = world.ask("s", "slow 5", name="one request")
    world.pass_time(1)
    assert first.run is second.run
    assert second.task is not None
    second.task.cancel()
    world.pass_time(10)
    assert second.task.cancelled()
    assert first.told
    world.asked.remove(second)


def test_the_rest_of_an_end_is_waited_for_from_the_last_sign_of_the_cell(world: World) -> None:
    async def lingers(cell: Cell) -> None:
        cell.begin()
        cell.reply()
        for _ in range(5):
            await cell.sleep(SETTLE - 1)
            cell.stream("still here")

    world.launcher.program = lambda code: lingers
    asked = world.ask("s", "lingers")
    world.pass_time(5 * (SETTLE - 1) + SETTLE - 1)
    assert not asked.told
    world.pass_time(2)
    assert asked.told


def test_a_cell_that_has_replied_has_no_deadline(world: World) -> None:
    asked = world.ask("s", "replied", timeout=3)

    async def lingers(cell: Cell) -> None:
        cell.begin()
        cell.reply()
        await cell.sleep(SETTLE - 1)
        cell.idle()

    world.launcher.program = lambda code: lingers
    world.pass_time(SETTLE)
    assert asked.run is not None
    assert asked.run.machine.outcome().status == "ok"


def test_what_a_thread_of_an_ended_cell_prints_is_that_cells(world: World) -> None:
    async def leaves_a_thread(cell: Cell) -> None:
        cell.begin()
        cell.end()
        await asyncio.sleep(1)
        cell.stream("late")

    world.launcher.program = lambda code: leaves_a_thread
    asked = world.ask("s", "x")
    world.pass_time(0.5)
    assert asked.told
    assert asked.run is not None
    end = asked.run.record.last_seq
    world.pass_time(1)
    assert asked.run.record.last_seq == end + 1


def test_a_session_without_clients_hands_no_message_to_its_door(world: World) -> None:
    session = world.run(world.session("s"))
    taken: list[str] = []
    session.door.receive = lambda message: taken.append(message.msg_type)  # type: ignore[method-assign]
    world.ask("s", "without")
    world.pass_time(1)
    assert taken == []
    frames = Subprotocol.V1
    client = world.do(session.door.connect, "client", frames)
    world.ask("s", "with")
    world.pass_time(1)
    assert len(taken) == 5
    world.do(lambda: session.door.disconnect(client, returns=False))
    world.ask("s", "without again")
    world.pass_time(1)
    assert len(taken) == 5


def test_no_client_asks_a_kernel_for_a_branch_beside_the_gateway(world: World) -> None:
    """Its fork would be counted by nobody."""
    session = world.run(world.session("s"))
    world.do(world.connect, session, "client")
    client = world.clients["s", "client"]
    for kind in (BRANCH_REQUEST, "comm_info_request"):
        for channel in (Channel.CONTROL, Channel.SHELL):
            message = new_message(channel, kind, {}, session=client.session_id)
            world.do(session.door.send, client, received(message))
    kernel = world.kernel("s")
    assert kernel is not None
    asked = [kind for kind in kernel.requests if kind in {BRANCH_REQUEST, "comm_info_request"}]
    assert asked == ["comm_info_request"] * 2


def test_a_restart_replaces_the_kernel_and_the_door_hears_the_new_one(world: World) -> None:
    session = world.run(world.session("s"))
    taken: list[str] = []
    session.door.receive = lambda message: taken.append(message.msg_type)  # type: ignore[method-assign]
    world.do(session.door.connect, "client", Subprotocol.V1)
    world.restart(session)
    world.pass_time(1)
    world.ask("s", "x")
    world.pass_time(1)
    assert len(world.launcher.kernels) == 2
    assert len(taken) == 5


def test_an_idle_session_is_ending_as_soon_as_that_is_decided(world: World) -> None:
    """A cell that came after the decision and before the end was interrupted with the session."""
    world.ask("s", "hello")
    world.pass_time(1)
    session = world.live("s")
    assert session is not None

    async def cull() -> bool:
        session.record.idle_since -= 2 * session.limits.idle_timeout
        await world.manager._cull()
        return session.ending

    assert world.run(cull())
    after = world.ask("s", "after")
    world.pass_time(1)
    assert after.told


def test_two_requests_with_one_key_are_one_execution_though_their_session_ends_just_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has looked for the other in the life that ends; the cell is run in the next one."""
    world.ask("s", "hello")
    world.pass_time(1)
    session = world.live("s")
    assert session is not None
    known, looked = session.record.known, asyncio.Event()

    async def slowly(*asked: Any) -> object:
        found = await known(*asked)
        await looked.wait()
        return found

    monkeypatch.setattr(session.record, "known", slowly)

    async def twice() -> list[AcceptedExecution]:
        asked = ExecuteRequest("again")
        both = [
            asyncio.ensure_future(world.manager.execute(PRINCIPAL, "s", asked, idempotency=("key", "hash")))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        session.record.idle_since -= 2 * session.limits.idle_timeout
        await world.manager._cull()
        assert session.ending
        looked.set()
        return await asyncio.gather(*both)

    first, second = world.run(twice())
    world.pass_time(1)
    assert first.session is second.session is not session
    assert first.execution is second.execution


def test_a_gateway_that_ends_lets_idle_sessions_go_before_cells_have_ended(world: World) -> None:
    """Other gateways may have them: those that are idle at once, others when their own cells have ended."""
    asked = [world.ask("short", "slow 2"), world.ask("long", "slow 5")]
    world.run(world.session("idle"))
    world.pass_time(1)

    async def close() -> asyncio.Task[None]:
        return asyncio.ensure_future(world.manager.close(10))

    closing = world.run(close())
    left = []
    for _ in range(2):
        world.pass_time(0.5)
        left.append([key for key in ("idle", "short", "long") if world.live(key)])
        world.pass_time(1.5)
    world.run(asyncio.wait_for(closing, 100))
    assert left == [["short", "long"], ["long"]]
    assert [each.run.machine.outcome().status for each in asked if each.run] == ["ok", "ok"]
