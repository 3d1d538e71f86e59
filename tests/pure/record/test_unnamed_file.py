"""A file that threads use while others close it: its descriptor is another file's afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellgate.record.unnamed_file import UnnamedFile


@pytest.mark.parametrize("use", [lambda file: file.write([b"mine"]), lambda file: file.read(4, 0)])
def test_who_is_late_touches_nobody_else_s_file(tmp_path: Path, use: Callable[[UnnamedFile], object]) -> None:
    file = UnnamedFile(tmp_path)
    descriptor = file.fileno()
    with (tmp_path / "other").open("w+b", buffering=0) as other:
        other.write(b"theirs")
        file.close()
        os.dup2(other.fileno(), descriptor)
        try:
            with pytest.raises(OSError, match="Bad file descriptor"):
                use(file)
            file.empty()
        finally:
            os.close(descriptor)
    assert (tmp_path / "other").read_bytes() == b"theirs"


def test_the_file_ends_after_a_call_that_is_under_way_and_takes_no_other(tmp_path: Path) -> None:
    file = UnnamedFile(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        with file._open():
            closing = threads.submit(file.close)
            while not file._closing:
                pass
            with pytest.raises(OSError, match="Bad file descriptor"):
                file.write([b"more"])
            assert not file._file.closed
        closing.result(60)
    assert file._file.closed
