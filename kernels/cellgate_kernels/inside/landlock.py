"""Shuts its process in behind Landlock and a filter of system calls, then becomes a kernel's program.

Run by a kernel's own interpreter as ``python -IS landlock.py DESCRIPTOR PROGRAM [ARGUMENT ...]``. The
descriptor is open on a line of JSON and the filter's bytes; ``cellgate_kernels.walls.landlock`` makes both,
and says what they hold. It needs nothing but the standard library.
"""

import ctypes
import json
import os
import stat
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
INSTRUCTION_BYTES = 8

LIBC = ctypes.CDLL(None, use_errno=True)


class Ruleset(ctypes.Structure):
    """landlock_ruleset_attr of linux/landlock.h, of which older systems know the first field or two."""

    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class PathBeneath(ctypes.Structure):
    """landlock_path_beneath_attr of linux/landlock.h."""

    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class FilterProgram(ctypes.Structure):
    """sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def main():
    """Read the walls, put them up, and become the program."""
    descriptor, argv = int(sys.argv[1]), sys.argv[2:]
    with open(descriptor, "rb") as given:
        walls = json.loads(given.readline())
        instructions = given.read()
    called(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    restrict(walls)
    refuse_calls(instructions)
    # Only now the variables that a client may have chosen: some would have run code before the walls were up.
    os.execve(argv[0], argv, walls["env"])  # noqa: S606 - as the launch's own argument list


def restrict(walls):
    """Put up Landlock's walls, for this process and all that it starts."""
    ruleset = Ruleset(walls["files"], walls["network"], walls["scoped"])
    opened = called(LIBC.syscall(CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(walls["size"]), 0))
    for path, access in walls["rules"]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
        rule = PathBeneath(access if is_folder else access & walls["of_files"], place)
        called(LIBC.syscall(ADD_RULE, opened, PATH_BENEATH, ctypes.byref(rule), 0))
        os.close(place)
    called(LIBC.syscall(RESTRICT_SELF, opened, 0))
    os.close(opened)


def refuse_calls(instructions):
    """Let the system refuse calls by a filter; without instructions nothing is refused."""
    if instructions:
        program = FilterProgram(len(instructions) // INSTRUCTION_BYTES, instructions)
        called(LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def called(answer):
    """Return the answer of a call. Raises OSError if it failed."""
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer


if __name__ == "__main__":
    main()
