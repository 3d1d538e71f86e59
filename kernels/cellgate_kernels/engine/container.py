"""The configuration of one kernel's container: a launch, its limits and its isolation in the engine's terms.

Pure: values in, the body of ``POST /containers/create`` out (Docker Engine API 1.41 and later). ``engine``
sends it, ``docker`` decides on the launch. Other fields have the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.engine.profile import engine_profile, gvisor_profile
from cellgate_kernels.launch.backend import KernelView, Launch
from cellgate_kernels.launch.base import OOM_SCORE
from cellgate_kernels.protocol.unsent import FILES_BYTES
from cellgate_kernels.walls.mounts import OTHER_NAMES
from cellgate_kernels.walls.proc import hidden_names

VIEW = KernelView(
    "/run/kernel.json",
    "/run/kernel/k",
    "/tmp/home",  # noqa: S108 - the container's own /tmp
    egress="/run/egress",
)
WORKSPACE = "/workspace"

INSTANCE_LABEL = "org.cellgate.instance"
KERNEL_LABEL = "org.cellgate.kernel"
PRINCIPAL_LABEL = "org.cellgate.principal"
"""The label of a container that holds kernels of one principal."""

IMAGE_USER = (1000, 1000)
"""The uid and gid of kernels if the gateway runs as root; otherwise they run as the gateway's user."""

OPEN_FILES = 4096
GVISOR_THREADS = 192
"""The tasks of gVisor's own threads in a container; without this allowance gVisor aborts."""

KEPT_BYTES = 5 * 4 * 1024 * 1024 + FILES_BYTES
"""A kernel's files beside its sockets: the spool (``inside/bootstrap.py``), with the next segment, and unsent
text.
"""

# Paths that the engine hides by default besides names in /proc: a list here replaces its own.
_HIDDEN = ("/sys/firmware", "/sys/devices/virtual/powercap")
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

LOG_BYTES = 64 * 1024  # per file, of two


def mounts_in_workspace(settings: ContainerSettings) -> bool:
    """Return whether one of the mounts is within the workspace, by the known names."""
    targets = (Path(words.partition(":")[2].partition(":")[0]) for words in settings.mounts)
    return any(target.is_relative_to(name) for target in targets for name in (WORKSPACE, *OTHER_NAMES))


def container_config(
    launch: Launch,
    settings: ContainerSettings,
    *,
    user: tuple[int, int],
    labels: Mapping[str, str],
    processors: float,
    read_only_proc: bool = True,
    names: bool = False,
) -> dict[str, Any]:
    """Return the body of a create request. Raises InvalidInput for a mount that can't be read.

    `processors`: the engine's host's; it refuses a larger quota. `read_only_proc`: False where the runtime
    must write to /proc (SELinux). `names`: whether branches there may enter mounts that are made for them.
    """
    host: dict[str, Any] = {
        "NetworkMode": settings.network_mode,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={_filter(settings.isolation, names=names)}"],
        "Init": True,
        "IpcMode": "private",
        "OomScoreAdj": OOM_SCORE,
        "MaskedPaths": [*(f"/proc/{name}" for name in hidden_names(())), *_HIDDEN],
        # Otherwise a process could undo its OomScoreAdj by writing to /proc/self.
        "ReadonlyPaths": ["/proc"] if read_only_proc else list(_READ_ONLY),
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": str(LOG_BYTES), "max-file": "2"}},
        "Mounts": _mounts(launch, settings),
        **_limits(launch.limits, processors, settings.isolation),
    }
    if settings.runtime:
        host["Runtime"] = settings.runtime
    return {
        "Image": settings.image,
        "Entrypoint": list(launch.argv),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in _environment(launch).items()],
        "User": f"{user[0]}:{user[1]}",
        "WorkingDir": WORKSPACE,
        "Hostname": "cellgate",
        "Labels": dict(labels),
        "HostConfig": host,
    }


def shared_config(
    config: dict[str, Any],
    binds: Sequence[tuple[Path, str, bool]],
    settings: ContainerSettings,
    limits: ResourceLimits,
) -> dict[str, Any]:
    """Return the body for a container of several kernels: with these folders instead of one's.

    Each has its path here, its path there, and whether kernels may write to it. `limits` are those of one
    kernel: an ended kernel may leave files in memory, so their limit is no larger than for one.
    """
    mounts = [_bind(str(source), target, writable=writable) for source, target, writable in binds]
    host = {
        **config["HostConfig"],
        "Mounts": [*mounts, *map(_extra_mount, settings.mounts)],
        **_in_memory(limits),
    }
    # Nothing is ever written to the working folder of an unshared kernel.
    return {**config, "WorkingDir": "/", "HostConfig": host}


def _filter(isolation: str, *, names: bool) -> str:
    return gvisor_profile() if isolation == "gvisor" else engine_profile(names=names)


def _limits(limits: ResourceLimits, processors: float, isolation: str) -> dict[str, Any]:
    return {
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "NanoCpus": int(min(limits.cpus, processors) * 1e9),
        "PidsLimit": limits.pids + (GVISOR_THREADS if isolation == "gvisor" else 0),
        **_in_memory(limits),
        "Ulimits": [
            {"Name": name, "Soft": most, "Hard": most}
            for name, most in (("core", 0), ("nofile", OPEN_FILES), ("fsize", limits.disk))
        ],
    }


def _in_memory(limits: ResourceLimits) -> dict[str, Any]:
    # Both count as the container's memory: even when they are full, the kernel has room to report that.
    temporary = min(limits.disk, limits.memory // 2)
    return {
        "ShmSize": limits.memory // 4,
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={temporary},mode=1777"},  # noqa: S108
    }


def _mounts(launch: Launch, settings: ContainerSettings) -> list[dict[str, Any]]:
    folders = launch.folders
    given = []
    if folders.packages is not None:
        given.append(_bind(str(folders.packages), VIEW.packages, writable=False))
    if folders.branches is not None:
        given.append(_bind(str(folders.branches), VIEW.branches, writable=True))
    if folders.egress is not None:
        given.append(_bind(str(folders.egress), VIEW.egress, writable=False))
    return [
        _bind(str(folders.workspace), WORKSPACE, writable=True),
        _bind(str(folders.sockets), VIEW.socket_prefix.rpartition("/")[0], writable=True),
        _bind(str(folders.connection_file), VIEW.connection_file, writable=False),
        *given,
        *map(_extra_mount, settings.mounts),
    ]


def _extra_mount(words: str) -> dict[str, Any]:
    source, _, rest = words.partition(":")
    target, _, mode = rest.partition(":")
    if not (source.startswith("/") and target.startswith("/")) or mode not in ("", "ro", "rw"):
        raise InvalidInput(f"A mount is SOURCE:TARGET or SOURCE:TARGET:rw with absolute paths, not {words!r}")
    return _bind(source, target, writable=mode == "rw")


def _bind(source: str, target: str, *, writable: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}


def _environment(launch: Launch) -> dict[str, str]:
    spool = {"CELLGATE_SPOOL": VIEW.socket_prefix.rpartition("/")[0]}
    return dict(launch.env) | {"USER": "cellgate", "LOGNAME": "cellgate"} | spool
