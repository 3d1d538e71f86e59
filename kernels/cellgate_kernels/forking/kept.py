"""One kernel's process among several in a sandbox, by its keeper's reports: its end, and a way to kill it.

A connection to the keeper for each kernel, which works from a gateway in a container too: no process id of
this machine is needed. ``programs`` has the protocol; ``inside/programs.py`` is the keeper's half.
"""

from __future__ import annotations

import asyncio
import signal

from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.keeper.programs import Program, ProgramExit, keep_kernel
from cellgate_kernels.launch.backend import KernelExit


class Kept:
    """A kernel's process, as its keeper reports it. Made by `keep`; `close` it."""

    def __init__(self, program: Program, tasks: Supervisor) -> None:
        self.pid = program.pid
        """The process's number in its own PID namespace."""
        self.ended: asyncio.Future[KernelExit | None] = asyncio.get_running_loop().create_future()
        """Completed with the kind of its end; with None if the keeper is gone."""
        self._program = program
        self._waiting = tasks.start(self._wait(), f"end of kernel process {program.pid}")

    async def _wait(self) -> None:
        try:
            how: KernelExit | None = _exit(await self._program.end())
        except KernelDied:
            how = None
        finally:
            self._program.close()
        if not self.ended.done():
            self.ended.set_result(how)

    def kill(self) -> None:
        """Kill it with its process group; does nothing after its end."""
        self._program.signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop listening to the keeper; `ended` is never completed then."""
        self._waiting.cancel()


def _exit(told: ProgramExit) -> KernelExit:
    returncode = told.code if told.signal is None else -told.signal
    return KernelExit.of_returncode(returncode or 0)


async def keep(path: str, pid: int, tasks: Supervisor, *, held: bool = False) -> Kept:
    """Listen to the keeper whose socket is at `path`, for a kernel with this pid in its own namespace.

    This makes a branch one of the keeper's kernels, but not a `held` fork. Raises InvalidInput if there is no
    such process, KernelDied if the keeper does not answer.
    """
    return Kept(await keep_kernel(path, pid, held=held), tasks)
