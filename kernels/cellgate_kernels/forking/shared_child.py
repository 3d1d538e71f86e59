"""A zygote in a shared container, and the kernels forked from it, as processes of this machine.

``shared_containers`` starts the container and describes each kernel. Unlike a sandbox's, these kernels have
no namespace of their own that would end with them: each has a keeper and, mostly, a cgroup.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.engine.engine import Container, Engine
from cellgate_kernels.forking.forker import ForkedChild, Forker, process_of
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.limits.cgroups import Cgroup
from cellgate_kernels.limits.disk_watch import Watched

logger = logging.getLogger(__name__)

_INSIST_AFTER = 1.0
"""Seconds after which a kernel is killed whose keeper was asked to end it."""


def _namespace(process: int) -> tuple[int, int]:
    """Return device and inode of the PID namespace of a process. Raises OSError."""
    found = Path(f"/proc/{process}/ns/pid").stat()
    return found.st_dev, found.st_ino


def number_inside(process: int) -> int | None:
    """Return a process's number in its own PID namespace; None if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), None)


@dataclass(slots=True)
class ZygoteContainer:
    """The zygote's container, as its `Forker` sees it."""

    engine: Engine
    container: Container

    @property
    def exited(self) -> asyncio.Future[KernelExit]:
        """Completed when the container has ended."""
        return self.container.exited

    def kill(self) -> None:
        """Start ending the container with all its kernels."""
        self.engine.end(self.container)

    def log_tail(self) -> str:
        """Return the end of the container's log."""
        return self.container.log or ""


class SharedForker(Forker):
    """A zygote in a container."""

    def __init__(
        self,
        outer: ZygoteContainer,
        control: socket.socket,
        common: Mapping[str, str],
        tasks: Supervisor,
        container: Container,
    ) -> None:
        super().__init__(outer, control, common, tasks)
        self._container = container

    async def start(self, modules: Sequence[str]) -> None:
        """Wait until the zygote has loaded these modules. Raises NotForked."""
        await self._begin(json.dumps({"modules": list(modules)}).encode())

    def _check_child(self, pidfd: int) -> None:
        """Raise NotForked or OSError unless it is a process of this container.

        A process that has taken the zygote over can send any descriptor, such as one of the gateway's own
        process, which is at the other end of their connection. And we signal the child as root.
        """
        watched = self._container.watched
        process = process_of(pidfd)
        if process is None or process == os.getpid() or watched is None or watched.process is None:
            raise NotForked("the zygote sent something else than its child")
        if _namespace(process) != _namespace(watched.process) or process_of(pidfd) != process:
            raise NotForked("the zygote sent a process that is not of its container")

    def _doubt(self, why: str) -> None:
        super()._doubt(why)
        self.kill()

    def _new_child(self, pidfd: int, cgroup: Cgroup | None, limits: ResourceLimits) -> ForkedChild:
        return SharedChild(pidfd, cgroup, limits.memory, self._tasks, self._container)


class SharedChild(ForkedChild):
    """A kernel's keeper in a shared container, which has no namespace of its own to end with it."""

    def __init__(
        self, pidfd: int, cgroup: Cgroup | None, memory: int, tasks: Supervisor, container: Container
    ) -> None:
        super().__init__(pidfd, cgroup, memory, tasks)
        self._container = container
        self.watched: Watched | None = None
        self.folders: tuple[Path, ...] = ()
        self.workspaces: Callable[[], int] = lambda: 1

    def kill(self, fate: KernelExit | None = None, first: int | None = None) -> None:
        """End it with all its processes: its cgroup's, or without one the processes that its keeper knows."""
        self._fate.given = self._fate.given or fate
        if self._fate.killed:
            return
        self._fate.killed = True
        if self._cgroup is not None:
            self.signal(signal.SIGKILL)
            self._tasks.start(self._clear(), "end of a kernel's processes")
            return
        # Asks the keeper to end all processes that it has started.
        self.signal(signal.SIGQUIT)
        self._loop.call_later(_INSIST_AFTER, self._guard(lambda: self.signal(signal.SIGKILL)))

    async def explain_kill(self) -> KernelExit | None:
        if self._cgroup is not None:
            return await super().explain_kill()
        return await Engine.explain_kill(self._container)

    async def _clear(self) -> None:
        """Kill the remaining processes of its cgroup. Without one they last as long as the container."""
        if self._cgroup is not None:
            with suppress(OSError):
                await asyncio.to_thread(self._cgroup.kill)

    async def _seal(self) -> None:
        """Close its folders to neighbours; their next owner gives them to its kernel's user."""
        try:
            await asyncio.to_thread(_take, self.folders)
        except OSError as error:
            logger.warning("A kernel's files can't be kept from others: %s", in_words(error))


def _take(folders: Sequence[Path]) -> None:
    """Make folders the gateway's alone. Their parents belong to root, so they can't be links."""
    for folder in folders:
        with suppress(FileNotFoundError):
            os.chown(folder, os.geteuid(), os.getegid(), follow_symlinks=False)
            folder.chmod(0o700)
