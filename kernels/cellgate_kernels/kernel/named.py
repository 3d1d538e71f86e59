"""A forked kernel's view of its workspace: has names made for it if it needs other ones.

``launch/names.py`` makes them, where a sandbox can have them; ``inside/branch.py`` takes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from cellgate_kernels.base.errors import KernelStartFailed
from cellgate_kernels.forking.sharing import Outlook, SharedSandbox
from cellgate_kernels.kernel.branch_request import BranchOrder, Made, Moves, NamesOffer
from cellgate_kernels.launch.names import MOST_DEPTH, Names


@dataclass(frozen=True, slots=True)
class KernelOrder:
    """A kernel to be forked, with this id and workspace. `origin`: the forked process's outlook.

    `process`: the forked process's number in the sandbox. `is_branch`: it may be forked again elsewhere.
    """

    id: str
    workspace: Path
    origin: Outlook
    process: int
    is_branch: bool


async def fork_with_names(
    sandbox: SharedSandbox,
    wanted: KernelOrder,
    order: BranchOrder,
    fork: Callable[[BranchOrder], Awaitable[Made]],
) -> tuple[Made, Outlook]:
    """Fork a kernel by an order without a workspace yet; return the kernel's view of its workspace.

    Raises KernelStartFailed if it would not have its own workspace, OSError, and the errors of `fork`.
    """
    origin, name = wanted.origin, sandbox.view.workspace
    if wanted.workspace == origin.named:
        made = await fork(structs.replace(order, workspace=_moves(origin, name)))
        return made, replace(origin, workspace=name)
    without = _without_names(sandbox, wanted)
    moves = None if without is None else _moves(origin, without.workspace)
    names = await _names(sandbox, wanted)
    if names is None:
        if without is None:
            raise KernelStartFailed("The kernel can't have the files under the names that it knows")
        return await fork(structs.replace(order, workspace=moves)), without
    path, inner_path = sandbox.socket_of_names(wanted.id)
    try:
        async with names.offered(path):
            offer = NamesOffer(inner_path, name, _moves(origin, name), needed=without is None)
            made = await fork(structs.replace(order, workspace=moves, names=offer))
    finally:
        names.close()
    seen = Outlook(name, wanted.workspace, origin.depth + 1) if made.named else without
    if seen is None:
        raise KernelStartFailed("The kernel did not take the names of its files")
    return made, seen


async def _names(sandbox: SharedSandbox, wanted: KernelOrder) -> Names | None:
    # A session that continues as a branch needs names once more.
    room = 2 if wanted.is_branch else 1
    if wanted.origin.depth + room > MOST_DEPTH:
        return None
    return await sandbox.root.make_names(sandbox.first_name(wanted.workspace), wanted.process)


def _without_names(sandbox: SharedSandbox, wanted: KernelOrder) -> Outlook | None:
    """Return the outlook with the forked process's names; None if its own workspace is not among them."""
    if wanted.workspace.parent != sandbox.branches:
        return None
    return replace(wanted.origin, workspace=sandbox.first_name(wanted.workspace))


def _moves(origin: Outlook, to: str) -> Moves | None:
    return None if origin.workspace == to else Moves(origin.workspace, to)
