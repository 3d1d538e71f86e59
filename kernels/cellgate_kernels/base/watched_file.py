"""A file of the operator's that is read again when it has changed, without a restart.

A file that can't be used changes nothing: it is logged, once for each change, and the former value stays.
``changed`` is told of each new value. The owner of the file says what a value is, and reads it at the start.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from cellgate_kernels.base.errors import InvalidInput, in_brief
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SETTLED_SECONDS = 2.0
"""Seconds after a change during which the file is read again: a further change may have the same time."""

T = TypeVar("T")
State = tuple[int, ...] | str


@dataclass(frozen=True, slots=True)
class FileForm(Generic[T]):
    """A kind of file. `content`: what is in it, in a word. `read` blocks, and raises InvalidInput."""

    content: str
    read: Callable[[Path], T]


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """What a look found. `state`: None to read the file again; `values`: none if it is as it was."""

    state: State | None
    values: tuple[T, ...] = field(default=(), repr=False)
    problem: str | None = None


class WatchedFile(Generic[T]):
    """Watches the file, and gives each new value to `changed`. `value`: that at the start.

    `lane`: threads that read it.
    """

    def __init__(
        self, path: Path, form: FileForm[T], value: T, changed: Callable[[T], Awaitable[object]], lane: Lane
    ) -> None:
        self._path = path
        self._form = form
        self._value = value
        self._changed = changed
        self._lane = lane
        self._state: State | None = None
        self._problem: str | None = None
        self._tasks = Supervisor(lambda: {"file": str(path)})

    def start(self) -> None:
        """Look once a second whether the file has changed."""
        self._tasks.repeat(self.look, f"watch the {self._form.content}", pause=LOOK_SECONDS)

    async def close(self) -> None:
        """Stop watching the file."""
        await self._tasks.cancel()

    async def look(self) -> float:
        """Read the file if it has changed; return the seconds until the next look."""
        found = await self._lane.run(_look, self._path, self._form, self._state)
        for value in found.values:
            await self._take(value)
        # A value that could not be taken is tried again.
        self._state = found.state
        if found.problem is not None and found.problem != self._problem:
            self._problem = found.problem
            logger.warning("The gateway keeps the former %s: %s", self._form.content, found.problem)
        return LOOK_SECONDS

    async def _take(self, value: T) -> None:
        if value != self._value:
            await self._changed(value)
            self._value = value
            logger.info("The gateway took the %s of %s", self._form.content, self._path)
        elif self._problem is not None:
            logger.info("The gateway found the former %s in %s again", self._form.content, self._path)
        self._problem = None


def _look(path: Path, form: FileForm[T], known: State | None) -> _Found[T]:
    """Return the file's state, and its value or fault unless it is `known`."""
    state = _state(path)
    if state == known:
        return _Found(state)
    kept = state if _settled(state) else None
    try:
        return _Found(kept, (form.read(path),))
    except InvalidInput as error:
        # There may be too many open files: the file can be read afterwards, without having changed.
        return _Found(None if isinstance(error.__cause__, OSError) else kept, problem=error.message)


def _state(path: Path) -> State:
    try:
        status = os.stat(path)  # noqa: PTH116 - all of it in one call
    except OSError as error:
        return in_brief(error)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _settled(state: State) -> bool:
    """Return whether a later change would show in the file's state: clocks of file systems tick coarsely."""
    return isinstance(state, str) or abs(time.time() - state[4] / 1e9) > SETTLED_SECONDS
