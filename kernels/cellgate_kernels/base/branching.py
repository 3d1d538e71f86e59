"""Branches: a second live kernel with everything that the first one has in memory, made by forking it.

Values only: the request (`BranchSpec`), its obstacles (`Obstacle`), the result (`Branched`).
``KernelPool.branch`` admits branches, ``Kernel.branch`` makes them, ``inside/branch.py`` forks. A branch
shares its parent's sandbox with its limits, /tmp, /dev/shm and loopback ports, and can do to its parent
whatever the parent's own code could. So both must belong to one principal. The sandbox ends with the last of
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

MOST_SEED = 2**32 - 1
"""The largest seed that numpy accepts."""

BRANCHES = ".branches"
"""Suffix of the folder with the workspaces of all branches in one sandbox.

It lies beside the workspace of the kernel that the sandbox was started for, by kernels' ids.
"""


class BranchWorkspace(StrEnum):
    """The files of a branch: a workspace of its own, or its parent's."""

    COPY = "copy"
    SHARED = "shared"


class ObstacleKind(StrEnum):
    """The reason why a kernel can't be forked, or not without loss.

    `THREAD`: a thread of Python code, by its name. It would not exist in the branch, where the locks that it
    holds would be held for ever. `NATIVE_THREAD`: a thread of a library that does not survive a fork, such as
    polars', or the library, where only that is known; or one that runs all the time, so that nobody can say
    whose it is. `OPENMP`: numba's OpenMP layer, which aborts the branch. `DEBUGGER`: an attached debugger.
    `CUDA`: the driver for GPUs, whose contexts can't be forked. `EVENT_LOOP`: that of a window system, by
    ``%gui``, which runs inside the kernel's own. `UNNAMED_FILE`: a file without a name, or shared memory, of
    which there is more than a checkpoint keeps; of checkpoints alone. `KERNEL`: this kind of kernel can't
    branch at all, by the name of its kernelspec; `BranchSpec.anyway` does not overrule this one.
    """

    THREAD = "thread"
    NATIVE_THREAD = "native_thread"
    OPENMP = "openmp"
    DEBUGGER = "debugger"
    CUDA = "cuda"
    EVENT_LOOP = "event_loop"
    UNNAMED_FILE = "unnamed_file"
    KERNEL = "kernel"


WAYS_ROUND: Mapping[ObstacleKind, str] = MappingProxyType(
    {
        ObstacleKind.THREAD: "Threads ({names}): end them, or branch with `anyway` (`--anyway`): the branch"
        " does not have them.",
        ObstacleKind.NATIVE_THREAD: "Threads of a native library ({names}): DuckDB's end when the connection"
        " is closed; one that is running may have to come to its end; others do not end, so branch before the"
        " library computes anything. If the branch will not use it, branch with `anyway` (`--anyway`).",
        ObstacleKind.OPENMP: "OpenMP ({names}): it ends a branch that uses it. Choose another threading"
        " layer, such as workqueue, before numba computes anything, or, if the branch will not use it, branch"
        " with `anyway` (`--anyway`).",
        ObstacleKind.DEBUGGER: "A debugger ({names}): end the debugging first.",
        ObstacleKind.CUDA: "The GPU's driver ({names}): branch before anything uses the GPU, or, if the"
        " branch will not use it, with `anyway` (`--anyway`).",
        ObstacleKind.EVENT_LOOP: "A window system's event loop ({names}): end it with `%gui` first.",
        ObstacleKind.UNNAMED_FILE: "Files without a name, or shared memory ({names}): a checkpoint keeps 64"
        " MiB of them. Close them, give the file a name, or make the checkpoint with `anyway` (`--anyway`):"
        " then they stay as later cells leave them.",
        ObstacleKind.KERNEL: "{names} kernels can't be branched here, and `anyway` does not help: only Python"
        " kernels in a sandbox or container can be, and under gVisor not in every version.",
    }
)
"""The advice for each kind, in a sentence for the client; `names` are its obstacles'."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One obstacle to a branch. `name` is at most 200 printable characters."""

    kind: ObstacleKind
    name: str


def way_round(obstacles: tuple[Obstacle, ...]) -> str:
    """Return a sentence of advice for each kind of obstacle."""
    names: dict[ObstacleKind, list[str]] = {}
    for obstacle in obstacles:
        names.setdefault(obstacle.kind, []).append(obstacle.name)
    return " ".join(WAYS_ROUND[kind].replace("{names}", ", ".join(named)) for kind, named in names.items())


Fill = Callable[[Path], Awaitable[None]]
"""Puts files into a branch's new, empty workspace folder on this machine. Called while the parent waits."""


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """The description of a branch.

    `fill` is called with the folder of a workspace of its own (`COPY`) before the fork; without `fill` the
    workspace is empty. If it raises, no branch is made. `seed`: for the generators of ``random`` and
    ``numpy.random`` in the branch, which otherwise continue like the parent's. `anyway`: despite obstacles.
    """

    workspace: BranchWorkspace = BranchWorkspace.COPY
    seed: int | None = None
    anyway: bool = False
    fill: Fill | None = None


@dataclass(frozen=True, slots=True)
class Branched:
    """The origin of a branch, for the record. `parent` is the id of the forked kernel.

    `overruled`: obstacles despite which it was made. `children`: processes of the parent's cells that still
    ran then, each as its pid and name; they belong to the parent and not to the branch. `checkpoint`: the id
    of the held fork from which it was made, if `parent` was not forked itself.
    """

    parent: str
    workspace: BranchWorkspace
    seed: int | None = None
    overruled: tuple[Obstacle, ...] = ()
    children: tuple[str, ...] = ()
    checkpoint: str | None = None
