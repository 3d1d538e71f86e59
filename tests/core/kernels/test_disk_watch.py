"""How a kernel's disk is looked at, and when it is found full; no kernel is needed."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from cellgate_kernels.base.resources import MIB, MOST_BYTES, ResourceLimits
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.limits.disk import (
    ENTRY_BYTES,
    MOST_LOOKED_AT,
    CountedFolder,
    DiskUsage,
    all_parents,
    may_look,
    usage,
)
from cellgate_kernels.limits.disk_watch import (
    AGAIN,
    INTERVAL,
    MOST_ON_THE_WAY,
    PATIENCE,
    PATIENCE_WHEN_NEAR,
    DiskWatch,
    Watched,
)
from tests.support.open_files import no_open_files
from tests.support.requirements import require

HOLDERS = {
    "descriptor": "kept = file.fileno()",
    "mapping": "import mmap; kept = mmap.mmap(file.fileno(), 4096)",
    "zombie leader": (
        "import ctypes, threading, time\n"
        "def tell():\n"
        "    while ') Z ' not in open('/proc/self/stat').read(): time.sleep(0.001)\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
        "threading.Thread(target=tell).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    ),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_deleted_file_is_found_in_any_process_below(tmp_path: Path, hold: str) -> None:
    code = (
        "import os, sys\nfile = open('f', 'w+b')\nfile.write(bytes(1 << 20))\nfile.flush()\n"
        f"os.fsync(file.fileno())\nos.unlink('f')\n{hold}\nprint(flush=True)\nsys.stdin.read()"
    )
    words = [sys.executable, "-c", f"import subprocess\nsubprocess.run({[sys.executable, '-c', code]!r})"]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert usage([CountedFolder(tmp_path)], process.pid, enough=10 * MIB).used >= MIB
            assert usage([CountedFolder(tmp_path)], None, enough=10 * MIB).used < MIB
        finally:
            process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="the size of a mapped file is told to root only")
def test_a_mapped_file_counts_as_a_whole(tmp_path: Path) -> None:
    # A process that maps nothing else: this one may have maps of its own.
    code = (
        "import mmap, os, sys\nfile = open('f', 'w+b')\nfile.write(bytes(1 << 20))\nfile.flush()\n"
        "os.fsync(file.fileno())\nkept = mmap.mmap(file.fileno(), 4096)\nfile.close()\nos.unlink('f')\n"
        "print(flush=True)\nsys.stdin.readline()\nkept.close()\nprint(flush=True)\nsys.stdin.read()"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            # Python's object holds a descriptor too; both are one file.
            assert MIB <= usage([CountedFolder(tmp_path)], process.pid, enough=10 * MIB).used < 2 * MIB
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            assert usage([CountedFolder(tmp_path)], process.pid, enough=10 * MIB).used < MIB
        finally:
            process.communicate()


def test_what_belongs_to_the_gateway_is_free(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(MIB))
    used = usage([CountedFolder(tmp_path)], None, enough=10 * MIB).used
    assert usage([CountedFolder(tmp_path, free=MIB // 2)], None, enough=10 * MIB).used == used - MIB // 2
    assert usage([CountedFolder(tmp_path, free=10 * MIB)], None, enough=10 * MIB).used == 0


def test_each_name_of_a_file_counts(tmp_path: Path) -> None:
    """Else a look at very many of them would keep the watch away from what grows meanwhile."""
    (tmp_path / "f").write_bytes(bytes(MIB))
    used = usage([CountedFolder(tmp_path)], None, enough=10 * MIB).used
    for number in range(10):
        (tmp_path / str(number)).hardlink_to(tmp_path / "f")
    assert usage([CountedFolder(tmp_path)], None, enough=10 * MIB).used == used + 10 * ENTRY_BYTES


@pytest.fixture
def unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mapping is found: a program can give up all that it had of files."""
    monkeypatch.setattr("cellgate_kernels.limits.disk._Look._mappings", lambda *_: None)


def test_a_deleted_program_that_runs_is_found(tmp_path: Path, unmapped: None) -> None:
    program, sleep = tmp_path / "program", shutil.which("sleep")
    assert sleep is not None
    program.write_bytes(Path(sleep).read_bytes() + bytes(2 * MIB))
    program.chmod(0o700)
    with subprocess.Popen([program, "60"]) as process:
        try:
            program.unlink()
            assert 2 * MIB <= usage([CountedFolder(tmp_path)], process.pid, enough=10 * MIB).used < 3 * MIB
            assert usage([CountedFolder(tmp_path)], None, enough=10 * MIB).used < MIB
        finally:
            process.kill()


def test_a_deleted_folder_that_a_process_is_in_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(2000):
        (folder / f"{number:0200}").touch()
    for file in folder.iterdir():
        file.unlink()
    if (size := folder.stat().st_blocks * 512) < 10 * ENTRY_BYTES:
        require("folders that stay large", "the file system makes a folder smaller when names are removed")
    with subprocess.Popen(["sleep", "60"], cwd=folder) as process:
        try:
            folder.rmdir()
            assert usage([CountedFolder(tmp_path)], process.pid, enough=10 * MIB).used == size
        finally:
            process.kill()


def test_files_on_their_way_are_noticed(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with one, other, (tmp_path / "f").open("wb") as file:
        assert not usage([CountedFolder(tmp_path)], os.getpid(), enough=MIB).on_the_way
        socket.send_fds(one, [b"x"], [file.fileno()])
        assert usage([CountedFolder(tmp_path)], os.getpid(), enough=MIB).on_the_way
        for received in socket.recv_fds(other, 1, 1)[1]:
            os.close(received)
        assert not usage([CountedFolder(tmp_path)], os.getpid(), enough=MIB).on_the_way


def test_a_process_that_is_gone_and_folders_that_are_gone_count_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert usage([CountedFolder(tmp_path / "gone")], process.pid, enough=MIB) == DiskUsage(0)
    assert not may_look(process.pid)
    assert all_parents()[os.getpid()] == os.getppid()


def test_more_descriptors_than_can_be_looked_at_count_as_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_LOOKED_AT > 100_000
    monkeypatch.setattr("cellgate_kernels.limits.disk.MOST_LOOKED_AT", 10)
    assert usage([CountedFolder(tmp_path)], os.getpid(), enough=MIB).used > MIB


def test_more_names_than_can_be_looked_at_count_as_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellgate_kernels.limits.disk.MOST_NAMES", 10)
    for number in range(11):
        (tmp_path / f"{number}").touch()
    assert usage([CountedFolder(tmp_path)], None, enough=MIB).used > MIB
    (tmp_path / "1").unlink()
    assert usage([CountedFolder(tmp_path)], None, enough=MIB).used < MIB


async def test_a_kernel_with_many_files_does_not_keep_the_watch_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: Counter[int] = Counter()
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A clock on which nothing but a look at many files takes time, however slow the machine is.
    seconds = 0.0

    def look(folders: Sequence[CountedFolder], process: int | None, **_: object) -> DiskUsage:
        nonlocal seconds
        assert process is not None
        looks[process] += 1
        if process == 1:
            seconds += 0.2
        if looks[2] == 10:
            loop.call_soon_threadsafe(enough.set)
        return DiskUsage(0)

    clock = SimpleNamespace(monotonic=lambda: seconds)
    for name, value in (("usage", look), ("time", clock), ("INTERVAL", 0.01), ("SHARE", 0.0001)):
        monkeypatch.setattr(f"cellgate_kernels.limits.disk_watch.{name}", value)
    monkeypatch.setattr("cellgate_kernels.limits.disk_watch.all_parents", dict)
    watch, slow, quick = DiskWatch(), watched(), watched()
    slow.process, quick.process = 1, 2
    watch.add(slow)
    watch.add(quick)
    try:
        async with asyncio.timeout(60):
            await enough.wait()
    finally:
        watch.discard(slow)
        watch.discard(quick)
    assert looks[1] == 1


@pytest.mark.parametrize(
    ("used", "patience"), [(7, PATIENCE), (8, PATIENCE_WHEN_NEAR), (11, PATIENCE_WHEN_NEAR)]
)
async def test_a_kernel_near_its_limit_is_looked_at_more_often(
    monkeypatch: pytest.MonkeyPatch, used: int, patience: float
) -> None:
    seconds = 0.0

    def look(*_: object, **__: object) -> DiskUsage:
        nonlocal seconds
        seconds += 0.5
        return DiskUsage(used * MIB)

    clock = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr("cellgate_kernels.limits.disk_watch.usage", look)
    monkeypatch.setattr("cellgate_kernels.limits.disk_watch.time", clock)
    watch, kernel = DiskWatch(), watched()
    watch._kernels.add(kernel)
    assert await watch._look(kernel, {}) == 0.5
    assert kernel.due == 0.5 + 0.5 * patience
    watch.discard(kernel)


def test_the_second_look_at_a_full_kernel_comes_soon() -> None:
    watch, full, other = DiskWatch(), watched(), watched()
    watch._kernels |= {full, other}
    assert watch._pause(10.0) == 10.0
    assert not full.must_end_after(DiskUsage(11 * MIB))
    assert watch._pause(10.0) == AGAIN
    assert not full.must_end_after(DiskUsage(9 * MIB))
    assert watch._pause(0.0) == INTERVAL


async def test_a_watch_ends_with_its_last_kernel_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellgate_kernels.limits.disk_watch.INTERVAL", 0.01)
    watch = DiskWatch()
    for _ in range(2):
        ended: asyncio.Future[KernelExit] = asyncio.get_running_loop().create_future()
        folder = CountedFolder(Path("/usr/bin"))
        watch.add(Watched(ResourceLimits(disk=MIB), (folder,), None, ended.set_result))
        async with asyncio.timeout(60):
            assert (await ended).cause == "disk_full"
    async with asyncio.timeout(60):
        while any(task.get_name() == "disk watch" for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_look_for_which_no_file_can_be_opened_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither that a kernel is full, nor that it is not; and it is told once."""
    monkeypatch.setattr("cellgate_kernels.limits.disk_watch.INTERVAL", 0.01)
    (tmp_path / "file").write_bytes(bytes(2 * MIB))
    ended: asyncio.Future[KernelExit] = asyncio.get_running_loop().create_future()
    full = Watched(ResourceLimits(disk=MIB), (CountedFolder(tmp_path),), None, ended.set_result)
    watch = DiskWatch()
    await asyncio.to_thread(int)
    with no_open_files():
        with pytest.raises(OSError, match="open files"):
            usage(full.folders, None, enough=MIB)
        watch.add(full)
        await watch.files_given(full)
        await asyncio.sleep(0.3)
        assert not ended.done()
    while full.given is None:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    assert full.given >= MIB, "what was there is allowed"
    full.given = 0
    async with asyncio.timeout(60):
        assert (await ended).cause == "disk_full"
    assert caplog.text.count("can't be looked at") == 1
    assert "Traceback" not in caplog.text


def watched(disk: int = 10 * MIB) -> Watched:
    def end(fate: KernelExit) -> None:
        raise AssertionError(fate)

    return Watched(ResourceLimits(disk=disk), (), None, end)


def test_a_kernel_ends_when_it_is_found_full_twice() -> None:
    kernel = watched()
    found = [kernel.must_end_after(DiskUsage(used * MIB)) for used in (11, 9, 11, 11)]
    assert found == [False, False, False, True]


def test_what_a_session_brought_along_is_allowed() -> None:
    kernel = watched()
    kernel.given = 20 * MIB
    assert not any(kernel.must_end_after(DiskUsage(20 * MIB)) for _ in range(3))
    assert [kernel.must_end_after(DiskUsage(21 * MIB)) for _ in range(2)] == [False, True]


def test_each_workspace_of_a_sandbox_may_have_as_much_as_it_has_reserved() -> None:
    kernel, workspaces = watched(), [1]
    kernel.workspaces = lambda: workspaces[0]
    assert not any(kernel.must_end_after(DiskUsage(20 * MIB)) for workspaces[0] in (2, 2, 3))
    assert [kernel.must_end_after(DiskUsage(20 * MIB)) for workspaces[0] in (1, 1)] == [False, True]


def test_no_workspace_may_have_what_another_has_reserved() -> None:
    """It is given back with a branch's end, while the files stay."""
    kernel = watched()
    kernel.workspaces = lambda: 4
    assert not any(kernel.must_end_after(DiskUsage(30 * MIB, largest=10 * MIB)) for _ in range(3))
    assert [kernel.must_end_after(DiskUsage(30 * MIB, largest=11 * MIB)) for _ in range(2)] == [False, True]


def test_what_branches_were_given_is_not_allowed_to_others() -> None:
    kernel, workspaces = watched(), [2]
    kernel.workspaces = lambda: workspaces[0]
    kernel.bring_along(DiskUsage(19 * MIB, largest=10 * MIB))
    assert (kernel.allowed, kernel.allowed_to_one) == (20 * MIB, 10 * MIB)
    workspaces[0] = 1
    assert kernel.allowed == 10 * MIB
    kernel.bring_along(DiskUsage(25 * MIB, largest=15 * MIB))
    assert (kernel.allowed, kernel.allowed_to_one) == (25 * MIB, 15 * MIB)


def test_each_workspace_is_measured_by_itself(tmp_path: Path) -> None:
    own, branches = tmp_path / "own", tmp_path / "branches"
    for folder, size in ((own, 1), (branches / "a", 2), (branches / "b", 3)):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * size * MIB)
    folders = [CountedFolder(own, is_workspace=True), CountedFolder(branches, has_workspaces=True)]
    found = usage(folders, None, enough=100 * MIB)
    assert found == DiskUsage(6 * MIB + 2 * ENTRY_BYTES, largest=3 * MIB)
    (branches / "beside").write_bytes(b"x" * 4 * MIB)
    assert usage(folders, None, enough=100 * MIB) == DiskUsage(found.used + 4 * MIB, largest=3 * MIB)
    shutil.rmtree(branches)
    assert usage(folders, None, enough=100 * MIB) == DiskUsage(MIB, largest=MIB)


async def test_all_that_a_session_brought_along_counts(tmp_path: Path) -> None:
    """However much more than its limit that is; and what can't be measured is not allowed for ever."""
    for number in range(8):
        (tmp_path / str(number)).write_bytes(b"x" * MIB)
    kernel = Watched(ResourceLimits(disk=MIB), (CountedFolder(tmp_path),), None, lambda fate: None)
    watch = DiskWatch()
    watch.add(kernel)
    await watch.files_given(kernel)
    watch.discard(kernel)
    assert kernel.allowed >= 8 * MIB
    kernel.bring_along(DiskUsage(MOST_BYTES + 1))
    assert kernel.allowed == MIB


def test_files_cant_be_hidden_between_looks() -> None:
    kernel = watched()
    seen = [kernel.must_end_after(found) for found in (DiskUsage(11 * MIB), DiskUsage(0, on_the_way=True))]
    assert seen == [False, True]


def test_files_may_be_on_their_way_but_not_stay_there() -> None:
    kernel, on_the_way = watched(), DiskUsage(0, on_the_way=True)
    for _ in range(3):
        assert not any(kernel.must_end_after(on_the_way) for _ in range(MOST_ON_THE_WAY - 1))
        assert not kernel.must_end_after(DiskUsage(0))
    assert [kernel.must_end_after(on_the_way) for _ in range(MOST_ON_THE_WAY + 1)][-2:] == [False, True]
    gvisor = watched()
    gvisor.passes_files = False
    assert not any(gvisor.must_end_after(on_the_way) for _ in range(3 * MOST_ON_THE_WAY))
