"""The pipe of a kernel's children: one thread reads it, and whoever ends a cell waits for that thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cellgate_kernels.inside import streams

PATIENCE = 60.0


class Stream:
    """As much of ipykernel's stream as the pipe uses."""

    def __init__(self, descriptor: int, written: Callable[[str], None]) -> None:
        self._fid = descriptor
        self._should_watch = True
        self._exc = None
        self.pipe: streams.Pipe | None = None
        self.write = written


@contextmanager
def watched(written: Callable[[str], None]) -> Iterator[tuple[int, streams.Pipe]]:
    """The writing end of a pipe, and the pipe; a thread reads it and calls `written` with what it read."""
    reader, writer = os.pipe()
    stream = Stream(reader, written)
    thread = threading.Thread(target=streams.watch, args=(stream,))
    thread.start()
    try:
        while stream.pipe is None:
            thread.join(0.001)
        yield writer, stream.pipe
    finally:
        os.close(writer)
        thread.join(PATIENCE)
        os.close(reader)
    assert not thread.is_alive()


def test_a_pipe_is_drained_once_all_of_it_was_passed_on() -> None:
    passed: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def write(text: str) -> None:
        begun.set()
        assert go.wait(PATIENCE)
        passed.append(text)

    with watched(write) as (writer, pipe):
        os.write(writer, b"one ")
        assert begun.wait(PATIENCE)
        os.write(writer, b"two")
        seen: list[str] = []
        cell = threading.Thread(target=lambda: (pipe.drain(), seen.append("".join(passed))))
        cell.start()
        # The thread has what was written first, and nobody else may read on in its place.
        cell.join(0.05)
        assert seen == []
        go.set()
        cell.join(PATIENCE)
        assert seen == ["one two"]


def test_a_child_that_writes_for_ever_holds_up_no_cell() -> None:
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            os.write(end, b"x" * 4096)

    with watched(lambda _: None) as (writer, pipe):
        end = writer
        child = threading.Thread(target=flood)
        child.start()
        pipe.drain()
        ended.set()
        child.join(PATIENCE)
    assert not child.is_alive()


def test_a_pipe_that_nobody_reads_any_more_holds_up_no_cell() -> None:
    with watched(lambda _: None) as (writer, pipe):
        pipe.stream._should_watch = False
        os.write(writer, b"the last that is read")
        pipe.thread.join(PATIENCE)
        os.write(writer, b"unread")
        pipe.drain()
        assert pipe.wait(0)
