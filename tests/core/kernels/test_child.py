"""Supervised processes: whatever goes wrong with one, it is reaped before its end is told."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from cellgate_kernels.launch.child import Child
from tests.core.kernels.test_pool import until

PATIENCE = 60.0
ASLEEP = ["/bin/sh", "-c", "echo begun >&2; exec sleep 600"]


def failing(*_: Any) -> None:
    raise RuntimeError("a bug")


async def ended(child: Child) -> int | None:
    """The signal that it says it was ended by; it must be gone for good."""
    async with asyncio.timeout(PATIENCE):
        how = await asyncio.shield(child.exited)
    assert not psutil.pid_exists(child.pid), "it is a zombie"
    assert child.started.done()
    return how.signal


def break_log(child: Child, _: pytest.MonkeyPatch) -> None:
    child._log.read = failing  # type: ignore[method-assign,assignment]


def break_end(child: Child, patch: pytest.MonkeyPatch) -> None:
    os.kill(child.pid, signal.SIGKILL)
    patch.setattr(os, "killpg", failing)


def break_last_step(child: Child, _: pytest.MonkeyPatch) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child._finish = failing  # type: ignore[method-assign]


@pytest.mark.parametrize("break_it", [break_log, break_end, break_last_step])
async def test_an_internal_error_ends_it_and_it_is_reaped(
    break_it: Callable[[Child, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = Child(ASLEEP, env={})
    break_it(child, monkeypatch)
    assert await ended(child) == signal.SIGKILL
    assert "a bug" in caplog.text
    caplog.clear()


async def test_one_that_can_not_be_watched_is_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def refused(pid: int) -> int:
        made.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(OSError, match="Too many"):
        Child(ASLEEP, env={})
    assert not psutil.pid_exists(made[0])


async def test_one_that_is_killed_while_it_tells_its_status_has_just_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """bubblewrap writes its status in several pieces."""
    reader, writer = os.pipe()
    child = Child(ASLEEP, env={}, status_fd=reader)
    os.write(writer, b'{\n    "child-pid": 1')
    os.close(writer)
    await until(lambda: child._status_fd is None)
    child.kill()
    assert await ended(child) == signal.SIGKILL
    assert caplog.text == ""
