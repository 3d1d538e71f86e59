"""Landlock's walls around a kernel: the files that it may reach, and nothing of other processes.

Landlock (https://docs.kernel.org/userspace-api/landlock.html) lets any process give up rights for itself and
all that it starts; it takes no namespace, no privilege and no option of a container. What it does not hold:
modes, owners and times of files can be changed by whoever owns them, at any path, and paths can be asked for.
Each version of it holds more: truncating from 3, TCP from 4, devices from 5, signals from 6.

Pure, except for the question which version there is. ``inside/landlock.py`` puts the walls up.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from cellgate_kernels.launch.folders import LaunchFolders
from cellgate_kernels.walls.mounts import DEVICES, Bind, system_part

SIGNALS: Final = 6
"""The version from which on a kernel can't end others' processes."""

_CREATE_RULESET: Final = 444
_ASKS_VERSION: Final = 1

_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_ALL: Final = (1 << 16) - 1
_READS: Final = _EXECUTE | _READ | _LIST
_CHANGES: Final = _ALL & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL)
_OF_FILES: Final = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
"""The rights that a rule for a file may have; all others are those of folders."""
_TCP: Final = 3
_SCOPES: Final = 3
"""Abstract names of sockets, and signals."""
_SINCE: Final = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL))
"""The versions that brought a right."""
_HAVE_NETWORK: Final = 4

_ETC: Final = ("passwd", "group", "hosts", "os-release")
_PROC: Final = (
    *("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version"),
    *("sys/kernel/osrelease", "sys/kernel/pid_max", "sys/kernel/random", "sys/kernel/threads-max"),
    *("sys/vm/max_map_count", "sys/vm/overcommit_memory"),
)
"""What kernels read below /proc. They read nothing there of processes, not even of their own: a rule for one
process would not hold for those that it starts, and a rule for all would show their arguments."""
_SYS: Final = ("devices/system", "fs/cgroup")
"""Where libraries look how many processors there are."""
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where the system has it


@cache
def landlock_version() -> int:
    """Return the version of Landlock's interface that the system has; 0 if it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, _ASKS_VERSION)))


def landlock_walls(
    version: int, folders: LaunchFolders, readable: Sequence[str], env: Mapping[str, str]
) -> bytes:
    """Return a kernel's walls, and its variables, as a line for ``inside/landlock.py``.

    `readable`: what its interpreter needs. Named shared memory can be used by whoever knows its name, but not
    listed.
    """
    handled = _ALL
    for since, right in _SINCE:
        if version < since:
            handled &= ~right
    size = 8 if version < _HAVE_NETWORK else 16 if version < SIGNALS else 24
    walls = {
        "files": handled,
        "network": _TCP if version >= _HAVE_NETWORK else 0,
        "scoped": _SCOPES if version >= SIGNALS else 0,
        "size": size,
        "of_files": _OF_FILES,
        "env": dict(env),
        "rules": [[path, access & handled] for path, access in _rules(folders, readable)],
    }
    return json.dumps(walls).encode() + b"\n"


def _rules(folders: LaunchFolders, readable: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield paths, each with the rights of a kernel to it and to all below."""
    system = [step.source for step in system_part(readable) if isinstance(step, Bind)]
    packages = [] if folders.packages is None else [str(folders.packages)]
    own = [str(each) for each in (folders.workspace, folders.sockets, folders.home, folders.branches) if each]
    told = [str(folders.connection_file), *(f"/etc/{name}" for name in _ETC)]
    looked_at = [f"/proc/{name}" for name in _PROC] + [f"/sys/{name}" for name in _SYS]
    yield from ((path, _READS) for path in (*system, *readable, *packages))
    yield from ((path, _READ) for path in told)
    yield from ((path, _READ | _LIST) for path in looked_at)
    yield from ((f"/dev/{name}", _READ | _WRITE | _IOCTL) for name in DEVICES)
    yield _SHARED_MEMORY, _CHANGES & ~_LIST
    yield from ((path, _CHANGES) for path in own)
