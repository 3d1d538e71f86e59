"""Sessions with one workspace and a kernel each: whoever comes and goes, nobody loses a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import UNSET

from cellgate.errors import CannotShare, Conflict, NotFound
from cellgate.execution.request import ExecuteRequest
from cellgate.files.workspace import WorkspaceStore, folder_of
from cellgate.identity.principal import Reach
from cellgate.sessions.adoption import left_behind
from cellgate.sessions.model import within
from cellgate.sessions.session import Session
from cellgate.wire.models import LimitsBody, SessionBody
from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from cellgate_kernels.base.errors import CellgateError, DeadlinePassed, InvalidInput, KernelStartFailed
from cellgate_kernels.testing import FakeKernel, Gate, at_once, fails_to_start, virtual_time
from tests.core.world import PRINCIPAL, World


class Pair(World):
    """A world with a session `a` that has a file, and others that get its workspace."""

    def sharing(self, key: str = "b", other: str = "a", **more: object) -> Session:
        body = SessionBody(session=key, workspace_of=other, **more)  # type: ignore[arg-type]
        return self.run(self.manager.get_or_create(PRINCIPAL, body))[0]

    def refused(self, error: type[CellgateError], key: str = "b", other: str = "a", **more: object) -> str:
        with pytest.raises(error) as refusal:
            self.sharing(key, other, **more)
        return refusal.value.reason

    def fake(self, key: str) -> FakeKernel:
        kernel = self.kernel(key)
        assert kernel is not None
        return kernel

    def workspace(self, key: str) -> Path:
        return self.fake(key).workspace

    def files(self, key: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.workspace(key).iterdir()}

    def end(self, key: str) -> None:
        """End it as a session ends that nobody uses."""
        session = self.live(key)
        assert session is not None
        self.run(session.end("idle_timeout"))
        self.pass_time(1)

    def delete(self, key: str) -> None:
        self.run(self.manager.delete(PRINCIPAL, key))
        self.pass_time(1)

    def again(self, key: str) -> Session:
        return self.run(self.session(key))

    def folders(self) -> set[str]:
        return {path.name for path in (self.folder / "workspaces").iterdir()}

    def reserved(self) -> float | None:
        return self.usage.account(PRINCIPAL).uses()["disk"].used


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Pair]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = Pair(loop, tmp_path)
        made.run(made.open(max_kernels=6))
        made.again("a")
        (made.workspace("a") / "a.txt").write_text("a")
        yield made
        made.run(made.close())
        made.check()


def test_two_kernels_have_one_workspace(world: Pair) -> None:
    session = world.sharing()
    assert world.workspace("b") == world.workspace("a")
    assert world.fake("b") is not world.fake("a")
    assert session.to_wire().shares_workspace_with == ["a"]
    first = world.live("a")
    assert first is not None
    assert first.to_wire().shares_workspace_with == ["b"]
    assert first.to_wire().shares_sandbox_with is UNSET
    assert within(Reach("a"), first.to_wire()).shares_workspace_with is UNSET
    assert world.sharing() is session


@pytest.mark.parametrize("leaver", ["a", "b"])
def test_whoever_ends_first_takes_nothing(world: Pair, leaver: str) -> None:
    world.sharing()
    stays = {"a": "b", "b": "a"}[leaver]
    world.end(leaver)
    (world.workspace(stays) / "later.txt").write_text("later")
    assert world.files(stays) == {"a.txt": "a", "later.txt": "later"}
    world.end(stays)
    for key in ("b", "a"):
        world.again(key)
        assert world.files(key) == {"a.txt": "a", "later.txt": "later"}
    assert world.workspace("a") == world.workspace("b")


@pytest.mark.parametrize("key", ["a", "b"])
def test_a_restart_changes_nothing_of_that(world: Pair, key: str) -> None:
    world.sharing()
    before = world.fake(key)
    session = world.live(key)
    assert session is not None
    world.run(_restart(session))
    assert world.fake(key) is not before
    assert world.workspace("a") == world.workspace("b")
    assert world.files(key) == {"a.txt": "a"}
    world.fake("a").die()
    world.pass_time(1)
    assert world.files("b") == {"a.txt": "a"}
    world.ask("a", "hello")
    world.pass_time(1)
    assert world.workspace("a") == world.workspace("b")


async def _restart(session: Session) -> None:
    await session.restart()


@pytest.mark.parametrize("first", ["a", "b"])
def test_files_go_with_the_last_who_is_deleted(world: Pair, first: str) -> None:
    world.sharing()
    last = {"a": "b", "b": "a"}[first]
    world.delete(first)
    assert world.files(last) == {"a.txt": "a"}
    world.delete(last)
    assert world.folders() == set()


def test_a_purge_takes_no_files_from_under_a_session_that_has_ended(world: Pair) -> None:
    world.sharing()
    world.end("b")
    assert world.run(world.manager.purger.purge(PRINCIPAL, "a", by="admin"))
    world.again("b")
    assert world.files("b") == {"a.txt": "a"}
    world.end("b")
    assert world.run(world.manager.purger.purge(PRINCIPAL, "b", by="admin"))
    world.pass_time(1)
    assert world.folders() == set()


def test_the_workspace_of_a_session_that_has_ended(world: Pair) -> None:
    world.end("a")
    world.sharing()
    assert world.files("b") == {"a.txt": "a"}
    world.again("a")
    assert world.workspace("a") == world.workspace("b")


def test_two_who_come_back_at_once_have_one_workspace(world: Pair) -> None:
    world.sharing()
    world.end("a")
    world.end("b")

    async def both() -> None:
        await asyncio.gather(world.session("a"), world.session("b"))

    world.run(both())
    assert world.workspace("a") == world.workspace("b")
    assert world.files("a") == {"a.txt": "a"}


def test_one_waits_until_the_other_has_the_files(world: Pair) -> None:
    world.sharing()
    world.end("a")
    world.end("b")
    world.kernels_wanted = gate = Gate()
    first, second = (world.loop.create_task(world.session(key)) for key in ("a", "b"))
    world.pass_time(1)
    assert len(gate.waiting) == 1
    world.run(gate.detach())
    world.run(gate.detach())
    world.run(_done(first))
    world.run(_done(second))
    assert world.workspace("b") == world.workspace("a")
    assert world.files("a") == {"a.txt": "a"}


def test_one_who_waits_for_the_other_has_a_deadline(world: Pair) -> None:
    world.sharing()
    world.end("a")
    world.end("b")
    world.kernels_wanted = gate = Gate()
    first = world.loop.create_task(world.session("a"))
    world.pass_time(1)
    with pytest.raises(DeadlinePassed):
        world.run(world.manager.execute(PRINCIPAL, "b", ExecuteRequest("hello", timeout=5)))
    world.run(gate.detach())
    world.run(_done(first))
    assert world.files("a") == {"a.txt": "a"}


async def _done(task: asyncio.Task[Session]) -> None:
    await task


def test_a_kernel_that_does_not_start_leaves_the_files(world: Pair) -> None:
    world.kernels_wanted = fails_to_start()
    world.refused(KernelStartFailed)
    world.end("a")
    world.refused(KernelStartFailed)
    world.kernels_wanted = at_once
    world.sharing()
    assert world.files("b") == {"a.txt": "a"}


def test_what_can_t_be_had(world: Pair) -> None:
    world.refused(NotFound, other="nobody")
    world.refused(InvalidInput, key="a")
    world.refused(InvalidInput, checkpoint="auto")
    world.refused(InvalidInput, limits=LimitsBody(disk="1m"))
    world.again("c")
    world.refused(Conflict, key="c")
    world.end("c")
    world.refused(Conflict, key="c")
    world.launcher.in_one_workspace = False
    assert world.refused(CannotShare) == "cannot_share"


def test_others_sessions_are_not_found(world: Pair) -> None:
    body = SessionBody(session="b", workspace_of="a")
    with pytest.raises(NotFound):
        world.run(world.manager.get_or_create("eve", body))


def test_who_ends_with_another_is_deleted_with_it(world: Pair) -> None:
    first = world.live("a")
    assert first is not None
    for key in ("b", "c"):
        world.manager.end_with(world.sharing(key), first)
    world.delete("a")
    assert [world.live(key) for key in ("a", "b", "c")] == [None] * 3
    assert world.folders() == set()


def test_who_ends_with_another_keeps_the_files_that_it_keeps(world: Pair) -> None:
    first = world.live("a")
    assert first is not None
    world.manager.end_with(world.sharing(), first)
    world.end("a")
    assert world.live("b") is None
    world.again("a")
    assert world.files("a") == {"a.txt": "a"}


def test_no_workspace_is_shared_while_it_is_deleted(world: Pair) -> None:
    first = world.live("a")
    assert first is not None
    deleting = world.loop.create_task(world.manager.delete(PRINCIPAL, "a"))
    world.do(lambda: None)
    assert first.is_deleted
    assert world.refused(CannotShare) == "cannot_share"
    world.run(deleting)


def test_a_workspace_is_not_shared_while_it_is_purged(world: Pair) -> None:
    purging = world.loop.create_task(world.manager.purger.purge(PRINCIPAL, "a", by="somebody"))
    world.do(lambda: None)
    world.refused(NotFound)
    world.run(purging)


def test_its_disk_counts_once(world: Pair) -> None:
    one = world.reserved()
    world.sharing()
    world.sharing("c")
    assert world.reserved() == one
    world.end("a")
    assert world.reserved() == one
    world.again("a")
    world.end("b")
    world.end("c")
    assert world.reserved() == one
    world.end("a")
    assert world.reserved() == 0


def test_its_disk_counts_once_for_two_who_come_back_at_once(world: Pair) -> None:
    one = world.reserved()
    world.sharing()
    world.end("a")
    world.end("b")

    async def both() -> None:
        await asyncio.gather(world.session("a"), world.session("b"))

    world.run(both())
    assert world.reserved() == one


@pytest.mark.parametrize("opens", [True, False])
def test_its_disk_counts_when_one_ends_while_the_other_opens(world: Pair, opens: bool) -> None:
    one = world.reserved()
    world.kernels_wanted = gate = Gate()
    body = SessionBody(session="b", workspace_of="a")
    second = world.loop.create_task(world.manager.get_or_create(PRINCIPAL, body))
    world.pass_time(1)
    world.end("a")
    assert world.reserved() == one
    if opens:
        world.run(gate.detach())
        world.run(asyncio.wait_for(second, 5))
        assert world.reserved() == one
        return
    second.cancel()
    world.do(gate.waiting.popleft().set_exception, KernelStartFailed("It did not come up"))
    world.pass_time(1)
    assert world.reserved() == 0


def test_the_workspace_can_t_be_rolled_back_while_another_has_it(world: Pair) -> None:
    world.sharing()
    session = world.live("a")
    assert session is not None
    with pytest.raises(Conflict):
        world.run(session.rollbacks.checkpoint(None, anyway=False))
    world.end("b")
    world.run(session.rollbacks.checkpoint(None, anyway=False))


@pytest.mark.parametrize("steps", range(5))
def test_nobody_gets_the_workspace_in_the_middle_of_a_rollback(world: Pair, steps: int) -> None:
    session = world.live("a")
    assert session is not None
    world.run(session.rollbacks.checkpoint(None, anyway=False))
    (world.workspace("a") / "a.txt").write_text("later")

    async def race() -> str:
        going_back = session.rollbacks.roll_back()
        for _ in range(steps):
            await asyncio.sleep(0)
        await world.manager.get_or_create(PRINCIPAL, SessionBody(session="b", workspace_of="a"))
        came_first = not going_back.done()
        try:
            await going_back
        except Conflict:
            return "later"
        assert not came_first
        return "a"

    expected = world.run(race())
    assert world.files("b") == {"a.txt": expected}
    assert world.workspace("b") == world.workspace("a")


def test_each_has_checkpoints_of_its_own(world: Pair) -> None:
    second = world.sharing()
    world.end("b")
    first = world.live("a")
    assert first is not None
    world.run(first.rollbacks.checkpoint("before", anyway=False))
    second = world.again("b")
    world.kernels_wanted = fails_to_start()
    with pytest.raises(KernelStartFailed):
        world.run(_restart(first))
    world.kernels_wanted = at_once
    world.run(second.rollbacks.checkpoint("before", anyway=False))
    world.end("a")
    (world.workspace("b") / "a.txt").write_text("later")

    async def go_back() -> None:
        await second.rollbacks.roll_back("before")

    world.run(go_back())
    assert world.files("b") == {"a.txt": "a"}


def test_a_branch_with_the_same_files_gets_a_copy_when_it_leaves(world: Pair) -> None:
    world.sharing()
    spec = BranchSpec(BranchWorkspace.SHARED)
    world.run(world.manager.branch(PRINCIPAL, "a", "branch", spec))
    world.end("branch")
    world.again("branch")
    assert world.files("branch") == {"a.txt": "a"}
    assert world.workspace("branch") != world.workspace("b") == world.workspace("a")


def test_the_next_gateway_gives_the_files_to_both(world: Pair) -> None:
    second = world.sharing()
    first = world.live("a")
    assert first is not None
    world.run(world.journal.commit())
    rows = [first.row, second.row]
    left = left_behind(rows, ())
    assert left == {world.workspace("a").name: [folder_of(first.row)]}
    assert left_behind(rows, {world.fake("b").id}) == {world.workspace("a").name: []}
    assert folder_of(first.row) == folder_of(second.row)


def test_a_workspace_that_a_living_kernel_uses_stays_in_its_place(tmp_path: Path) -> None:
    """Its first kernel has ended, and the next gateway knows of the second."""
    (tmp_path / "kernel-1").mkdir()
    (tmp_path / "kernel-1" / "a.txt").write_text("a")

    async def start() -> None:
        await WorkspaceStore(tmp_path).tidy({"session-1"}, {"kernel-1": []}, {"kernel-2", "kernel-1"})

    asyncio.run(start())
    assert (tmp_path / "kernel-1" / "a.txt").read_text() == "a"
