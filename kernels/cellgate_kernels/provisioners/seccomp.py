"""The sandbox's filter of system calls, and the argument rules that it shares with the engine's profile.

It refuses what namespaces do not isolate:

- address families other than those below: AF_VSOCK, for example, reaches the hypervisor from anywhere;
- asynchronous I/O of the old kind (io_setup), whose contexts are counted for the whole machine;
- the set-user-ID and set-group-ID bits of a file: a workspace is a folder of the host, where a file with them
  would be a program with its owner's rights;
- threads with a separate table of open files, which ``disk`` would not find;
- calls that no notebook needs: kernel keyrings belong to no namespace, io_uring does its work where no filter
  sees it, and the others have been used to escape from sandboxes through bugs of the system's kernel.

Everything else is allowed: this is a second line of defence, not the first.

Pure: it makes bytes, for bwrap's ``--seccomp``. See seccomp(2); the numbers are from the system's unistd.h.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
"""The address families that a kernel may have sockets of, besides AF_NETLINK."""

NETLINK_PROTOCOL = 0
"""NETLINK_ROUTE, the third argument, which reports network interfaces. The other protocols talk to parts of
the system's kernel that are for its administrator."""

SET_ID = stat.S_ISUID | stat.S_ISGID
"""The mode bits that no call may set on a file."""

_TMPFILE = 0o20000000  # __O_TMPFILE: os.O_TMPFILE holds O_DIRECTORY too
MAKES_FILE = os.O_CREAT | _TMPFILE
"""The flags of open(2) that make it use its argument `mode`, which can otherwise be anything."""

SOCKET_CALLS = ("socket", "socketpair")
"""Calls whose first argument is an address family."""

MODE_CALLS: Mapping[str, int] = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}
"""Calls that set a file's mode, with the index of that argument."""

OPEN_CALLS: Mapping[str, tuple[int, int]] = {"open": (1, 2), "openat": (2, 3)}
"""Calls that may make a file, with the indices of their flags and their mode."""

UNKNOWN_CALLS = ("openat2", "clone3")
"""Calls whose arguments are behind a pointer, where no filter can read them. If the system claims not to have
these calls, programs use the older ones."""

NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW* of clone(2)."""

THREAD, SHARED_FILES = 0x10000, 0x400
"""CLONE_THREAD and CLONE_FILES. All threads of a process must share one table of descriptors, as they do in
the C library: then there is one place to look for its open files (``disk``)."""

OWN_FILES = 2
"""CLOSE_RANGE_UNSHARE of close_range(2), its third argument: another way to get a separate table."""

# Classic BPF, from linux/bpf_common.h and linux/seccomp.h.
_LOAD_WORD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16

# Calls of the x32 ABI have this bit set and would bypass the numbers. i386 is an architecture of its own.
_X32 = 0x40000000

# Numbers that newer system calls have on all architectures.
_COMMON = {"clone3": 435, "close_range": 436, "openat2": 437, "fchmodat2": 452}
_COMMON_DENIED = (
    *(425, 426, 427),  # io_uring_setup, io_uring_enter, io_uring_register
    *(428, 429, 430, 431, 432, 433, 442, 467),  # the mount API, mount_setattr, open_tree_attr
    443,  # quotactl_fd
)


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int  # AUDIT_ARCH_* of linux/audit.h
    numbers: Mapping[str, int]
    denied: tuple[int, ...]


_ARCHITECTURES = {
    "x86_64": _Architecture(
        0xC000003E,
        {
            "clone": 56,
            "socket": 41,
            "socketpair": 53,
            "open": 2,
            "openat": 257,
            "creat": 85,
            "chmod": 90,
            "fchmod": 91,
            "fchmodat": 268,
            "mknod": 133,
            "mknodat": 259,
        },
        (
            *(248, 249, 250),  # add_key, request_key, keyctl
            *(298, 321, 323),  # perf_event_open, bpf, userfaultfd
            *(155, 161, 165, 166),  # pivot_root, chroot, mount, umount2
            *(272, 304, 308),  # unshare, open_by_handle_at, setns
            *(103, 167, 168, 169, 175, 176, 246, 313, 320),  # syslog, swapon, swapoff, reboot, modules, kexec
            *(163, 172, 173, 179, 212),  # acct, iopl, ioperm, quotactl, lookup_dcookie
            *(154, 206, 300),  # modify_ldt, io_setup, fanotify_init
        ),
    ),
    "aarch64": _Architecture(
        0xC00000B7,
        {
            "clone": 220,
            "socket": 198,
            "socketpair": 199,
            "openat": 56,
            "fchmod": 52,
            "fchmodat": 53,
            "mknodat": 33,
        },
        (
            *(217, 218, 219),
            *(241, 280, 282),
            *(41, 51, 40, 39),
            *(97, 265, 268),
            *(116, 224, 225, 142, 105, 106, 104, 273, 294),
            *(89, 60, 18),
            *(0, 262),
        ),
    ),
}

# An instruction, with labels to jump to if true and if false instead of distances. None is the next one.
_Step = tuple[int, int, str | None, str | None]


def sandbox_filter(machine: str) -> bytes | None:
    """The filter for an architecture as of ``uname -m``, or None for one whose numbers are not known here."""
    architecture = _ARCHITECTURES.get(machine)
    return None if architecture is None else _assemble(tuple(_program(architecture)))


def _program(architecture: _Architecture) -> Iterator[_Step | str]:
    """Instructions, and strings that are labels for the next one."""
    yield (_LOAD_WORD, _OFFSET_ARCHITECTURE, None, None)
    yield (_IF_EQUAL, architecture.audit, None, "deny")
    yield (_LOAD_WORD, _OFFSET_NUMBER, None, None)
    yield (_IF_AT_LEAST, _X32, "deny", None)
    for number in (*architecture.denied, *_COMMON_DENIED):
        yield (_IF_EQUAL, number, "deny", None)
    numbers = {**architecture.numbers, **_COMMON}
    for name, number in numbers.items():
        yield (_IF_EQUAL, number, "unknown" if name in UNKNOWN_CALLS else name, None)
    yield (_RETURN, _ALLOW, None, None)
    for name in numbers:
        if name not in UNKNOWN_CALLS:
            yield name
            yield from _check(name)
    for label, number in (("deny", errno.EPERM), ("family", errno.EAFNOSUPPORT), ("unknown", errno.ENOSYS)):
        yield label
        yield (_RETURN, _ERRNO | number, None, None)
    yield "allow"
    yield (_RETURN, _ALLOW, None, None)


def _check(name: str) -> Iterator[_Step]:
    """Decides on a call by its arguments. Each of them is an int: the system reads the lower half."""
    if name in SOCKET_CALLS:
        yield _load_argument(0)
        for family in FAMILIES:
            yield (_IF_EQUAL, family, "allow", None)
        yield (_IF_EQUAL, socket.AF_NETLINK, None, "family")
        yield _load_argument(2)
        yield (_IF_EQUAL, NETLINK_PROTOCOL, "allow", "family")
        return
    if name == "clone":
        yield _load_argument(0)
        yield (_IF_ANY_BIT, NEW_NAMESPACES, "deny", None)
        yield (_IF_ANY_BIT, THREAD, None, "allow")
        yield (_IF_ANY_BIT, SHARED_FILES, "allow", "deny")
        return
    if name == "close_range":
        yield _load_argument(2)
        yield (_IF_ANY_BIT, OWN_FILES, "deny", "allow")
        return
    if name in OPEN_CALLS:
        flags, mode = OPEN_CALLS[name]
        yield _load_argument(flags)
        yield (_IF_ANY_BIT, MAKES_FILE, None, "allow")
    else:
        mode = MODE_CALLS[name]
    yield _load_argument(mode)
    yield (_IF_ANY_BIT, SET_ID, "deny", "allow")


def _load_argument(index: int) -> _Step:
    # The lower half of eight bytes comes first: both architectures are little-endian.
    return (_LOAD_WORD, _OFFSET_ARGUMENTS + 8 * index, None, None)


def _assemble(program: tuple[_Step | str, ...]) -> bytes:
    places: dict[str, int] = {}
    steps: list[_Step] = []
    for part in program:
        if isinstance(part, str):
            places[part] = len(steps)
        else:
            steps.append(part)

    def distance(at: int, label: str | None) -> int:
        return 0 if label is None else places[label] - at - 1

    return b"".join(
        struct.pack("=HBBI", code, distance(at, if_true), distance(at, if_false), value)
        for at, (code, value, if_true, if_false) in enumerate(steps)
    )
