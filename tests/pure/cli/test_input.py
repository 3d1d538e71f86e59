"""What is read of stdin: pieces of any size, and how reading is given up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from cellgate.cli.run.input import Lines
from cellgate_kernels.base.errors import InvalidInput


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe: the one to read from, and the one to write to."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


async def test_reading_that_is_given_up_leaves_nothing_that_waits(pipe: tuple[int, int]) -> None:
    """Ctrl-C would wait for a thread that reads, until its user thought of Ctrl-D."""
    reader, writer = pipe
    lines = Lines(reader)
    reading = asyncio.create_task(lines.rest())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    os.write(writer, "grüße\r\n".encode())
    assert await lines.next() == "grüße"
    os.write(writer, b"x = 1\r\nx\n")
    os.close(writer)
    assert await lines.rest() == "x = 1\nx\n"
    assert await lines.rest() == ""


async def test_what_is_no_text_is_refused(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"\xff\xfe")
    os.close(writer)
    with pytest.raises(InvalidInput, match="stdin is not text"):
        await Lines(reader).rest()
