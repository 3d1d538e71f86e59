"""A separate uid for each forked kernel, where the gateway is root.

Without its own uid, a kernel's processes have root's uid outside of their user namespace: if a wall failed,
they would own root's files. With it they own nothing on this machine, cannot signal or trace another kernel's
processes, and the system's limits for each user (processes, watches of files, signals) are each kernel's.

On disk the kernel's files stay root's, so the gateway and the session's next kernel have them as before. The
kernel sees them through mounts that show root's files as its own (mount_setattr(2), MOUNT_ATTR_IDMAP). ext4,
XFS and Btrfs support such mounts, overlayfs does not; `KernelUids.find` tries one. The uids are from
0x70000000 (1879048192) on, above the ranges of distributions, container engines and systemd-nspawn. The name
of a gateway's data folder chooses its block of uids.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import heapq
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.base.errors import BackendUnavailable, in_brief
from cellgate_kernels.walls import bubblewrap
from cellgate_kernels.walls.bubblewrap import SandboxFiles

FIRST = 0x70000000
BLOCK = 4096
"""The number of uids of a gateway: more than it has kernels."""
_BLOCKS = 32_000
_KEPT = 8
"""The namespaces of this many of the most-used uids stay open, because each takes a process to make."""

# linux/fcntl.h, linux/mount.h; the numbers of the calls are the same on all architectures.
_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_OPEN_TREE_CLONE = 1
_RDONLY, _NOSUID, _NODEV, _IDMAP = 1, 2, 4, 0x100000

_NAMESPACE = ("--unshare-user", "--uid", "0", "--gid", "0", "--dir", "/tmp")  # noqa: S108 - the sandbox's own
_NOTHING = "/nothing"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class KernelUid:
    """One uid of the gateway's. `within`: the same user in a zygote's user namespace.

    `namespace`: a descriptor of a user namespace that maps root to the uid; open until `give_back`.
    """

    slot: int
    within: int
    namespace: int

    def mount(self, source: str, *, writable: bool) -> int:
        """Return a descriptor of a detached mount of a folder or file, on which root's files are this user's.

        A link is not followed. Blocking. Raises OSError where the file system does not support that.
        """
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_SYMLINK_NOFOLLOW
        mounted = _checked(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags))
        try:
            attributes = _IDMAP | _NOSUID | _NODEV | (0 if writable else _RDONLY)
            what = struct.pack("QQQQ", attributes, 0, 0, self.namespace)
            size = ctypes.c_size_t(len(what))
            _checked(_libc.syscall(_MOUNT_SETATTR, mounted, b"", _AT_EMPTY_PATH, what, size))
        except OSError:
            os.close(mounted)
            raise
        return mounted


class KernelUids:
    """The uids of one gateway's kernels. Call `close` when no kernel is left."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._free = list(range(BLOCK))
        self._namespaces: dict[int, int] = {}

    @classmethod
    async def find(cls, name: str, folders: Iterable[Path]) -> KernelUids:
        """Return the uids of the gateway with this name, after a trial with one on its kernels' `folders`.

        Raises BackendUnavailable with the cause where kernels can't have uids of their own.
        """
        if os.geteuid() != 0:
            raise BackendUnavailable("the gateway is not root")
        block = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % _BLOCKS
        found = cls(FIRST + block * BLOCK)
        try:
            uid = await found.take()
            for folder in folders:
                os.close(await asyncio.to_thread(uid.mount, str(folder.resolve()), writable=True))
            found.give_back(uid)
        except OSError as error:
            found.close()
            raise BackendUnavailable(
                f"files can't be mounted as another user's: {in_brief(error)}"
            ) from error
        except BaseException:
            found.close()
            raise
        return found

    def admit(self, process: int) -> None:
        """Map all these uids, and root, into the user namespace of a process. Raises OSError."""
        _map(process, f"0 0 1\n1 {self._first} {BLOCK}\n")

    async def take(self) -> KernelUid:
        """Return a uid that no other kernel has until `give_back`. Raises OSError, BackendUnavailable."""
        if not self._free:
            raise BackendUnavailable("all uids for kernels are in use")
        slot = heapq.heappop(self._free)
        try:
            if slot not in self._namespaces:
                self._namespaces[slot] = await _namespace(self._first + slot)
        except BaseException:
            heapq.heappush(self._free, slot)
            raise
        return KernelUid(slot, 1 + slot, self._namespaces[slot])

    def give_back(self, uid: KernelUid) -> None:
        """Free a uid that no process has any more, for the next kernel."""
        if uid.slot >= _KEPT:
            os.close(self._namespaces.pop(uid.slot))
        heapq.heappush(self._free, uid.slot)

    def close(self) -> None:
        """Close the kept namespaces. Idempotent."""
        while self._namespaces:
            os.close(self._namespaces.popitem()[1])


class Mounts:
    """Folders and files that are mounted as a kernel user's own. A context: it closes the descriptors.

    `numbers`: the index of each source's descriptor, by source.
    """

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.numbers: dict[str, int] = {}

    def __enter__(self) -> Mounts:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    def add(self, uid: KernelUid, sources: Iterable[tuple[str, bool]]) -> None:
        """Mount these sources, each with whether it is writable. Blocking. Raises OSError."""
        for source, writable in sources:
            descriptor = uid.mount(source, writable=writable)
            self.numbers[source] = len(self.descriptors)
            self.descriptors.append(descriptor)


async def _namespace(uid: int) -> int:
    """Return a descriptor of a user namespace that maps root to a uid. Raises OSError, BackendUnavailable."""
    opened: list[int] = []
    failed: list[OSError] = []

    def prepare(process: int) -> None:
        try:
            _map(process, f"0 {uid} 1\n")
            opened.append(os.open(f"/proc/{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            failed.append(error)

    with SandboxFiles() as contents:
        # The namespace's command does nothing: it ends when the namespace is open here.
        child = bubblewrap.start(_NAMESPACE, (_NOTHING,), {}, contents, prepare=prepare)
    try:
        ended = await asyncio.shield(child.exited)
    except BaseException:
        child.kill()
        await asyncio.shield(child.exited)
        for descriptor in opened:
            os.close(descriptor)
        raise
    if failed:
        raise failed[0]
    if not opened:
        raise BackendUnavailable(f"bubblewrap made no user namespace. {ended.message}")
    return opened[0]


def _map(process: int, lines: str) -> None:
    """Set the ids of a user namespace, the same for users and groups."""
    for name in ("uid_map", "gid_map"):
        with suppress(FileNotFoundError):  # the process has ended
            Path(f"/proc/{process}/{name}").write_text(lines)


def _checked(result: int) -> int:
    """Return the result of a system call. Raises OSError if the result is an error."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
