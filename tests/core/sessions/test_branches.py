"""Branches of sessions in this process: what they have, and that one that fails costs its parent nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import UNSET

from cellgate.errors import (
    Conflict,
    NotFound,
    PrincipalQuotaExceeded,
    QuotaExceeded,
    ShuttingDown,
    StorageError,
)
from cellgate.files.copying import copy_tree
from cellgate.files.folder_users import FolderUsers
from cellgate.files.workspace import WorkspaceStore, folder_of
from cellgate.identity.principal import EVERYWHERE, Reach
from cellgate.packages.session import SessionPackages
from cellgate.sessions.adoption import left_behind
from cellgate.sessions.model import within
from cellgate.sessions.reader import Archive
from cellgate.sessions.session import Session
from cellgate.wire.answers import SessionTree
from cellgate.wire.events import Package
from cellgate.wire.models import LimitsBody, SessionBody
from cellgate_kernels.base.branching import BRANCHES, BranchSpec, BranchWorkspace, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import (
    CannotBranch,
    CellgateError,
    KernelBusy,
    KernelDied,
    KernelStartFailed,
    PoolExhausted,
)
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.forking.sharing import Outlook
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.testing import FakeKernel, VirtualTimeLoop, virtual_time
from tests.core.world import PRINCIPAL, World

COPY = BranchSpec()
SHARED = BranchSpec(BranchWorkspace.SHARED)
THREAD = Obstacle(ObstacleKind.THREAD, "Thread-1 (work)")


class Family(World):
    """A world with a session `s`, which the tests branch."""

    def branch(self, key: str = "b", spec: BranchSpec = COPY, parent: str = "s") -> Session:
        return self.run(self.manager.branch(PRINCIPAL, parent, key, spec))

    def refused(self, error: type[CellgateError], key: str = "b", spec: BranchSpec = COPY) -> CellgateError:
        """The error of a branch, after which the parent answers and the key is free."""
        with pytest.raises(error) as refusal:
            self.branch(key, spec)
        self.runs("s")
        assert self.live(key) is None
        self.run(self.manager.delete(PRINCIPAL, self.run(self.session(key)).row.key))
        return refusal.value

    def runs(self, key: str, code: str = "hello") -> None:
        """Run a cell, which must end well."""
        asked = self.ask(key, code)
        self.pass_time(1)
        assert asked.told, key

    def fake(self, key: str) -> FakeKernel:
        kernel = self.kernel(key)
        assert kernel is not None
        return kernel

    def workspace(self, key: str) -> Path:
        return self.fake(key).workspace

    def recorded(self, key: str) -> list[dict[str, Any]]:
        """The events of a session so far."""
        self.run(self.journal.commit())
        self.run(self.journal.applied())
        return [each for events in self.events().values() for each in events if each["session"] == key]

    def end(self, key: str, *, keep_files: bool = False) -> None:
        session = self.live(key)
        assert session is not None
        self.run(session.end("deleted" if not keep_files else "idle_timeout", keep_files=keep_files))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Family]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = Family(loop, tmp_path)
        made.run(made.open(max_kernels=6))
        made.run(made.session("s"))
        made.runs("s")
        yield made
        made.run(made.close())
        made.check()


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


# ---- what a branch is -------------------------------------------------------------------------------------


def test_a_branch_has_what_its_parent_has_and_goes_on_from_there(world: Family) -> None:
    body = SessionBody(session="p", env={"A": "1"}, limits=LimitsBody(memory="300m"), metadata={"title": "t"})
    world.run(world.manager.get_or_create(PRINCIPAL, body))
    world.runs("p")
    parent = world.live("p")
    assert parent is not None
    branch = world.branch(spec=BranchSpec(seed=7), parent="p")
    model, of_parent = branch.to_wire(), parent.to_wire()
    for field in (
        "principal",
        "kernel",
        "limits",
        "metadata",
        "title",
        "isolation",
        "network",
        "execution_count",
    ):
        assert getattr(model, field) == getattr(of_parent, field), field
    assert (model.state, model.cause) == ("idle", "branched")
    assert model.branched_from is not None
    assert model.shares_sandbox_with == ["p"]
    assert of_parent.shares_sandbox_with == ["b"]
    assert branch.slot.profile.env == (("A", "1"),)
    last = world.recorded("p")[-1]
    assert (last["type"], last["branch"], last["workspace"], last["seed"]) == ("branched", "b", "copy", 7)
    first = world.recorded("b")[0]
    assert first["branched_from"] == {"session": "p", "seq": last["seq"], "head": of_parent.head}
    assert first["execution_count"] == 1
    for key in ("b", "p"):
        world.runs(key)
    assert (world.recorded("b")[-1]["execution_count"], branch.to_wire().execution_count) == (2, 2)


def test_the_packages_of_a_session_are_in_the_record_of_its_branch(world: Family) -> None:
    session = world.live("s")
    assert session is not None
    package = Package(name="six", version="1.17.0", sha256="00", requested=True)
    session.slot.packages.models = lambda: [package]  # type: ignore[method-assign]
    share = SessionPackages.share

    def shared(self: SessionPackages, other: SessionPackages, kernel: Kernel) -> None:
        share(self, other, kernel)
        self.models = other.models  # type: ignore[method-assign]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionPackages, "share", shared)
        world.branch()
    (told,) = (event for event in world.recorded("b") if event["type"] == "packages")
    assert told["packages"] == [{"name": "six", "version": "1.17.0", "sha256": "00", "requested": True}]


def test_a_branch_outlives_its_parent_and_branches_again(world: Family) -> None:
    world.branch("b")
    world.branch("c", parent="b")
    world.end("b")
    for key in ("s", "c"):
        world.runs(key)
    child = world.live("c")
    assert child is not None
    assert child.to_wire().shares_sandbox_with == ["s"]
    world.end("s")
    world.runs("c")
    assert child.to_wire().shares_sandbox_with is UNSET


def test_a_branch_says_if_absolute_paths_are_not_its_own(world: Family) -> None:
    branch = world.branch("b")
    assert branch.to_wire().absolute_paths is UNSET
    parent = world.live("s")
    assert parent is not None
    assert branch.kernel is not None
    assert parent.kernel is not None
    branch.kernel.outlook = Outlook("/branches/b", parent.kernel.workspace)
    assert branch.to_wire().absolute_paths == "inherited"
    assert parent.to_wire().absolute_paths is UNSET


def test_a_restarted_branch_has_a_kernel_of_its_own_and_says_what_is_lost(world: Family) -> None:
    (world.workspace("s") / "a.txt").write_text("a")
    branch = world.branch()
    world.run(_restart(branch))
    assert branch.slot.neighbours == []
    assert world.fake("b").branched is None
    assert files(world.workspace("b")) == {"a.txt": "a"}
    world.runs("b")
    end = world.recorded("b")[-1]
    assert end["kernel"] == {"state": "idle", "replaced": True, "cause": "kernel_restarted", "files": "kept"}
    world.runs("s")


async def _restart(session: Session) -> None:
    await session.restart()


def test_an_ended_branch_is_resumed_as_what_it_is(world: Family) -> None:
    before = world.branch().to_wire().branched_from
    world.end("b", keep_files=True)
    assert world.run(world.session("b")).to_wire().branched_from == before


def test_what_was_overruled_is_in_the_record(world: Family) -> None:
    kernel = world.fake("s")
    kernel.obstacles = (THREAD,)
    kernel.children = ("17 sleep",)
    world.branch(spec=BranchSpec(anyway=True))
    last = world.recorded("s")[-1]
    assert last["obstacles"] == [{"kind": "thread", "name": "Thread-1 (work)"}]
    assert last["children"] == ["17 sleep"]


def test_several_branches_at_once_are_made_one_after_the_other(world: Family) -> None:
    async def all_at_once() -> None:
        manager = world.manager
        await asyncio.gather(*[manager.branch(PRINCIPAL, "s", f"b{number}", COPY) for number in range(5)])

    world.run(all_at_once())
    for number in range(5):
        world.runs(f"b{number}")
    world.runs("s")


# ---- while a branch is made -------------------------------------------------------------------------------


class Gate:
    """Lets a kernel be branched only when it is opened."""

    def __init__(self, kernel: FakeKernel) -> None:
        self._branch: Callable[[BranchSpec], Any] = kernel.branch
        self.open = asyncio.Event()
        self.waiting = False
        kernel.branch = self  # type: ignore[method-assign]

    async def __call__(self, spec: BranchSpec) -> Kernel:
        self.waiting = True
        await self.open.wait()
        branch: Kernel = await self._branch(spec)
        return branch


def begun(world: Family) -> tuple[Gate, asyncio.Task[Session]]:
    """A branch that is being made."""
    gate = world.do(lambda: Gate(world.fake("s")))
    task = world.loop.create_task(world.manager.branch(PRINCIPAL, "s", "b", COPY))
    world.pass_time(1)
    assert gate.waiting
    return gate, task


def test_cells_and_restarts_of_the_parent_wait_until_the_branch_is_made(world: Family) -> None:
    gate, task = begun(world)
    session = world.live("s")
    assert session is not None
    world.do(world.connect, session, "jupyter")
    asked = world.ask("s", "hello")
    world.do(world.send, session, world.clients["s", "jupyter"], "hello")
    world.pass_time(1)
    assert asked.run is not None
    assert session.runs.waiting == 2
    gate.open.set()
    world.run(asyncio.wait_for(task, 10))
    world.pass_time(1)
    assert asked.told
    assert session.runs.waiting == 0
    queued = [event["code"] for event in world.recorded("s") if event["type"] == "queued"]
    assert queued == ["hello"] * 3
    assert [each["type"] for each in world.recorded("b")] == ["session"]


def test_a_restart_of_the_parent_waits_and_then_spares_the_branch(world: Family) -> None:
    gate, task = begun(world)
    session = world.live("s")
    assert session is not None
    world.do(world.restart, session)
    world.pass_time(1)
    gate.open.set()
    world.run(asyncio.wait_for(task, 10))
    world.pass_time(1)
    for key in ("s", "b"):
        world.runs(key)


def test_an_end_of_the_parent_waits_and_then_spares_the_branch(world: Family) -> None:
    gate, task = begun(world)
    session = world.live("s")
    assert session is not None
    ending = world.loop.create_task(session.end("deleted", keep_files=False))
    world.pass_time(3)
    assert not ending.done()
    gate.open.set()
    world.run(asyncio.wait_for(task, 10))
    world.run(asyncio.wait_for(ending, 10))
    world.runs("b")
    assert [each["type"] for each in world.recorded("s")][-2:] == ["branched", "session"]


def test_a_client_that_leaves_changes_nothing(world: Family) -> None:
    gate, task = begun(world)
    task.cancel()
    world.pass_time(1)
    gate.open.set()
    world.pass_time(1)
    world.runs("b")


def test_a_gateway_that_closes_makes_no_branch(world: Family) -> None:
    _, task = begun(world)
    world.run(world.manager.close(0.1))
    with pytest.raises(ShuttingDown):
        world.run(task)
    assert world.recorded("b") == []


def test_a_user_who_is_shut_out_gets_no_branch(world: Family) -> None:
    _, task = begun(world)
    world.do(world.manager.end_all, PRINCIPAL, "revoked")
    with pytest.raises(ShuttingDown):
        world.run(task)
    world.pass_time(10)
    assert world.live("s") is None
    assert world.recorded("b") == []


def test_a_session_of_that_key_is_the_branch(world: Family) -> None:
    """Whoever asks for the session while it is made waits for it."""
    gate, task = begun(world)
    other = world.loop.create_task(world.session("b"))
    with pytest.raises(Conflict):
        world.branch("b")
    world.pass_time(1)
    gate.open.set()
    assert world.run(asyncio.wait_for(task, 10)) is world.run(asyncio.wait_for(other, 10))


# ---- refusals ---------------------------------------------------------------------------------------------


def test_a_session_in_use_is_busy(world: Family) -> None:
    running = world.ask("s", "slow 5")
    waiting = world.ask("s", "hello")
    world.pass_time(1)
    with pytest.raises(KernelBusy):
        world.branch()
    world.pass_time(10)
    assert running.told
    assert waiting.told
    assert "branched" not in [event["type"] for event in world.recorded("s")]
    world.branch()


def test_what_stands_in_the_way_is_named(world: Family) -> None:
    world.fake("s").obstacles = (THREAD,)
    refusal = world.refused(CannotBranch)
    assert isinstance(refusal, CannotBranch)
    assert refusal.obstacles == (THREAD,)


def test_a_kernel_that_can_not_branch_says_so(world: Family) -> None:
    fake = world.fake("s")
    fake.facts = replace(fake.facts, can_branch=False)
    refusal = world.refused(CannotBranch, spec=BranchSpec(anyway=True))
    assert isinstance(refusal, CannotBranch)
    assert [each.kind for each in refusal.obstacles] == ["kernel"]


@pytest.mark.parametrize("error", [KernelStartFailed("not ready"), KernelBusy("busy after all")])
def test_a_fork_that_fails_leaves_nothing(world: Family, error: CellgateError) -> None:
    (world.workspace("s") / "a.txt").write_text("a")
    world.fake("s").branch_error = error
    before = world.recorded("s")
    world.refused(type(error))
    assert world.recorded("s")[: len(before) + 1][-1]["type"] == "queued"
    assert list(world.folder.rglob("a.txt")) == [world.workspace("s") / "a.txt"]


def test_a_dead_kernel_is_not_branched(world: Family) -> None:
    world.do(world.fake("s").die)
    world.refused(KernelDied)


def test_a_kernel_that_dies_while_it_is_branched_is_replaced_as_always(world: Family) -> None:
    gate, task = begun(world)
    world.do(world.fake("s").die)
    gate.open.set()
    with pytest.raises(KernelDied):
        world.run(task)
    world.runs("s")
    assert world.live("b") is None


def test_keys_that_are_taken_are_refused(world: Family) -> None:
    world.run(world.session("live"))
    world.run(world.session("ended"))
    world.end("ended")
    for key, why in (("s", "already"), ("live", "already"), ("ended", "has ended, and its record is kept")):
        with pytest.raises(Conflict, match=why):
            world.branch(key)
    world.runs("s")


def test_a_session_that_is_not_there_or_somebody_elses_is_not_found(world: Family) -> None:
    for principal, key in ((PRINCIPAL, "none"), ("bob", "s")):
        with pytest.raises(NotFound):
            world.run(world.manager.branch(principal, key, "b", COPY))


def test_a_branch_needs_a_place_as_every_kernel(world: Family) -> None:
    for number in range(5):
        world.run(world.session(f"other-{number}"))
    with pytest.raises(PoolExhausted):
        world.branch()
    world.end("other-0")
    world.pass_time(1)
    world.branch()


@pytest.mark.parametrize("quota", ["sessions", "memory", "cpus", "disk"])
def test_a_branch_counts_in_its_principals_quotas(tmp_path: Path, quota: str) -> None:
    with virtual_time() as loop:
        world = Family(loop, tmp_path)
        amount = {"sessions": 1, "memory": 1 << 30, "cpus": 1.0, "disk": 1 << 30}[quota]
        world.run(world.open(quotas={quota: amount}))
        world.run(world.session("s"))
        with pytest.raises(PrincipalQuotaExceeded):
            world.branch()
        world.runs("s")
        world.run(world.close())
        world.check()


def test_a_hundred_branches_at_once_at_a_quota_of_five_give_exactly_five(tmp_path: Path) -> None:
    """Five sessions with the parent, however the requests come; what was refused leaves no place taken."""
    with virtual_time() as loop:
        world = Family(loop, tmp_path)
        world.run(world.open(max_kernels=200, quotas={"sessions": 5}))
        world.run(world.session("s"))
        world.runs("s")

        async def attempt(key: str) -> Session | CellgateError:
            try:
                return await world.manager.branch(PRINCIPAL, "s", key, COPY)
            except CellgateError as refusal:
                return refusal

        async def rounds() -> None:
            for number in range(10):
                found = await asyncio.gather(*[attempt(f"r{number}-{each}") for each in range(100)])
                made = [each for each in found if isinstance(each, Session)]
                refused = [each for each in found if isinstance(each, PrincipalQuotaExceeded)]
                assert (len(made), len(refused)) == (4, 96)
                assert world.usage.account(PRINCIPAL).uses()["sessions"].used == 5
                for session in made:
                    await world.manager.delete(PRINCIPAL, session.row.key)
                assert world.usage.account(PRINCIPAL).uses()["sessions"].used == 1

        world.run(rounds())
        world.runs("s")
        world.run(world.close())
        world.check()


def test_a_record_that_takes_no_row_makes_no_branch(world: Family) -> None:
    gate, task = begun(world)
    session = world.live("s")
    assert session is not None
    append = session.log.append

    def refuse(*_: object, **__: object) -> dict[str, Any]:
        raise StorageError("no room")

    session.log.append = refuse  # type: ignore[method-assign]
    gate.open.set()
    with pytest.raises(StorageError):
        world.run(asyncio.wait_for(task, 10))
    session.log.append = append  # type: ignore[method-assign]
    world.pass_time(1)
    world.runs("s")
    assert world.live("b") is None
    assert world.recorded("b") == []


# ---- files ------------------------------------------------------------------------------------------------


def test_a_copy_is_the_branchs_own(world: Family) -> None:
    (world.workspace("s") / "a.txt").write_text("a")
    world.branch()
    (world.workspace("b") / "a.txt").write_text("b")
    assert files(world.workspace("s")) == {"a.txt": "a"}
    world.end("s")
    assert files(world.workspace("b")) == {"a.txt": "b"}


def test_files_above_the_limit_of_the_disk_are_not_copied(world: Family) -> None:
    body = SessionBody(session="p", limits=LimitsBody(disk="2m"))
    world.run(world.manager.get_or_create(PRINCIPAL, body))
    (world.workspace("p") / "a.bin").write_bytes(bytes(range(1, 256)) * 10_000)
    with pytest.raises(QuotaExceeded):
        world.branch(parent="p")
    world.runs("p")
    assert len(list(world.folder.rglob("a.bin"))) == 1
    world.branch(spec=SHARED, parent="p")


def test_shared_files_stay_when_either_is_deleted(world: Family) -> None:
    (world.workspace("s") / "a.txt").write_text("a")
    world.branch("b", SHARED)
    world.branch("c", SHARED)
    assert world.workspace("b") == world.workspace("s")
    (world.workspace("b") / "b.txt").write_text("b")
    world.end("s")
    world.pass_time(1)
    assert files(world.workspace("b")) == {"a.txt": "a", "b.txt": "b"}
    world.end("b")
    world.pass_time(1)
    assert files(world.workspace("c")) == {"a.txt": "a", "b.txt": "b"}
    folder = world.workspace("c")
    world.end("c")
    world.pass_time(1)
    assert not folder.exists()


def test_each_session_of_a_shared_workspace_keeps_its_files(world: Family) -> None:
    (world.workspace("s") / "a.txt").write_text("a")
    world.branch("b", SHARED)

    async def end_both() -> None:
        await asyncio.gather(*[session.end("idle_timeout") for session in world.manager.everybodys()])

    world.run(end_both())
    for key in ("s", "b"):
        world.run(world.session(key))
        assert files(world.workspace(key)) == {"a.txt": "a"}
    assert world.workspace("s") != world.workspace("b")


def test_a_restart_ends_the_sharing_with_a_copy(world: Family) -> None:
    (world.workspace("s") / "a.txt").write_text("a")
    world.branch("b", SHARED)
    session = world.live("s")
    assert session is not None
    world.run(_restart(session))
    (world.workspace("s") / "a.txt").write_text("changed")
    assert files(world.workspace("b")) == {"a.txt": "a"}


@dataclass
class CopyDisk:
    """The disk that shared files are copied to. `full`: no copy succeeds."""

    full: bool = True

    def copy_tree(self, source: Path, target: Path, most_bytes: int, **options: Any) -> bool:
        """A copy, or no room for it."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return copy_tree(source, target, most_bytes, **options)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> CopyDisk:
    found = CopyDisk()
    for room in ("workspace", "keeping"):
        monkeypatch.setattr(f"cellgate.files.{room}.copy_tree", found.copy_tree)
    return found


def shared_and_left(world: Family) -> None:
    """The session `s` shared its files with `b` and has left them, but got no copy."""
    (world.workspace("s") / "a.txt").write_text("a")
    branch = world.branch("b", SHARED)
    session = world.live("s")
    assert session is not None
    with pytest.raises(StorageError):
        world.run(_restart(session))
    (branch.slot.workspace / "b.txt").write_text("b")


def test_files_that_found_no_room_are_not_removed_with_the_others_session(
    world: Family, disk: CopyDisk
) -> None:
    shared_and_left(world)
    world.end("b")
    world.pass_time(1)
    world.runs("s")
    assert files(world.workspace("s")) == {"a.txt": "a", "b.txt": "b"}


def test_all_who_found_no_room_get_their_files_once_there_is_some(world: Family, disk: CopyDisk) -> None:
    shared_and_left(world)
    with pytest.raises(StorageError):
        world.end("b", keep_files=True)
    world.pass_time(1)
    assert world.run(refusal(world.session("b"))) == "storage_full"
    disk.full = False
    world.run(world.session("b"))
    world.runs("s")
    for key in ("b", "s"):
        assert files(world.workspace(key)) == {"a.txt": "a", "b.txt": "b"}
    assert world.workspace("b") != world.workspace("s")


async def refusal(work: Coroutine[Any, Any, object]) -> str | None:
    """The reason why this was refused."""
    try:
        await work
    except CellgateError as error:
        return error.reason
    return None


def test_files_that_are_owed_to_nobody_any_more_are_removed(world: Family, disk: CopyDisk) -> None:
    shared_and_left(world)
    world.end("b")
    world.end("s")
    world.pass_time(1)
    assert list(world.folder.rglob("*.txt")) == []
    assert list((world.folder / "workspaces").iterdir()) == []


def test_the_next_gateway_gives_sessions_the_files_that_are_owed_to_them(
    world: Family, disk: CopyDisk
) -> None:
    shared_and_left(world)
    disk.full = False
    root = shutil.copytree(world.folder / "workspaces", world.folder / "next", symlinks=True)
    sessions = [session.row for session in world.manager.everybodys()]
    left = left_behind([row for row in sessions if row.key == "b"], ())
    store = WorkspaceStore(root)
    world.run(store.tidy({folder_of(row) for row in sessions}, left, ()))
    for row in sessions:
        assert files(store.of(folder_of(row)).path) == {"a.txt": "a", "b.txt": "b"}
    assert {path.name for path in root.iterdir()} == {folder_of(row) for row in sessions}


async def test_packages_that_found_no_room_stay_for_their_session(tmp_path: Path, disk: CopyDisk) -> None:
    installer: Any = SimpleNamespace(
        sites=tmp_path, states=tmp_path / "states", leftovers=Leftovers(), users=FolderUsers()
    )
    former, following = [cast(Kernel, SimpleNamespace(packages=tmp_path / name)) for name in ("k1", "k2")]
    for kernel in (former, following):
        assert kernel.packages is not None
        kernel.packages.mkdir()
    (tmp_path / "k1" / "six.py").touch()
    parent, branch = SessionPackages("ada", 1, installer), SessionPackages("ada", 2, installer)
    branch.share(parent, former)
    with pytest.raises(StorageError):
        await parent.keep(former)
    await branch.leave(former)
    await parent.restore(following)
    assert (tmp_path / "k2" / "six.py").exists()
    await parent.forget()
    assert os.listdir(tmp_path) == ["k2"]  # noqa: PTH208


async def test_after_a_crash_every_session_gets_the_files_that_it_had(tmp_path: Path) -> None:
    """The folders of kernels that a gateway left, as they are on the disk when the next one starts."""
    root = tmp_path / "workspaces"
    copied = root / f"kernel-1{BRANCHES}" / "kernel-2"
    nobodys = root / f"kernel-9{BRANCHES}" / "kernel-10"
    for folder in (root / "kernel-1", copied, nobodys, root / "kernel-3"):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text(folder.name)
    left = {"kernel-1": ["session-s", "session-shared"], "kernel-2": ["session-b"], "kernel-3": ["session-c"]}
    store = WorkspaceStore(root)
    await store.tidy({"session-s", "session-shared", "session-b", "session-c"}, left, {"kernel-3"})
    found = {path.parent.name: path.read_text() for path in root.glob("session-*/a.txt")}
    assert found == {
        "session-s": "kernel-1",
        "session-shared": "kernel-1",
        "session-b": "kernel-2",
        "session-c": "kernel-3",
    }
    assert (root / "kernel-3" / "a.txt").exists(), "a kernel that lives still uses it"
    assert [path.name for path in root.glob("orphans/*/*/a.txt")] == ["a.txt"]
    assert sorted(path.name for path in root.iterdir() if path.name.startswith("kernel")) == ["kernel-3"]


def test_a_gateway_that_ends_while_it_recovers_begins_again_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record tells whose the folders of kernels are until they are kept."""

    def opened(loop: VirtualTimeLoop, folder: str) -> Family:
        world = Family(loop, tmp_path / folder)
        world.run(world.open())
        return world

    async def end(*_: object) -> None:
        raise RuntimeError("crash")

    with virtual_time() as loop:
        (tmp_path / "crashed").mkdir()
        world = opened(loop, "crashed")
        world.run(world.session("s"))
        (world.workspace("s") / "a.txt").write_text("precious")
        world.run(world.journal.commit())
        shutil.copytree(tmp_path / "crashed", tmp_path / "next")
        world.run(world.close())
    with virtual_time() as loop, monkeypatch.context() as patch:
        patch.setattr(WorkspaceStore, "_tidy", end)
        world = opened(loop, "next")
        with pytest.raises(RuntimeError, match="crash"):
            world.run(world.recovered(world.launcher, {}))
        shutil.copytree(tmp_path / "next", tmp_path / "last")
        world.run(world.close())
    with virtual_time() as loop:
        world = opened(loop, "last")
        assert world.run(world.recovered(world.launcher, {})) == (0, 1)
        world.run(world.session("s"))
        assert files(world.workspace("s")) == {"a.txt": "precious"}
        world.run(world.close())


def test_which_sessions_shared_a_folder_is_in_the_record(world: Family) -> None:
    world.branch("b", SHARED)
    world.branch("c")
    rows = [session.row for session in world.manager.everybodys()]
    found = left_behind(rows, ())
    assert {name: len(sessions) for name, sessions in found.items()} == {
        world.fake("s").id: 2,
        world.fake("c").id: 1,
    }
    assert left_behind(rows, {world.fake("s").id, world.fake("b").id, world.fake("c").id}) == {}


# ---- the tree ---------------------------------------------------------------------------------------------


def tree_of(world: Family, key: str, reach: Reach = EVERYWHERE) -> SessionTree:
    exports: Any = None
    lane = Lane("texts", 1)
    try:
        return world.run(Archive(world.journal, world.manager, exports, lane).tree(PRINCIPAL, key, reach))
    finally:
        lane.close()


def test_a_tree_has_ancestors_and_all_branches(world: Family) -> None:
    world.branch("b")
    world.branch("c", parent="b")
    world.branch("b2")
    world.end("c")
    tree = tree_of(world, "b")
    assert [(each.session, each.state) for each in tree.ancestors] == [("s", "idle")]
    assert [(each.session, each.state) for each in tree.branches] == [("c", "ended")]
    assert (tree.ancestor_left_out, tree.complete) == (UNSET, True)
    whole = tree_of(world, "s")
    origins = {each.session: each.branched_from for each in whole.branches}
    assert {key: origin.session for key, origin in origins.items() if origin is not UNSET} == {
        "b": "s",
        "c": "b",
        "b2": "s",
    }
    assert whole.complete
    of_some = tree_of(world, "s", Reach("b"))
    assert [each.session for each in of_some.branches] == ["b", "b2"]
    assert not of_some.complete
    world.run(world.manager.purger.purge(PRINCIPAL, "b", by="root"))
    tree = tree_of(world, "c")
    assert (tree.ancestors, tree.ancestor_left_out) == ([], "purged")


def test_a_tree_names_no_session_that_is_out_of_reach(world: Family) -> None:
    world.branch("mine")
    tree = tree_of(world, "mine", Reach("mine"))
    assert (tree.ancestors, tree.ancestor_left_out) == ([], "out_of_reach")


def test_a_model_names_no_session_in_the_sandbox_that_is_out_of_reach(world: Family) -> None:
    model = world.branch("mine").to_wire()
    world.branch("mine-too", parent="mine")
    assert within(Reach("mine"), model).shares_sandbox_with is UNSET
    both = world.fake("mine").shares_sandbox_with
    assert len(both) == 2
    live = world.live("mine")
    assert live is not None
    assert within(Reach("mine"), live.to_wire()).shares_sandbox_with == ["mine-too"]
    assert within(EVERYWHERE, model) == model
