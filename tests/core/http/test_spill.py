"""What waits between who makes an answer and who reads it; and who may make one now."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from cellgate.errors import StorageFull
from cellgate.record.spill import MEMORY, PART, STALLED, Spill, Spills
from cellgate.record.spill_ledger import SpillLedger
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import Lane


@pytest.fixture
async def spills(tmp_path: Path, lane: Lane) -> AsyncGenerator[Spills]:
    """Those of a folder in which none is left."""
    ledger = SpillLedger(tmp_path, 0)
    yield (made := Spills(tmp_path, ledger, lane))
    await made.ends.finished()
    assert ledger.used == 0
    assert open_files(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    """What this process has open below a folder, files without a name too."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(f"{folder}/"):
            found.append(target)
    return found


async def write(spill: Spill, *parts: bytes) -> None:
    """In a thread, as exports are."""

    def write_all() -> None:
        with spill.writing():
            for part in parts:
                spill.write(part)

    await asyncio.to_thread(write_all)


async def read(spill: Spill) -> bytes:
    async with aclosing(spill.parts()) as parts:
        return b"".join([part async for part in parts])


@pytest.mark.parametrize("size", [0, 1, MEMORY, MEMORY + 1, 3 * MEMORY + PART + 1])
async def test_what_is_written_is_read(spills: Spills, size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    spill = spills.open("ada")
    await write(spill, *(content[start : start + 100_000] for start in range(0, size, 100_000)))
    spill.end()
    assert bool(open_files(tmp_path)) == (size > MEMORY), "small ones are in memory"
    assert os.listdir(tmp_path) == [], "a crash leaves nothing"  # noqa: PTH208
    assert await read(spill) == content


async def test_the_first_bytes_are_read_while_the_last_are_written(spills: Spills) -> None:
    spill = spills.open("ada")
    await write(spill, bytes(MEMORY), bytes(MEMORY))
    async with aclosing(spill.parts()) as parts:
        assert await anext(parts)
        await write(spill, b"last")
        spill.end()
        rest = b"".join([part async for part in parts])
    assert rest.endswith(b"last")


async def test_what_may_stay_in_memory_is_read_when_it_is_whole(spills: Spills) -> None:
    """So that what fails early is an answer of its own."""
    spill = spills.open("ada")
    reading = asyncio.ensure_future(read(spill))
    await write(spill, b"first")
    await asyncio.sleep(0.01)
    assert not reading.done()
    spill.end(CellgateError("no more"))
    with pytest.raises(CellgateError, match="no more"):
        await reading


async def test_a_failure_is_told_before_what_is_left(spills: Spills) -> None:
    spill = spills.open("ada")
    await write(spill, bytes(4 * MEMORY))
    async with aclosing(spill.parts()) as parts:
        assert await anext(parts)
        spill.end(CellgateError("no more"))
        with pytest.raises(CellgateError, match="no more"):
            await anext(parts)


async def test_whoever_leaves_last_closes_the_file(spills: Spills, tmp_path: Path) -> None:
    spill = spills.open("ada")
    with spill.writing():
        spill.write(bytes(2 * MEMORY))
        async with aclosing(spill.parts()) as parts:
            assert await anext(parts)
        assert open_files(tmp_path)
        spill.write(b"goes on until it is told")
    await spills.ends.finished()
    assert open_files(tmp_path) == []


class Watched(io.FileIO):
    """A file that knows which threads have closed it."""

    closed_in: list[threading.Thread]

    def close(self) -> None:
        if not self.closed:
            self.closed_in.append(threading.current_thread())
        super().close()


@pytest.mark.parametrize("end", ["read", "left", "given way"])
async def test_a_file_is_freed_in_a_thread(
    spills: Spills, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The system takes a third of a second for a gigabyte, for which everybody would wait."""
    file = Watched(tmp_path / "spill", "w+")
    file.closed_in = []
    monkeypatch.setattr("cellgate.record.unnamed_file.tempfile.TemporaryFile", lambda **_: file)
    spill = spills.open("ada")
    await write(spill, bytes(2 * MEMORY))
    spill.end()
    async with aclosing(spill.parts()) as parts:
        if end == "read":
            assert len([part async for part in parts]) == 2
        else:
            assert await anext(parts)
        if end == "given way":
            assert spill.give_way(to_own=False)
            await spills.ends.finished()
            assert len(file.closed_in) == 1, "before its reader comes back"
    await spills.ends.finished()
    assert len(file.closed_in) == 1
    assert threading.current_thread() not in file.closed_in
    assert spills._ledger.used == 0


RESERVE = 100 * MIB


class Disk:
    """A disk of this size, less the reserve, that nobody but spills uses, unlike that of the machine."""

    def __init__(self, size: int, folder: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = SpillLedger(folder, RESERVE)
        self.spills = Spills(folder, self.ledger, lane)
        monkeypatch.setattr("cellgate.record.spill_ledger.free", lambda _: RESERVE + size - self.ledger.used)

    def open(self, principal: str = "ada") -> Spill:
        return self.spills.open(principal)


async def test_the_record_keeps_its_room_and_half_of_the_rest(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one principal's exports none that is under way ends for another."""
    disk = Disk(12 * MIB, tmp_path, lane, monkeypatch)
    first, second = disk.open(), disk.open()
    await write(first, bytes(3 * MIB))
    with pytest.raises(StorageFull):
        await write(second, bytes(3 * MIB))
    assert disk.ledger.used < 5 * MIB
    for spill in (first, second):
        spill.end(CellgateError("over"))
        with pytest.raises(CellgateError):
            await read(spill)
    await disk.spills.ends.finished()
    assert disk.ledger.used == 0
    await write(third := disk.open(), bytes(3 * MIB))
    third.end()
    assert len(await read(third)) == 3 * MIB
    await disk.spills.ends.finished()
    assert disk.ledger.used == 0


async def test_what_is_not_read_gives_way_to_others(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is whole and was not read for long: no reader loses what it is about to take."""
    disk = Disk(28 * MIB, tmp_path, lane, monkeypatch)
    now = 0.0
    monkeypatch.setattr("cellgate.record.spill.time.monotonic", lambda: now)
    unread, unfinished, read_now, large = (disk.open() for _ in range(4))
    for spill in (unread, unfinished, read_now):
        await write(spill, bytes(2 * MIB))
    unread.end()
    read_now.end()
    now = STALLED
    async with aclosing(read_now.parts()) as parts, aclosing(unread.parts()) as given_up:
        first = await anext(parts)
        await write(large, bytes(5 * MIB))
        with pytest.raises(StorageFull, match="not read for so long"):
            await anext(given_up)
        assert len(first + b"".join([part async for part in parts])) == 2 * MIB
    for spill in (unfinished, large):
        spill.end()
    assert (len(await read(unfinished)), len(await read(large))) == (2 * MIB, 5 * MIB)
    await disk.spills.ends.finished()
    assert disk.ledger.used == 0


async def test_nobody_s_export_ends_for_somebody_who_holds_more(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One principal has three quarters, and above half of it gives way to others who hold less."""
    disk = Disk(32 * MIB, tmp_path, lane, monkeypatch)
    large, small = disk.open("ada"), disk.open("ada")
    await write(large, bytes(7 * MIB))
    await write(small, bytes(4 * MIB))
    with pytest.raises(StorageFull):
        await write(small, bytes(2 * MIB))
    assert disk.ledger.held_by("ada") == 11 * MIB
    bea = disk.open("bea")
    await write(bea, bytes(4 * MIB))
    assert disk.ledger.held_by("ada") == 11 * MIB, "there was room for both"
    await write(bea, bytes(3 * MIB))
    assert (disk.ledger.held_by("ada"), disk.ledger.held_by("bea")) == (4 * MIB, 7 * MIB)
    with pytest.raises(StorageFull, match="others got its room"):
        await write(large, b"more")
    for spill in (small, bea):
        spill.end()
    assert (len(await read(small)), len(await read(bea))) == (4 * MIB, 7 * MIB)
    large.end()
    with pytest.raises(StorageFull, match="others got its room"):
        await read(large)
    await disk.spills.ends.finished()
    assert disk.ledger.used == 0
