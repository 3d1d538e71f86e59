"""The calls of an isolation backend: start a kernel within its limits, signal and end it, read its log.

A backend is a subclass of ``CellgateProvisioner`` (``base``), which does the rest. jupyter_client finds
backends as entry points; ``cellgate_kernels.testing.backend`` is their contract as tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from traitlets import Int, List, Unicode

from cellgate_kernels.base.errors import KernelStartFailed

if TYPE_CHECKING:
    from cellgate_kernels.base.resources import ResourceLimits
    from cellgate_kernels.launch.folders import LaunchFolders
    from cellgate_kernels.launch.names import Names


@dataclass(frozen=True, slots=True)
class KernelExit:
    """How a kernel ended: `cause` is a stable word, `message` a public sentence, `code` or `signal` None."""

    cause: str
    code: int | None
    signal: int | None
    message: str

    @classmethod
    def of_returncode(cls, returncode: int) -> KernelExit:
        """Return the exit for a return code of subprocess; a negative code is the number of a signal."""
        if returncode >= 0:
            return cls("kernel_exit", returncode, None, f"The kernel exited with code {returncode}.")
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-returncode, f"signal {-returncode}")
        return cls("kernel_exit", None, -returncode, f"The kernel was ended by {name}.")

    @classmethod
    def of_shell_code(cls, code: int) -> KernelExit:
        """Return the exit for a code of a shell, bwrap or an engine: 128 plus n is the end by signal n."""
        known = {number.value for number in signal.Signals}
        return cls.of_returncode(128 - code if code - 128 in known else code)

    @property
    def returncode(self) -> int:
        """The exit as a return code of subprocess, for jupyter_client's `poll` and `wait`."""
        if self.signal is not None:
            return -self.signal
        return self.code or 0


@dataclass(frozen=True, slots=True)
class KernelView:
    """Paths as the kernel sees them: its connection file, the prefix of its sockets, its home.

    `packages`, `egress`, `branches`: the launch's folders of those names, if there are any. `egress` is empty
    where the kernel has the host's network anyway, so that a proxy would limit nothing.
    """

    connection_file: str
    socket_prefix: str
    home: str
    packages: str = "/run/packages"
    egress: str = ""
    workspace: str = "/workspace"
    branches: str = "/branches"


class Sharing(Protocol):
    """The kernels of one sandbox, once there are several; implemented in ``sharing``."""

    @property
    def workspaces(self) -> int:
        """The number of workspaces of all kernels in the sandbox."""

    def end(self, kernel_id: str) -> bool:
        """End this kernel alone. Returns False if it is the last one: then the sandbox has to end as well."""

    async def vacate(self, kernel_id: str) -> tuple[Path, ...]:
        """Leave the sandbox after the kernel's end; return the folders that no other kernel needs."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A backend's input for starting a kernel: `folders` by the host's paths, `argv` and `env` by its own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: ResourceLimits
    folders: LaunchFolders


class IsolationBackend(KernelProvisionerBase):
    """The calls that every backend answers, with defaults for calls that few backends need.

    A backend is called in this order: `check`; for each launch `_view`, `_check_program`, `_start`; then at
    any time `_signal`, `_end`, `log_tail`, `image_used`, `process`; `files_given` before the first cell; for
    each fork in the sandbox `branch_files_given`, then `make_names`; `explain_kill` after an end; `detach` at
    last, if the kernel is to outlive this program. All on the loop's thread, where only a coroutine may wait.
    Calls about the whole sandbox go to its first kernel's provisioner, even after that kernel's end.
    """

    isolation: str = "none"
    """``none``, ``landlock``, ``sandbox``, ``container`` or ``gvisor``."""

    adoptable: bool = False
    """Whether the kernel can outlive this program, and another can take it over."""

    way: str = "cold"
    """How the kernel was started: ``cold``, as a program, or as a ``fork`` of one that had its modules."""

    readable: List[str] = List(
        Unicode(), help="Host paths that the kernel needs to read: its environment and its interpreter."
    )
    reserved = Int(0, help="Bytes that the program reserves and leaves unused; no part of its memory limit.")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._exited: asyncio.Future[KernelExit] | None = None
        self.gone: asyncio.Future[KernelExit]
        """Completed when all processes of the kernel's sandbox are gone. Only after a launch."""
        self.last_look: Callable[[], None] | None = None
        """Called when the first process has ended and its control group is still there, if we notice."""

    @property
    def image_used(self) -> Mapping[str, str]:
        """`image` and `image_digest` of the container image that the kernel runs in; empty without one."""
        return {}

    @property
    def process(self) -> int | None:
        """The kernel's first process, an ancestor of all others; None if its id here isn't known."""
        return None

    @property
    def has_neighbours(self) -> bool:
        """Whether the sandbox or container may have kernels that are not branches of this one."""
        return False

    def was_alone(self) -> bool:
        """Return whether this kernel has had no neighbours so far: a neighbour could answer in its place."""
        return not self.has_neighbours

    @classmethod
    @abstractmethod
    async def check(cls) -> None:
        """Try the backend before any launch. Raises BackendUnavailable with advice on what to install."""

    @abstractmethod
    def _view(self, folders: LaunchFolders) -> KernelView:
        """Return the paths at which a kernel of this backend sees `folders`.

        Called often, also before `_start`: it creates nothing, and equal folders give an equal view.
        """

    @abstractmethod
    async def _start(self, launch: Launch) -> None:
        """Start the kernel; returns when its process runs, which is long before it is ready.

        Called once for each launch, when its folders and its connection file are there. Calls `_follow` as
        soon as a process exists: from then on this may be cancelled, and `_end` be called. A failure before
        `_follow` leaves no process. Raises KernelStartFailed, BackendUnavailable.
        """

    @abstractmethod
    def _end(self) -> None:
        """Start ending the kernel, and return at once; `_exited` completes when all its processes are gone.

        Called after `_follow`, also while `_start` waits, and possibly several times.
        """

    @abstractmethod
    def _signal(self, signum: int) -> None:
        """Send a signal to the kernel. Called only after `_follow` and before the end.

        SIGKILL and SIGTERM always end the kernel. Raises InvalidInput for a signal that can't be delivered.
        """

    @abstractmethod
    async def log_tail(self) -> str:
        """Return at most the last 8 KiB of the kernel process's own stderr; "" where there is none.

        Called when a start has failed, before `_end`, which may remove the log. User code may have forged it.
        """

    async def explain_kill(self) -> KernelExit | None:
        """Return why a kernel or held fork was killed while its sandbox goes on; None if unknown.

        Called right after the keeper has reported a SIGKILL that the gateway did not send.
        """
        return None

    def detach(self) -> None:
        """Stop managing the kernel and let it outlive this program, if it is `adoptable`; called last of all.

        A kernel that can't be adopted ends: now, or with this program.
        """

    async def files_given(self) -> None:
        """Make files put into the workspace accessible to the kernel, and leave them out of its disk use.

        Called at most once, after the start and before any code of a client has run.
        """

    async def make_names(self, folder: str, forked: int) -> Names | None:
        """Return names for the workspace of a kernel about to be forked in its sandbox, or None.

        With names, the fork sees its workspace at the path that the forked kernel has for its own. The caller
        closes the names when the fork has entered them, or failed. `folder`: the new workspace, as the
        sandbox's first kernel sees it. `forked`: the process that is forked, by its number in the sandbox.
        """
        return None

    async def branch_files_given(self) -> None:
        """Make the files that were just put into a branch's workspace accessible to the sandbox's kernels.

        Called before each fork that has a workspace of its own.
        """

    def _check_program(self, path: str) -> None:
        """Check that the kernel's program exists where it will run. Raises KernelStartFailed."""
        if not os.access(path, os.X_OK):
            raise KernelStartFailed(
                f"The kernelspec's program {path!r} is not an executable file at an absolute path."
            )

    def _look_last(self) -> None:
        """Let whoever measures the kernel look for the last time."""
        if self.last_look is not None:
            self.last_look()

    def _follow(self, gone: asyncio.Future[KernelExit]) -> None:
        """Mark the kernel as ended when all its processes are gone, unless its end is known before."""
        self.gone = gone
        self._exited = exited = asyncio.get_running_loop().create_future()

        def ended(_: asyncio.Future[KernelExit]) -> None:
            if not exited.done():
                exited.set_result(gone.result())

        gone.add_done_callback(ended)
