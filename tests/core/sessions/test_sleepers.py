"""Sessions that sleep instead of ending, and give way: real sessions and pool, fake kernels, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from cellgate.doors.sandbox.keys import key_of
from cellgate.doors.sandbox.pausing import is_paused_at_timeout, recover_pauses
from cellgate.errors import Conflict, Draining, PrincipalQuotaExceeded
from cellgate.sessions.changing import change_session
from cellgate.sessions.parts import SleepWays
from cellgate.sessions.sandboxes import Sandboxes
from cellgate.sessions.session import Session
from cellgate.sessions.sleep import MOST_PAUSE, SleepWatch
from cellgate.sessions.state import SessionState
from cellgate.wire.models import LimitsBody, SessionBody, SessionChangeBody, SessionTimesBody
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import CellgateError, PoolExhausted
from cellgate_kernels.base.resources import GIB
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.asleep import HELD
from cellgate_kernels.limits.control_group import ControlGroup
from cellgate_kernels.testing import FakeKernel, virtual_time
from tests.core.world import PRINCIPAL, World, give_group_to

IDLE = 600.0
LIFETIME = 10_000.0
SOON = 20.0
"""Virtual seconds in which a session whose time has come has fallen asleep or ended."""


@dataclass
class Machine:
    """What the gateway finds. `swap`: whether there is some."""

    world: World
    swap: bool = True

    def open(self, key: str, principal: str = PRINCIPAL, **limits: Any) -> Session:
        """A new session whose kernel can sleep."""
        asked = LimitsBody(**{"idle_timeout": IDLE, "lifetime": LIFETIME, **limits})
        body = SessionBody(session=key, limits=asked)
        session, _ = self.world.run(self.world.manager.get_or_create(principal, body))
        give_group(self.world, session)
        return session

    def asleep(self, *keys: str) -> list[Session]:
        """Sessions that sleep beyond their idle time, the first since longest."""
        sessions = []
        for key in keys:
            sessions.append(self.open(key))
            self.world.pass_time(1)
        self.world.pass_time(IDLE + SOON)
        assert [each.state for each in sessions] == [SessionState.ASLEEP] * len(keys)
        return sessions


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Opens a gateway with a record."""
    lanes = Lane("looks", 2), Lane("sleeps", 2)
    with virtual_time() as loop:
        world = World(loop, tmp_path)
        machine = Machine(world)

        def begin(max_kernels: int = 3, quotas: Mapping[str, Any] | None = None) -> Machine:
            ways = SleepWays(*lanes, lambda: machine.swap)
            world.run(world.open(max_kernels=max_kernels, quotas=quotas, sleep=ways))
            return machine

        yield begin
        world.run(world.close())
        for lane in lanes:
            lane.close()
        world.check()


@pytest.fixture
def machine(opened: Callable[..., Machine]) -> Machine:
    """A gateway with room for three kernels."""
    return opened()


def give_group(world: World, session: Session) -> None:
    """Let the session's kernel have a control group of its own."""
    kernel = session.kernel
    assert isinstance(kernel, FakeKernel)
    give_group_to(kernel, world.folder / f"group-{kernel.id}")


def ended_by(session: Session) -> str | None:
    """Why a session has ended; None if it has not."""
    return session.record.cause if session.over.done() else None


def frozen(session: Session) -> bool:
    assert isinstance(session.kernel, FakeKernel)
    assert session.kernel.group is not None
    return session.kernel.group.frozen


def test_a_session_sleeps_at_its_idle_time_and_the_next_cell_wakes_it(machine: Machine) -> None:
    world, session = machine.world, machine.open("s")
    kernel, events = session.kernel, session.log.last_seq
    world.pass_time(SOON)
    model = session.to_wire()
    assert isinstance(model.sleeps_at, str)
    assert not isinstance(model.ends, type(model.sleeps_at))
    assert (model.state, model.ends.cause) == ("idle", "lifetime")  # type: ignore[union-attr]
    assert model.sleeps_at < model.ends.at  # type: ignore[union-attr]
    world.pass_time(IDLE)
    model = session.to_wire()
    assert (model.state, model.ends.cause, frozen(session)) == ("asleep", "lifetime", True)  # type: ignore[union-attr]
    assert not isinstance(model.sleeps_at, str)
    assert session.log.last_seq == events
    asked = world.ask("s", "after")
    world.pass_time(1)
    assert (asked.told, session.kernel, frozen(session)) == (True, kernel, False)
    assert session.to_wire().state == "idle"
    world.pass_time(IDLE + SOON)
    assert session.to_wire().state == "asleep"


def test_a_session_that_may_not_sleep_ends(machine: Machine) -> None:
    """Though it could: who looks at it is told that there is a choice."""
    session = machine.open("s", on_idle="end")
    assert session.to_wire().can_sleep is UNSET
    machine.world.pass_time(SOON)
    model = session.to_wire()
    assert model.can_sleep is True
    assert (model.ends.cause, isinstance(model.sleeps_at, str)) == ("idle_timeout", False)  # type: ignore[union-attr]
    machine.world.pass_time(IDLE)
    assert ended_by(session) == "idle_timeout"
    assert session.to_wire().can_sleep is UNSET


def test_a_live_session_is_told_to_end_or_to_sleep(machine: Machine) -> None:
    session = machine.open("s")
    machine.world.pass_time(SOON)
    for on_idle in ("end", "sleep"):
        body = SessionChangeBody(limits=SessionTimesBody(on_idle=on_idle))
        change_session(session, machine.world.manager.terms, body)
        model = session.to_wire()
        assert (model.limits["on_idle"], model.can_sleep) == (on_idle, True)
        assert isinstance(model.sleeps_at, str) == (on_idle == "sleep")
    machine.world.pass_time(IDLE + SOON)
    assert (session.to_wire().state, session.to_wire().can_sleep) == ("asleep", True)


def test_without_swap_sessions_end(machine: Machine) -> None:
    machine.swap = False
    session = machine.open("s")
    machine.world.pass_time(SOON)
    assert session.to_wire().can_sleep is UNSET
    machine.world.pass_time(IDLE)
    assert ended_by(session) == "idle_timeout"


def test_at_a_gateway_that_is_drained_sessions_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that sleep: a drain is over when all have ended."""

    def drained(_: object) -> None:
        raise Draining("This gateway is drained")

    (sleeper,) = machine.asleep("sleeper")
    awake = machine.open("awake")
    monkeypatch.setattr(type(machine.world.manager.keys.ownership), "check_opens", drained)
    machine.world.pass_time(SOON)
    assert [ended_by(each) for each in (sleeper, awake)] == ["idle_timeout", None]
    machine.world.pass_time(IDLE + SOON)
    assert ended_by(awake) == "idle_timeout"


def test_a_session_whose_kernel_has_no_group_of_its_own_ends(machine: Machine) -> None:
    session = machine.open("s")
    assert isinstance(session.kernel, FakeKernel)
    session.kernel.group = None
    machine.world.pass_time(IDLE + SOON)
    assert ended_by(session) == "idle_timeout"


def test_a_kernel_that_gives_no_memory_back_ends(machine: Machine) -> None:
    """Such as one for which there is no room in swap."""
    session = machine.open("s")
    assert isinstance(session.kernel, FakeKernel)
    assert session.kernel.group is not None
    (session.kernel.group.memory.folder / "memory.usage_in_bytes").write_text(str(HELD + 1))
    machine.world.pass_time(IDLE + SOON)
    assert ended_by(session) == "idle_timeout"


def test_a_kernel_that_can_not_be_frozen_ends(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlGroup, "frozen", False)
    session = machine.open("s")
    machine.world.pass_time(IDLE + SOON)
    assert ended_by(session) == "idle_timeout"


def test_a_sleeper_ends_once_there_is_no_swap_any_more(machine: Machine) -> None:
    (session,) = machine.asleep("s")
    machine.swap = False
    machine.world.pass_time(SOON)
    assert ended_by(session) == "idle_timeout"


def test_a_sleeper_ends_with_its_lifetime(machine: Machine) -> None:
    (session,) = machine.asleep("s")
    machine.world.pass_time(LIFETIME)
    assert ended_by(session) == "lifetime"


def test_a_use_while_a_kernel_falls_asleep_keeps_its_session(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = machine.open("s")
    monkeypatch.setattr(ControlGroup, "frozen", False)
    while session.kernel is not None and not session.kernel.asleep:
        machine.world.pass_time(0.5)
    session.record.begin_idleness()
    machine.world.pass_time(SOON)
    assert (ended_by(session), session.to_wire().state) == (None, "idle")


def test_a_kernel_that_dies_in_its_sleep_is_replaced(machine: Machine) -> None:
    (session,) = machine.asleep("s")
    assert isinstance(session.kernel, FakeKernel)
    machine.world.do(session.kernel.die, "out_of_memory")
    asked = machine.world.ask("s", "after")
    machine.world.pass_time(5)
    assert asked.told
    assert asked.run is not None
    assert asked.run.end.event is not None
    assert asked.run.end.event["kernel"]["cause"] == "out_of_memory"


def test_a_kernel_that_loses_a_process_in_its_sleep_is_woken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a setting that lets kernels sleep early, too: its keeper sleeps, and would not find that."""
    lane = Lane("disturbed", 1)
    watch = SleepWatch(machine.world.manager.everybodys, None, lane)
    machine.world.do(watch.start)
    (session,) = machine.asleep("s")
    kernel = session.kernel
    assert isinstance(kernel, FakeKernel)
    woken: list[bool] = []
    monkeypatch.setattr(kernel, "wake", lambda: woken.append(True))
    monkeypatch.setattr(kernel, "is_disturbed", lambda: True)
    machine.world.pass_time(MOST_PAUSE + 1)
    machine.world.run(watch.close())
    lane.close()
    assert woken


def test_the_one_asleep_longest_gives_way_to_a_new_kernel(machine: Machine) -> None:
    first, *others = machine.asleep("first", "second", "third")
    new = machine.open("new")
    assert ended_by(first) == "room_needed"
    assert [each.to_wire().state for each in (*others, new)] == ["asleep", "asleep", "idle"]
    # It says what became of it, and gets a kernel for which the next one gives way.
    asked = machine.world.ask("first", "again")
    machine.world.pass_time(5)
    assert asked.run is not None
    assert asked.run.end.event is not None
    told = asked.run.end.event["kernel"]
    assert (told["replaced"], told["cause"], told["files"]) == (True, "room_needed", "none")
    assert [ended_by(each) for each in others] == ["room_needed", None]


def test_the_one_with_most_sleepers_gives_way(opened: Callable[..., Machine]) -> None:
    machine = opened(4)
    only = machine.open("only", "bob")
    machine.world.pass_time(10)
    mine = machine.asleep("one", "two", "three")
    for number in range(2):
        machine.open(f"new-{number}", "eve")
    assert [ended_by(each) for each in (only, *mine)] == [None, "room_needed", "room_needed", None]
    # Now each has one, and the older one is next.
    machine.open("new-2", "eve")
    assert [ended_by(each) for each in (only, mine[2])] == ["room_needed", None]


@pytest.mark.parametrize(("kernels", "quotas"), [(3, None), (9, {"sessions": 3})], ids=["places", "quota"])
def test_one_that_ends_with_another_gives_way_with_that_one_alone(
    opened: Callable[..., Machine], kernels: int, quotas: Mapping[str, Any] | None
) -> None:
    """As the context of a paused sandbox does: the sandbox would go on without it."""
    machine = opened(kernels, quotas)
    context, sandbox, other = machine.asleep("context", "sandbox", "other")
    machine.world.do(machine.world.manager.end_with, context, sandbox)
    machine.open("new")
    assert [ended_by(each) for each in (context, sandbox, other)] == ["room_needed", "room_needed", None]


def test_a_sandbox_of_a_former_gateway_is_paused_at_its_timeout(machine: Machine) -> None:
    """If its client asked for that, which its limits say; who has only written its metadata is no sandbox."""
    lane, sandboxes, found = Lane("pauses", 1), Sandboxes(), []
    for key, on_idle in (
        (key_of("e2b", PRINCIPAL, "ibox"), "sleep"),
        (key_of("e2b", PRINCIPAL, "iend"), "end"),
        ("own", "sleep"),
    ):
        limits = LimitsBody(idle_timeout=IDLE, lifetime=IDLE, on_idle=on_idle)  # type: ignore[arg-type]
        told = {"door": "e2b", "sandbox": "iend" if on_idle == "end" else "ibox"}
        body = SessionBody(session=key, limits=limits, metadata=told)
        session, _ = machine.world.run(machine.world.manager.get_or_create(PRINCIPAL, body))
        give_group(machine.world, session)
        found.append(session)
    machine.world.do(recover_pauses, machine.world.manager, sandboxes, lane)
    machine.world.pass_time(1)
    machine.world.run(machine.world.manager.sleepers.look())
    assert [is_paused_at_timeout(each) for each in found] == [True, False, False]
    machine.world.pass_time(IDLE + SOON)
    assert [ended_by(each) for each in found] == [None, "lifetime", "lifetime"]
    assert sandboxes.of(found[0]).is_paused
    lane.close()


def test_two_that_need_places_end_two(machine: Machine) -> None:
    sleepers = machine.asleep("first", "second", "third")
    asked = [machine.world.ask(key, "hello") for key in ("a", "b")]
    machine.world.pass_time(5)
    assert [each.told for each in asked] == [True, True]
    assert [ended_by(each) for each in sleepers] == ["room_needed", "room_needed", None]


def test_two_race_for_one_sleepers_place(opened: Callable[..., Machine]) -> None:
    machine = opened(1)
    (sleeper,) = machine.asleep("first")
    asked = [machine.world.ask(key, "hello") for key in ("a", "b")]
    machine.world.pass_time(40)
    assert ended_by(sleeper) == "room_needed"
    assert sorted(each.told for each in asked) == [False, True]
    assert [type(each.refusal) for each in asked if not each.told] == [PoolExhausted]


def test_one_that_was_just_used_does_not_give_way(opened: Callable[..., Machine]) -> None:
    """The use and the wish for its place come in one turn of the loop."""
    machine = opened(1)
    (session,) = machine.asleep("s")
    used, other = machine.world.ask("s", "slow 20"), machine.world.ask("other", "hello")
    machine.world.pass_time(40)
    assert (used.told, ended_by(session)) == (True, None)
    assert isinstance(other.refusal, PoolExhausted)


def test_one_that_is_used_as_it_gives_way_gets_a_fresh_kernel(opened: Callable[..., Machine]) -> None:
    machine = opened(2)
    session, _ = machine.asleep("s", "t")
    other = machine.world.ask("other", "hello")
    while not session.ending:
        machine.world.run(asyncio.sleep(0))
    assert not session.over.done()
    used = machine.world.ask("s", "x")
    machine.world.pass_time(5)
    assert (other.told, used.told, ended_by(session)) == (True, True, "room_needed")
    assert used.run is not None
    assert used.run.end.event is not None
    assert used.run.end.event["kernel"]["cause"] == "room_needed"


def test_whoever_waits_gets_the_place_of_one_that_falls_asleep(opened: Callable[..., Machine]) -> None:
    machine = opened(1)
    session = machine.open("s")
    machine.world.pass_time(IDLE - 10)
    asked = machine.world.ask("other", "hello")
    machine.world.pass_time(25)
    assert (asked.told, ended_by(session)) == (True, "room_needed")


def test_one_that_sleeps_before_its_time_does_not_give_way(opened: Callable[..., Machine]) -> None:
    machine = opened(1)
    session = machine.open("s")
    kernel = session.kernel
    assert isinstance(kernel, FakeKernel)
    assert kernel.group is not None
    lane = Lane("test", 1)
    assert machine.world.run(kernel.sleep(kernel.group, lane)) is not None
    lane.close()
    asked = machine.world.ask("other", "hello")
    machine.world.pass_time(40)
    assert isinstance(asked.refusal, PoolExhausted)
    assert (ended_by(session), session.to_wire().state) == (None, "asleep")


def test_a_branch_gets_the_place_of_a_sleeper_but_not_of_its_parent(machine: Machine) -> None:
    parent, other, _ = machine.asleep("parent", "other", "third")
    machine.world.run(machine.world.manager.branch(PRINCIPAL, "parent", "branch", BranchSpec()))
    assert (ended_by(parent), ended_by(other)) == (None, "room_needed")
    assert machine.world.live("branch") is not None


def test_only_ones_own_sleepers_give_way_to_a_quota(opened: Callable[..., Machine]) -> None:
    machine = opened(9, {"sessions": 2})
    stranger = machine.open("theirs", "bob")
    first, second = machine.asleep("first", "second")
    machine.open("new")
    assert [ended_by(each) for each in (stranger, first, second)] == [None, "room_needed", None]
    machine.open("newer")
    assert [ended_by(each) for each in (stranger, second)] == [None, "room_needed"]
    with pytest.raises(PrincipalQuotaExceeded):
        machine.open("newest")


def test_none_gives_way_to_what_is_refused(opened: Callable[..., Machine]) -> None:
    machine = opened(9, {"sessions": 2})
    sleepers = machine.asleep("one", "two")
    manager = machine.world.manager
    with pytest.raises(CellgateError):
        machine.world.run(manager.get_or_create(PRINCIPAL, SessionBody(session="new", kernel="nope")))
    with pytest.raises(Conflict):
        machine.world.run(manager.branch(PRINCIPAL, "one", "two", BranchSpec()))
    machine.world.pass_time(5)
    assert [ended_by(each) for each in sleepers] == [None, None]


def test_none_gives_way_if_that_would_not_be_enough(opened: Callable[..., Machine]) -> None:
    machine = opened(9, {"memory": 3 * GIB})
    machine.open("used", memory=2 * GIB, idle_timeout=LIFETIME)
    (sleeper,) = machine.asleep("sleeper")
    with pytest.raises(PrincipalQuotaExceeded):
        machine.open("large", memory=2 * GIB)
    assert ended_by(sleeper) is None
    machine.open("fits", memory=GIB)
    assert ended_by(sleeper) == "room_needed"


def test_ones_own_sleepers_give_way_to_a_session_that_goes_on(opened: Callable[..., Machine]) -> None:
    """Its limits are its former ones, which its request need not repeat."""
    machine = opened(9, {"memory": 8 * GIB})
    machine.open("former", memory=6 * GIB)
    machine.world.run(machine.world.manager.delete(PRINCIPAL, "former"))
    sleeper = machine.open("sleeper", memory=6 * GIB)
    machine.world.pass_time(IDLE + SOON)
    assert sleeper.state is SessionState.ASLEEP
    asked = machine.world.ask("former", "hello")
    machine.world.pass_time(5)
    assert asked.told
    assert ended_by(sleeper) == "room_needed"


def test_none_gives_way_while_another_session_ends(opened: Callable[..., Machine]) -> None:
    machine = opened(9, {"sessions": 2})
    (sleeper,) = machine.asleep("sleeper")
    used = machine.open("used")
    machine.world.do(partial(machine.world.manager.end_later, used, "deleted", keep_files=False))
    asked = machine.world.ask("new", "hello")
    machine.world.pass_time(5)
    assert asked.told
    assert (ended_by(used), ended_by(sleeper)) == ("deleted", None)


def test_two_race_for_one_sleepers_room_in_a_quota(opened: Callable[..., Machine]) -> None:
    machine = opened(9, {"sessions": 2})
    machine.open("used", idle_timeout=LIFETIME)
    (sleeper,) = machine.asleep("sleeper")
    asked = [machine.world.ask(key, "hello") for key in ("a", "b")]
    machine.world.pass_time(5)
    assert ended_by(sleeper) == "room_needed"
    assert sorted(each.told for each in asked) == [False, True]
    assert [type(each.refusal) for each in asked if not each.told] == [PrincipalQuotaExceeded]


def test_two_that_need_room_in_a_quota_end_two(opened: Callable[..., Machine]) -> None:
    machine = opened(9, {"sessions": 3})
    sleepers = machine.asleep("one", "two", "three")
    asked = [machine.world.ask(key, "hello") for key in ("a", "b")]
    machine.world.pass_time(5)
    assert [each.told for each in asked] == [True, True]
    assert [ended_by(each) for each in sleepers] == ["room_needed", "room_needed", None]


def test_nothing_falls_asleep_while_the_gateway_stops(machine: Machine) -> None:
    session = machine.open("s")
    machine.world.pass_time(IDLE - 10)

    async def stop() -> None:
        await machine.world.manager.sleepers.close()
        await asyncio.sleep(SOON)

    machine.world.run(stop())
    assert session.to_wire().state == "idle"
