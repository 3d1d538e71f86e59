"""Whose a native thread is: looked up once it waits, and until then; one that never waits is named."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from cellgate_kernels.inside import native
from tests.support.native_thread import CODE, NativeThread

pytestmark = pytest.mark.skipif(platform.machine() not in CODE, reason="no machine code for this processor")


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeThread]:
    thread = NativeThread()  # the only one looked at: other tests' libraries have some that run
    monkeypatch.setattr(native.os, "listdir", lambda _: [thread.task.name])
    yield thread
    thread.end()


def area(thread: NativeThread) -> tuple[int, int, str]:
    return thread.start, thread.end_of_code, "a library"


def test_a_thread_that_runs_is_looked_at_until_it_waits(thread: NativeThread) -> None:
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            thread.rest()

    assert thread.is_running()
    assert native.owners([area(thread)], pause) == {"a library"}
    assert pauses == 3
    assert native.owners([], pause) == set()
    assert pauses == 3


def test_a_thread_that_never_waits_is_named(thread: NativeThread) -> None:
    pauses: list[None] = []
    (named,) = native.owners([area(thread)], lambda: pauses.append(None))
    name = (thread.task / "comm").read_text().strip()
    assert named == f"{name} (running)"
    assert len(pauses) == native.LOOKS - 1
