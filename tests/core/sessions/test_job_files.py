"""What a job is given and makes: files that are gone with their end, and that leave the record its room."""

from __future__ import annotations

import asyncio
import errno
import os
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from cellgate.errors import JobFailed, QueueFull, StorageError, StorageFull
from cellgate.jobs.job_files import PART, JobFile
from cellgate.jobs.jobs import Jobs
from cellgate.record.spill_ledger import Fixed, Space, SpillLedger
from cellgate_kernels.limits import MIB
from cellgate_kernels.threads import Lane


def space(folder: Path, reserve: int = 0) -> Space:
    """Room on the disk of this folder."""
    return SpillLedger(folder, reserve).open("ada", Fixed())


async def parts() -> AsyncGenerator[bytes, None]:
    yield b"second "
    yield b"third"


async def test_what_is_written_is_read_in_order_and_leaves_no_file(tmp_path: Path, lane: Lane) -> None:
    with JobFile(tmp_path, space(tmp_path), lane) as given:
        await given.write(b"first ")
        await given.take(parts())
        await given.finish()
        assert given.file.read() == b"first second third"
        assert os.listdir(tmp_path) == []  # noqa: PTH208
    assert given.file.closed


async def test_what_a_job_wrote_is_read_in_parts(tmp_path: Path, lane: Lane) -> None:
    written = os.urandom(PART + 1)
    with JobFile(tmp_path, space(tmp_path), lane) as made:
        os.write(made.file.fileno(), written)
        assert [part async for part in made.parts()] == [written[:PART], written[PART:]]
        assert (await made.read(), made.size) == (written, PART + 1)


async def test_the_room_that_the_record_needs_is_left(tmp_path: Path, lane: Lane) -> None:
    with JobFile(tmp_path, space(tmp_path, 1 << 60), lane) as given, pytest.raises(StorageFull):
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
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB
    assert caplog.records[0].getMessage().endswith("over")


async def test_a_folder_that_is_not_there_is_an_error_of_the_storage(tmp_path: Path, lane: Lane) -> None:
    with pytest.raises(StorageError):
        JobFile(tmp_path / "nowhere", space(tmp_path), lane)
