"""A program that makes what a branch needs to have the workspace's names for its own folder.

``names`` runs it, outside of the sandbox or container, with the gateway's rights and for one branch. It makes
a mount namespace like the sandbox's, in which another folder is at the workspace's name, and a user namespace
that owns it, below the forked process's and made as its user, so that the branch may enter both
(``inside/names.py``).

It runs in the sandbox's mounts for a moment, where nothing can see it: it is in another namespace of
processes. There it loads nothing, as the files are another's, and it follows no link to the folder. What it
prints is the number of the process that is in the namespaces, and waits there until its standard input ends.
It imports nothing of ours: it starts anew for each branch.
"""

import ctypes
import errno
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
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4

COUNTED = {
    "Max processes": resource.RLIMIT_NPROC,
    "Max msgqueue size": resource.RLIMIT_MSGQUEUE,
    "Max pending signals": resource.RLIMIT_SIGPENDING,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
}
"""What the system counts for a user in each user namespace and those above it, by its names in /proc."""
LONGEST = 26
NAMESPACES = "/proc/sys/user/max_user_namespaces"
FEW, MANY = 64, "1048576"
KILL = 9  # the module that names it takes milliseconds

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """Return the result of a call of the C library. Raises OSError where that says that it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def make(first: int, forked: int, folder: str, name: str, user: int, group: int) -> None:
    """Make the namespaces, say that this process is in them, and wait. Raises OSError.

    `first` finds `folder`, which is to be mounted at `name`; `forked` and the kernels' own `user` and `group`
    are numbered as there.
    """
    mounts = os.open(f"/proc/{first}/ns/mnt", os.O_RDONLY)
    users = os.open(f"/proc/{first}/root/proc/{forked}/ns/user", os.O_RDONLY)
    take_limits(first)
    owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    if are_same(os.stat("/proc/self/ns/user"), os.fstat(owner)):  # noqa: PTH116 - nothing more is imported
        # A container's, as a rule. The settings are the machine's there, and not ours to change.
        check_allowed()
        told = 1
    else:
        checked(libc.setns(owner, CLONE_NEWUSER))
        told = allow_another()
    # Written to later, where /proc is another one and read-only.
    own = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    number = os.getpid()
    checked(libc.setns(mounts, CLONE_NEWNS))
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_SYMLINK_NOFOLLOW
    tree = checked(libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(folder), flags))
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    # Not on another folder but in its place, if one is there: a mount ends with the folder that it is on.
    if libc.umount2(os.fsencode(name), MNT_DETACH) < 0 and ctypes.get_errno() != errno.EINVAL:
        checked(-1)
    checked(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(name), MOVE_MOUNT_F_EMPTY_PATH))
    if not are_same(os.fstat(users), os.fstat(owner)):
        checked(libc.setns(users, CLONE_NEWUSER))
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    # Or its files in /proc would be another's.
    checked(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    write(own, "setgroups", "deny")
    for kind, number_there in (("uid_map", user), ("gid_map", group)):
        write(own, kind, f"{number_there} {number_there} 1")
    os.write(told, f"{number}\n".encode())
    os.read(0, 1)


def take_limits(process: int) -> None:
    """Have a process's limits, where they are not above one's own. Unlike prlimit(2), its /proc tells all."""
    with open(f"/proc/{process}/limits") as file:  # noqa: PTH123
        told = {line[:LONGEST].rstrip(): line[LONGEST:].split()[:2] for line in file}
    for name, limit in COUNTED.items():
        soft, hard = (resource.RLIM_INFINITY if each == "unlimited" else int(each) for each in told[name])
        try:
            resource.setrlimit(limit, (soft, hard))
        except ValueError:
            continue


def are_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether both are of one namespace: nobody enters one again."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def check_allowed() -> None:
    """Check that user namespaces may be made. Raises OSError."""
    with open(NAMESPACES) as file:  # noqa: PTH123
        if int(file.read()) == 0:
            raise OSError(errno.EPERM, "The system allows no user namespaces")


def allow_another() -> int:
    """Let one more user namespace be made below this one, also where bwrap has forbidden it for good.

    Returns a descriptor for the number of the process that is in it. Where it is forbidden, this goes on in a
    child, before whose number is passed on it is forbidden again, whatever goes wrong.
    """
    with open(NAMESPACES) as file:  # noqa: PTH123
        most = file.read()
    if int(most) > FEW:
        return 1
    reader, writer = os.pipe()
    parent, child, number = os.getpid(), -1, b""
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
        # An interrupt may end the parent before it knows this child's number.
        checked(libc.prctl(PR_SET_PDEATHSIG, KILL, 0, 0, 0))
        if os.getppid() != parent:
            os._exit(1)
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
    first, forked, folder, name, user, group = sys.argv[1:]
    try:
        make(int(first), int(forked), folder, name, int(user), int(group))
    except OSError as error:
        os.write(2, (error.strerror or "").encode())
    # The interpreter's own end, too, may load something.
    os._exit(0)
