"""The names of a workspace in a branch: how a process enters mounts in which they are its own folder's.

``launch/names.py`` has these mounts made, with a user namespace that owns them, and offers descriptors
of both. A fork enters before it has a second thread (``branch.py``), and so does a program that is started
beside such a kernel (``programs.py``). Whoever enters a user namespace has all capabilities over it; they are
given up at once. Code that keeps them has them over nothing but these mounts, and the calls that would change
mounts are refused to all that is in a sandbox.
"""

import ctypes
import os
import socket
import struct

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63

WAIT = 5.0  # seconds
KINDS = ("user", "mnt")


def enter_offered(path):
    """Enter what is offered at a socket. Raises OSError; then this process has the names that it had."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(WAIT)
        connection.connect(path)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, len(KINDS))
    enter(descriptors)


def opened(process):
    """Yield descriptors of what a process is in. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    users, mounts = (f"/proc/{process}/ns/{kind}" for kind in KINDS)
    opened_users = os.open(users, flags)
    try:
        return [opened_users, os.open(mounts, flags)]
    except OSError:
        os.close(opened_users)
        raise


def enter(descriptors):
    """Enter a user namespace and its mounts, at the root, and close their descriptors. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if len(descriptors) != len(KINDS):
            raise OSError("They are not there")
        users, mounts = descriptors
        checked(libc.setns(users, CLONE_NEWUSER))
        try:
            checked(libc.setns(mounts, CLONE_NEWNS))
        finally:
            give_up_capabilities(libc)
    finally:
        close(descriptors)


def give_up_capabilities(libc):
    """Give up all capabilities for good, in this process and in whatever it starts."""
    for number in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break  # the system has no more of them
    checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    checked(libc.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", *[0] * 6)))


def checked(result):
    """Raise OSError where the result of a call of the C library says that it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def close(descriptors):
    """Close all the descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
