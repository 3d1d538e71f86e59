"""The common part of all isolation backends: jupyter_client's provisioner contract, implemented once.

A backend defines how a kernel is started and ended and where it finds its files. This class does the rest:
folders, connection info, environment, undoing failed launches, and a `poll` that reads a future.

The module handles these oddities of jupyter_client 8: `connection_info` is a class attribute of the base
class; `pre_launch` copies the whole environment; failed and cancelled launches are not cleaned up; kill,
terminate and cleanup are called repeatedly, with a `restart` flag that may be wrong (jupyter_client#1061).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any, Final

from jupyter_client.connect import KernelConnectionInfo

from cellgate_kernels.base.errors import InvalidInput, KernelStartFailed, in_words
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.base.resources import HASH_SEED, ResourceLimits
from cellgate_kernels.launch.backend import IsolationBackend, KernelExit, KernelView, Launch, Sharing
from cellgate_kernels.launch.folders import LaunchFolders, remove_tree

logger = logging.getLogger(__name__)

EGRESS_PORT = 3128
"""The port of the egress proxy, on the loopback of the kernel's own network namespace."""
EGRESS_SOCKET = "proxy"
"""The name of the gateway's socket in a kernel's egress folder."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KILL_TIMEOUT = 5.0

OOM_SCORE = 500
"""The number added to a kernel's OOM score: the system kills kernels before other programs."""

# How many characters of a failed kernel's stderr a message contains.
_LAST_WORDS = 500

# The ipc transport needs only one number per channel: each kernel has its own folder.
_PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "hb_port": 4, "control_port": 5}

KEEPER_PORT = 0
"""The number of the keeper's socket (``inside/keeper.py``), used as a channel's port is in other names."""

NO_INDEX: Final = MappingProxyType({"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
"""The variables that keep pip from an index; ``inside/bootstrap.py`` then says how to get packages."""
OFFLINE: Final = MappingProxyType({**NO_INDEX, "UV_OFFLINE": "1"})
"""The variables of a kernel without egress: installers fail at once instead of trying for a minute."""

# Libraries size their thread pools by the host's processors unless a variable limits them.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "PYTHON_CPU_COUNT",
)


class CellgateProvisioner(IsolationBackend):
    """Base of the isolation backends. Use it with AsyncKernelManager, in one event loop.

    `start_kernel` passes these keywords on, all optional: `limits` (ResourceLimits), `extra_env` (dict).
    Existing folders, never removed here: `workspace` (also `cwd`), `packages` (modules that the kernel can
    import, but not write to), `branches` (for workspaces of its branches). Folders that are made if missing,
    and removed in `cleanup`: `runtime_dir` (only for this kernel), `sockets` (default: the runtime folder).
    `egress`: whether the kernel gets a folder of that name, in which its owner makes the proxy's socket.
    Folders that are not given, except `branches`, are made in the temporary folder and removed. The `env`
    that Jupyter programs pass is ignored: it is their own environment. A backend defines how its kernels
    start and end, by the methods of `IsolationBackend`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connection_info = {}
        self._inner_info: KernelConnectionInfo = {}
        self._folders: LaunchFolders | None = None
        self.leftovers: Leftovers | None = None
        self._attached = False
        self.sharing: Sharing | None = None

    @property
    def keeper_socket(self) -> str | None:
        """The host's path of the keeper's socket, which user code may replace; None when not running."""
        return None if self._folders is None else f"{self._folders.socket_prefix}-{KEEPER_PORT}"

    @property
    def workspaces(self) -> int:
        """The number of workspaces in the sandbox; each may use as much disk as its own limit allows."""
        return 1 if self.sharing is None else self.sharing.workspaces

    def _connection(self, folders: LaunchFolders) -> tuple[KernelConnectionInfo, KernelConnectionInfo]:
        """Return a new kernel's connection info twice: with the host's paths, and with the kernel's."""
        info = connection_info(folders.socket_prefix)
        return info, {**info, "ip": self._view(folders).socket_prefix}

    @property
    def can_share(self) -> bool:
        """Whether a branch of the kernel could be reached and get a workspace. Only after a launch."""
        return self._folders is not None and self._folders.branches is not None

    @property
    def place(self) -> tuple[LaunchFolders, KernelView]:
        """The kernel's folders on the host, and its view of them. Raises KernelStartFailed after its end."""
        if self._folders is None:
            raise KernelStartFailed("The kernel has ended.")
        return self._folders, self._view(self._folders)

    # The life of a kernel, as jupyter_client calls it.

    @property
    def exited(self) -> asyncio.Future[KernelExit]:
        """Completed once, when the kernel has ended. Shield it when you await it. Only after a launch."""
        if self._exited is None:
            raise KernelStartFailed("The kernel was not launched.")
        return self._exited

    @property
    def has_process(self) -> bool:
        """Whether there was a launch whose end neither `wait` nor `cleanup` has seen."""
        return self._attached

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Return the launch's keywords. Needs no undoing, and ignores Jupyter's `env`.

        The keyword `leftovers` removes the launch's folders, including those that can't be removed at once.
        """
        self.leftovers = kwargs.pop("leftovers", None) or self.leftovers
        # Callers such as jupyter_kernel_gateway write to `env`; `_plan` makes the kernel's real environment.
        kwargs["env"] = {}
        kwargs["cmd"] = [*self.kernel_spec.argv, *kwargs.pop("extra_arguments", [])]
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel; on failure undo every step. Raises KernelStartFailed, BackendUnavailable."""
        if self._attached:
            raise KernelStartFailed("The kernel is running already.")
        try:
            # A restart keeps folders and key, because existing clients keep their sockets.
            if self._folders is None:
                self._folders = LaunchFolders.make(
                    _path(kwargs.get("runtime_dir")),
                    _path(kwargs.get("workspace") or kwargs.get("cwd")),
                    _path(kwargs.get("packages")),
                    egress=bool(kwargs.get("egress")),
                    branches=_path(kwargs.get("branches")),
                    sockets=_path(kwargs.get("sockets")),
                )
                self.connection_info, self._inner_info = self._connection(self._folders)
            launch = self._plan(cmd, self._folders, kwargs)
            _write_connection_file(self._folders.connection_file, self._inner_info)
            await self._start(launch)
        except BaseException:
            await asyncio.shield(self._undo())
            raise
        self._attached = True
        return self.connection_info

    async def _undo(self) -> None:
        """Clean up after a failed launch. Errors are only logged: the caller needs the launch's own error."""
        try:
            await self.cleanup()
        except Exception as error:  # any error
            logger.error("A launch that failed could not be undone", exc_info=error)

    async def poll(self) -> int | None:
        """Return None while the kernel runs, then its return code as in subprocess. Only reads a future."""
        if self._exited is None:
            return 0
        return self._exited.result().returncode if self._exited.done() else None

    async def wait(self) -> int | None:
        """Wait for the kernel's end; returns its return code as in subprocess."""
        if self._exited is None:
            return 0
        ended = await asyncio.shield(self._exited)
        self._attached = False
        return ended.returncode

    async def send_signal(self, signum: int) -> None:
        """Send a signal to a running kernel; does nothing after its end. Raises InvalidInput."""
        if self._running:
            self._signal(signum)

    async def kill(self, restart: bool = False) -> None:
        """Kill the kernel with all its processes, and wait up to 5 seconds for their end."""
        if self._running:
            if self.sharing is None or not self.sharing.end(str(self.kernel_id)):
                self._end()
            assert self._exited is not None
            await asyncio.wait({self._exited}, timeout=KILL_TIMEOUT)

    async def terminate(self, restart: bool = False) -> None:
        """Send SIGTERM, which ipykernel does not handle: the kernel ends without a message."""
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        """End a running kernel and, unless a restart follows, remove the launch's folders."""
        await self.kill()
        self._attached = False
        folders = self._folders
        if folders is not None and not restart:
            self._folders = None
            self.connection_info = {}
            unused = folders.owned if self.sharing is None else await self.sharing.vacate(str(self.kernel_id))
            await self.remove(*unused)

    async def remove(self, *folders: Path) -> None:
        """Remove each of these folders; a failure is logged, or the removal is retried later."""
        if self.leftovers is not None:
            await self.leftovers.remove(*folders)
            return
        for folder in folders:
            try:
                await remove_tree(folder)
            except OSError as error:
                logger.warning("%s can't be removed: %s", folder, in_words(error))

    @property
    def _running(self) -> bool:
        return self._exited is not None and not self._exited.done()

    def _plan(self, cmd: Sequence[str], folders: LaunchFolders, options: Mapping[str, Any]) -> Launch:
        view = self._view(folders)
        limits = options.get("limits") or ResourceLimits()
        argv = kernel_argv(cmd, view.connection_file, self.kernel_spec.resource_dir)
        self._check_program(argv[0])
        env = kernel_environment(argv[0], view.home, limits)
        for name, value in self.kernel_spec.env.items():
            env[name] = Template(value).safe_substitute(env)
        if view.egress and folders.egress is None:
            env = {**OFFLINE, **env}
        env |= options.get("extra_env") or {}
        if folders.packages is not None:
            env |= packages_environment(view.packages, env)
        if folders.egress is not None:
            env = egress_environment(view.egress) | env
            # With a network of its own, pip may ask an index.
            env.pop("PIP_NO_INDEX", None)
        env["CELLGATE_KEEPER"] = f"{view.socket_prefix}-{KEEPER_PORT}"
        _check_environment(env)
        return Launch(argv, env, limits, folders)


def connection_info(socket_prefix: str) -> KernelConnectionInfo:
    """Return a new kernel's connection info over Unix sockets, in the types jupyter_client compares."""
    info: KernelConnectionInfo = {"transport": "ipc", "ip": socket_prefix, "signature_scheme": "hmac-sha256"}
    info.update(_PORTS)  # type: ignore[typeddict-item]
    info["key"] = secrets.token_hex(32).encode()  # type: ignore[typeddict-item]  # it compares bytes
    return info


def kernel_argv(cmd: Sequence[str], connection_file: str, resource_dir: str) -> tuple[str, ...]:
    """Return the kernelspec's argv with its placeholders filled in.

    Raises KernelStartFailed when the program's path is not absolute: a bare ``python`` could be any program.
    """
    known = {"connection_file": connection_file, "resource_dir": resource_dir}
    argv = tuple(re.sub(r"\{(\w+)\}", lambda match: known.get(match[1], match[0]), word) for word in cmd)
    if not argv or not Path(argv[0]).is_absolute():
        raise KernelStartFailed(
            f"The kernelspec's program {' '.join(argv[:1])!r} is not given by an absolute path."
        )
    return argv


def last_words(log_tail: str) -> str:
    """Return the stderr of a failed kernel as the end of a message; empty if the kernel wrote nothing."""
    words = log_tail[-_LAST_WORDS:].strip()
    return f" Its last words: {words}" if words else ""


def kernel_environment(program: str, home: str, limits: ResourceLimits) -> dict[str, str]:
    """Return a kernel's own environment, without variables of its kernelspec, its owner or this process."""
    threads = str(math.ceil(limits.cpus))
    return {
        "HOME": home,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": HASH_SEED,
        "PATH": f"{Path(program).parent}:{SYSTEM_PATH}",
        "SHELL": "/bin/sh",
        # pyarrow's own pool, which pandas uses for texts, reserves 1 GiB of writable memory with its first
        # array. A limit of memory for each process (RLIMIT_DATA) would be used up by that reservation.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    } | dict.fromkeys(_THREAD_VARIABLES, threads)


def packages_environment(folder: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a kernel and its children find the packages in their folder.

    In the kernel, pip treats these packages as installed, and asks no index for others.
    """
    given = env.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{folder}:{given}" if given else folder,
        "PATH": f"{env.get('PATH', SYSTEM_PATH)}:{folder}/bin",
        **NO_INDEX,
    }


def egress_environment(folder: str) -> dict[str, str]:
    """Return the variables that lead programs to a proxy and make the kernel's start-up file relay to it.

    Raises InvalidInput for a kernel that has the host's network anyway.
    """
    if not folder:
        raise InvalidInput(
            "These kernels can't be given a way to some hosts only: they have a network already."
        )
    url = f"http://127.0.0.1:{EGRESS_PORT}"
    proxies = {name: url for word in ("HTTP_PROXY", "HTTPS_PROXY") for name in (word, word.lower())}
    return {
        **proxies,
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
        "CELLGATE_EGRESS": f"{EGRESS_PORT}:{folder}/{EGRESS_SOCKET}",
    }


def _check_environment(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        text = f"{name}{value}"
        # A NUL would end the argument in bwrap's list, and the rest of the value could then mount anything.
        unfit = (
            not name or "=" in name or "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)
        )
        if unfit:
            raise InvalidInput(f"The environment variable {name[:40]!a} can't be set: bad name or character.")


def _write_connection_file(path: Path, info: KernelConnectionInfo) -> None:
    key: Any = info["key"]
    path.touch(mode=0o600)
    path.write_text(json.dumps(dict(info) | {"key": key.decode()}))


def _path(value: str | os.PathLike[str] | None) -> Path | None:
    return Path(value) if value else None
