"""The zygote: an interpreter that has loaded what kernels need, and forks them, each behind walls of its own.

``bootstrap.py`` calls `serve` where the variable CELLGATE_ZYGOTE names a socket. The process is then in
namespaces that bubblewrap made: without a network, as root of its own user namespace, where it sees the
system and the sessions' folders. It gives the sessions' folders up, loads modules, and waits. For each kernel
it receives a number and one end of a connection, which it does not read: its child does. So nothing of a
session enters the zygote: no key, no variable, no path.

The child builds its walls from what it reads there (`Walls`), in the order in which each step needs the
rights that a later one drops; ``walls/mounts.py`` describes its files. `serve` returns in it, and it goes on
as a kernel that was started cold, but for the addresses at which modules are loaded. Linux 5.12 or newer.
"""

import array
import builtins
import ctypes
import fcntl
import gc
import json
import os
import resource
import select
import socket
import stat
import struct
import sys
from contextlib import suppress
from importlib import import_module

MOST_BYTES = 64 * 1024  # of a message from the gateway
MOST_REQUEST = 16 * 1024 * 1024
MOST_DESCRIPTORS = 16
MOST_NAMES = 2000
LENGTH = struct.Struct(">I")

SESSIONS = "/tmp/sessions"  # noqa: S108 - walls/mounts.py mounts them there
NEW_PROC = "/tmp/proc"  # noqa: S108
OF_A_KERNEL = ("/tmp/", "/run/")  # noqa: S108 - its own file systems
NOTHING = ("/tmp/nothing", "/tmp/empty")  # noqa: S108 - an empty file and folder, read-only

WHILE_LOADING = {
    # As for a kernel that draws into its notebook; forked kernels set it themselves.
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    # pyarrow, which pandas imports, has an allocator that would start a thread to give memory back in.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

# linux/sched.h, linux/mount.h, linux/fcntl.h, linux/prctl.h, linux/if.h
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # on all architectures
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_RECURSIVE, AT_EMPTY_PATH = -100, 0x100, 0x8000, 0x1000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 24, 22, 38, 47
PR_SET_DUMPABLE, PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 4, 28, 4
PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 4, 2
CAPABILITY_VERSION_3 = 0x20080522
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
LAST_CAPABILITY = 63

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    """Return the result of a call of the C library; raises OSError where that says that it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def serve(descriptor, load, prepare):
    """Fork kernels for the gateway at the other end of this socket, and exit when it goes.

    `load` imports what every kernel needs, and `prepare` makes it, when all modules are loaded. Returns in
    each kernel.
    """
    control = socket.socket(fileno=descriptor)
    orders = json.loads(control.recv(MOST_BYTES))
    outside = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    checked(libc.unshare(CLONE_NEWNS))
    Walls(orders["sessions"]).mount(orders["mounts"])
    os.chdir(orders["folder"])
    asked, failed = load_modules(load, orders["modules"], prepare)
    forget_folders()
    if shares_memory():
        sys.exit("A module that was loaded beforehand has memory that kernels would share.")
    gc.collect()
    # The collector would write to all that the kernels share.
    gc.freeze()
    told = {
        "asked": asked[:MOST_NAMES],
        "failed": failed,
        "threads": threads(),
        "reserved": 1024 * int(status()["VmData"].split()[0]),
        "private": private(),
    }
    tell(control, "ready", [outside], **told)
    os.close(outside)
    door = Zygote(control).until_forked()
    return Walls(orders["sessions"]).enter(door)


def load_modules(load, modules, prepare):
    """Import them; returns the names of variables that were asked for meanwhile, and the modules that failed.

    A kernel that has another value of such a variable must not be forked from here.
    """
    os.environ.update(WHILE_LOADING)
    recorded = RecordedReads(os.environ._data)
    os.environ._data = os.environb._data = recorded
    failed = []
    try:
        load()
        # pandas asks for it as it is loaded, and would lay out its tables for a terminal.
        builtins.get_ipython = ShellOfAKernel
        for name in modules:
            try:
                import_module(name)
            except Exception:  # noqa: BLE001 - the kernels then import it themselves, and show why not
                failed.append(name)
        del builtins.get_ipython
        prepare()
    finally:
        os.environ._data = os.environb._data = dict(recorded)
        for name in WHILE_LOADING:
            del os.environ[name]
        vars(builtins).pop("get_ipython", None)
    return sorted(map(os.fsdecode, recorded.asked)), failed


def forget_folders():
    """Let a kernel look anew for what was found, or was missing, in folders that are others there."""
    for path, finder in list(sys.path_importer_cache.items()):
        if finder is None or path.startswith(OF_A_KERNEL) or path == os.getcwd():  # noqa: PTH109
            del sys.path_importer_cache[path]


class RecordedReads(dict):
    """A dictionary that remembers which of its keys were asked for."""

    def __init__(self, content):
        super().__init__(content)
        self.asked = set()

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)


class ShellOfAKernel:
    """As much of a kernel's shell as says that it is one."""

    kernel = None


def status():
    """Return the fields of this process's status."""
    with open("/proc/self/status") as file:  # noqa: PTH123 - without pathlib, as all of this
        return dict(line.split(":", 1) for line in file)


def shares_memory():
    """Return whether a fork could change memory of this process."""
    with open("/proc/self/maps") as file:  # noqa: PTH123
        return any(line.split()[1] in ("rw-s", "rwxs", "-w-s") for line in file)


def private():
    """Return the interpreter, a loaded file or a folder above it for its owner alone; "" without any."""
    files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    files.add(sys.executable)
    folders = set()
    for file in files:
        while (file := os.path.dirname(file)) and file not in folders:  # noqa: PTH120
            folders.add(file)
    for path, needed in [*((file, 0o4) for file in files), *((folder, 0o5) for folder in folders)]:
        with suppress(OSError):  # in an archive, or made up
            if os.stat(path).st_mode & needed != needed:  # noqa: PTH116
                return path
    return ""


def threads():
    """Return the number of this process's threads."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def tell(control, kind, descriptors=(), **what):
    """Send a message to the gateway."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    control.sendmsg([json.dumps({"kind": kind, **what}).encode()], rights)


class Zygote:
    """The loop of the process that forks: requests in, news of its children out."""

    def __init__(self, control):
        self.control = control
        self.namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self.children = {}
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)

    def until_forked(self):
        """Serve; returns only in a child, with its connection to the gateway."""
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor != self.control.fileno():
                    self.bury(descriptor)
                    continue
                door = self.answer()
                if door is not None:
                    return door

    def answer(self):
        """Read one request and fork; returns the child's connection in the child, None here."""
        message, descriptors, _, _ = socket.recv_fds(self.control, MOST_BYTES, MOST_DESCRIPTORS)
        if not message:
            os._exit(0)  # the gateway has gone, or needs no more kernels and has seen the end of all
        request = json.loads(message)
        number = request["number"]
        self.requested(request)
        (door,) = descriptors
        if threads() != 1:
            return self.refuse(number, door, "there are other threads, which a fork would cut off")
        try:
            child = self.fork()
        except OSError as error:
            return self.refuse(number, door, error.strerror)
        if child == 0:
            self.control.detach()
            close_all_but(door)
            return socket.socket(fileno=door)
        os.close(door)
        process = os.pidfd_open(child)
        self.children[process] = number
        self.forked(process)
        self.poll.register(process, select.POLLIN)
        tell(self.control, "forked", [process], number=number)
        return None

    def requested(self, request):
        """Note further fields of a request; a zygote in a sandbox needs none."""

    def forked(self, process):
        """Remember a forked child by its pidfd."""

    def refuse(self, number, door, why):
        """Tell the gateway that there is no child, and why."""
        os.close(door)
        tell(self.control, "refused", number=number, why=why)

    def fork(self):
        """Fork a child as the first process of a new PID namespace; returns as os.fork does."""
        checked(libc.unshare(CLONE_NEWPID))
        child = refused = None
        try:
            child = os.fork()
        except OSError as error:
            refused = error
        if child != 0:
            checked(libc.setns(self.namespace, CLONE_NEWPID))
        if refused is not None:
            raise refused
        return child

    def bury(self, process):
        """Tell how a child ended. All its descendants have ended too: it was the first of its namespace."""
        ended = os.waitid(os.P_PIDFD, process, os.WEXITED)
        self.poll.unregister(process)
        os.close(process)
        killed = ended.si_code != os.CLD_EXITED
        status = -ended.si_status if killed else ended.si_status
        tell(self.control, "ended", number=self.children.pop(process), status=status)


class Walls:
    """A kernel's walls. Used once in the child that becomes the kernel, and for the zygote's own files."""

    def __init__(self, sessions):
        self.sessions = sessions
        self.step = "its start"

    def enter(self, door):
        """Read what the kernel is to be, and become it. On any failure the gateway is told, and this ends."""
        try:
            request, descriptors = received(door)
            self.build(request, descriptors, door)
        except BaseException as error:  # noqa: BLE001 - nothing may run that is not behind all walls
            with suppress(OSError):
                door.sendall(f"{self.step}: {type(error).__name__}: {error}"[:500].encode())
            os._exit(1)
        door.sendall(b"ok")
        door.close()
        os.environ.clear()
        os.environ.update(request["env"])

    def build(self, request, descriptors, door):
        """Everything, in the one order that works."""
        outside, log, *others = descriptors
        mounted, cgroup = others[: request["mounted"]], others[request["mounted"] :]
        self.step = "its cgroup"
        for descriptor in cgroup:
            os.write(descriptor, b"0")
        self.step = "its namespaces"
        checked(libc.setns(outside, CLONE_NEWNS))
        kinds = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
        checked(libc.unshare(kinds))
        loopback_up()
        # Both are written to later, when /proc is another one and read-only.
        own = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
        with suppress(PermissionError):  # it is higher already
            write(own, "oom_score_adj", str(request["oom_score"]))
        self.step = "its user"
        become(request["uid"])
        self.mount(request["mounts"], mounted)
        os.chdir(request["folder"])
        self.step = "its user"
        os.setsid()
        checked(libc.unshare(CLONE_NEWUSER))
        write(own, "setgroups", "deny")
        for name in ("uid_map", "gid_map"):
            write(own, name, f"{request['user']} {request['uid']} 1")
        self.step = "its limits"
        for name, most in request["limits"].items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (most, most))
        self.step = "its rights"
        drop_rights()
        os.dup2(log, 2)
        close_all_but(door.fileno())
        self.step = "its filter"
        filter_calls(bytes.fromhex(request["filter"]))

    def mount(self, steps, mounted=()):
        """Mount as the steps say and give up the sessions' folders. `mounted`: numbered detached mounts."""
        self.step = "its files"
        checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        # What is mounted comes from below what is given up, or covered by another step.
        trees = {
            path: mounted[source] if isinstance(source, int) else tree(source, writable=writable)
            for kind, source, path, writable in (step for step in steps if step[0] == "bind")
        }
        for folder in self.sessions:
            checked(libc.umount2(folder.encode(), MNT_DETACH))
        with open("/proc/self/mountinfo") as file:  # noqa: PTH123
            if any(line.split()[4].startswith(SESSIONS) for line in file):
                raise RuntimeError("folders of sessions are still there")
        mask = os.umask(0)
        for kind, *what in steps:
            if kind == "bind":
                bind(trees[what[1]], what[1])
            else:
                MOUNTS[kind](*what)
        os.umask(mask)


def received(door):
    """Return the gateway's description of the kernel, and the descriptors that came with it."""
    data, descriptors, _, _ = socket.recv_fds(door, LENGTH.size, MOST_DESCRIPTORS)
    (length,) = LENGTH.unpack(data)
    if length > MOST_REQUEST:
        raise ValueError("the request is too long")
    parts = bytearray()
    while len(parts) < length:
        part = door.recv(length - len(parts))
        if not part:
            raise ValueError("the request has no end")
        parts += part
    return json.loads(parts), descriptors


def write(folder, name, value):
    """Write to a file in a folder that is open."""
    descriptor = os.open(name, os.O_WRONLY, dir_fd=folder)
    os.write(descriptor, value.encode())
    os.close(descriptor)


def loopback_up():
    """Start ``lo``, the only interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        name, flags = struct.unpack_from("16sH", fcntl.ioctl(asking, SIOCGIFFLAGS, b"lo".ljust(40, b"\0")))
        fcntl.ioctl(asking, SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | IFF_UP))


# ---- mounts ------------------------------------------------------------------------------------------------


def tree(source, *, writable):
    """Return a detached mount of a folder or file, without set-user-ID programs and devices."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE
    if source.startswith(SESSIONS):
        flags |= AT_SYMLINK_NOFOLLOW
    descriptor = checked(libc.syscall(OPEN_TREE, AT_FDCWD, source.encode(), flags))
    set_attributes(descriptor, b"", ATTR_NOSUID | ATTR_NODEV | (0 if writable else ATTR_RDONLY), AT_RECURSIVE)
    return descriptor


def set_attributes(folder, path, attributes, flags=0):
    """Restrict a mount (mount_setattr(2))."""
    what = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags |= 0 if path else AT_EMPTY_PATH
    checked(libc.syscall(MOUNT_SETATTR, folder, path, flags, what, ctypes.c_size_t(len(what))))


def bind(descriptor, path):
    """Attach a detached mount."""
    if not os.path.exists(path):  # noqa: PTH110
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)  # noqa: PTH103, PTH120
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(path, 0o755)  # noqa: PTH102
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o444))
    flags = MOVE_MOUNT_F_EMPTY_PATH
    checked(libc.syscall(MOVE_MOUNT, descriptor, b"", AT_FDCWD, path.encode(), flags))
    os.close(descriptor)


def processes():
    """Mount /proc of this process's own namespace in the place of the zygote's."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    checked(libc.mount(b"proc", NEW_PROC.encode(), b"proc", flags, None))
    checked(libc.umount2(b"/proc", MNT_DETACH))
    checked(libc.mount(NEW_PROC.encode(), b"/proc", None, MS_MOVE, None))
    read_only("/proc")


def hidden(path, folder):
    """Mount nothing over a file or a folder."""
    checked(libc.mount(NOTHING[folder].encode(), path.encode(), None, MS_BIND, None))


def terminals():
    """Mount pseudo-terminals of its own."""
    options = b"newinstance,ptmxmode=0666,mode=620"
    checked(libc.mount(b"devpts", b"/dev/pts", b"devpts", MS_NOSUID | MS_NOEXEC, options))


def memory(path, size, mode):
    """Mount a file system in memory."""
    options = f"size={size},mode={mode:o}".encode()
    checked(libc.mount(b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options))


def folder(path):
    """Make a folder and those above it, if they are missing."""
    os.makedirs(path, 0o755, exist_ok=True)  # noqa: PTH103


def read_only(path):
    """Let nothing be written to a mount."""
    set_attributes(AT_FDCWD, path.encode(), ATTR_RDONLY)


MOUNTS = {
    "processes": processes,
    "hidden": hidden,
    "terminals": terminals,
    "memory": memory,
    "folder": folder,
    "read-only": read_only,
}


# ---- rights ------------------------------------------------------------------------------------------------


def drop_rights():
    """Give up all capabilities for good, in this process and in whatever it starts."""
    for number in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break  # the system has no more of them
    checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    checked(libc.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", *[0] * 6)))
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def become(uid):
    """Be another user of this user namespace, with all rights over it as before."""
    if uid == 0:
        return
    os.setgroups([])
    checked(libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0))
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Or its files in /proc would be root's, and it could not map its user.
    checked(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))


def close_all_but(spared):
    """Close all descriptors but the three first ones and this one."""
    os.closerange(3, spared)
    os.closerange(spared + 1, os.sysconf("SC_OPEN_MAX"))


def filter_calls(program):
    """Refuse system calls from now on. An empty program is for architectures that have none."""
    if not program:
        return
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and where they are.
    whole = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, whole, 0, 0))


# ---- what a fork leaves to be mended -----------------------------------------------------------------------


def as_if_started():
    """Undo what a kernel would otherwise share with its siblings, in modules that are loaded already."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.set_bit_generator(numpy_random.MT19937())
    # The keeper's fork has undone it.
    gc.freeze()
    if "matplotlib" in sys.modules:
        matplotlib = sys.modules["matplotlib"]
        for place in (matplotlib.get_configdir(), matplotlib.get_cachedir()):
            os.makedirs(place, exist_ok=True)  # noqa: PTH103


def show_plots():
    """Let pyplot, which was imported when there was no shell, draw into this one's cells."""
    if "matplotlib.pyplot" in sys.modules:
        from matplotlib_inline import backend_inline  # noqa: PLC0415

        backend_inline._enable_matplotlib_integration()
