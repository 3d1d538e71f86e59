"""The `sandbox` backend: a kernel in bubblewrap, in namespaces of its own and without any network.

The kernel sees the system's read-only folders, its environment, its interpreter, a workspace and a private
/tmp; no other file of the host, no other process, no network interface but ``lo``. We talk to it over Unix
sockets in a folder mounted at /run/kernel. There it can only replace sockets by others: we open nothing but
their fixed names, and remove the folder without following links.

With a fork server, kernels that it can fork are forked, behind the same walls and in a cgroup of their own;
see ``forking.server``. All others are started in bubblewrap. Not limited there, because that takes cgroups:
the memory of all its processes together, shared memory, processor time, and, when the gateway runs as root,
the number of processes. The total size of its files is watched.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cellgate_kernels.backends.watched import WatchedProvisioner
from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, KernelStartFailed, in_words
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.forking.forker import ForkedChild
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import USER as USER_ID
from cellgate_kernels.forking.server import ForkRequest, ForkServer, ZygoteLineage, can_fork
from cellgate_kernels.launch.backend import KernelExit, KernelView, Launch
from cellgate_kernels.launch.base import kernel_environment, last_words
from cellgate_kernels.launch.child import Child, Supervised, find_program, rlimit_arguments
from cellgate_kernels.launch.folders import LaunchFolders, remove_tree
from cellgate_kernels.launch.names import NameMaking, Names, NamesRequest
from cellgate_kernels.walls import bubblewrap
from cellgate_kernels.walls.bubblewrap import SandboxFiles
from cellgate_kernels.walls.mounts import VIEW, WORKSPACE, bwrap_words, files, session_part, system_part
from cellgate_kernels.walls.seccomp import sandbox_filter

logger = logging.getLogger(__name__)

CHECK_TIMEOUT = 10.0

USER = {"USER": "cellgate", "LOGNAME": "cellgate"}
"""Variables that a kernel has in any case."""

_NAMESPACES = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    *("--cap-drop", "ALL"),
    *("--hostname", "cellgate"),
    *("--uid", str(USER_ID)),
    *("--gid", str(USER_ID)),
)


class SandboxProvisioner(WatchedProvisioner):
    """Kernels under bubblewrap >= 0.8. Interrupts work by message only: no signal gets in."""

    isolation = "sandbox"
    _forks: ForkServer | None = None
    _lineage: ZygoteLineage | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._naming = NameMaking()

    @classmethod
    async def check(cls) -> None:
        """Run ``true`` in a sandbox made as for kernels. Raises BackendUnavailable when that fails."""
        find_program("bwrap", "bubblewrap")
        scratch = Path(tempfile.mkdtemp(prefix="cellgate-check-"))
        try:
            folders = LaunchFolders.make(scratch / "run", scratch)
            folders.connection_file.touch(mode=0o600)
            limits = ResourceLimits()
            true = find_program("true", "coreutils")
            child = spawn(Launch((true,), kernel_environment(true, VIEW.home, limits), limits, folders), ())
            try:
                await asyncio.wait({child.exited}, timeout=CHECK_TIMEOUT)
            finally:
                child.kill()
                ended = await asyncio.shield(child.exited)
        finally:
            await _remove_scratch(scratch)
        if child.oom_score_refused:
            # Reported once, here, and not at each start of a kernel.
            logger.warning(
                "The system refuses to let bubblewrap's processes be the first that it ends when memory is"
                " short (oom_score_adj): is bwrap setuid? Others may be ended in the place of kernels"
            )
        if ended.code != 0:
            raise BackendUnavailable(
                "bubblewrap does not work here: it needs version 0.8 or newer and the right to make user "
                "namespaces: on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; for a gateway in a "
                "container --security-opt seccomp=deploy/seccomp.json --security-opt systempaths=unconfined, "
                "as docs/how-to/run-one-container.md explains. "
                f"{ended.message}{last_words(child.log_tail())}"
            )

    def _view(self, folders: LaunchFolders) -> KernelView:
        return VIEW

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Return the launch's keywords. `fork_server` forks those kernels that can be forked."""
        self._forks = kwargs.pop("fork_server", None) or self._forks
        return await super().pre_launch(**kwargs)

    async def make_names(self, folder: str, forked: int) -> Names | None:
        child = self._child
        if child is None or child.inner_pid is None or child.exited.done():
            return None
        return await self._naming.make(
            NamesRequest(child.inner_pid, forked, folder, WORKSPACE, USER_ID, USER_ID)
        )

    async def explain_kill(self) -> KernelExit | None:
        """Return the cause shown by a forked kernel's cgroup; a kernel that was started cold has none."""
        child = self._child
        return await child.explain_kill() if isinstance(child, ForkedChild) else None

    def _plan(self, cmd: Sequence[str], folders: LaunchFolders, options: Mapping[str, Any]) -> Launch:
        launch = super()._plan(cmd, folders, options)
        self._lineage = None
        if self._forks is not None and can_fork(launch.argv):
            # What all kernels have that differ in nothing but their owner's choice.
            common = super()._plan(cmd, replace(folders, egress=None), {"limits": launch.limits})
            env = {**common.env, **USER, "PWD": WORKSPACE}
            packages = folders.packages is not None
            self._lineage = ZygoteLineage(launch.argv, tuple(env.items()), tuple(self.readable), packages)
        return launch

    async def _begin(self, launch: Launch) -> Supervised:
        self._check_readable()
        if self._forks is not None and self._lineage is not None:
            env = {**launch.env, **USER, "PWD": WORKSPACE}
            wanted = ForkRequest(self._lineage, env, launch.limits, launch.folders, self.reserved)
            try:
                child = await self._forks.fork(wanted)
            except NotForked:
                self.way = "cold"
            else:
                self.way = "fork"
                return child
        return self._spawn(launch)

    def _check_readable(self) -> None:
        for path in self.readable:
            if not Path(path).exists():
                raise KernelStartFailed(
                    f"The kernelspec needs {path}, which is not there. Run `cellgate setup`."
                )

    def _spawn(self, launch: Launch) -> Child:
        return spawn(launch, self.readable, self.reserved)

    def _signal(self, signum: int) -> None:
        if signum not in (signal.SIGKILL, signal.SIGTERM):
            raise InvalidInput("A sandboxed kernel takes no signals: it needs interrupt_mode 'message'.")
        self._end()


async def _remove_scratch(folder: Path) -> None:
    """Remove the check's own folder. One that can't be removed does no harm, so that is only logged."""
    try:
        await remove_tree(folder)
    except OSError as error:
        logger.warning("The folder %s of a check can't be removed: %s", folder, in_words(error))


def spawn(launch: Launch, readable: Sequence[str], reserved: int = 0) -> Child:
    """Start bwrap with the launch's command in it."""
    # RLIMIT_NPROC never counts tasks of root, nor those of a user namespace that maps root.
    unprivileged = os.geteuid() != 0
    limits = rlimit_arguments(launch.limits, processes=unprivileged, reserved=reserved, own_user=True)
    command = [*limits, *launch.argv]
    with SandboxFiles() as contents:
        program = sandbox_filter(platform.machine(), branches=can_fork(launch.argv), root=not unprivileged)
        steps = [*system_part(readable), *session_part(launch.limits, launch.folders, readable)]
        words = [
            *_NAMESPACES,
            *(() if program is None else ("--seccomp", str(contents.add(program)))),
            *bwrap_words(steps, {path: contents.add(content) for path, content in files(steps).items()}),
            *("--chdir", WORKSPACE),
        ]
        return bubblewrap.start(words, command, dict(launch.env) | USER, contents)
