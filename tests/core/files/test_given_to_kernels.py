"""What a session's next kernel is given, and how many threads its start waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cellgate.files.workspace import RestoredFiles, WorkspaceStore


class Counting(ThreadPoolExecutor):
    """Counts what it is given."""

    calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        return super().submit(fn, *args, **kwargs)


def below(folder: Path) -> set[str]:
    """The paths of all that is in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_a_start_without_files_waits_for_one_thread(tmp_path: Path) -> None:
    pool = Counting(1)
    asyncio.get_running_loop().set_default_executor(pool)
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    assert await WorkspaceStore(tmp_path).of("session-1").restore(kernel) == RestoredFiles(False, alone=True)
    assert pool.calls == 1


async def test_a_start_with_kept_files_waits_for_one_thread(tmp_path: Path) -> None:
    pool = Counting(1)
    asyncio.get_running_loop().set_default_executor(pool)
    for name in ("kernel", "session-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "session-1" / "data").write_text("1")
    kernel = tmp_path / "kernel"
    assert await WorkspaceStore(tmp_path).of("session-1").restore(kernel) == RestoredFiles(True, alone=True)
    assert pool.calls == 1
    assert (kernel / "data").read_text() == "1"


async def test_files_that_are_owed_come_first(tmp_path: Path) -> None:
    store = WorkspaceStore(tmp_path)
    for name in ("former", "kernel"):
        (tmp_path / name).mkdir()
    (tmp_path / "former" / "data").write_text("owed")
    (tmp_path / "session-1.owed").symlink_to("former")
    assert await store.of("session-1").restore(tmp_path / "kernel") == RestoredFiles(True, alone=True)
    assert below(tmp_path) == {"kernel", "kernel/data"}
