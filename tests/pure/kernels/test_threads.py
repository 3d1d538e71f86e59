"""Who blocks in whose threads: what clients' requests need is not in the pool that cells need."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest

from cellgate_kernels.base.threads import FURTHER_THREADS, Lane, ThreadLanes, work_for

GATEWAY = Path(__file__).parents[3] / "gateway" / "cellgate"
CLIENTS = {"client", "cli", "integrations"}
WAY_OF_A_CELL = {
    "files/watch.py",
    "files/workspace.py",
    "hook/program.py",
    "packages/cells.py",
    "packages/child.py",
    "packages/installer.py",
    "packages/session.py",
    "packages/uv.py",
    "record/store/sqlite/journal.py",
    "record/store/sqlite/record_files.py",
    "server/kernels.py",
    "sessions/adoption.py",
}
"""What may use the loop's own threads: at most one call for each kernel at a time, and a few of packages."""


def test_only_the_way_of_a_cell_uses_the_threads_of_cells() -> None:
    using = {
        str(path.relative_to(GATEWAY))
        for path in GATEWAY.rglob("*.py")
        if re.search(r"to_thread|run_in_executor\(None", path.read_text())
    }
    assert {file for file in using if file.split("/")[0] not in CLIENTS} <= WAY_OF_A_CELL


async def test_a_lane_that_is_full_holds_up_no_other() -> None:
    lanes = ThreadLanes(kernels=2)
    lanes.cells.be_default()
    stuck, go_on = threading.Barrier(9), threading.Event()

    def block() -> None:
        stuck.wait(60)
        go_on.wait(60)

    try:
        blocked = [lanes.files._executor.submit(block) for _ in range(20)]
        stuck.wait(60)
        assert await lanes.cells.run(lambda: 1) == 1
        assert await lanes.bulk.run(threading.current_thread) is not threading.current_thread()
    finally:
        go_on.set()
        lanes.close()
    assert sum(not each.cancelled() for each in blocked) == 8


async def test_there_is_a_thread_for_each_kernel() -> None:
    lanes = ThreadLanes(kernels=5)
    together = threading.Barrier(5 + FURTHER_THREADS)
    try:
        waiting = [lanes.cells._executor.submit(together.wait, 20) for _ in range(5 + FURTHER_THREADS)]
        assert len({each.result(20) for each in waiting}) == 5 + FURTHER_THREADS
    finally:
        lanes.close()
        lanes.cells.close()


async def test_threads_are_named_after_their_lane() -> None:
    lane = Lane("test", 1)
    try:
        assert (await lane.run(threading.current_thread)).name.startswith("cellgate-test")
    finally:
        lane.close()


async def test_who_waits_for_a_thread_waits_for_one_of_each_other_s_calls() -> None:
    """However many calls somebody has begun before; and one that is cancelled takes no turn."""
    lane = Lane("test", 1)
    go_on, done = threading.Event(), list[str]()

    async def call(name: str) -> None:
        work_for(name)
        await lane.run(done.append, name)

    try:
        blocked = asyncio.create_task(lane.run(go_on.wait, 60))
        calls = [asyncio.create_task(call("ada")) for _ in range(20)]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(call("bea")))
        await asyncio.sleep(0)
        calls.pop(0).cancel()
        go_on.set()
        await asyncio.gather(blocked, *calls)
        assert done == ["ada", "bea", *["ada"] * 18]
        assert await lane.run(lambda: "free again") == "free again"
    finally:
        go_on.set()
        lane.close()


async def test_a_call_whose_caller_has_gone_has_its_thread_until_it_ends() -> None:
    """So that whoever begins calls and leaves has no more threads than others."""
    lane = Lane("test", 1)
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        go_on.wait(60)

    async def call(name: str) -> None:
        work_for(name)
        await lane.run(done.append, name)

    try:
        left = asyncio.create_task(lane.run(work))
        await asyncio.to_thread(begun.wait, 60)
        left.cancel()
        await asyncio.wait([left])
        calls = [asyncio.create_task(call(name)) for name in ("ada", "ada", "ada", "bea")]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*calls)
        assert done == ["ada", "bea", "ada", "ada"]
        assert await lane.run(lambda: "free again") == "free again"
    finally:
        go_on.set()
        lane.close()


async def test_a_lane_that_closes_drops_the_calls_that_wait() -> None:
    lane = Lane("test", 1)
    go_on = threading.Event()
    running = asyncio.create_task(lane.run(go_on.wait, 60))
    waiting = asyncio.create_task(lane.run(int))
    await asyncio.sleep(0)
    lane.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    assert await running
