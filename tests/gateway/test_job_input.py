"""What a job is given: a file that is gone with its end, and that leaves the record its room."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.job_input import JobInput
from gateway.record.errors import StorageError, StorageFull


async def parts() -> AsyncGenerator[bytes, None]:
    yield b"second "
    yield b"third"


async def test_what_is_written_is_read_in_order_and_leaves_no_file(tmp_path: Path) -> None:
    with JobInput(tmp_path, 0) as given:
        await given.write(b"first ")
        await given.take(parts())
        await given.finish()
        assert given.file.read() == b"first second third"
        assert os.listdir(tmp_path) == []  # noqa: PTH208
    assert given.file.closed


async def test_the_room_that_the_record_needs_is_left(tmp_path: Path) -> None:
    with JobInput(tmp_path, 1 << 60) as given, pytest.raises(StorageFull):
        await given.take(parts())


def test_a_folder_that_is_not_there_is_an_error_of_the_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        JobInput(tmp_path / "nowhere", 0)
