"""What a job is given and makes: files that are gone with their end, and that leave the record its room."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from gateway.job_files import PART, JobFile
from gateway.jobs import Jobs
from gateway.record.errors import StorageError, StorageFull


async def parts() -> AsyncGenerator[bytes, None]:
    yield b"second "
    yield b"third"


async def test_what_is_written_is_read_in_order_and_leaves_no_file(tmp_path: Path) -> None:
    with JobFile(tmp_path, 0) as given:
        await given.write(b"first ")
        await given.take(parts())
        await given.finish()
        assert given.file.read() == b"first second third"
        assert os.listdir(tmp_path) == []  # noqa: PTH208
    assert given.file.closed


async def test_what_a_job_wrote_is_read_in_parts(tmp_path: Path) -> None:
    written = os.urandom(PART + 1)
    with JobFile(tmp_path, 0) as made:
        os.write(made.file.fileno(), written)
        assert [part async for part in made.parts()] == [written[:PART], written[PART:]]
        assert (await made.read(), made.size) == (written, PART + 1)


async def test_the_room_that_the_record_needs_is_left(tmp_path: Path) -> None:
    with JobFile(tmp_path, 1 << 60) as given, pytest.raises(StorageFull):
        await given.take(parts())


async def test_what_a_job_makes_leaves_that_room_too(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, 0)
    with jobs.file() as given, JobFile(tmp_path, 1 << 60) as none, jobs.file() as enough:
        await given.write(nbformat.writes(new_notebook(cells=[new_code_cell("x = 1")])).encode())
        with pytest.raises(StorageFull):
            await jobs.run("gateway.record.convert", "markdown", given=given, made=none)
        await jobs.run("gateway.record.convert", "markdown", given=given, made=enough)
        assert b"x = 1" in await enough.read()


def test_a_folder_that_is_not_there_is_an_error_of_the_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        JobFile(tmp_path / "nowhere", 0)
