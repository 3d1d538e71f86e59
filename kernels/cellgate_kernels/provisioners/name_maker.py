"""A program that makes what a branch needs to have the workspace's names for its own folder.

``names`` runs it, outside of the sandbox, with the gateway's rights and for one branch. It makes a mount
namespace like the sandbox's, in which another folder is at the workspace's name, and a user namespace that
owns it. The branch's process enters both (``image/names.py``), which takes two things: the user namespace is
below the one that the forked process is in, and was made as that process's user.

It runs in the sandbox's mounts for a moment, where nothing can see it: it is in another namespace of
processes. It follows no link to the folder, which code in the sandbox may have put there. What it prints is
the number of the process that is in the namespaces, and waits there until its standard input ends.

Like what is in ``image`` it imports nothing of ours: it starts anew for each branch.
"""

import ctypes
import fcntl
import os
import resource
import select
import sys

# linux/sched.h, linux/nsfs.h, linux/mount.h, linux/fcntl.h, linux/prctl.h
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE, MNT_DETACH = 16384, 1 << 18, 2
NS_GET_USERNS = 0xB701
OPEN_TREE, MOVE_MOUNT = 428, 429  # on all architectures
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
PR_SET_DUMPABLE = 4

COUNTED = (
    resource.RLIMIT_NPROC,
    resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_SIGPENDING,
    resource.RLIMIT_MEMLOCK,
)
"""What the system counts for a user in each user namespace and those above it."""
NAMESPACES = "/proc/sys/user/max_user_namespaces"
FEW, MANY = 64, "1048576"
KILL = 9  # the module that names it takes milliseconds

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """The result of a call of the C library. Raises OSError where that says that it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def make(first: int, forked: int, folder: str, name: str, user: int) -> None:
    """Make the namespaces, say that this process is in them, and wait. Raises OSError.

    `first`: a process of the sandbox that is in its own mounts, numbered as here. `forked`: the one that is
    forked, numbered as there. `folder`: where the first finds what is to be mounted at `name`. `user`: the
    number, there, of the user that the kernel is.
    """
    mounts = os.open(f"/proc/{first}/ns/mnt", os.O_RDONLY)
    users = os.open(f"/proc/{first}/root/proc/{forked}/ns/user", os.O_RDONLY)
    for limit in COUNTED:
        resource.setrlimit(limit, resource.prlimit(first, limit))
    owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    checked(libc.setns(owner, CLONE_NEWUSER))
    told = allow_another()
    # Written to later, where /proc is another one and read-only.
    own = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    number = os.getpid()
    checked(libc.setns(mounts, CLONE_NEWNS))
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_SYMLINK_NOFOLLOW
    tree = checked(libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(folder), flags))
    # Not on the other folder but in its place: a mount ends with the folder that it is on.
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    checked(libc.umount2(os.fsencode(name), MNT_DETACH))
    checked(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(name), MOVE_MOUNT_F_EMPTY_PATH))
    checked(libc.setns(users, CLONE_NEWUSER))
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Or its files in /proc would be another's.
    checked(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    write(own, "setgroups", "deny")
    for kind in ("uid_map", "gid_map"):
        write(own, kind, f"{user} {user} 1")
    os.write(told, f"{number}\n".encode())
    os.read(0, 1)


def allow_another() -> int:
    """Let one more user namespace be made below this one, also where bwrap has forbidden it for good.

    Returns a descriptor for the number of the process that is in it. Where it is forbidden, this goes on in a
    child: then it is forbidden again, before the number is passed on, and whatever goes wrong: whoever waits
    no longer closes our standard input, also by its own end.
    """
    with open(NAMESPACES) as file:  # noqa: PTH123
        most = file.read()
    if int(most) > FEW:
        return 1
    reader, writer = os.pipe()
    child, number = -1, b""
    try:
        set_namespaces(MANY)
        child = os.fork()
        if child:
            os.close(writer)
            told, _, _ = select.select([reader, 0], [], [])
            number = os.read(reader, 32) if reader in told else b""
    finally:
        if child:
            set_namespaces(most)
        if child > 0 and not number:
            # It has failed, or hangs.
            os.kill(child, KILL)
    if child == 0:
        os.close(reader)
        return writer
    if number:
        os.write(1, number)
        os.read(0, 1)
    os._exit(0)


def set_namespaces(most: str) -> None:
    """Set how many user namespaces each user may have made below this one."""
    with open(NAMESPACES, "w") as file:  # noqa: PTH123
        file.write(most)


def write(folder: int, name: str, value: str) -> None:
    """Write to a file in a folder that is open."""
    descriptor = os.open(name, os.O_WRONLY, dir_fd=folder)
    os.write(descriptor, value.encode())
    os.close(descriptor)


if __name__ == "__main__":
    first, forked, folder, name, user = sys.argv[1:]
    try:
        make(int(first), int(forked), folder, name, int(user))
    except OSError as error:
        sys.exit(error.strerror)
