"""How people are told errors: the system's words, without its number."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import closing
from pathlib import Path

import pytest

from cellgate_kernels.base.errors import InvalidInput, in_brief, in_words


def test_the_words_of_the_system_and_the_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as caught:
        missing.read_text()
    assert in_words(caught.value) == f"No such file or directory ({missing})"
    assert in_brief(caught.value) == "No such file or directory"


def test_a_file_of_bytes_and_a_descriptor() -> None:
    assert in_words(OSError(errno.EIO, "Input/output error", b"a")) == "Input/output error (a)"
    assert in_words(OSError(errno.EBADF, "Bad file descriptor", 7)) == "Bad file descriptor"


async def test_the_number_within_a_librarys_own_words() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="rrno") as caught:
            await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", port)
    told = in_words(caught.value)
    assert "rrno" not in told
    assert "address already in use" in told
    assert (
        in_words(OSError("Connection aborted: [Errno 2] No such file")) == "Connection aborted: No such file"
    )


def test_errors_without_words() -> None:
    assert in_words(TimeoutError()) == "TimeoutError"
    assert in_words(RuntimeError()) == "RuntimeError"


def test_errors_of_others_are_told_as_they_are() -> None:
    assert in_words(InvalidInput("Choose another")) == "Choose another"
