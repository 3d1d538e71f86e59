"""The folders of one launch: a private runtime folder for sockets, and the workspace.

Code in a kernel can write to both (in the sandbox: to the sockets folder and the workspace). So links in the
folders are never followed, and ``cellgate_kernels.base.trees`` removes the folders.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import KernelStartFailed, in_words

# sun_path of unix(7) holds 108 bytes including the final NUL.
SOCKET_PATH_MAX = 107

PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
_PASSES = trees.NO_OPEN_FILES | {errno.ENOTEMPTY}

EGRESS = "egress"
"""The folder in the runtime folder with the socket of the egress proxy. The kernel can't write to it."""

SOCKETS = "ipc"
"""The folder in the runtime folder that the kernel can write to."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaunchFolders:
    """The host folders of one kernel. The gateway removes `runtime`, and `workspace` if the gateway made it.

    `packages`, `branches` and `egress` exist, or are None: modules that the kernel may only read, workspaces
    of its branches, and the proxy's socket that the kernel connects to. `elsewhere`: the folder of its
    sockets, if that is not in `runtime`; the gateway removes `elsewhere` too.
    """

    runtime: Path
    workspace: Path
    owns_workspace: bool
    packages: Path | None = None
    egress: Path | None = None
    branches: Path | None = None
    elsewhere: Path | None = None

    @classmethod
    def make(
        cls,
        runtime: Path | None,
        workspace: Path | None,
        packages: Path | None = None,
        *,
        egress: bool = False,
        branches: Path | None = None,
        sockets: Path | None = None,
    ) -> LaunchFolders:
        """Make missing folders, private to this user. Raises KernelStartFailed when a path is too long."""
        made = [] if runtime else [Path(tempfile.mkdtemp(prefix="cellgate-"))]
        runtime = (runtime or made[0]).absolute()
        try:
            if workspace is None:
                made.append(Path(tempfile.mkdtemp(prefix="cellgate-workspace-")))
            packages = None if packages is None else packages.resolve(strict=True)
            branches = None if branches is None else branches.resolve(strict=True)
            way_out = runtime / EGRESS if egress else None
            workspace_path = (workspace or made[-1]).resolve(strict=True)
            folders = cls(runtime, workspace_path, workspace is None, packages, way_out, branches, sockets)
            check_socket_path(folders.socket_prefix)
            for folder in (runtime, folders.sockets, folders.home):
                folder.mkdir(mode=0o700, exist_ok=True)
            if way_out is not None:
                way_out.mkdir(exist_ok=True)
                # The kernel may run as another user. The folder above lets only the gateway pass.
                way_out.chmod(0o755)
        except OSError as error:
            _remove_quickly(made)
            raise KernelStartFailed(f"The kernel's folders can't be made: {in_words(error)}") from error
        except BaseException:
            _remove_quickly(made)
            raise
        return folders

    @property
    def sockets(self) -> Path:
        """The only folder in `runtime` that a sandboxed kernel can write to."""
        return self.runtime / SOCKETS if self.elsewhere is None else self.elsewhere

    @property
    def socket_prefix(self) -> str:
        """Jupyter's `ip` for the transport ipc: a socket's path is this prefix, a hyphen and the port."""
        return str(self.sockets / "k")

    @property
    def connection_file(self) -> Path:
        """The path of the connection file that the kernel reads."""
        return self.runtime / "kernel.json"

    @property
    def home(self) -> Path:
        """The home of kernels that see the host's file system."""
        return self.runtime / "home"

    @property
    def owned(self) -> tuple[Path, ...]:
        """The folders that the gateway removes: the runtime folder, and the workspace if it was made here."""
        own = [self.runtime] if self.elsewhere is None else [self.runtime, self.elsewhere]
        return (*own, self.workspace) if self.owns_workspace else tuple(own)


def give_to(user: tuple[int, int], folders: LaunchFolders) -> None:
    """Give a root gateway's folders to the kernel's user. Links in workspaces are not followed.

    Files beyond the limits of a walk keep their owner, an earlier kernel's user. Raises OSError.
    """
    for path in (folders.sockets, folders.connection_file):
        os.chown(path, *user, follow_symlinks=False)
    for folder in filter(None, (folders.workspace, folders.branches)):
        os.chown(folder, *user, follow_symlinks=False)
        walk = trees.Walk(folder)
        for entry in walk:
            with suppress(FileNotFoundError):
                os.chown(entry.name, *user, dir_fd=entry.folder, follow_symlinks=False)
        if walk.hindered is not None:
            raise walk.hindered


async def remove_tree(folder: Path) -> None:
    """Remove a folder that user code could write to, without following links and without blocking the loop.

    A missing folder is not an error. Raises OSError when something can't be removed; callers that must go on
    use ``cellgate_kernels.base.leftovers``.
    """
    await patiently(trees.remove, folder)


async def patiently(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Do work on folders in a thread; retry after temporary errors, for a few seconds at most.

    Temporary errors come from too many open files; a folder that is not empty can be one. Raises as `work`.
    """
    for pause in PAUSES:
        try:
            return await asyncio.to_thread(work, *arguments, **options)
        except OSError as error:
            if error.errno not in _PASSES:
                raise
        await asyncio.sleep(pause)
    return await asyncio.to_thread(work, *arguments, **options)


def _remove_quickly(empty_folders: list[Path]) -> None:
    for folder in empty_folders:
        shutil.rmtree(folder, ignore_errors=True)


def check_socket_path(prefix: str) -> None:
    """Check the length of a kernel's socket paths. Raises KernelStartFailed."""
    longest = len(os.fsencode(f"{prefix}-5"))
    if longest > SOCKET_PATH_MAX:
        raise KernelStartFailed(
            f"The runtime folder's path is too long for Unix sockets by {longest - SOCKET_PATH_MAX} bytes; "
            "choose a shorter one, for example below /run or /tmp."
        )
