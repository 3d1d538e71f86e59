"""What an isolation backend does for a kernel: start it within its limits, signal and end it, read its log.

A backend is a subclass of ``CellgateProvisioner`` (``base``), which asks it and does the rest. jupyter_client
finds backends as entry points; ``cellgate_kernels.testing.backend`` is their contract as tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import abstractmethod
from collections.abc import Mapping
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
        """Return the end for a code of subprocess: negative for the signal that ended the process."""
        if returncode >= 0:
            return cls("kernel_exit", returncode, None, f"The kernel exited with code {returncode}.")
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-returncode, f"signal {-returncode}")
        return cls("kernel_exit", None, -returncode, f"The kernel was ended by {name}.")

    @classmethod
    def of_shell_code(cls, code: int) -> KernelExit:
        """Return the end for a code of a shell, bwrap or an engine: 128 plus the signal's number."""
        known = {number.value for number in signal.Signals}
        return cls.of_returncode(128 - code if code - 128 in known else code)

    @property
    def returncode(self) -> int:
        """The inverse of `of_returncode`, for jupyter_client's `poll` and `wait`."""
        if self.signal is not None:
            return -self.signal
        return self.code or 0


@dataclass(frozen=True, slots=True)
class KernelView:
    """Paths as the kernel sees them: its connection file, the prefix of its sockets, its home.

    `packages`, `egress`, `branches`: the folders of those names in its launch, if there are any. `egress` is
    empty where a kernel can't be kept from a network in other ways, so that a proxy would limit nothing.
    """

    connection_file: str
    socket_prefix: str
    home: str
    packages: str = "/run/packages"
    egress: str = ""
    workspace: str = "/workspace"
    branches: str = "/branches"


class Sharing(Protocol):
    """The kernels of one sandbox, once there are several; ``sharing`` has it."""

    @property
    def workspaces(self) -> int:
        """The number of workspaces of all kernels in the sandbox."""

    def end(self, kernel_id: str) -> bool:
        """End this kernel alone; returns False where it is the last, whose sandbox is to end with it."""

    async def vacate(self, kernel_id: str) -> tuple[Path, ...]:
        """Leave the sandbox after the kernel's end; return the folders that nobody else needs."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a backend needs to start a kernel: `folders` by the host's paths, `argv` and `env` by its own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: ResourceLimits
    folders: LaunchFolders


class IsolationBackend(KernelProvisionerBase):
    """The calls that each backend answers, with answers for those that few backends need.

    A backend is asked in this order: `check`; for each launch `_view`, `_check_program`, `_start`; then at
    any time `_signal`, `_end`, `log_tail`, `image_used`, `process`; `files_given` before the first cell; for
    each fork in the sandbox `branch_files_given`, then `make_names`; `explain_kill` after an end; `detach` at
    last, if the kernel is to outlive this program. All on the loop's thread, where only a coroutine may wait.
    What concerns the whole sandbox is asked of its first kernel's provisioner, also after that kernel's end.
    """

    isolation: str = "none"
    """``none``, ``sandbox``, ``container`` or ``gvisor``."""

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
        """Completed when nothing is left of the kernel's sandbox. Only after a launch."""

    @property
    def image_used(self) -> Mapping[str, str]:
        """`image` and `image_digest` of the container image that the kernel runs in; empty without one."""
        return {}

    @property
    def process(self) -> int | None:
        """The kernel's first process, an ancestor of its others; None if it isn't known on this machine."""
        return None

    @property
    def has_neighbours(self) -> bool:
        """Whether kernels that are not its branches may be in its sandbox or container."""
        return False

    def was_alone(self) -> bool:
        """Return whether no such kernel has been there so far, which could answer for it."""
        return not self.has_neighbours

    @classmethod
    @abstractmethod
    async def check(cls) -> None:
        """Try the backend for real, before any launch. Raises BackendUnavailable, saying what to install."""

    @abstractmethod
    def _view(self, folders: LaunchFolders) -> KernelView:
        """Return the paths at which a kernel of this backend sees `folders`.

        Called before `_start` too, and often: it makes nothing, and says the same of the same folders.
        """

    @abstractmethod
    async def _start(self, launch: Launch) -> None:
        """Start the kernel; returns when its process runs, which is long before it is ready.

        Called once for each launch, when its folders and its connection file are there. Calls `_follow` as
        soon as there is something to end: from then on this may be cancelled, and `_end` be called. A failure
        before that leaves no process. Raises KernelStartFailed, BackendUnavailable.
        """

    @abstractmethod
    def _end(self) -> None:
        """Start ending the kernel, and return at once; `_exited` completes when all its processes are gone.

        Called after `_follow`, also while `_start` waits, as often as somebody wants the end.
        """

    @abstractmethod
    def _signal(self, signum: int) -> None:
        """Send a signal to the kernel. Called only after `_follow` and before the end.

        SIGKILL and SIGTERM end it at least. Raises InvalidInput for a signal that the backend can't deliver.
        """

    @abstractmethod
    async def log_tail(self) -> str:
        """Return the end of the stderr of the kernel's process itself, at most 8 KiB; "" where there is none.

        Called when a start has failed, before `_end`, which may remove it. User code may have written it.
        """

    async def explain_kill(self) -> KernelExit | None:
        """Return why a kernel or held fork was killed whose sandbox goes on; None if that isn't known.

        Called right after the keeper has told of a SIGKILL that we did not send.
        """
        return None

    def detach(self) -> None:
        """Stop managing the kernel and let it outlive this program, if it is `adoptable`; called last of all.

        One that can't be adopted ends: now, or with this program.
        """

    async def files_given(self) -> None:
        """Let the kernel have files that were put into its workspace, and don't count them as its own use.

        Called at most once, after the start and before any code of a client has run.
        """

    async def make_names(self, folder: str, forked: int) -> Names | None:
        """Return names for the workspace of a kernel that is about to be forked in its sandbox; None without.

        Then the workspace's name there is that of the kernel that is forked. The caller closes the names when
        the fork has entered them, or failed. `folder`: that workspace, as the sandbox's first kernel sees it.
        `forked`: the process that is forked, numbered as there.
        """
        return None

    async def branch_files_given(self) -> None:
        """Let kernels of the sandbox have the files in its workspaces: those of a branch were just put there.

        Called before each fork that has a workspace of its own.
        """

    def _check_program(self, path: str) -> None:
        """Check that the kernel's program is where it will run. Raises KernelStartFailed."""
        if not os.access(path, os.X_OK):
            raise KernelStartFailed(
                f"The kernelspec's program {path!r} is not an executable file at an absolute path."
            )

    def _follow(self, gone: asyncio.Future[KernelExit]) -> None:
        """End the kernel when all its processes are gone, unless it has ended before that."""
        self.gone = gone
        self._exited = exited = asyncio.get_running_loop().create_future()

        def ended(_: asyncio.Future[KernelExit]) -> None:
            if not exited.done():
                exited.set_result(gone.result())

        gone.add_done_callback(ended)
