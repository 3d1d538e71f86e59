"""The `sandbox` backend: a kernel in bubblewrap, in namespaces of its own and without any network.

The kernel sees the system's read-only folders, its environment, its interpreter, a workspace and a private
/tmp; no other file of the host, no other process, no network interface but ``lo``. We talk to it over Unix
sockets in a folder mounted at /run/kernel. There it can only replace sockets by others: we open nothing but
their fixed names, and remove the folder without following links.

Not limited here, because that takes cgroups: the memory of all its processes together, shared memory,
processor time, and, when the gateway runs as root, the number of processes. The total size of its files is
watched. bwrap reads its arguments from a file descriptor, so that neither the host's nor the kernel's process
list shows them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cellgate_kernels.errors import BackendUnavailable, InvalidInput, KernelStartFailed
from cellgate_kernels.limits import ResourceLimits
from cellgate_kernels.provisioners.base import KernelExit, KernelView, Launch, kernel_environment, last_words
from cellgate_kernels.provisioners.child import Child, ChildProvisioner, find_program, rlimit_arguments
from cellgate_kernels.provisioners.disk import Folder, may_look
from cellgate_kernels.provisioners.disk_watch import DiskWatch, Watched
from cellgate_kernels.provisioners.folders import LaunchFolders, remove_tree
from cellgate_kernels.provisioners.proc import hidden_here
from cellgate_kernels.provisioners.seccomp import sandbox_filter

logger = logging.getLogger(__name__)

CHECK_TIMEOUT = 10.0

# Named and explained in image/bootstrap.py.
LIFETIME = "CELLGATE_LIFETIME"

_VIEW = KernelView(
    "/run/kernel.json",
    "/run/kernel/k",
    "/tmp/home",  # noqa: S108 - the sandbox's own /tmp
    egress="/run/egress",
)

_NAMESPACES = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    *("--cap-drop", "ALL"),
    *("--hostname", "cellgate"),
    *("--uid", "1000"),
    *("--gid", "1000"),
)

# Links into /usr on most systems; mounted as they are on others.
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


class SandboxProvisioner(ChildProvisioner):
    """Kernels under bubblewrap >= 0.8. Interrupts work by message only: no signal gets in."""

    isolation = "sandbox"
    _disks: DiskWatch | None = None
    _watched: Watched | None = None

    @classmethod
    async def check(cls) -> None:
        """Run ``true`` in a sandbox made as for kernels. Raises BackendUnavailable when that fails."""
        find_program("bwrap", "bubblewrap")
        scratch = Path(tempfile.mkdtemp(prefix="cellgate-check-"))
        try:
            folders = LaunchFolders.make(scratch / "run", scratch)
            folders.connection_file.touch(mode=0o600)
            limits = ResourceLimits()
            true = find_program("true", "coreutils")
            child = spawn(Launch((true,), kernel_environment(true, _VIEW.home, limits), limits, folders), ())
            try:
                await asyncio.wait({child.exited}, timeout=CHECK_TIMEOUT)
            finally:
                child.kill()
                ended = await asyncio.shield(child.exited)
        finally:
            await _remove_scratch(scratch)
        if child.oom_score_refused:
            # Reported once, here, and not at each start of a kernel.
            logger.warning(
                "The system refuses to let bubblewrap's processes be the first that it ends when memory is"
                " short (oom_score_adj): is bwrap setuid? Others may be ended in the place of kernels"
            )
        if ended.code != 0:
            raise BackendUnavailable(
                "bubblewrap does not work here: it needs version 0.8 or newer and the right to make user "
                "namespaces (kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, --privileged in a "
                "container). "
                f"{ended.message}{last_words(child.log_tail())}"
            )

    def _view(self, folders: LaunchFolders) -> KernelView:
        return _VIEW

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """The launch's keywords. `disk_watch` is the watch that a gateway's kernels share."""
        self._disks = kwargs.pop("disk_watch", None) or self._disks or DiskWatch()
        return await super().pre_launch(**kwargs)

    async def _start(self, launch: Launch) -> None:
        await super()._start(launch)
        child, disks = self._child, self._disks
        assert child is not None
        assert disks is not None
        process = child.inner_pid
        if process is not None and not may_look(process):
            process = None
        folders = (Folder(launch.folders.workspace), Folder(launch.folders.sockets))
        watched = Watched(launch.limits, folders, process, child.kill)
        disks.add(watched)
        child.exited.add_done_callback(lambda _: disks.discard(watched))
        self._watched = watched

    async def files_given(self) -> None:
        """Allow the given files even over the kernel's disk limit."""
        if self._disks is not None and self._watched is not None:
            await self._disks.files_given(self._watched)

    def _spawn(self, launch: Launch) -> Child:
        for path in self.readable:
            if not Path(path).exists():
                raise KernelStartFailed(
                    f"The kernelspec needs {path}, which is not there. Run `cellgate setup`."
                )
        return spawn(launch, self.readable, self.reserved)

    def _signal(self, signum: int) -> None:
        if signum not in (signal.SIGKILL, signal.SIGTERM):
            raise InvalidInput(
                "A sandboxed kernel takes no signals; its kernelspec needs interrupt_mode 'message'."
            )
        self._end()


async def _remove_scratch(folder: Path) -> None:
    """Remove the check's own folder. One that can't be removed does no harm, so that is only logged."""
    try:
        await remove_tree(folder)
    except OSError as error:
        logger.warning("The folder %s of a check can't be removed: %s", folder, error)


def spawn(launch: Launch, readable: Sequence[str], reserved: int = 0) -> Child:
    """Start bwrap with the launch's command in it."""
    bwrap = find_program("bwrap", "bubblewrap")
    # RLIMIT_NPROC never counts tasks of root, nor those of a user namespace that maps root.
    unprivileged = os.geteuid() != 0
    command = [
        *rlimit_arguments(launch.limits, processes=unprivileged, reserved=reserved, own_user=True),
        *launch.argv,
    ]
    with ExitStack() as stack:

        def file_with(content: bytes) -> int:
            fd = os.memfd_create("cellgate")
            stack.callback(os.close, fd)
            os.write(fd, content)
            os.lseek(fd, 0, os.SEEK_SET)
            return fd

        program = sandbox_filter(platform.machine())
        filters = [] if program is None else [file_with(program)]
        synthetic = {path: file_with(content) for path, content in _SYNTHETIC.items()}
        status_reader, status_writer = os.pipe()
        stack.callback(os.close, status_writer)
        # bwrap --die-with-parent takes effect late, in its outer and in its inner process: one that lost its
        # parent before that would run forever. So the kernel checks the lifetime pipe when it starts. And
        # bwrap gets the reading end of the status pipe too: otherwise a broken pipe could end its outer
        # process and leave the inner one waiting.
        lifetime_reader, lifetime_writer = os.pipe()
        stack.callback(os.close, lifetime_reader)
        release_reader, release_writer = os.pipe()
        stack.callback(os.close, release_reader)
        arguments = [
            *_NAMESPACES,
            *("--info-fd", str(status_writer)),
            *("--block-fd", str(release_reader)),
            *(word for fd in filters for word in ("--seccomp", str(fd))),
            *_mounts(launch, readable, synthetic),
            *_environment(launch),
            *("--setenv", LIFETIME, str(lifetime_reader)),
        ]
        words = [os.fsencode(word) for word in arguments]
        assert not any(b"\0" in word for word in words), "an argument would become two"
        options = file_with(b"".join(word + b"\0" for word in words))
        return Child(
            [bwrap, "--args", str(options), "--", *command],
            # bwrap is process 1 of the sandbox, where anyone can read its environment.
            env={},
            pass_fds=(
                options,
                status_writer,
                status_reader,
                release_reader,
                lifetime_reader,
                *filters,
                *synthetic.values(),
            ),
            status_fd=status_reader,
            release_fd=release_writer,
            lifetime_fd=lifetime_writer,
            explain=KernelExit.of_shell_code,
        )


def _mounts(launch: Launch, readable: Sequence[str], synthetic: dict[str, int]) -> Iterator[str]:
    """The sandbox's whole file system, in order: later mounts may be inside earlier ones."""
    memory = launch.limits.memory
    yield from ("--ro-bind", "/usr", "/usr")
    yield from _system_folders()
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--symlink", "../usr/lib/os-release", "/etc/os-release")
    for path, fd in synthetic.items():
        yield from ("--perms", "0444", "--file", str(fd), path)
    # Read-only, because for /proc/sys a gateway run as root is still root even without capabilities, and
    # because a kernel must not undo its oom_score_adj.
    yield from ("--proc", "/proc", "--remount-ro", "/proc")
    for name in hidden_here():
        path = f"/proc/{name}"
        if Path(path).is_dir():
            yield from ("--perms", "0555", "--tmpfs", path, "--remount-ro", path)
        else:
            yield from ("--ro-bind", "/dev/null", path)
    yield from ("--dev", "/dev", "--size", str(memory // 4), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
    yield from ("--size", str(memory // 2), "--perms", "1777", "--tmpfs", "/tmp", "--dir", _VIEW.home)  # noqa: S108
    for path in readable:
        if not Path(path).is_relative_to("/usr"):
            yield from ("--ro-bind", path, path)
    yield from ("--bind", str(launch.folders.workspace), "/workspace", "--chdir", "/workspace")
    yield from ("--bind", str(launch.folders.sockets), "/run/kernel")
    yield from ("--ro-bind", str(launch.folders.connection_file), _VIEW.connection_file)
    if launch.folders.packages is not None:
        yield from ("--ro-bind", str(launch.folders.packages), _VIEW.packages)
    if launch.folders.egress is not None:
        yield from ("--ro-bind", str(launch.folders.egress), _VIEW.egress)
    yield from ("--remount-ro", "/")


def _system_folders() -> Iterator[str]:
    for name in _SYSTEM_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))


def _environment(launch: Launch) -> Iterator[str]:
    for name, value in (dict(launch.env) | {"USER": "cellgate", "LOGNAME": "cellgate"}).items():
        yield from ("--setenv", name, value)
