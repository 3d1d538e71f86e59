"""Who sleeps, who doesn't, and that waking loses nothing: real sessions, fake kernels, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellgate.sessions.introspection import completion
from cellgate.sessions.sleep import LOOKS, SleepWatch
from cellgate.sessions.state import SessionState
from cellgate.wire.models import CompleteBody
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import PoolExhausted
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.asleep import FREEZE_TIMEOUT
from cellgate_kernels.limits.control_group import ControlGroup, Part
from cellgate_kernels.limits.read_back import LITTLE
from cellgate_kernels.testing import FakeKernel, virtual_time
from tests.core.world import PRINCIPAL, World, give_group_to

AFTER = 60.0
MANY = 100


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With a watch that lets kernels sleep."""
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open(max_kernels=MANY))
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
    give_group_to(kernel, world.folder / f"group-{key}")
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


def test_a_question_wakes_a_kernel_and_is_a_use_of_its_session(world: World) -> None:
    kernel = kernel_of(world, "s")
    kernel.knows["complete_request"] = {
        "status": "ok",
        "matches": ["print"],
        "cursor_start": 0,
        "cursor_end": 2,
    }
    world.pass_time(2 * AFTER)
    assert is_frozen(kernel)
    session = world.live("s")
    assert session is not None
    assert world.run(completion(session, CompleteBody(code="pr"))).matches == ["print"]
    assert (kernel.asleep, is_frozen(kernel), state(world)) == (False, False, "idle")
    world.pass_time(AFTER - 5)
    assert not is_frozen(kernel)
    world.pass_time(AFTER)
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
        kernel.connection.intake.received_at = world.loop.time()
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


def test_a_kernel_without_a_group_of_its_own_is_left_alone_which_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = kernel_of(world, "s")
    kernel.group = None
    world.pass_time(4 * AFTER)
    assert (kernel.asleep, state(world)) == (False, "idle")
    told = [record.message for record in caplog.records if "cellgate doctor" in record.message]
    assert len(told) == 1
    assert told[0].startswith("Kernels do not sleep (sleep_after)")


def test_kernels_that_share_a_sandbox_stay_awake_and_nothing_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can give them control groups of their own; a warning would hide a true one later."""
    kernel_of(world, "s")
    world.run(world.manager.branch(PRINCIPAL, "s", "b", BranchSpec()))
    world.pass_time(4 * AFTER)
    assert (state(world), state(world, "b")) == ("idle", "idle")
    assert not [record.message for record in caplog.records if "do not sleep" in record.message]


def test_a_group_that_can_not_be_written_leaves_the_kernel_as_it_was(world: World) -> None:
    kernel = kernel_of(world, "s")
    assert kernel.group is not None
    (kernel.group.freezer.folder / "memory.usage_in_bytes").unlink()
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
    assert (kernel.group.freezer.folder / "freezer.state").read_text() == "THAWED"


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
    assert (kernel.group.freezer.folder / "freezer.state").read_text() == "THAWED"
    assert given_back == []


def gives_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are large until their memory is given back."""
    used = [LITTLE + 1000]
    monkeypatch.setattr(ControlGroup, "memory_used", lambda _: used[-1])
    monkeypatch.setattr(ControlGroup, "give_memory_back", lambda *_: used.append(0))


def test_a_large_kernel_that_is_left_to_the_next_gateway_has_nothing_to_do_here(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading its memory back in order would outlive whoever asked for it."""
    kernel = kernel_of(world, "s")
    gives_all_back(monkeypatch)
    read_back: list[object] = []
    monkeypatch.setattr("cellgate_kernels.kernel.asleep.read_back", read_back.append)
    world.pass_time(2 * AFTER)
    assert kernel._sleep is not None
    world.do(kernel._sleep.leave)
    world.pass_time(5)
    assert (is_frozen(kernel), read_back) == (False, [])


def test_a_large_kernel_that_is_woken_is_read_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(world, "s")
    assert kernel.group is not None
    (kernel.group.memory.folder / "cgroup.procs").write_text("1\n")
    gives_all_back(monkeypatch)
    monkeypatch.setattr(ControlGroup, "processor_seconds", lambda _: 0.0)
    read_back: list[object] = []
    monkeypatch.setattr("cellgate_kernels.kernel.asleep.read_back", read_back.append)
    world.pass_time(2 * AFTER)
    world.ask("s", "after")
    world.pass_time(5)
    assert read_back == [[1]]


def test_a_hundred_sleep_take_their_places_and_are_all_woken_at_once(world: World) -> None:
    kernels = {f"s{number}": kernel_of(world, f"s{number}") for number in range(MANY)}
    world.pass_time(3 * AFTER)
    assert all(kernel.asleep and is_frozen(kernel) for kernel in kernels.values())
    assert world.manager.counts()[SessionState.ASLEEP] == MANY
    one_more = world.ask("more", "hello")
    world.pass_time(40)
    assert isinstance(one_more.refusal, PoolExhausted)
    asked = [world.ask(key, "after") for key in kernels]
    world.pass_time(1)
    assert all(each.told for each in asked)
    assert not any(kernel.asleep or is_frozen(kernel) for kernel in kernels.values())
    assert [world.kernel(key) for key in kernels] == list(kernels.values())


def test_a_kernel_of_which_a_process_has_ended_is_woken(world: World) -> None:
    """Its keeper sleeps too, and would not find that."""
    kernel = kernel_of(world, "s")
    assert kernel.group is not None
    members = kernel.group.memory.folder / "cgroup.procs"
    members.write_text("1\n2\n")
    world.pass_time(2 * AFTER)
    assert is_frozen(kernel)
    members.write_text("1\n")
    world.pass_time(AFTER / LOOKS)
    assert not kernel.asleep
    assert not is_frozen(kernel)


def test_a_kernel_is_woken_while_another_one_falls_asleep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of(world, "s")
    assert kernel.group is not None
    members = kernel.group.memory.folder / "cgroup.procs"
    members.write_text("1\n")
    world.pass_time(2 * AFTER)
    assert is_frozen(kernel)
    large = kernel_of(world, "large")

    async def sleep(*_: object) -> bool:
        return bool(await asyncio.Future())

    monkeypatch.setattr(large, "sleep", sleep)
    world.pass_time(2 * AFTER)
    members.write_text("")
    world.pass_time(AFTER / LOOKS)
    assert not is_frozen(kernel)


def test_a_session_that_sleeps_still_ends(world: World) -> None:
    kernel = kernel_of(world, "s")
    world.pass_time(2 * AFTER)
    session = world.live("s")
    assert session is not None
    assert kernel.asleep
    assert session.idle_since is not None
    assert world.loop.time() - session.idle_since > AFTER
    world.pass_time(session.limits.idle_timeout)
    assert world.live("s") is None
    assert kernel.exited.done()


def test_swap_is_allowed_while_a_kernel_sleeps(world: World) -> None:
    kernel = kernel_of(world, "s")
    assert kernel.group is not None
    folder = kernel.group.memory.folder
    for name, content in (("memory.current", "1000"), ("memory.max", "4096"), ("memory.swap.max", "0")):
        (folder / name).write_text(content)
    kernel.group = replace(kernel.group, memory=Part(folder, 2))
    world.pass_time(2 * AFTER)
    assert (folder / "memory.swap.max").read_text() == "4096"
    world.ask("s", "after")
    world.pass_time(1)
    assert (folder / "memory.swap.max").read_text() == "0"


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
