"""The file system of a sandboxed kernel: one description, for bubblewrap's kernels and forked ones.

`system_part` is the same for all kernels of a kernelspec; `session_part` comes after it and is one kernel's
own. Both are steps in order: later mounts may be inside earlier ones. `bwrap_words` turns steps into
arguments of bubblewrap; ``forking.server`` sends the session's part to the child that ``inside/zygote.py``
forks. Pure, except that it checks which of the system's folders and files exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.launch.backend import KernelView
from cellgate_kernels.launch.folders import LaunchFolders
from cellgate_kernels.walls.proc import hidden_here

VIEW = KernelView(
    "/run/kernel.json",
    "/run/kernel/k",
    "/tmp/home",  # noqa: S108 - the sandbox's own /tmp
    egress="/run/egress",
)
WORKSPACE = "/workspace"
OTHER_NAMES = ("/mnt/data", "/home/user")
"""Links to the workspace, at paths where models trained on other systems write files."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

# Links into /usr on most systems; mounted like other folders where they are folders.
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# Files that programs need to work as usual. No keys: /etc/ssl/private stays outside.
_ETC = (
    "alternatives",
    "crypto-policies",
    "fonts",
    "ld.so.cache",
    "localtime",
    "mime.types",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)

_SYNTHETIC = {
    "/etc/passwd": b"cellgate:x:1000:1000:Cellgate kernel:/tmp/home:/bin/sh\n",
    "/etc/group": b"cellgate:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost cellgate\n::1 localhost\n",
}


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder or file of the host. `optional`: it may be missing."""

    source: str
    path: str
    writable: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link at `path` to `target`."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class File:
    """A file that only sandboxes have, and can't write to."""

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Devices:
    """/dev with `DEVICES`, the usual links and pseudo-terminals of the sandbox's own; read-only."""


@dataclass(frozen=True, slots=True)
class Processes:
    """/proc, read-only."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """An empty file or `folder` over one that the sandbox must not read."""

    path: str
    folder: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """A file system in memory of at most `size` bytes."""

    path: str
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class Folder:
    """An empty folder."""

    path: str


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """From this step on, the mount at `path` itself is read-only."""

    path: str


Step = Bind | Link | File | Devices | Processes | Hidden | Memory | Folder | ReadOnly

_OWN = ("/tmp", "/run", "/dev/shm", "/proc")  # noqa: S108 - the sandbox's
_RUN_BYTES = 64 * 1024


def system_part(readable: Sequence[str]) -> Iterator[Step]:
    """Yield the system's folders, and those of `readable` that no session's own mount would cover."""
    yield Bind("/usr", "/usr")
    for name in _SYSTEM_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            yield Link(str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield Bind(str(folder), str(folder))
    for name in _ETC:
        yield Bind(f"/etc/{name}", f"/etc/{name}", optional=True)
    yield Link("../usr/lib/os-release", "/etc/os-release")
    for path, content in _SYNTHETIC.items():
        yield File(path, content)
    yield Devices()
    for path in readable:
        if not _within(path, ("/usr", *_OWN)):
            yield Bind(path, path)
    for name in OTHER_NAMES:
        if not any(_within(path, [name]) or _within(name, [path]) for path in readable):
            yield Link(WORKSPACE, name)


def session_part(limits: ResourceLimits, folders: LaunchFolders, readable: Sequence[str]) -> Iterator[Step]:
    """Yield the mounts that belong to one kernel alone; the last makes the root read-only."""
    # Read-only, because for /proc/sys a gateway run as root is still root even without capabilities, and
    # because a kernel must not reset its oom_score_adj.
    yield Processes()
    for name in hidden_here():
        path = f"/proc/{name}"
        yield Hidden(path, Path(path).is_dir())
    yield Memory("/dev/shm", limits.memory // 4, 0o755)  # noqa: S108
    yield Memory("/tmp", limits.memory // 2, 0o1777)  # noqa: S108
    yield Folder(VIEW.home)
    yield Memory("/run", _RUN_BYTES, 0o755)
    yield from within_own(readable)
    yield Bind(str(folders.workspace), WORKSPACE, writable=True)
    if folders.branches is None:
        yield Folder(VIEW.branches)
    else:
        yield Bind(str(folders.branches), VIEW.branches, writable=True)
    yield Bind(str(folders.sockets), "/run/kernel", writable=True)
    yield Bind(str(folders.connection_file), VIEW.connection_file)
    if folders.packages is not None:
        yield Bind(str(folders.packages), VIEW.packages)
    if folders.egress is not None:
        yield Bind(str(folders.egress), VIEW.egress)
    yield ReadOnly("/run")
    yield ReadOnly("/")


# In a zygote's sandbox; inside/zygote.py has the same names.
SESSIONS = "/tmp/sessions"  # noqa: S108
"""The parent of the folders in which sessions' folders are."""
NOTHING = "/tmp/nothing"  # noqa: S108
"""An empty file that no process may read."""


def zygote_words(
    readable: Sequence[str], sessions: Sequence[tuple[str, bool]], descriptors: Mapping[str, int]
) -> Iterator[str]:
    """Yield the sandbox of a zygote as arguments of bwrap: the system's part and a child's sources of mounts.

    `sessions`: the folders in which sessions' folders are, each with whether kernels may write there.
    `descriptors` are open on the contents of `files`, and on an empty file for `NOTHING`.
    """
    system = list(system_part(readable))
    for folder in _above(system):
        yield from ("--perms", "0755", "--dir", folder)
    for step in system:
        if isinstance(step, Devices):
            yield from _bare_devices()
        else:
            yield from bwrap_words([step], descriptors)
    yield from bwrap_words(within_own(readable), descriptors)
    yield from ("--proc", "/proc", "--dir", "/run", "--dir", WORKSPACE, "--dir", VIEW.branches)
    yield from ("--dir", "/tmp/proc")  # noqa: S108
    yield from ("--perms", "0555", "--dir", "/tmp/empty")  # noqa: S108
    yield from ("--perms", "0000", "--file", str(descriptors[NOTHING]), NOTHING)
    for number, (folder, writable) in enumerate(sessions):
        yield from ("--bind" if writable else "--ro-bind", folder, f"{SESSIONS}/{number}")
    yield from ("--remount-ro", "/")


def _above(steps: Iterable[Step]) -> list[str]:
    """Return the folders above all mounts: bwrap would make them only for root, but forks have other uids."""
    folders: set[str] = set()
    for step in steps:
        is_there = not isinstance(step, Bind) or not step.optional or Path(step.source).exists()
        if isinstance(step, Bind | File | Link) and is_there:
            folders |= {str(folder) for folder in Path(step.path).parents}
    return sorted(folders - {"/"})


def _bare_devices() -> Iterator[str]:
    """Yield /dev without terminals: with them, bwrap would make one more user namespace."""
    yield from ("--tmpfs", "/dev")
    for name in DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield from ("--symlink", f"/proc/self/fd/{number}", f"/dev/{name}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/proc/kcore", "/dev/core")
    yield from ("--symlink", "pts/ptmx", "/dev/ptmx", "--dir", "/dev/shm", "--dir", "/dev/pts")  # noqa: S108
    yield from ("--remount-ro", "/dev")


def within_own(readable: Sequence[str]) -> Iterator[Bind]:
    """Yield paths inside a folder that each sandbox replaces, such as an environment in /tmp."""
    for path in readable:
        if _within(path, _OWN):
            yield Bind(path, path)


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def files(steps: Iterable[Step]) -> dict[str, bytes]:
    """Return the contents of files that only sandboxes have, by path."""
    return {step.path: step.content for step in steps if isinstance(step, File)}


def bwrap_words(steps: Iterable[Step], descriptors: Mapping[str, int]) -> Iterator[str]:
    """Yield the steps as arguments of bwrap. `descriptors` are open on the contents of `files`, by path."""
    for step in steps:
        if isinstance(step, File):
            yield from ("--perms", "0444", "--file", str(descriptors[step.path]), step.path)
        else:
            yield from _words(step)


def _words(step: Step) -> Iterator[str]:
    match step:
        case Bind(source, path, writable, optional):
            yield from (f"--{'' if writable else 'ro-'}bind{'-try' if optional else ''}", source, path)
        case Link(target, path):
            yield from ("--symlink", target, path)
        case Devices():
            yield from ("--dev", "/dev", "--remount-ro", "/dev")
        case Processes():
            yield from ("--proc", "/proc", "--remount-ro", "/proc")
        case Hidden(path, folder=True):
            yield from ("--perms", "0555", "--tmpfs", path, "--remount-ro", path)
        case Hidden(path):
            yield from ("--ro-bind", "/dev/null", path)
        case Memory(path, size, mode):
            yield from ("--size", str(size), "--perms", f"{mode:04o}", "--tmpfs", path)
        case Folder(path):
            yield from ("--dir", path)
        case ReadOnly(path):
            yield from ("--remount-ro", path)
