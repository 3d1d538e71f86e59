"""Values of shared containers: their kernels' common properties, folders, limits, and requests for forks.

Nothing here starts anything: ``shared_containers`` starts the containers, and ``shared_child`` follows their
kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cellgate_kernels.base.branching import BRANCHES
from cellgate_kernels.base.resources import MIB, MOST_BYTES, ResourceLimits
from cellgate_kernels.engine.container import VIEW, WORKSPACE
from cellgate_kernels.launch.backend import KernelView, Launch

SOCKETS_AT = "/run/kernel"
WORKSPACES_AT = "/sessions"
PACKAGES_AT = VIEW.packages
"""The folder of the kernels' package folders in a container."""

_KEEPER = "CELLGATE_KEEPER"
_FIRST_MEMORY = 512 * MIB
_MOST_CPUS, _MOST_PIDS = 1024.0, 1_000_000
"""Of anything that has limits."""


@dataclass(frozen=True, slots=True)
class Sharers:
    """The common properties of the kernels in one container."""

    principal: str
    kernelspec: str
    limits: ResourceLimits

    @property
    def kind(self) -> tuple[str, ResourceLimits]:
        """The values on which a container's start depends, for any principal."""
        return self.kernelspec, self.limits


@dataclass(frozen=True, slots=True)
class Roots:
    """The gateway's folders in which kernels have theirs; without `packages` none has a folder of these."""

    runtime: Path
    workspaces: Path
    packages: Path | None = None


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """A kernel to be forked.

    `launch` is its own; `common` is the launch if its owner had chosen nothing. `connection`: the content of
    its connection file. `config` makes a container's configuration from its launch. `named_for`: the kernels'
    user and group in the container, if their workspaces can have private names.
    """

    launch: Launch
    common: Launch
    connection: Mapping[str, Any]
    config: Callable[[Launch, ContainerPlaces], dict[str, Any]]
    named_for: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ContainerPlaces:
    """The folders of one container's kernels, here; and the number of kernels that its limits are for."""

    sockets: Path
    workspaces: Path
    packages: Path | None
    kernels: int

    @property
    def all(self) -> list[Path]:
        """The folders of the container; those that it lacks are left out."""
        return [folder for folder in (self.sockets, self.workspaces, self.packages) if folder is not None]

    def limits(self, limits: ResourceLimits) -> ResourceLimits:
        """Return the container's limits: the sum of its kernels' and the zygote's."""
        if self.kernels == 1:
            return limits
        first = of_the_first(limits)
        return replace(
            limits,
            memory=min(limits.memory * self.kernels + first.memory, MOST_BYTES),
            cpus=min(max(limits.cpus * self.kernels, first.cpus), _MOST_CPUS),
            pids=min(limits.pids * self.kernels + first.pids, _MOST_PIDS),
        )


def of_the_first(limits: ResourceLimits) -> ResourceLimits:
    """Return a zygote's limits for kernels with these limits: never less than its modules need to load."""
    memory, cpus, pids = max(limits.memory, _FIRST_MEMORY), max(limits.cpus, 1.0), max(limits.pids, 64)
    return replace(limits, memory=memory, cpus=cpus, pids=pids)


class SeatPaths:
    """The paths and variables of one kernel in a shared container, here and as the kernel has them."""

    def __init__(self, places: ContainerPlaces, kernel_id: str) -> None:
        self.kernel_id = kernel_id
        self.name = kernel_id[:13]
        self.sockets = places.sockets / self.name
        self.workspaces = places.workspaces
        self.packages = places.packages
        self.scratch = f"/tmp/{self.name}"  # noqa: S108 - the container's own
        self.path = f"{WORKSPACES_AT}/{kernel_id}"
        """The path of its workspace, for all in the container."""
        self.has_names = False
        """Whether the usual names are its own workspace's, for its kernel."""

    @property
    def view(self) -> KernelView:
        """Paths as its kernel sees them."""
        return KernelView(
            f"{self.scratch}/kernel.json",
            f"{SOCKETS_AT}/{self.name}/k",
            f"{self.scratch}/home",
            f"{PACKAGES_AT}/{self.kernel_id}",
            egress=VIEW.egress,
            workspace=WORKSPACE if self.has_names else self.path,
            branches=f"{self.path}{BRANCHES}",
        )

    def own_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return this kernel's variables, including the ones that every kernel has."""
        return {
            "HOSTNAME": "cellgate",
            **env,
            "USER": "cellgate",
            "LOGNAME": "cellgate",
            "TMPDIR": self.scratch,
            "CELLGATE_SPOOL": self.view.socket_prefix.rpartition("/")[0],
        }

    def common_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return variables without a kernel's own folders, fit to start a zygote."""
        ours = {self.view.packages: PACKAGES_AT, self.view.home: VIEW.home}
        found = {}
        for name, value in self.own_env(env).items():
            found[name] = value
            for path, usual in ours.items():
                found[name] = found[name].replace(path, usual)
        found["TMPDIR"] = "/tmp"  # noqa: S108
        del found["CELLGATE_SPOOL"], found[_KEEPER]
        return found

    def description(self, request: SeatRequest, names: int) -> bytes:
        """Return the kernel's description for its child. `names`: how many descriptors are for names."""
        return json.dumps(
            {
                "env": self.own_env(request.launch.env),
                "folder": self.path,
                "names": names,
                "named_folder": WORKSPACE,
                "scratch": self.scratch,
                "connection_file": self.view.connection_file,
                "connection": dict(request.connection),
                "packages": self.view.packages,
                "no_packages": PACKAGES_AT,
            }
        ).encode()
