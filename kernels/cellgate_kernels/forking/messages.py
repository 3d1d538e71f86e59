"""The messages between the gateway and a zygote; ``inside/zygote.py`` is the other end.

Over the control socket: orders once, then requests for forks; typed messages of limited size come back. Over
the connection to each child, which the zygote passes on unread: the description of one kernel, which the
zygote never sees. Pure.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.walls.mounts import Bind, Devices, Folder, Hidden, Memory, Processes, ReadOnly, Step

LENGTH = struct.Struct(">I")
MOST_BYTES = 256 * 1024
"""Most bytes of a zygote's message."""
MOST_DESCRIPTORS = 4


class NotForked(CellgateError):
    """This kernel can't be forked; it is started cold. The message gives the reason."""

    reason = "not_forked"


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="kind"):
    """It has loaded its modules. Comes with its view of the sessions' folders.

    `asked`: the variables that were read meanwhile. `reserved`: bytes of memory that its children share.
    `private`: a loaded file that other users can't read, if there is one.
    """

    asked: list[str]
    failed: list[str]
    threads: int
    reserved: int
    private: str = ""


class ForkSuccess(msgspec.Struct, frozen=True, tag="forked", tag_field="kind"):
    """A child was forked. Comes with its pidfd."""

    number: int


class ForkRefusal(msgspec.Struct, frozen=True, tag="refused", tag_field="kind"):
    """No child was forked."""

    number: int
    why: str


class Ended(msgspec.Struct, frozen=True, tag="ended", tag_field="kind"):
    """A child has ended; `status` as in subprocess."""

    number: int
    status: int


Said = Ready | ForkSuccess | ForkRefusal | Ended


def understand(message: bytes) -> Said:
    """Return a zygote's message. Raises NotForked for anything else."""
    try:
        said: Said = msgspec.json.decode(message, type=Said)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise NotForked(f"the zygote said what makes no sense: {type(error).__name__}") from error
    return said


def orders(sessions: Sequence[str], mounts: Iterable[Step], folder: str, modules: Sequence[str]) -> bytes:
    """Encode a zygote's first orders: give up `sessions`, mount its own, go to `folder`, load `modules`."""
    return json.dumps(
        {
            "sessions": list(sessions),
            "mounts": list(_mounts(mounts, lambda source: source)),
            "folder": folder,
            "modules": list(modules),
        }
    ).encode()


def request(number: int, scratch: str = "") -> bytes:
    """Encode a request for a fork. `scratch`: a folder that the zygote must remove after its end, if any."""
    return json.dumps({"number": number, "scratch": scratch} if scratch else {"number": number}).encode()


@dataclass(frozen=True, slots=True)
class Description:
    """The description of one kernel for its child.

    `mounted`: the number of detached mounts that come with it. `user`: its id within; `uid`: its id in the
    zygote's user namespace. `filter`: of system calls.
    """

    env: Mapping[str, str]
    mounts: Sequence[Step]
    mounted: int
    folder: str
    limits: Mapping[str, int]
    user: int
    uid: int
    oom_score: int
    filter: bytes

    def encoded(self, source_of: Callable[[str], str | int]) -> bytes:
        """Encode the request as JSON.

        `source_of` returns where the child finds a folder or file of the host: a path, or the number of a
        detached mount. Raises NotForked.
        """
        return json.dumps(
            {
                "env": dict(self.env),
                "mounts": list(_mounts(self.mounts, source_of)),
                "mounted": self.mounted,
                "folder": self.folder,
                "limits": dict(self.limits),
                "user": self.user,
                "uid": self.uid,
                "oom_score": self.oom_score,
                "filter": self.filter.hex(),
            }
        ).encode()


def _mounts(steps: Iterable[Step], source_of: Callable[[str], str | int]) -> Iterable[list[Any]]:
    for step in steps:
        match step:
            case Bind(source, path, writable):
                yield ["bind", source_of(source), path, writable]
            case Processes():
                yield ["processes"]
            case Devices():
                yield ["terminals"]
            case Hidden(path, folder):
                yield ["hidden", path, folder]
            case Memory(path, size, mode):
                yield ["memory", path, size, mode]
            case Folder(path):
                yield ["folder", path]
            case ReadOnly(path):
                yield ["read-only", path]
            case _:
                raise AssertionError(f"{step} belongs to the system's part")
