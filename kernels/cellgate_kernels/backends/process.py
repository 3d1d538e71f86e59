"""The `process` backend: a kernel as an ordinary child process. No isolation at all; for trusted code only.

The kernel sees the host as the gateway's user does, except for a reduced environment, a private home, and
resource limits. Its keeper ends all that is left below it, also when this process dies; but who kills the
keeper leaves them behind, as does who stops it until this process has died: only ``sandbox`` ends everything.
"""

from __future__ import annotations

import os
import signal

from cellgate_kernels.launch.backend import KernelView, Launch
from cellgate_kernels.launch.child import Child, ChildProvisioner, find_program, rlimit_arguments
from cellgate_kernels.launch.folders import LaunchFolders

KEEPER_END = signal.SIGQUIT
"""Ends a keeper with its kernel and their programs: `END` of ``inside/keeper.py``. It ends others too."""


class ProcessProvisioner(ChildProvisioner):
    """Kernels without isolation. Limits: memory per process and largest file; not the number of processes."""

    isolation = "none"

    @classmethod
    async def check(cls) -> None:
        """Raise BackendUnavailable when util-linux's prlimit or setpriv is missing."""
        find_program("prlimit", "util-linux")
        find_program("setpriv", "util-linux")

    def _view(self, folders: LaunchFolders) -> KernelView:
        return KernelView(
            str(folders.connection_file),
            folders.socket_prefix,
            str(folders.home),
            str(folders.packages),
            workspace=str(folders.workspace),
            branches=str(folders.branches),
        )

    def _spawn(self, launch: Launch) -> Child:
        # Both make sure that no kernel outlives us: ipykernel watches its parent, and the death signal works
        # for any program. A keeper changes it to `KEEPER_END` once it can end its programs.
        env = dict(launch.env) | {"JPY_PARENT_PID": str(os.getpid())}
        setpriv = [find_program("setpriv", "util-linux"), "--pdeathsig", "KILL", "--"]
        return Child(
            [
                *rlimit_arguments(launch.limits, processes=False, reserved=self.reserved),
                *setpriv,
                *launch.argv,
            ],
            env=env,
            cwd=launch.folders.workspace,
        )

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill(first=KEEPER_END)
