"""What a job is given and makes: files that are gone with their end, and that leave the record its room."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellgate.errors import JobFailed, QueueFull, StorageError, StorageFull
from cellgate.jobs.job_files import PART, JobFile
from cellgate.jobs.jobs import Jobs
from cellgate.record.spill import STALLED, Spill, Spills
from cellgate.record.spill_ledger import Space, SpillLedger
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import Lane


@asynccontextmanager
async def file(folder: Path, lane: Lane, reserve: int = 0) -> AsyncGenerator[JobFile]:
    """A file on the disk of this folder, which is closed afterwards."""
    jobs = Jobs(folder, SpillLedger(folder, reserve), lane)
    try:
        with jobs.file("ada") as made:
            yield made
    finally:
        await jobs.finished()
    assert made.file._file.closed


async def parts() -> AsyncGenerator[bytes, None]:
    yield b"second "
    yield b"third"


async def test_what_is_written_is_read_in_order_and_leaves_no_file(tmp_path: Path, lane: Lane) -> None:
    async with file(tmp_path, lane) as given:
        await given.write(b"first ")
        await given.take(parts())
        assert os.read(given.file.fileno(), 100) == b"first second third", "from its start"
        assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_what_a_job_wrote_is_read_in_parts(tmp_path: Path, lane: Lane) -> None:
    written = os.urandom(PART + 1)
    async with file(tmp_path, lane) as made:
        os.write(made.file.fileno(), written)
        assert [part async for part in made.parts()] == [written[:PART], written[PART:]]
        assert (await made.read(), made.size) == (written, PART + 1)


async def test_the_room_that_the_record_needs_is_left(tmp_path: Path, lane: Lane) -> None:
    async with file(tmp_path, lane, 1 << 60) as given:
        with pytest.raises(StorageFull):
            await given.take(parts())


async def test_a_job_that_can_t_be_started_now_can_be_asked_for_again(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    jobs = Jobs(tmp_path, SpillLedger(tmp_path, 0), lane)
    with jobs.file("ada") as given, jobs.file("ada") as made, pytest.raises(QueueFull, match="open files"):
        await jobs.run("ada", "cellgate.jobs.convert", "markdown", given=given, made=made)
    await jobs.finished()


async def test_what_a_job_says_without_end_takes_no_memory(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "talkative.py").write_text(
        "import os\nfor _ in range(64):\n    os.write(2, bytes(1 << 20))\nos.write(2, b'over')\nos._exit(1)"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = Jobs(tmp_path, SpillLedger(tmp_path, 0), lane)
    tracemalloc.start()
    try:
        with jobs.file("ada") as given, jobs.file("ada") as made, pytest.raises(JobFailed):
            await jobs.run("ada", "talkative", given=given, made=made)
        await jobs.finished()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB
    assert caplog.records[0].getMessage().endswith("over")


async def test_a_folder_that_is_not_there_is_an_error_of_the_storage(tmp_path: Path, lane: Lane) -> None:
    with pytest.raises(StorageError):
        async with file(tmp_path / "nowhere", lane):
            pass


@dataclass
class Disk:
    """A disk of which what waits for clients may have 12 MiB: one principal 9 of them."""

    folder: Path
    ledger: SpillLedger
    jobs: Jobs
    spills: Spills

    async def finished(self) -> None:
        await self.jobs.finished()
        await self.spills.ends.finished()

    async def write(self, principal: str, size: int) -> Spill:
        """Spill so much of an answer to this principal."""
        spill = self.spills.open(principal)

        def write_all() -> None:
            with spill.writing():
                spill.write(bytes(size))

        await asyncio.to_thread(write_all)
        return spill


@pytest.fixture
async def disk(tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Disk]:
    """One on which nothing is left in the end, nor counted."""
    ledger = SpillLedger(tmp_path, 0)
    monkeypatch.setattr("cellgate.record.spill_ledger.free", lambda _: 24 * MIB - ledger.used)
    made = Disk(tmp_path, ledger, Jobs(tmp_path, ledger, lane), Spills(tmp_path, ledger, lane))
    yield made
    await made.finished()
    assert (ledger.used, ledger.held_by("ada"), ledger.held_by("bea")) == (0, 0, 0)


async def read(spill: Spill) -> None:
    async with aclosing(spill.parts()) as parts:
        assert [part async for part in parts]


async def idle(lane: Lane) -> None:
    """Both threads have nothing to do any more."""
    both = threading.Barrier(2)
    await asyncio.gather(lane.run(both.wait, 60), lane.run(both.wait, 60))


async def test_what_a_thread_still_writes_for_somebody_who_has_gone_is_not_counted(
    disk: Disk, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late it comes to it: a client that leaves cancels the work for it."""
    begun, go_on, take = threading.Event(), threading.Event(), Space.take

    def late(space: Space, count: int) -> None:
        begun.set()
        assert go_on.wait(60)
        take(space, count)

    monkeypatch.setattr(Space, "take", late)
    with disk.jobs.file("ada") as given:
        writing = asyncio.create_task(given.write(bytes(PART)))
        await asyncio.to_thread(begun.wait, 60)
        writing.cancel()
        await asyncio.wait([writing])
    await disk.finished()
    go_on.set()
    await idle(lane)
    assert given.file._file.closed


async def test_a_full_disk_leaves_nothing_counted(disk: Disk) -> None:
    with disk.jobs.file("ada") as given:
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, given.file.fileno())
        os.close(full)
        with pytest.raises(StorageFull):
            await given.write(b"a few bytes")


async def test_files_of_jobs_give_way_to_others_as_all_that_waits_does(disk: Disk) -> None:
    """Of who holds most, and not for more of the same principal: while written, and while read."""
    with disk.jobs.file("ada") as given, disk.jobs.file("ada") as made:
        await given.write(bytes(5 * MIB))
        os.write(made.file.fileno(), bytes(4 * MIB))
        await made.count()
        with pytest.raises(StorageFull, match="no room"):
            await made.write(bytes(MIB))
        bea = await disk.write("bea", 5 * MIB)
        await disk.jobs.finished()
        assert (disk.ledger.held_by("ada"), disk.ledger.held_by("bea")) == (4 * MIB, 5 * MIB)
        assert given.size == 0
        for use in (given.write(b"more"), given.read(), anext(given.parts())):
            with pytest.raises(StorageFull, match="Others got the room"):
                await use
        cyd = await disk.write("cyd", 3 * MIB)
        async with aclosing(made.parts()) as sending:
            assert len(await anext(sending)) == PART
            assert made.give_way(to_own=False)
            with pytest.raises(StorageFull, match="Others got the room"):
                await anext(sending)
    for spill in (bea, cyd):
        spill.end()
        await read(spill)


async def test_what_a_client_does_not_read_gives_way_to_its_own(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("cellgate.jobs.job_files.time.monotonic", lambda: now)
    with disk.jobs.file("ada") as made, disk.jobs.file("ada") as more:
        await made.write(bytes(8 * MIB))
        async with aclosing(made.parts()) as sending:
            assert await anext(sending)
            with pytest.raises(StorageFull):
                await more.write(bytes(4 * MIB))
            now = STALLED
            await more.write(bytes(4 * MIB))
            with pytest.raises(StorageFull):
                await anext(sending)


async def test_a_job_whose_input_gave_way_has_made_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However well it took the part that was left for the whole."""
    (disk.folder / "patient.py").write_text("import sys\nopen(sys.argv[1]).read()\nprint('made of nothing')")
    monkeypatch.syspath_prepend(str(disk.folder))
    os.mkfifo(go_on := disk.folder / "go_on")
    with disk.jobs.file("ada") as given, disk.jobs.file("ada") as made:
        await given.write(bytes(MIB))
        running = asyncio.create_task(disk.jobs.run("ada", "patient", str(go_on), given=given, made=made))
        begun = await asyncio.to_thread(go_on.open, "w")
        assert given.give_way(to_own=False)
        begun.close()
        with pytest.raises(StorageFull, match="Others got the room"):
            await running
