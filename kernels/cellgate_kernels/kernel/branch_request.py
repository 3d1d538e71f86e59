"""Asks a kernel for a branch, by a message of our own on its control channel, and reads the answer.

``inside/branch.py`` answers. The answer comes from a kernel, whose cells can forge it: its size is limited,
and it becomes a typed value. A false answer deceives only the kernel's own user.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from cellgate_kernels.base.branching import Obstacle, ObstacleKind
from cellgate_kernels.base.errors import CannotBranch, KernelBusy, KernelDied, KernelStartFailed
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.protocol.contents import content_of, printable
from cellgate_kernels.protocol.messages import Channel

REQUEST: Final = "cellgate_branch_request"
FEATURE: Final = "cellgate branch"
"""Stands in the supported features of a kernel_info_reply. Both are named in ``inside/branch.py``."""

ANSWER_TIMEOUT: Final = 30.0
"""Seconds; longer than the kernel waits for a branch."""

_Pid = Annotated[int, msgspec.Meta(gt=0, le=2**22)]
_Line = Annotated[str, msgspec.Meta(max_length=2000)]
_Lines = Annotated[tuple[_Line, ...], msgspec.Meta(max_length=64)]
_Obstacles = Annotated[tuple[tuple[ObstacleKind, _Line], ...], msgspec.Meta(max_length=64)]
_SHOWN: Final = 200


class Moves(msgspec.Struct, frozen=True, rename={"before": "from"}):
    """The workspaces of the forked process and of the new one, as each process sees its own."""

    before: str
    to: str


class NamesOffer(msgspec.Struct, frozen=True):
    """Private names for the workspace of a new kernel, whose folder is `folder`.

    `socket`: where the kernel receives them. `workspace`: as in a `BranchOrder`, if the kernel has taken
    them; otherwise the order's holds. `needed`: without them the kernel must not be made.
    """

    socket: str
    folder: str
    workspace: Moves | None
    needed: bool


class BranchOrder(msgspec.Struct, frozen=True):
    """The order to the kernel: the branch's key, the place of its sockets, and its differences.

    `workspace`: None if it is the parent's. `spool`: a folder for its spool. `hold`: whether the fork becomes
    a held fork and no kernel; `prefix` is then its socket's whole path.
    """

    prefix: str
    key: str
    workspace: Moves | None = None
    seed: int | None = None
    anyway: bool = False
    spool: str | None = None
    hold: bool = False
    names: NamesOffer | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A running branch, with the sandbox's process numbers. `named`: whether it has the offered names."""

    pid: int
    parent: int
    overruled: tuple[Obstacle, ...]
    children: tuple[str, ...]
    named: bool = False


class _Made(msgspec.Struct, tag_field="status", tag="ok", frozen=True):
    pid: _Pid
    parent: _Pid
    overruled: _Obstacles = ()
    children: _Lines = ()
    named: bool = False


class _NotMade(msgspec.Struct, tag_field="status", tag="error", frozen=True):
    why: Literal["busy", "obstacles", "failed"]
    message: _Line = ""
    obstacles: _Obstacles = ()


async def ask_for_branch(
    connection: KernelConnection, exited: asyncio.Future[KernelExit], order: BranchOrder
) -> Made:
    """Make a kernel fork, and return when its branch runs.

    Raises KernelBusy, CannotBranch, KernelStartFailed if the branch did not come up, and KernelDied.
    """
    answer = connection.ask(Channel.CONTROL, REQUEST, msgspec.to_builtins(order))
    try:
        either: set[asyncio.Future[Any]] = {answer, exited}
        await asyncio.wait(either, timeout=ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            if exited.done():
                raise KernelDied(f"The kernel ended while it was branched. {exited.result().message}")
            raise KernelStartFailed(f"The kernel did not answer within {ANSWER_TIMEOUT:g} s")
        return understood(content_of(answer.result()))
    finally:
        answer.cancel()


def understood(content: object) -> Made:
    """Read an answer about a forked process. Raises the errors of `ask_for_branch`."""
    try:
        told = msgspec.convert(content, _Made | _NotMade)
    except msgspec.ValidationError:
        raise KernelStartFailed("The kernel's answer is not one about a branch") from None
    match told:
        case _Made():
            children = tuple(printable(child, _SHOWN) for child in told.children)
            return Made(told.pid, told.parent, _obstacles(told.overruled), children, told.named)
        case _NotMade(why="busy"):
            raise KernelBusy("The kernel runs a cell; it can be branched when it is idle")
        case _NotMade(why="obstacles", obstacles=found) if found:
            raise CannotBranch(_obstacles(found))
        case _:
            raise KernelStartFailed(f"The branch did not come up: {printable(told.message, _SHOWN)}")


def _obstacles(told: tuple[tuple[ObstacleKind, str], ...]) -> tuple[Obstacle, ...]:
    return tuple(Obstacle(kind, printable(name, _SHOWN)) for kind, name in told)
