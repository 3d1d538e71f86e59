"""A program that makes the namespaces in which the workspace's names are a branch's own folder.

``names`` runs it outside of the sandbox or container, with the gateway's rights and for one branch. It makes
a mount namespace like the sandbox's, with the branch's folder at the workspace's name, and a user namespace
that owns the mount namespace. The user namespace is below the forked process's and made as its user, so that
the branch may enter both (``inside/names.py``).

The program enters the sandbox's mounts for a moment, but can't be seen there: its pid namespace is another.
It loads nothing there, as user code wrote the files, and follows no link to the folder. It prints the number
of the process that is in the namespaces, which waits there until its standard input ends. The program imports
nothing of Cellgate, because it starts anew for each branch.
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
"""The limits of a user in each user namespace and in the namespaces above, by their names in /proc."""
LONGEST = 26
NAMESPACES = "/proc/sys/user/max_user_namespaces"
FEW, MANY = 64, "1048576"
KILL = 9  # importing `signal` takes milliseconds

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """Return the result of a call of the C library. Raises OSError if the result is an error."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def make(first: int, forked: int, folder: str, name: str, user: int, group: int) -> None:
    """Make the namespaces, print the process that is in them, and wait. Raises OSError.

    `folder`, a path in the mounts of the process `first`, is mounted at `name`. `forked` and the kernels' own
    `user` and `group` are numbered as in the sandbox.
    """
    mounts = os.open(f"/proc/{first}/ns/mnt", os.O_RDONLY)
    users = os.open(f"/proc/{first}/root/proc/{forked}/ns/user", os.O_RDONLY)
    take_limits(first)
    owner = fcntl.ioctl(mounts, NS_GET_USERNS)
    if are_same(os.stat("/proc/self/ns/user"), os.fstat(owner)):  # noqa: PTH116 - nothing more is imported
        # A container's, as a rule. There the settings are the machine's, and not the gateway's to change.
        check_allowed()
        told = 1
    else:
        checked(libc.setns(owner, CLONE_NEWUSER))
        told = allow_another()
    # Opened now and written to later, when /proc is the sandbox's and read-only.
    own = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    number = os.getpid()
    checked(libc.setns(mounts, CLONE_NEWNS))
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_SYMLINK_NOFOLLOW
    tree = checked(libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(folder), flags))
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    # The mount replaces any folder that is at the name: a mount ends with the folder below it.
    if libc.umount2(os.fsencode(name), MNT_DETACH) < 0 and ctypes.get_errno() != errno.EINVAL:
        checked(-1)
    checked(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(name), MOVE_MOUNT_F_EMPTY_PATH))
    if not are_same(os.fstat(users), os.fstat(owner)):
        checked(libc.setns(users, CLONE_NEWUSER))
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    # Otherwise root would own the process's files in /proc.
    checked(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    write(own, "setgroups", "deny")
    for kind, number_there in (("uid_map", user), ("gid_map", group)):
        write(own, kind, f"{number_there} {number_there} 1")
    os.write(told, f"{number}\n".encode())
    os.read(0, 1)


def take_limits(process: int) -> None:
    """Lower this process's limits to those of another. /proc shows them to all users, unlike prlimit(2)."""
    with open(f"/proc/{process}/limits") as file:  # noqa: PTH123
        told = {line[:LONGEST].rstrip(): line[LONGEST:].split()[:2] for line in file}
    for name, limit in COUNTED.items():
        soft, hard = (resource.RLIM_INFINITY if each == "unlimited" else int(each) for each in told[name])
        try:
            resource.setrlimit(limit, (soft, hard))
        except ValueError:
            continue


def are_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether both are the same namespace, which must not be entered again."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def check_allowed() -> None:
    """Check that user namespaces are allowed. Raises OSError."""
    with open(NAMESPACES) as file:  # noqa: PTH123
        if int(file.read()) == 0:
            raise OSError(errno.EPERM, "The system allows no user namespaces")


def allow_another() -> int:
    """Allow one more user namespace below this one, also where bwrap has forbidden new ones for good.

    Returns a descriptor to which the caller writes its process number. Where namespaces are forbidden, the
    caller continues in a child, and its parent forbids namespaces again before it passes the number on.
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
            # The child has failed, or hangs.
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
    """Set how many user namespaces each user may have below this one."""
    with open(NAMESPACES, "w") as file:  # noqa: PTH123
        file.write(most)


def write(folder: int, name: str, value: str) -> None:
    """Write to a file in an open folder."""
    descriptor = os.open(name, os.O_WRONLY, dir_fd=folder)
    os.write(descriptor, value.encode())
    os.close(descriptor)


if __name__ == "__main__":
    first, forked, folder, name, user, group = sys.argv[1:]
    try:
        make(int(first), int(forked), folder, name, int(user), int(group))
    except OSError as error:
        os.write(2, (error.strerror or "").encode())
    # The interpreter's own exit may load modules, too.
    os._exit(0)
