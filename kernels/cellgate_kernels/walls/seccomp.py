"""The sandbox's filter of system calls, and the argument rules that it shares with the engine's profile.

It allows the calls of ``system_calls`` and refuses all others, also future ones: no reviewer has considered
a call that no list names. Calls are allowed by their arguments in these cases:

- address families other than those below: AF_VSOCK, for example, reaches the hypervisor from anywhere;
- the set-user-ID and set-group-ID bits of a file: a workspace is a folder of the host, where a file with them
  would be a program with its owner's rights;
- allocating space without writing to it: gigabytes take a moment, in which no check of the disk could run;
- new namespaces. A kernel that can be branched may enter existing namespaces of users or mounts (``names``).
  If such a kernel's files are root's on the host, they get no extended attributes;
- threads with tables of open files or folders of their own, which ``disk`` would not find;
- personalities other than Linux's own, which would make the layout of memory predictable;
- leases and delegations of files: the system makes every process wait that opens or removes such a file, the
  gateway too, for 45 seconds each.

A kernel that shares the system's namespaces with others (``backends.landlock``) may neither connect to a
socket nor send to one that has a name, so it has no network and reaches none of the other kernels' channels.
It may not use System V's or POSIX's queues, semaphores and memory, which are told apart by the user alone,
change another process's limits or priority, or watch folders that it can't read.

A refused call fails with EPERM. fallocate and calls for extended attributes fail with EOPNOTSUPP, as on file
systems without support. Calls unknown to this list fail with ENOSYS, as on an older system, so that programs
use older calls. Landlock's calls fail with ENOSYS too: a rule keeps the files that it names, also deleted
ones, where no check can find them.

Pure: it makes bytes, for bwrap's ``--seccomp`` and for forked kernels. See seccomp(2).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from cellgate_kernels.walls.system_calls import allowed_calls

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
"""The address families, besides AF_NETLINK, of sockets that a kernel may have."""

NETLINK_PROTOCOL = 0
"""NETLINK_ROUTE, the third argument, which reports network interfaces. The other protocols configure parts of
the system's kernel and are for its administrator."""

SET_ID = stat.S_ISUID | stat.S_ISGID
"""The mode bits that no call may set on a file."""

_TMPFILE = 0o20000000  # __O_TMPFILE: os.O_TMPFILE holds O_DIRECTORY too
MAKES_FILE = os.O_CREAT | _TMPFILE
"""The flags of open(2) with which its argument `mode` counts; without them it can be anything."""

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
"""The calls that set a file's mode, with the index of the mode argument."""

OPEN_CALLS: Mapping[str, tuple[int, int]] = {"open": (1, 2), "openat": (2, 3)}
"""Calls that may make a file, with the indices of their flags and their mode."""

LANDLOCK_CALLS = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")

UNKNOWN_CALLS = ("openat2", "clone3", *LANDLOCK_CALLS)
"""The calls that fail as if the system lacked them: programs do without, or use older ones. The arguments of
the first two are behind a pointer, where no filter can read them."""

NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW* of clone(2)."""

BRANCHES_ENTER = (0x10000000, 0x20000)
"""CLONE_NEWUSER and CLONE_NEWNS, each alone: the second argument of setns(2). The system lets a process enter
a user namespace below its own that was made for its user, which only the gateway makes, and then the mounts
that belong to that namespace."""

ATTRIBUTE_CALLS = ("setxattr", "lsetxattr", "fsetxattr", "setxattrat")
"""The calls that can give a file capabilities, for a process that is root in the user namespace of a branch.
The capabilities count for any user of the file where its owner is root. So if files of a workspace are
root's on the host, they would be as bad there as set-user-ID bits. Such files get no extended attributes at
all, because no filter can read an attribute's name."""

THREAD, SHARED_FILES, SHARED_FOLDERS = 0x10000, 0x400, 0x200
"""CLONE_THREAD, CLONE_FILES and CLONE_FS. All threads of a process must share a table of descriptors and a
working folder, as they do in the C library: then ``disk`` finds all files that a process keeps in one place.
"""

OWN_FILES = 2
"""CLOSE_RANGE_UNSHARE of close_range(2), its third argument: another way to get a separate table."""

FREES_SPACE = 2
"""FALLOC_FL_PUNCH_HOLE of fallocate(2), its second argument: the call may do nothing else. When fallocate
allocates no space, posix_fallocate(3) writes to each block instead."""

HOLDS_FILE = (1024, 1040)
"""F_SETLEASE and F_SETDELEG of fcntl(2), its second argument."""

# Classic BPF, from linux/bpf_common.h and linux/seccomp.h.
_LOAD_WORD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16

# Calls of the x32 ABI have this bit set and would bypass the numbers. i386 is another architecture.
_X32 = 0x40000000

_HIGHEST = 467
"""The newest call when this list was made; later ones are unknown here."""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux and its 32-bit form, as ``setarch`` sets them, and the query of the current one."""

ONE_OF: Mapping[str, tuple[int, Sequence[int]]] = {
    "personality": (0, PERSONALITIES),
    "setns": (1, BRANCHES_ENTER),
}
"""The calls with a checked argument: its index, and the allowed values."""

REACHES_OTHERS = (
    *("connect", "inotify_add_watch", "truncate", "mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv"),
    *("msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmget"),
)
"""The calls that reach other processes' objects where the system's namespaces are shared. Landlock before
its version 3 does not hold truncate(2)."""

OWN_ALONE: Mapping[str, tuple[int, ...]] = {
    "prlimit64": (0,),
    "sched_setaffinity": (0,),
    "sched_setattr": (0,),
    "sched_setparam": (0,),
    "sched_setscheduler": (0,),
    "setpriority": (0, 0),
    "ioprio_set": (1, 0),
}
"""The calls that change a process, with the first arguments that name the caller itself."""

BY_ZEROMQ = "sched_setscheduler"
"""The call that succeeds without an effect for another thread: ZeroMQ sets each new one's to what it has, and
ends the process if it may not."""

SHARED_CALLS = frozenset({*SOCKET_CALLS, *OWN_ALONE})
"""The calls that are decided otherwise where the system's namespaces are shared."""

NOT_A_STREAM = 0xE
"""The bits of a socket's type, the second argument, of which SOCK_STREAM has none: a socket of another type
sends to any name without connect(2)."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_* of linux/audit.h

# An instruction, with labels instead of distances to jump to if true and if false. None is the next one.
_Step = tuple[int, int, str | None, str | None]


@cache
def sandbox_filter(
    machine: str, *, branches: bool = False, root: bool = False, shared: bool = False
) -> bytes | None:
    """Return the filter for an architecture of ``uname -m``, or None if its numbers are not known.

    `branches`: for a kernel that can be branched. `root`: its files on the host are root's. `shared`: it
    shares the system's namespaces with other kernels.
    """
    if machine not in _AUDIT:
        return None
    numbers = allowed_calls()[machine]
    if not branches:
        del numbers["setns"]
    if shared:
        for name in REACHES_OTHERS:
            del numbers[name]
    not_there = ATTRIBUTE_CALLS if branches and root else ()
    by_arguments = {"clone", "close_range", "fallocate", "fcntl", "personality", "setns"}
    checked = {*SOCKET_CALLS, *MODE_CALLS, *OPEN_CALLS, *UNKNOWN_CALLS, *by_arguments, *not_there}
    if shared:
        checked |= set(OWN_ALONE)
    blocks = [_preamble(_AUDIT[machine])]
    blocks += [_checked(name, numbers[name], shared=shared) for name in sorted(checked) if name in numbers]
    plain = sorted(number for name, number in numbers.items() if name not in checked)
    blocks += [_range(first, last) for first, last in _ranges(plain)]
    blocks.append(_rest())
    return b"".join(_assemble(tuple(block)) for block in blocks)


# The program is made of blocks that return or go on to the next one, because a jump reaches 255 instructions.


def _preamble(audit: int) -> Iterator[_Step | str]:
    yield (_LOAD_WORD, _OFFSET_ARCHITECTURE, None, None)
    yield (_IF_EQUAL, audit, None, "deny")
    yield (_LOAD_WORD, _OFFSET_NUMBER, None, None)
    yield (_IF_AT_LEAST, _X32, "deny", "next block")
    yield "deny"
    yield _refuse(errno.EPERM)
    yield "next block"


def _checked(name: str, number: int, *, shared: bool) -> Iterator[_Step | str]:
    yield (_IF_EQUAL, number, None, "next block")
    if name in UNKNOWN_CALLS:
        yield _refuse(errno.ENOSYS)
    elif name in ATTRIBUTE_CALLS:
        yield _refuse(errno.EOPNOTSUPP)
    else:
        yield from _check_shared(name) if shared and name in SHARED_CALLS else _check(name)
        yield "deny"
        yield _refuse(errno.EOPNOTSUPP if name == "fallocate" else errno.EPERM)
        yield "family"
        yield _refuse(errno.EAFNOSUPPORT)
        yield "allow"
        yield (_RETURN, _ALLOW, None, None)
    yield "next block"


def _range(first: int, last: int) -> Iterator[_Step | str]:
    """Allow the calls from `first` to `last`. Earlier calls were decided before, or are refused."""
    yield (_IF_AT_LEAST, last + 1, "next block", None)
    yield (_IF_AT_LEAST, first, "allow", None)
    yield _refuse(errno.EPERM)
    yield "allow"
    yield (_RETURN, _ALLOW, None, None)
    yield "next block"


def _rest() -> Iterator[_Step | str]:
    yield (_IF_AT_LEAST, _HIGHEST + 1, None, "known")
    yield _refuse(errno.ENOSYS)
    yield "known"
    yield _refuse(errno.EPERM)


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive numbers, each as its first and last."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def _refuse(error: int) -> _Step:
    return (_RETURN, _ERRNO | error, None, None)


def _check(name: str) -> Iterator[_Step]:
    """Decide on a call by its arguments. Each argument is an int: the system reads the lower half."""
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
        yield (_IF_ANY_BIT, SHARED_FILES, None, "deny")
        yield (_IF_ANY_BIT, SHARED_FOLDERS, "allow", "deny")
        return
    if name in ONE_OF:
        argument, values = ONE_OF[name]
        yield _load_argument(argument)
        for value in values:
            yield (_IF_EQUAL, value, "allow", None)
        return
    if name == "close_range":
        yield _load_argument(2)
        yield (_IF_ANY_BIT, OWN_FILES, "deny", "allow")
        return
    if name == "fcntl":
        yield _load_argument(1)
        lease, delegation = HOLDS_FILE
        yield (_IF_EQUAL, lease, "deny", None)
        yield (_IF_EQUAL, delegation, "deny", "allow")
        return
    if name == "fallocate":
        yield _load_argument(1)
        yield (_IF_ANY_BIT, FREES_SPACE, "allow", "deny")
        return
    if name in OPEN_CALLS:
        flags, mode = OPEN_CALLS[name]
        yield _load_argument(flags)
        yield (_IF_ANY_BIT, MAKES_FILE, None, "allow")
    else:
        mode = MODE_CALLS[name]
    yield _load_argument(mode)
    yield (_IF_ANY_BIT, SET_ID, "deny", "allow")


def _check_shared(name: str) -> Iterator[_Step | str]:
    """Decide on a call where the system's namespaces are shared, by its arguments."""
    if name in SOCKET_CALLS:
        yield _load_argument(0)
        yield (_IF_EQUAL, socket.AF_UNIX, "kind", None)
        yield (_IF_EQUAL, socket.AF_NETLINK, None, "family")
        yield _load_argument(2)
        yield (_IF_EQUAL, NETLINK_PROTOCOL, "allow", "family")
        yield "kind"
        yield _load_argument(1)
        yield (_IF_ANY_BIT, NOT_A_STREAM, "deny", "allow")
        return
    *first, last = OWN_ALONE[name]
    for index, value in enumerate(first):
        yield _load_argument(index)
        yield (_IF_EQUAL, value, None, "deny")
    yield _load_argument(len(first))
    yield (_IF_EQUAL, last, "allow", None)
    if name == BY_ZEROMQ:
        yield _refuse(0)


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
