"""The file of quotas: read at the start, and again when it has changed, without a restart.

A file that can't be used is an error at the start. While the gateway serves it is only logged, once for each
change, and the former quotas stay. ``quotas`` interprets the content.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cellgate.quotas.quotas import Policy, parse_quotas
from cellgate_kernels.base.errors import InvalidInput, in_brief
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

LARGEST_FILE = 16 * MIB
"""Ten thousand principals with ten keys each take a sixth of it."""
LOOK_SECONDS = 1.0
SETTLED_SECONDS = 2.0
"""Seconds after a change during which the file is read again: a further change may have the same time."""

State = tuple[int, ...] | str


def read_quotas(path: Path) -> Policy:
    """Return the policy in the file. Blocking. Raises InvalidInput with the file and the fault."""
    try:
        content = read_regular(path, LARGEST_FILE + 1)
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {in_brief(error)}") from error
    if len(content) > LARGEST_FILE:
        raise InvalidInput(f"{path} is larger than the {LARGEST_FILE // MIB} MiB that are read")
    return parse_quotas(content, str(path))


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The file of quotas and its policy at the start; without a file nobody has quotas."""

    file: Path | None = None
    policy: Policy = field(default_factory=Policy)


class QuotasFile:
    """Watches the file, and gives each new policy to `changed`. `lane`: threads that read it."""

    def __init__(self, path: Path, policy: Policy, changed: Callable[[Policy], None], lane: Lane) -> None:
        self._path = path
        self._policy = policy
        self._changed = changed
        self._lane = lane
        self._state: State | None = None
        self._problem: str | None = None
        self._tasks = Supervisor(lambda: {"file": str(path)})

    def start(self) -> None:
        """Look once a second whether the file has changed."""
        self._tasks.repeat(self.look, "watch the quotas", pause=LOOK_SECONDS)

    async def close(self) -> None:
        """Stop watching the file."""
        await self._tasks.cancel()

    async def look(self) -> float:
        """Read the file if it has changed; return the seconds until the next look."""
        state, found = await self._lane.run(_look, self._path, self._state)
        self._state = state
        if isinstance(found, Policy):
            self._take(found)
        elif found is not None and found != self._problem:
            self._problem = found
            logger.warning("The quotas stay as they were: %s", found)
        return LOOK_SECONDS

    def _take(self, policy: Policy) -> None:
        if policy != self._policy:
            self._policy = policy
            self._changed(policy)
            logger.info("The quotas of %s apply now", self._path)
        elif self._problem is not None:
            logger.info("The quotas of %s are as before", self._path)
        self._problem = None


def _look(path: Path, known: State | None) -> tuple[State | None, Policy | str | None]:
    """Return the file's state, None to read it again, and its policy or fault unless it is `known`."""
    state = _state(path)
    if state == known:
        return state, None
    try:
        found: Policy | str = read_quotas(path)
    except InvalidInput as error:
        found = error.message
        if isinstance(error.__cause__, OSError):
            # There may be too many open files: the file can be read afterwards, without having changed.
            return None, found
    return (state if _settled(state) else None), found


def _state(path: Path) -> State:
    try:
        status = os.stat(path)  # noqa: PTH116 - all of it in one call
    except OSError as error:
        return in_brief(error)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _settled(state: State) -> bool:
    """Return whether a later change would show in the file's state: clocks of file systems tick coarsely."""
    return isinstance(state, str) or abs(time.time() - state[4] / 1e9) > SETTLED_SECONDS
