"""The sandbox's filter of system calls: what namespaces do not fence off and no notebook needs.

Kernel keyrings belong to no namespace, so that the gateway's own would be in a kernel's reach. The others are
known ways out of a sandbox by an error of the system's kernel, or would fail without capabilities anyway. All
else is allowed: this is a second fence, not the first. Pure: it makes bytes, for bwrap's ``--seccomp``.
See seccomp(2); the numbers are from the system's unistd.h.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

# Classic BPF, from linux/bpf_common.h and linux/seccomp.h.
_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE = 0, 4

# Calls of the x32 ABI carry this bit and would slip by the numbers.
_X32 = 0x40000000

# Numbers that newer system calls have on all architectures: io_uring_*, the mount API, mount_setattr.
_COMMON = (425, 426, 427, 428, 429, 430, 431, 432, 433, 442)


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int  # AUDIT_ARCH_* of linux/audit.h
    denied: tuple[int, ...]


_ARCHITECTURES = {
    "x86_64": _Architecture(
        0xC000003E,
        (
            *(248, 249, 250),  # add_key, request_key, keyctl
            *(298, 321, 323),  # perf_event_open, bpf, userfaultfd
            *(
                155,
                161,
                165,
                166,
                272,
                304,
                308,
            ),  # pivot_root, chroot, mount, umount2, unshare, open_by_handle_at, setns
            *(103, 167, 168, 169, 175, 176, 246, 313, 320),  # syslog, swapon, swapoff, reboot, modules, kexec
        ),
    ),
    "aarch64": _Architecture(
        0xC00000B7,
        (
            *(217, 218, 219),
            *(241, 280, 282),
            *(41, 51, 40, 39, 97, 265, 268),
            *(116, 224, 225, 142, 105, 106, 104, 273, 294),
        ),
    ),
}


def sandbox_filter(machine: str) -> bytes | None:
    """The filter for an architecture as of ``uname -m``, or None for one whose numbers are not known here."""
    architecture = _ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    numbers = (*architecture.denied, *_COMMON)
    # Jumps count instructions from the next one; the last two are "allow" and "deny".
    checks = [
        _instruction(_JUMP_IF_EQUAL, number, len(numbers) - index, 0) for index, number in enumerate(numbers)
    ]
    program = [
        _instruction(_LOAD_WORD, _OFFSET_ARCHITECTURE),
        _instruction(_JUMP_IF_EQUAL, architecture.audit, 0, len(numbers) + 3),
        _instruction(_LOAD_WORD, _OFFSET_NUMBER),
        _instruction(_JUMP_IF_AT_LEAST, _X32, len(numbers) + 1, 0),
        *checks,
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
