"""A flush of a kernel's stream: what was written is sent, and nobody waits where nothing is left to send."""

from __future__ import annotations

import queue
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from typing import Any

import pytest

from cellgate_kernels.inside import streams

PATIENCE = 60.0


class Sender:
    """As much of ``ipykernel.iostream.IOPubThread`` as a flush uses."""

    def __init__(self) -> None:
        self.actions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        while action := self.actions.get():
            action()

    def schedule(self, action: Callable[[], None]) -> None:
        self.actions.put(action)


class Stream:
    """As much of ``ipykernel.iostream.OutStream`` as a flush uses."""

    name = "stdout"
    echo = None
    flush_timeout = PATIENCE

    def __init__(self, sender: Any, send: Callable[[str], None]) -> None:
        self.pub_thread = sender
        self.send = send
        self.may_send = threading.Event()
        self.may_send.set()
        self._buffer_lock = threading.RLock()
        self._buffers: dict[str, StringIO] = defaultdict(StringIO)
        self.watch_fd_thread = None
        self.pipe = types.SimpleNamespace(thread=None, drain=lambda: None)

    def write(self, text: str) -> None:
        with self._buffer_lock:
            self._buffers["request"].write(text)
        self._schedule_flush()

    def flush(self) -> None:
        raise AssertionError("the former flush, which always waits")

    def _schedule_flush(self) -> None:
        # By a timer in the other thread.
        self.pub_thread.actions.put(self._flush)

    def _flush(self) -> None:
        taken = self._rotate_buffers()
        assert self.may_send.wait(PATIENCE)
        for buffer in taken.values():
            # ipykernel's session sends by the thread's own `schedule`.
            self.pub_thread.schedule(partial(self.send, buffer.getvalue()))

    def _rotate_buffers(self) -> dict[str, StringIO]:
        taken, self._buffers = self._buffers, defaultdict(StringIO)
        return taken

    def set_parent(self, parent: object) -> None: ...

    def _is_master_process(self) -> bool:
        return True

    def _watch_pipe_fd(self) -> None:
        raise AssertionError("its pipe is another")


@pytest.fixture
def sent() -> list[str]:
    """What has been sent, by the thread that sends."""
    return []


@pytest.fixture
def stream(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stream as kernels have it. Its pipe is empty."""
    # What is changed are the methods of classes: those of this test alone.
    module: Any = types.ModuleType("classes_of_a_test")
    module.IOPubThread = type("IOPubThread", (Sender,), {})
    stream_class: Any = type("OutStream", (Stream,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    streams.mend(stream_class)
    sender = module.IOPubThread()
    made = stream_class(sender, sent.append)
    # A class has none, and the thread that watches sets it.
    made.pipe = types.SimpleNamespace(thread=made.watch_fd_thread, drain=lambda: None)
    yield made
    made.may_send.set()
    sender.actions.put(None)
    sender.thread.join(PATIENCE)


def handed_over(stream: Any) -> list[Callable[[], None]]:
    """What its thread is given to do from now on."""
    given: list[Callable[[], None]] = []
    schedule = stream.pub_thread.schedule_unnoted

    def note(action: Callable[[], None]) -> None:
        given.append(action)
        schedule(action)

    stream.pub_thread.schedule_unnoted = note
    return given


def test_what_was_written_is_sent(stream: Any, sent: list[str]) -> None:
    for number in range(100):
        stream.write(f"{number} ")
        stream.flush()
        assert "".join(sent).endswith(f"{number} ")


def test_nobody_waits_for_nothing(stream: Any) -> None:
    stream.write("text")
    stream.flush()
    given = handed_over(stream)
    stream.flush()
    assert given == []
    stream.write("more")
    stream.flush()
    assert given != []


def test_what_else_the_thread_was_given_is_done(stream: Any, sent: list[str]) -> None:
    stream.flush()
    # Such as a picture, which is sent by the same thread.
    stream.pub_thread.schedule(lambda: sent.append("shown"))
    stream.flush()
    assert sent == ["shown"]


def test_text_that_is_just_being_sent_is_waited_for(stream: Any, sent: list[str]) -> None:
    stream.may_send.clear()
    stream.write("text")
    while stream._buffers:
        threading.Event().wait(0.001)
    # The thread has taken it by itself, and is in the middle of sending it.
    end = threading.Timer(0.1, stream.may_send.set)
    end.start()
    stream.flush()
    sent.append("flushed")
    end.join(PATIENCE)
    assert sent == ["text", "flushed"]
