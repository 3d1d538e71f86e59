"""Explorations in this process: alternatives at once or in turn, and what ends them early, by the record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import Conflict, NotFound, PrincipalQuotaExceeded
from cellgate.execution.request import ExecuteRequest
from cellgate.fairness.reservation import Reservation
from cellgate.sessions.exploring import Explored, Explorer, Fate, Keep, Plan, SessionExploration, branch_keys
from cellgate.sessions.session import Session
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.branching import BranchSpec, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import (
    CannotBranch,
    CellgateError,
    KernelBusy,
    KernelDied,
    KernelStartFailed,
    PoolExhausted,
)
from cellgate_kernels.testing import FakeHeldFork, FakeKernel, virtual_time
from tests.core.world import PRINCIPAL, World

OK = "hello"


class Lab(World):
    """A world with a session `s`, which the tests explore."""

    def prepare(self) -> None:
        """After `open`."""
        self.explorer = self.do(lambda: Explorer(self.manager, self.journal))
        self.run(self.session("s"))
        self.runs()

    def runs(self, key: str = "s") -> None:
        """Run a cell, which must end well."""
        asked = self.ask(key, OK)
        self.pass_time(1)
        assert asked.told

    def plan(
        self,
        *cells: str,
        keep: Keep = Keep.NONE,
        timeout: float | None = None,
        anyway: bool = False,
        name: str | None = None,
    ) -> Plan:
        requests = tuple(ExecuteRequest(cell, timeout=timeout) for cell in cells)
        keys = branch_keys(PRINCIPAL, "s", len(cells), name)
        return Plan(requests, keys, keep, anyway, None if name is None else (name, repr(cells)))

    def begin(self, *cells: str, **options: Any) -> asyncio.Task[list[Explored]]:
        """Begin to explore, as a request does, and let a second pass."""

        async def client() -> list[Explored]:
            going = await self.explorer.begin(PRINCIPAL, "s", self.plan(*cells, **options))
            return await going.ended() if isinstance(going, SessionExploration) else going

        task = self.loop.create_task(client())
        self.pass_time(1)
        return task

    def explore(self, *cells: str, **options: Any) -> list[Explored]:
        return self.run(asyncio.wait_for(self.begin(*cells, **options), 1000))

    def parent(self) -> Session:
        session = self.live("s")
        assert session is not None
        return session

    def fake(self) -> FakeKernel:
        kernel = self.kernel("s")
        assert kernel is not None
        return kernel

    def recorded(self, key: str) -> list[dict[str, Any]]:
        """The events of a session so far."""
        self.run(self.journal.commit())
        self.run(self.journal.applied())
        return [each for events in self.events().values() for each in events if each["session"] == key]

    def told(self, found: list[Explored]) -> list[tuple[str, str | None]]:
        """The status and the cause of each one's cell, as its record has them; its fate if it did not run."""
        ends = []
        for each in found:
            if each.branch is None:
                ends.append((each.fate.value, None))
                continue
            (end,) = (event for event in self.recorded(each.branch) if event["type"] == "finished")
            assert end["execution"] == each.execution
            ends.append((end["status"], end["cause"]))
        return ends

    def branches(self) -> list[str]:
        """The keys of live sessions but `s`."""
        return [key for session in self.manager.everybodys() if (key := session.row.key) != "s"]


@pytest.fixture
def places() -> int:
    return 6


@pytest.fixture
def world(tmp_path: Path, places: int) -> Iterator[Lab]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = Lab(loop, tmp_path)
        made.run(made.open(max_kernels=places))
        made.prepare()
        yield made
        made.run(made.close())
        made.run(made.explorer.close())
        made.check()


def fates(found: list[Explored]) -> list[str]:
    return [each.fate.value for each in found]


# ---- none and all -----------------------------------------------------------------------------------------


def test_alternatives_run_side_by_side_and_end_with_their_cells(world: Lab) -> None:
    began = world.loop.time()
    found = world.explore("slow 5", "fails", OK)
    assert world.loop.time() - began < 10
    assert world.told(found) == [("ok", None), ("error", None), ("ok", None)]
    assert fates(found) == ["ended"] * 3
    assert world.branches() == []
    assert [each["branch"] for each in world.recorded("s") if each["type"] == "branched"] == [
        each.branch for each in found
    ]
    last = [world.recorded(str(each.branch))[-1] for each in found]
    assert [(each["state"], each["cause"]) for each in last] == [("ended", "explored")] * 3
    world.runs()


def test_their_keys_are_the_sessions_with_a_suffix_and_never_too_long() -> None:
    keys = branch_keys("ada", "s" * 128, 16, None)
    assert len(set(keys)) == 16
    assert {len(key) for key in keys} == {128}
    assert branch_keys("ada", "s", 2, None) != branch_keys("ada", "s", 2, None)
    assert branch_keys("ada", "s", 2, "k") == branch_keys("ada", "s", 3, "k")[:2]
    assert branch_keys("ada", "s", 1, "k") != branch_keys("bob", "s", 1, "k")


def test_all_that_are_to_be_kept_stay_as_branches(world: Lab) -> None:
    found = world.explore(OK, "fails", keep=Keep.ALL)
    assert fates(found) == ["kept", "kept"]
    assert world.branches() == [each.branch for each in found]
    for each in found:
        world.runs(str(each.branch))
    assert world.run(world.session("s")).to_wire().shares_sandbox_with == [each.branch for each in found]


def test_the_session_goes_on_as_the_first_in_the_order_given_that_ends_well(world: Lab) -> None:
    """Not as the one that ends first; those after it are not needed."""
    found = world.explore("fails", "slow 5", OK, keep=Keep.FIRST_OK)
    assert fates(found) == ["ended", "chosen", "ended"]
    assert world.branches() == []
    own = [each for each in world.recorded("s") if each["execution"] == found[1].execution]
    assert [each["type"] for each in own][:2] == ["queued", "started"]
    assert (own[0]["ran_in"], own[-1]["type"], own[-1]["status"]) == (found[1].branch, "finished", "ok")
    assert world.recorded(str(found[1].branch))[-1]["cause"] == "chosen"
    assert world.parent().undo.models() == []
    assert world.parent().undo.cells == 2
    world.runs()


def test_one_free_place_is_enough_to_choose(world: Lab) -> None:
    found = world.explore("fails", "fails", OK, OK, keep=Keep.FIRST_OK)
    assert fates(found)[:3] == ["ended", "ended", "chosen"]
    world.runs()


def test_a_choice_that_fails_leaves_the_session_and_no_checkpoint(
    world: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def comes_not(*_: object) -> FakeKernel:
        raise KernelStartFailed("It did not come up")

    monkeypatch.setattr(FakeHeldFork, "restore", comes_not)
    before = world.fake()
    found = world.explore(OK, keep=Keep.FIRST_OK)
    assert fates(found) == ["kept"]
    assert isinstance(found[0].refusal, KernelStartFailed)
    assert world.fake() is before
    assert world.parent().undo.models() == []
    assert world.branches() == [found[0].branch]
    world.runs()


def test_a_live_kernel_is_not_called_dead_because_there_are_checkpoints(
    world: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Jupyter client that comes asks for a kernel; a dead one stays dead while it can be gone back to."""
    body = SessionBody(session="a", checkpoint="auto")
    session, _ = world.run(world.manager.get_or_create(PRINCIPAL, body))
    world.pass_time(1)
    told: list[str] = []
    monkeypatch.setattr(session.door, "tell", told.append)
    session.revive()
    assert told == []
    kernel = world.kernel("a")
    assert kernel is not None
    assert [each.name for each in session.undo.models()] == ["auto-0"]
    kernel.die()
    world.pass_time(1)
    session.revive()
    world.pass_time(1)
    assert told == ["dead"]
    assert session.undo.models() != []


def test_a_kept_branch_whose_kernel_died_is_a_session_as_any(world: Lab) -> None:
    found = world.explore("dies", "ignores", keep=Keep.ALL, timeout=5)
    assert world.told(found) == [("died", "kernel_exit"), ("timeout", "cell_timeout")]
    assert fates(found) == ["kept", "kept"]
    for each in found:
        world.runs(str(each.branch))


def test_cells_that_kill_their_kernel_or_never_end_are_results(world: Lab) -> None:
    kernels = len(world.launcher.kernels)
    found = world.explore("dies", "never", "ignores", OK, timeout=5)
    assert world.told(found) == [
        ("died", "kernel_exit"),
        ("timeout", "cell_timeout"),
        ("timeout", "cell_timeout"),
        ("ok", None),
    ]
    assert len(world.launcher.kernels) == kernels + 4, "a kernel was replaced for nobody"
    world.runs()


def test_the_sessions_own_cells_wait_and_it_is_busy(world: Lab) -> None:
    task = world.begin("slow 5")
    session = world.parent()
    assert session.to_wire().state == "busy"
    assert session.idle_since is None
    asked = world.ask("s", OK)
    world.pass_time(1)
    assert asked.run is not None
    assert not asked.told
    with pytest.raises(KernelBusy):
        world.run(world.manager.branch(PRINCIPAL, "s", "b", BranchSpec()))
    with pytest.raises(KernelBusy):
        world.run(asyncio.wait_for(world.begin(OK), 10))
    world.run(asyncio.wait_for(task, 10))
    world.pass_time(1)
    assert asked.told
    assert session.to_wire().state == "idle"


def test_cells_that_came_in_between_do_not_hinder_the_next_alternatives(world: Lab) -> None:
    others = [world.run(world.session(f"o{number}")) for number in range(4)]
    task = world.begin("slow 5", OK)
    asked = world.ask("s", OK)
    found = world.run(asyncio.wait_for(task, 100))
    assert world.told(found) == [("ok", None), ("ok", None)]
    world.pass_time(1)
    assert asked.told
    assert len(others) == 4


# ---- in turn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [2])
def test_one_free_place_is_enough(world: Lab) -> None:
    began = world.loop.time()
    found = world.explore("slow 5", "slow 5", "dies", "ignores", OK, timeout=10)
    assert [status for status, _ in world.told(found)] == ["ok", "ok", "died", "timeout", "ok"]
    assert world.loop.time() - began > 20
    world.runs()


@pytest.mark.parametrize("places", [2])
def test_a_kernel_that_takes_its_time_to_end_is_waited_for(world: Lab) -> None:
    ends = world.fake()._ending
    assert ends is not None

    async def slowly(kernel: FakeKernel) -> None:
        await asyncio.sleep(7)
        await ends(kernel)

    world.fake()._ending = slowly
    found = world.explore(OK, OK)
    assert world.told(found) == [("ok", None), ("ok", None)]


@pytest.mark.parametrize("places", [3])
def test_what_finds_no_place_beside_branches_that_stay_is_refused(world: Lab) -> None:
    found = world.explore(OK, OK, OK, OK, keep=Keep.ALL)
    assert fates(found) == ["kept", "kept", "refused", "refused"]
    assert [type(each.refusal) for each in found[2:]] == [PoolExhausted] * 2


@pytest.mark.parametrize("places", [1])
def test_without_any_place_nothing_is_explored(world: Lab) -> None:
    with pytest.raises(PoolExhausted):
        world.explore(OK, OK)
    assert "branched" not in [each["type"] for each in world.recorded("s")]
    world.runs()


@pytest.mark.parametrize(
    ("quotas", "most"), [({"sessions": 3}, 2), ({"memory": 2 << 30}, 1), ({"running": 2}, 2)]
)
def test_quotas_let_them_run_in_turn(tmp_path: Path, quotas: dict[str, int], most: int) -> None:
    with virtual_time() as loop:
        world = Lab(loop, tmp_path)
        world.run(world.open(max_kernels=20, quotas=quotas))
        world.prepare()
        task = world.begin(*["slow 5"] * 5, timeout=6)
        at_once = 0
        while not task.done():
            at_once = max(at_once, len(world.branches()))
            world.pass_time(1)
        assert world.told(task.result()) == [("ok", None)] * 5
        assert at_once == most
        world.run(world.close())
        world.run(world.explorer.close())
        world.check()


def test_a_quota_that_is_reached_in_the_middle_is_told(tmp_path: Path) -> None:
    with virtual_time() as loop:
        world = Lab(loop, tmp_path)
        world.run(world.open(max_kernels=20, quotas={"sessions": 2}))
        world.prepare()
        task = world.begin("slow 5", OK, OK)
        (first,) = world.branches()
        # Its room is taken by another session as soon as it ends.
        taken = world.loop.create_task(_instead(world, first))
        found = world.run(asyncio.wait_for(task, 100))
        assert fates(found) == ["ended", "refused", "refused"]
        assert isinstance(found[1].refusal, PrincipalQuotaExceeded)
        world.run(taken).release()
        world.runs()
        world.run(world.close())
        world.run(world.explorer.close())
        world.check()


async def _instead(world: Lab, branch: str) -> Reservation:
    session = world.live(branch)
    assert session is not None
    await session.over
    return world.usage.account(PRINCIPAL).reserve_session(session.limits.resources)


# ---- refusals ---------------------------------------------------------------------------------------------


def test_what_can_not_be_branched_can_not_be_explored(world: Lab) -> None:
    world.fake().obstacles = (Obstacle(ObstacleKind.THREAD, "Thread-1"),)
    with pytest.raises(CannotBranch):
        world.explore(OK)
    assert world.told(world.explore(OK, anyway=True)) == [("ok", None)]
    world.do(world.fake().die)
    with pytest.raises(KernelDied):
        world.explore(OK)
    world.runs()


def test_a_session_in_use_or_not_there_is_not_explored(world: Lab) -> None:
    asked = world.ask("s", "slow 5")
    world.pass_time(1)
    with pytest.raises(KernelBusy):
        world.explore(OK)
    world.pass_time(10)
    assert asked.told

    async def not_there() -> None:
        await world.explorer.begin(PRINCIPAL, "none", world.plan(OK))

    with pytest.raises(NotFound):
        world.run(not_there())


def test_a_parent_that_dies_in_the_middle_costs_only_those_that_wait(world: Lab) -> None:
    others = [world.run(world.session(f"o{number}")) for number in range(4)]
    task = world.begin("slow 5", OK)
    world.do(world.fake().die)
    found = world.run(asyncio.wait_for(task, 100))
    assert fates(found) == ["ended", "refused"]
    assert world.told(found)[0] == ("ok", None)
    assert isinstance(found[1].refusal, KernelDied)
    world.runs()
    assert len(others) == 4


# ---- ends from outside ------------------------------------------------------------------------------------


def test_an_interrupt_stops_all(world: Lab) -> None:
    task = world.begin("never", "ignores", OK, keep=Keep.ALL)
    world.do(world.parent().interrupt)
    found = world.run(asyncio.wait_for(task, 100))
    assert world.told(found) == [("interrupted", "interrupt_requested")] * 2 + [("ok", None)]
    assert fates(found) == ["ended", "ended", "kept"]
    world.runs()


def test_a_restart_stops_all_and_then_replaces_the_kernel(world: Lab) -> None:
    task = world.begin("never")
    before = world.fake()
    world.restart(world.parent())
    found = world.run(asyncio.wait_for(task, 100))
    assert world.told(found) == [("interrupted", "kernel_restarted")]
    world.runs()
    assert world.fake() is not before


@pytest.mark.parametrize("places", [3])
def test_the_end_of_the_session_ends_its_exploration(world: Lab) -> None:
    task = world.begin("never", "never", OK)
    world.run(world.manager.delete(PRINCIPAL, "s"))
    found = world.run(asyncio.wait_for(task, 100))
    assert world.told(found) == [("interrupted", "deleted")] * 2 + [("skipped", None)]
    assert world.branches() == []


def test_a_gateway_that_closes_ends_explorations(world: Lab) -> None:
    task = world.begin("never", "slow 1")
    world.run(world.manager.close(5))
    found = world.run(asyncio.wait_for(task, 100))
    assert world.told(found) == [("interrupted", "gateway_shutdown"), ("ok", None)]


def test_a_client_that_leaves_changes_nothing_unless_it_asked_to(world: Lab) -> None:
    task = world.begin("slow 5")
    (branch,) = world.branches()
    task.cancel()
    world.pass_time(10)
    assert world.branches() == []
    assert world.recorded(branch)[-2]["status"] == "ok"

    async def left() -> list[Explored]:
        going = await world.explorer.begin(PRINCIPAL, "s", world.plan("never"))
        assert isinstance(going, SessionExploration)
        await asyncio.sleep(1)
        going.stop("client_disconnected")
        return await going.ended()

    assert world.told(world.run(left())) == [("interrupted", "client_disconnected")]


def test_a_branch_that_somebody_deletes_is_a_result(world: Lab) -> None:
    task = world.begin("never", OK)
    (never,) = world.branches()
    world.run(world.manager.delete(PRINCIPAL, never))
    found = world.run(asyncio.wait_for(task, 100))
    assert world.told(found) == [("interrupted", "deleted"), ("ok", None)]


# ---- idempotency ------------------------------------------------------------------------------------------


def test_a_repeat_is_answered_with_what_came_of_the_first(world: Lab) -> None:
    first = world.begin("slow 5", OK, name="k")
    at_once = world.begin("slow 5", OK, name="k")
    found = world.run(asyncio.wait_for(first, 100))
    assert world.run(asyncio.wait_for(at_once, 100)) == found
    assert world.explore("slow 5", OK, name="k") == found
    assert len([each for each in world.recorded("s") if each["type"] == "branched"]) == 2
    with pytest.raises(Conflict):
        world.explore("slow 5", "other", name="k")


def test_a_key_of_a_request_that_was_refused_is_free(world: Lab) -> None:
    world.fake().branch_error = CannotBranch((Obstacle(ObstacleKind.THREAD, "Thread-1"),))
    with pytest.raises(CellgateError):
        world.explore(OK, name="k")
    world.fake().branch_error = None
    assert world.told(world.explore(OK, name="k")) == [("ok", None)]
    assert [each.fate for each in world.explore(OK, name="k")] == [Fate.ENDED]
