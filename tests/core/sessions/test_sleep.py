"""Who sleeps, who doesn't, and that waking loses nothing: real sessions, fake kernels, virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.sessions.sleep import SleepWatch
from cellgate_kernels.asleep import FREEZE_TIMEOUT
from cellgate_kernels.provisioners.control_group import ControlGroup
from cellgate_kernels.testing import FakeKernel, virtual_time
from cellgate_kernels.threads import Lane
from tests.core.world import World

AFTER = 60.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With a watch that lets kernels sleep."""
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open())
        lane = Lane("sleep", 1)
        watch = SleepWatch(made.manager.everybodys, AFTER, lane)
        made.do(watch.start)
        yield made
        made.run(watch.close())
        lane.close()
        made.run(made.close())
        made.check()


def kernel_of(world: World, key: str) -> FakeKernel:
    """The kernel of a session that has run a cell; it has a control group of its own, without processes."""
    world.ask(key, "hello")
    world.pass_time(1)
    kernel = world.kernel(key)
    assert kernel is not None
    folder = world.folder / f"group-{key}"
    folder.mkdir()
    for name, content in (
        ("freezer.state", "THAWED"),
        ("memory.force_empty", ""),
        ("memory.usage_in_bytes", "1000"),
        ("cgroup.procs", ""),
    ):
        (folder / name).write_text(content)
    kernel.group = ControlGroup(folder, folder, unified=False)
    return kernel


def is_frozen(kernel: FakeKernel) -> bool:
    assert kernel.group is not None
    return kernel.group.frozen


def state(world: World, key: str = "s") -> str:
    session = world.live(key)
    assert session is not None
    assert world.manager.counts()[session.state] >= 1
    return str(session.to_wire().state)


def test_an_unused_kernel_sleeps_and_the_next_cell_wakes_it(world: World) -> None:
    kernel = kernel_of(world, "s")
    world.pass_time(AFTER - 5)
    assert (kernel.asleep, state(world)) == (False, "idle")
    world.pass_time(AFTER)
    assert (kernel.asleep, is_frozen(kernel), state(world)) == (True, True, "asleep")
    asked = world.ask("s", "after")
    world.pass_time(1)
    assert asked.told
    assert (kernel.asleep, is_frozen(kernel), state(world)) == (False, False, "idle")
    assert world.kernel("s") is kernel
    world.pass_time(2 * AFTER)
    assert is_frozen(kernel)


def test_sleep_is_not_recorded(world: World) -> None:
    kernel_of(world, "s")
    session = world.live("s")
    assert session is not None
    before = session.log.last_seq
    world.pass_time(2 * AFTER)
    assert state(world) == "asleep"
    assert session.log.last_seq == before


def test_a_session_that_is_used_or_has_a_client_is_left_alone(world: World) -> None:
    busy, watched, alone = (kernel_of(world, key) for key in ("busy", "watched", "alone"))
    session = world.live("watched")
    assert session is not None
    world.do(world.connect, session, "notebook")
    world.ask("busy", "slow 50")
    world.pass_time(30)
    world.ask("busy", "slow 50")
    world.pass_time(60)
    world.ask("busy", "slow 50")
    world.pass_time(40)
    assert [is_frozen(kernel) for kernel in (busy, watched, alone)] == [False, False, True]


def test_a_kernel_that_says_something_is_left_alone(world: World) -> None:
    kernel = kernel_of(world, "s")
    world.ask("s", "late 100")
    for _ in range(4):
        world.pass_time(AFTER - 15)
        kernel.connection.received_at = world.loop.time()
    assert not is_frozen(kernel)
    world.pass_time(2 * AFTER)
    assert is_frozen(kernel)


def test_a_kernel_that_computes_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(world, "s")
    share = 0.5
    monkeypatch.setattr(ControlGroup, "processor_seconds", lambda self: share * world.loop.time())
    world.pass_time(3 * AFTER)
    assert not is_frozen(kernel)
    share = 0.001
    world.pass_time(AFTER)
    assert is_frozen(kernel)


def test_a_kernel_without_a_group_of_its_own_is_left_alone(world: World) -> None:
    kernel = kernel_of(world, "s")
    kernel.group = None
    world.pass_time(2 * AFTER)
    assert (kernel.asleep, state(world)) == (False, "idle")


def test_a_group_that_can_not_be_written_leaves_the_kernel_as_it_was(world: World) -> None:
    kernel = kernel_of(world, "s")
    assert kernel.group is not None
    (kernel.group.freezer / "memory.usage_in_bytes").unlink()
    world.pass_time(2 * AFTER)
    assert (kernel.asleep, is_frozen(kernel), state(world)) == (False, False, "idle")
    asked = world.ask("s", "after")
    world.pass_time(1)
    assert asked.told


def test_a_kernel_that_does_not_stop_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(world, "s")
    monkeypatch.setattr(ControlGroup, "frozen", False)
    world.pass_time(2 * AFTER)
    assert not kernel.asleep
    assert kernel.group is not None
    assert (kernel.group.freezer / "freezer.state").read_text() == "THAWED"


def test_a_request_while_it_falls_asleep_wakes_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes have not stopped yet when the request comes."""
    kernel = kernel_of(world, "s")
    monkeypatch.setattr(ControlGroup, "frozen", False)
    given_back = []
    monkeypatch.setattr(ControlGroup, "give_memory_back", lambda *_: given_back.append(None))
    while not kernel.asleep:
        world.pass_time(FREEZE_TIMEOUT / 2)
    asked = world.ask("s", "in between")
    world.pass_time(2)
    assert asked.told
    assert not kernel.asleep
    assert kernel.group is not None
    assert (kernel.group.freezer / "freezer.state").read_text() == "THAWED"
    assert given_back == []


def test_a_restart_and_an_end_of_a_sleeping_kernel(world: World) -> None:
    for key, action in (("one", "restart"), ("two", "end")):
        kernel = kernel_of(world, key)
        world.pass_time(2 * AFTER)
        assert kernel.asleep
        session = world.live(key)
        assert session is not None
        if action == "restart":
            world.do(world.restart, session)
        else:
            world.run(session.end("deleted"))
        world.pass_time(5)
        assert kernel.exited.done()
