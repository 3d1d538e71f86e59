"""The seccomp profiles of containers, in the engine's own JSON: of kernels, and of a gateway with sandboxes.

The one for kernels is the default profile of Docker's engine (moby 24, for a process without capabilities)
with the rules of ``seccomp`` about arguments, and without io_uring, the older asynchronous I/O and programs
of other ABIs (i386, x32, 32-bit ARM), whose calls have other numbers. The engine omits names that an
architecture lacks.

Processes in containers whose branches get names of their own (``names``) may enter user namespaces and
mounts. Linux lets them into each that was made as their user below their own, and that is the machine's: also
those of other containers' branches, and of the machine's own user of that number. What they need for it is a
descriptor. Their /proc has those of their container; requests of ioctl(2) that lead to others are refused.
gVisor answers system calls itself, so its profile only refuses what would give a kernel gigabytes of disk in
a moment. It reads it if its runtime has ``--oci-seccomp``.

A gateway that makes sandboxes within its container also makes namespaces and mounts. Its kernels have the
filter of ``walls.seccomp`` besides, which refuses both. Where the engine covers parts of /proc, so that no
sandbox can be, the gateway puts its kernels behind Landlock, whose calls are therefore allowed to it.
"""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from cellgate_kernels.walls.seccomp import (
    BRANCHES_ENTER,
    FAMILIES,
    FREES_SPACE,
    HOLDS_FILE,
    LANDLOCK_CALLS,
    MAKES_FILE,
    MODE_CALLS,
    NETLINK_PROTOCOL,
    NEW_NAMESPACES,
    OPEN_CALLS,
    OWN_FILES,
    PERSONALITIES,
    SET_ID,
    SHARED_FILES,
    SHARED_FOLDERS,
    SOCKET_CALLS,
    THREAD,
    UNKNOWN_CALLS,
)

# Allowed with any arguments. For reviews: nothing here makes a namespace, a mount or a socket, sets a mode,
# loads code into the system's kernel, or gains a privilege.
_ALLOWED = """
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chown clock_adjtime
    clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
    clock_nanosleep_time64 close connect copy_file_range dup dup2 dup3 epoll_create epoll_create1
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve
    execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fchdir fchown fchownat
    fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64
    fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv
    futex_wake futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid
    getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
    getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
    getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioprio_get ioprio_set
    kill lchown lgetxattr link linkat
    listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat lstat64 madvise
    map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mlock mlock2 mlockall mmap
    mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend
    mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
    name_to_handle_at nanosleep newfstatat pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc
    pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64
    process_mrelease pselect6 pselect6_time64 pwrite64 pwritev pwritev2 read readahead readlink readlinkat
    readv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat rename
    renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
    rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr
    sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
    semtimedop_time64 sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area
    set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid
    setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat shmctl shmdt shmget
    shutdown sigaltstack signalfd signalfd4 splice stat stat64 statfs statfs64 statx symlink symlinkat
    sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun
    timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime
    timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 umask uname unlink
    unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid write writev
"""

_ARCHITECTURE_CALLS = {
    "amd64": ["arch_prctl"],
    "arm64": [
        "arm_fadvise64_64",
        "arm_sync_file_range",
        "sync_file_range2",
        "breakpoint",
        "cacheflush",
        "set_tls",
    ],
    "ppc64le": ["sync_file_range2", "swapcontext"],
    "riscv64": ["riscv_flush_icache", "riscv_hwprobe"],
    "s390x": ["s390_pci_mmio_read", "s390_pci_mmio_write", "s390_runtime_instr"],
}

_NAMESPACE_REQUESTS, _PIDFD_REQUESTS = 0xB7, 0xFF
"""The types of ioctl's requests of linux/nsfs.h and linux/pidfd.h: the second byte of a request. With the
former a process finds all mount namespaces that it has rights in, and who owns them.
"""

_TRACING = ["process_vm_readv", "process_vm_writev", "ptrace"]

_FCNTL = ["fcntl", "fcntl64"]
_LINUX_COMMANDS = range(1024, 1040 + 1)
"""The commands of fcntl(2) that Linux has beyond POSIX's, from F_SETLEASE to F_SETDELEG."""

_SANDBOX_CALLS = """
    chroot clone mount mount_setattr move_mount open_tree pivot_root sethostname setns umount umount2 unshare
"""
"""The calls with which bubblewrap and a zygote make a sandbox; to a process without capabilities the system
allows most of them only in namespaces of its own.
"""

_ALLOW, _ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
_ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")


@cache
def engine_profile(*, names: bool = False) -> str:
    """Return the engine's ``seccomp=`` option. `names`: whether branches get names of their own."""
    unknown = _unknown(UNKNOWN_CALLS)
    return _profile(_ERRNO, [*_rules(), unknown, *(_rules_for_names() if names else [_allow(["ioctl"])])])


@cache
def sandboxes_profile() -> str:
    """Return the profile of a container in which a gateway without capabilities isolates its kernels."""
    # The engine takes one answer for a call with the same arguments.
    unknown = _unknown(name for name in UNKNOWN_CALLS if name not in LANDLOCK_CALLS)
    return _profile(_ERRNO, [*_rules(), unknown, _allow(["ioctl", *_SANDBOX_CALLS.split(), *LANDLOCK_CALLS])])


@cache
def gvisor_profile() -> str:
    """Return the profile for kernels under gVisor, whose older versions answer EPERM to refused calls."""
    return _profile(_ALLOW, [_no_space_at_once()])


def _profile(default: str, rules: Iterable[dict[str, Any]]) -> str:
    architectures = [{"architecture": name, "subArchitectures": []} for name in _ARCHITECTURES]
    profile = {"defaultAction": default, "archMap": architectures, "syscalls": list(rules)}
    return json.dumps(profile, separators=(",", ":"))


def _rules() -> Iterator[dict[str, Any]]:
    yield _allow(_ALLOWED.split())
    for architecture, names in _ARCHITECTURE_CALLS.items():
        yield _allow(names, includes={"arches": [architecture]})
    # Before 4.8 a tracer could change a call after the filter had seen it.
    yield _allow(_TRACING, includes={"minKernel": "4.8"})
    for value in PERSONALITIES:
        yield _allow(["personality"], [_equals(0, value)])
    # The flags are clone's first argument; on s390x the second.
    for index, where in ((0, "excludes"), (1, "includes")):
        machines = {where: {"arches": ["s390", "s390x"]}}
        yield _allow(["clone"], [_without(index, NEW_NAMESPACES | THREAD)], **machines)
        shared = SHARED_FILES | SHARED_FOLDERS
        yield _allow(["clone"], [_has(index, shared, of=NEW_NAMESPACES | shared)], **machines)
    # One rule has one condition for an argument.
    yield _allow(_FCNTL, [{"index": 1, "value": _LINUX_COMMANDS.start, "op": "SCMP_CMP_LT"}])
    for command in _LINUX_COMMANDS:
        if command not in HOLDS_FILE:
            yield _allow(_FCNTL, [_equals(1, command)])
    yield _allow(["close_range"], [_without(2, OWN_FILES)])
    for family in FAMILIES:
        yield _allow(SOCKET_CALLS, [_equals(0, int(family))])
    netlink = [_equals(0, int(socket.AF_NETLINK)), _equals(2, NETLINK_PROTOCOL)]
    yield _allow(["socket"], netlink)
    for name, mode in MODE_CALLS.items():
        yield _allow([name], [_without(mode, SET_ID)])
    # If there are several rules for one call, any that matches allows it.
    for name, (flags, mode) in OPEN_CALLS.items():
        yield _allow([name], [_without(mode, SET_ID)])
        yield _allow([name], [_without(flags, MAKES_FILE)])
    yield _allow(["fallocate"], [_has(1, FREES_SPACE, of=FREES_SPACE)])
    yield _no_space_at_once()


def _unknown(names: Iterable[str]) -> dict[str, Any]:
    """Return a rule that answers to calls as a system does that lacks them."""
    return {"names": list(names), "action": _ERRNO, "errnoRet": errno.ENOSYS}


def _rules_for_names() -> Iterator[dict[str, Any]]:
    for kind in BRANCHES_ENTER:
        yield _allow(["setns"], [_equals(1, kind)])
    for mask, value in _other_types():
        yield _allow(["ioctl"], [_has(1, value << 8, of=mask << 8)])


def _other_types() -> Iterator[tuple[int, int]]:
    """Yield all types of requests but those two: by some of their bits, and what these are."""
    # They differ in two bits, and each other type lacks a bit that both have, or has just one of the two.
    differ = _NAMESPACE_REQUESTS ^ _PIDFD_REQUESTS
    for bit in (1 << place for place in range(8)):
        yield (differ, bit) if bit & differ else (bit, 0)


def _no_space_at_once() -> dict[str, Any]:
    gives_space = [_without(1, FREES_SPACE)]
    return {"names": ["fallocate"], "action": _ERRNO, "errnoRet": errno.EOPNOTSUPP, "args": gives_space}


def _allow(names: Any, args: list[dict[str, Any]] | None = None, **where: Any) -> dict[str, Any]:
    return {"names": list(names), "action": _ALLOW, "args": args or [], **where}


def _equals(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _without(index: int, bits: int) -> dict[str, Any]:
    """Return a rule for an argument with none of these bits."""
    return _has(index, 0, of=bits)


def _has(index: int, value: int, *, of: int) -> dict[str, Any]:
    """Return a rule for an argument with exactly the bits of `value` among those in `of`."""
    return {"index": index, "value": of, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
