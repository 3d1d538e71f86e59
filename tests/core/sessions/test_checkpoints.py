"""Checkpoints of one session: variables and files go back together, and old ones make room for new ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cellgate.errors import Conflict, NotFound, QuotaExceeded, SnapshotsFull, StorageFull
from cellgate.files.snapshots import Snapshots
from cellgate.sessions.checkpoints import (
    DENSE,
    MOST_NAMED,
    Checkpoint,
    Position,
    RolledBack,
    SessionCheckpoints,
    check_name,
)
from cellgate_kernels.base.branching import Obstacle, ObstacleKind
from cellgate_kernels.base.errors import CannotBranch, InvalidInput, KernelDied, KernelStartFailed
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.testing import FakeHeldFork, FakeKernel, FakeLauncher, virtual_time

T = TypeVar("T")


class Bench:
    """A kernel of a full pool with a folder, and its checkpoints."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.run_until = loop.run_until_complete
        workspaces = folder / "workspaces"
        workspaces.mkdir()
        kernel = self.run(self._claim(workspaces))
        assert isinstance(kernel, FakeKernel)
        self.kernel = kernel
        kernel.workspace.mkdir(exist_ok=True)
        self.snapshots = Snapshots(folder / "snapshots", 100 * MIB)
        self.points = SessionCheckpoints(self.pool, self.snapshots, 64 * MIB)
        self.cells = 0

    async def _claim(self, workspaces: Path) -> Kernel:
        self.pool = KernelPool(FakeLauncher(workspaces), PoolSettings(size=0, max_kernels=1), [])
        self.pool.start()
        return await self.pool.claim(KernelProfile("python3"), Claimant("ada"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run_until(work)

    def make(self, name: str, **options: bool) -> Checkpoint:
        return self.run(self.points.make(self.kernel, Position(10 * self.cells, self.cells), name, **options))

    def back(self, point: Checkpoint) -> RolledBack:
        old = self.kernel

        async def roll_back() -> RolledBack:
            found = await self.points.roll_back(point, self.cells, old, old.shutdown)
            self.pool.release(old, spared=[old.workspace])
            return found

        found = self.run(roll_back())
        assert isinstance(found.kernel, FakeKernel)
        self.kernel = found.kernel
        self.cells = point.at.cells
        return found

    def until(self, condition: Callable[[], bool]) -> None:
        """Let go on what nobody waits for, until this holds."""

        async def look() -> None:
            for _ in range(1000):
                if condition():
                    return
                await asyncio.to_thread(time.sleep, 0.01)
            raise AssertionError("it did not happen in time")

        self.run(look())

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.kernel.workspace / name).write_text(text)

    @property
    def files(self) -> dict[str, str]:
        return {each.name: each.read_text() for each in self.kernel.workspace.iterdir()}

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.points.alive]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with virtual_time() as loop:
        made = Bench(tmp_path, loop)
        yield made
        made.run(made.points.close(None))
        made.run(made.pool.close())
        assert not (tmp_path / "snapshots").exists()
        assert made.pool.statistics().held == 0


def fake(point: Checkpoint) -> FakeHeldFork:
    assert isinstance(point.held, FakeHeldFork)
    return point.held


def test_kernel_and_files_go_back_together_in_a_full_pool(bench: Bench) -> None:
    bench.write(a="1", b="1")
    good = bench.make("good")
    bench.cells += 2
    bench.write(a="2", c="2")
    (bench.kernel.workspace / "b").unlink()
    old = bench.kernel
    found = bench.back(good)
    assert found.undone == 2
    assert bench.files == {"a": "1", "b": "1"}
    assert bench.kernel is not old
    assert bench.kernel.alive
    assert not old.alive
    assert bench.pool.statistics().in_use == 1
    bench.cells += 1
    bench.write(a="3")
    assert bench.back(good).undone == 1, "as often as is wanted"
    assert bench.files == {"a": "1", "b": "1"}


def test_going_back_ends_the_checkpoints_after(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.make(name)
        bench.cells += 1
    bench.back(bench.points.find("b"))
    assert bench.names == ["a", "b"]
    bench.until(lambda: len(bench.snapshots.ids) == 2)
    bench.cells += 1
    bench.make("c")


def test_undo_goes_to_the_newest_before_the_last_cell(bench: Bench) -> None:
    with pytest.raises(NotFound):
        bench.points.before_last_cell(0)
    for cells in range(3):
        bench.cells = cells
        bench.make(f"after-{cells}", automatic=True)
    assert bench.points.before_last_cell(2).name == "after-1"
    bench.back(bench.points.before_last_cell(2))
    assert bench.points.before_last_cell(bench.cells).name == "after-0"
    bench.back(bench.points.before_last_cell(bench.cells))
    with pytest.raises(NotFound):
        bench.points.before_last_cell(bench.cells)


def test_a_name_is_taken_once_and_there_are_not_too_many(bench: Bench) -> None:
    bench.make("0")
    with pytest.raises(Conflict):
        bench.make("0")
    for number in range(1, MOST_NAMED):
        bench.make(str(number))
    with pytest.raises(Conflict):
        bench.make("more")
    bench.run(bench.points.end("0"))
    bench.make("more")
    for name in ("", "-a", "a" * 65, "a/b", "ä"):
        with pytest.raises(InvalidInput):
            check_name(name)
    assert check_name("v1.0-a_b") == "v1.0-a_b"


def test_what_is_refused_leaves_nothing(bench: Bench) -> None:
    bench.kernel.obstacles = (Obstacle(ObstacleKind.THREAD, "worker"),)
    with pytest.raises(CannotBranch):
        bench.make("refused")
    bench.make("anyway", anyway=True)
    bench.points = SessionCheckpoints(bench.pool, bench.snapshots, 64 * MIB)
    tight = SessionCheckpoints(bench.pool, Snapshots(bench.snapshots._folder / "tight", 1), 64 * MIB)
    held = bench.pool.statistics().held
    bench.write(a="1")
    with pytest.raises(QuotaExceeded):
        bench.run(tight.make(bench.kernel, Position(0, 0), "large", anyway=True))
    bench.run(asyncio.sleep(0))
    assert bench.pool.statistics().held == held
    assert tight.alive == []


def test_a_rollback_that_fails_changes_nothing(bench: Bench) -> None:
    bench.write(a="1")
    good = bench.make("good")
    bench.write(a="2")
    fake(good).restore_error = KernelStartFailed("It did not come up")
    old = bench.kernel
    with pytest.raises(KernelStartFailed):
        bench.back(good)
    assert old.alive
    assert bench.files == {"a": "2"}
    assert bench.names == ["good"]


def test_a_rollback_without_room_for_the_files_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out before the kernel ends."""
    bench.write(a="1")
    good = bench.make("good")
    bench.write(a="22")
    monkeypatch.setattr("cellgate.files.snapshots.free", lambda _: 0)
    with pytest.raises(StorageFull):
        bench.back(good)
    assert bench.kernel.alive
    assert bench.files == {"a": "22"}
    monkeypatch.undo()
    assert bench.back(good).undone == 0
    assert bench.files == {"a": "1"}


def test_files_that_can_not_be_kept_end_no_other_checkpoint(bench: Bench) -> None:
    """There is no room for them, however many of the others end."""
    for cells in range(3):
        bench.cells = cells
        bench.make(f"auto-{cells}", automatic=True)
    (bench.kernel.workspace / "large").write_bytes(bytes(101 * MIB))
    with pytest.raises(QuotaExceeded) as refused:
        bench.make("auto-3", automatic=True)
    assert not isinstance(refused.value, SnapshotsFull)
    assert bench.names == ["auto-0", "auto-1", "auto-2"]


def test_room_is_never_made_at_the_cost_of_the_newest(bench: Bench) -> None:
    for cells in range(2):
        bench.cells = cells
        bench.write(**{f"f{cells}": "x"})
        bench.make(f"auto-{cells}", automatic=True)
    assert bench.run(bench.points.end_oldest_automatic())
    assert not bench.run(bench.points.end_oldest_automatic())
    assert bench.names == ["auto-1"]


def test_a_checkpoint_that_ended_is_not_there(bench: Bench) -> None:
    lost = bench.make("lost")
    fake(lost).die()
    assert bench.names == []
    with pytest.raises(NotFound):
        bench.points.find("lost")
    with pytest.raises(KernelDied):
        bench.back(lost)
    bench.make("lost")
    assert len(bench.snapshots.ids) == 1, "its files go too"


def test_automatic_ones_are_thinned_with_age_and_named_ones_stay(bench: Bench) -> None:
    bench.make("named")
    for cells in range(1, 101):
        bench.cells = cells
        bench.make(f"auto-{cells}", automatic=True)
        bench.run(bench.points.thin())
    kept = [100 - each.at.cells for each in bench.points.alive]
    assert bench.names[0] == "named"
    assert kept[-DENSE:] == list(reversed(range(DENSE)))
    assert len(kept) <= 1 + DENSE + 7
    assert len(kept) > 1 + DENSE, "some of the older ones stay"
    assert len(bench.snapshots.ids) == len(kept)


def test_one_that_is_moved_while_its_memory_is_looked_at_stays_moved(bench: Bench) -> None:
    point = bench.make("auto-1", automatic=True)
    fake(point).bytes = MIB

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.points.thin())
            await asyncio.sleep(0)
            bench.points.move(point, Position(70, 7))

    bench.run(both())
    [found] = bench.points.alive
    assert (found.at, found.memory) == (Position(70, 7), MIB)


def test_the_oldest_automatic_ones_go_when_memory_is_short(bench: Bench) -> None:
    named = bench.make("named")
    fake(named).bytes = 40 * MIB
    for cells in range(1, 4):
        bench.cells = cells
        fake(bench.make(f"auto-{cells}", automatic=True)).bytes = 10 * MIB
    bench.run(bench.points.thin())
    assert bench.names == ["named", "auto-2", "auto-3"]
    fake(named).bytes = 100 * MIB
    assert bench.run(bench.points.thin()) is False
    assert bench.names == ["named"]


def test_named_ones_go_when_they_alone_are_too_large(bench: Bench) -> None:
    """Twice what all may keep: without a limit for a whole sandbox nothing else would stop them."""
    for name in ("a", "b", "c"):
        fake(bench.make(name)).bytes = 60 * MIB
    assert bench.run(bench.points.thin()) is True
    assert bench.names == ["b", "c"]
    assert len(bench.snapshots.ids) == 2
