"""The `docker` backend: a kernel in a container without network, capabilities or a writable system.

Each kernel has its own container; we talk to it over Unix sockets in a folder mounted at /run/kernel. The
image (Dockerfile.kernel) contains the interpreter, so the kernelspec's command is a path in the image. With
the runtime ``runsc`` the same container runs on gVisor. ``container`` has a container's configuration,
``engine`` makes the calls. A gateway shares one engine among its kernels through the launch keyword `engine`.
Other Jupyter programs need not know that: without it a kernel gets a connection of its own.

Files belong to the user that the kernel runs as: the gateway's own or, under a root gateway, the image's.

With the launch keyword `seat`, the kernel is forked in a container that it shares with others of its
principal (``shared_containers``); if it can't be, the launch raises NotForked.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from docker.api.client import APIClient
from traitlets import List, Unicode

from cellgate_kernels.base.errors import BackendUnavailable, ImageMissing, InvalidInput
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.settings import IMAGE, SOCKET, ContainerSettings
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.engine.container import (
    IMAGE_USER,
    INSTANCE_LABEL,
    KERNEL_LABEL,
    PRINCIPAL_LABEL,
    VIEW,
    WORKSPACE,
    container_config,
    mounts_in_workspace,
    shared_config,
)
from cellgate_kernels.engine.engine import Container, Engine
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import can_fork
from cellgate_kernels.forking.shared_child import SharedChild
from cellgate_kernels.forking.shared_containers import Seat
from cellgate_kernels.forking.shared_places import (
    PACKAGES_AT,
    SOCKETS_AT,
    WORKSPACES_AT,
    ContainerPlaces,
    SeatRequest,
)
from cellgate_kernels.launch.backend import KernelExit, KernelView, Launch
from cellgate_kernels.launch.base import CellgateProvisioner
from cellgate_kernels.launch.folders import LaunchFolders, give_to
from cellgate_kernels.launch.names import NameMaking, Names, NamesRequest

_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "processor time"}
"""What an engine reports that it can limit, by its own names."""


class DockerProvisioner(CellgateProvisioner):
    """Kernels in containers. Interrupts work by message only. `engine` is a launch keyword: see above."""

    image = Unicode(IMAGE, help="The image, as the engine knows it.")
    runtime = Unicode(help="The engine's runtime, such as runsc; default: the engine's.")
    network = Unicode(help="The engine's network for kernels; default: none at all.")
    mounts: List[str] = List(Unicode(), help="Further folders of the engine's host: SOURCE:TARGET[:rw].")
    url = Unicode(SOCKET, help="The engine's address, for kernels launched without one.")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = ContainerSettings(self.image, self.runtime, self.network, tuple(self.mounts))
        self.isolation = self._settings.isolation
        self._engine: Engine | None = None
        self._own_engine: Engine | None = None
        self._container: Container | None = None
        self._seat: Seat | None = None
        self._child: SharedChild | None = None
        self._common: Launch | None = None
        self._naming = NameMaking()

    @classmethod
    async def check(cls) -> None:
        """Raise BackendUnavailable or ImageMissing when Docker's usual socket or the image is not there."""
        engine = Engine()
        await engine.open()
        try:
            await check_engine(engine, ContainerSettings())
        finally:
            await engine.close()

    @property
    def image_used(self) -> Mapping[str, str]:
        """The image's name, and its id: the digest that distinguishes it from others of that name."""
        container = self._container
        digest = self._seat.image if self._seat is not None else "" if container is None else container.image
        return {"image": self._settings.image, "image_digest": digest} if digest else {}

    @property
    def adoptable(self) -> bool:  # type: ignore[override]
        """Not one in a shared container, which ends with its gateway."""
        return self._seat is None

    @property
    def has_neighbours(self) -> bool:
        return self._seat is not None

    def was_alone(self) -> bool:
        return self._seat is None or self._seat.alone

    @property
    def process(self) -> int | None:
        """The first process, a shared container's keeper; None with a remote engine and at its end."""
        if self._child is not None:
            return None if self._child.exited.done() else self._child.inner_pid
        container = self._container
        if container is None or container.watched is None or container.exited.done():
            return None
        return container.watched.process

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return a running kernel's JSON values that `load_provisioner_info` needs beside the engine."""
        assert self._container is not None
        launch = self._container.launch
        key: Any = self.connection_info["key"]
        return {
            "kernel_id": self.kernel_id,
            "connection_info": {**self.connection_info, "key": key.decode()},
            "container": self._container.name,
            "settings": asdict(self._settings),
            "limits": asdict(launch.limits),
            "runtime": str(launch.folders.runtime),
            "workspace": str(launch.folders.workspace),
            "branches": None if launch.folders.branches is None else str(launch.folders.branches),
        }

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take over a container that is running already; the info must include `engine`.

        Raises KernelStartFailed or BackendUnavailable; even then there is something to `kill`.
        """
        await super().load_provisioner_info(provisioner_info)
        info = provisioner_info
        self._settings = ContainerSettings(
            **{**info["settings"], "mounts": tuple(info["settings"]["mounts"])}
        )
        self.isolation = self._settings.isolation
        # A kernel that was started by an older version of the gateway has no folder for branches.
        branches = None if info.get("branches") is None else Path(info["branches"])
        self._folders = LaunchFolders(
            Path(info["runtime"]), Path(info["workspace"]), owns_workspace=False, branches=branches
        )
        self.leftovers = info.get("leftovers")
        self._engine = engine = info["engine"]
        launch = Launch((), {}, ResourceLimits(**info["limits"]), self._folders)
        self._container = container = engine.adopt(info["container"], launch)
        container.workspaces = lambda: self.workspaces
        self._follow(container.exited)
        self._attached = True
        await engine.until_running(container)

    def detach(self) -> None:
        """Leave the container running when its engine's owner ends; a kernel in a shared one ends."""
        if self._child is not None:
            self._child.kill()
        if self._engine is not None and self._container is not None:
            self._engine.detach(self._container)

    def _view(self, folders: LaunchFolders) -> KernelView:
        view = VIEW if self._seat is None else self._seat.view
        # With an engine's network, what ignores the proxy would reach whatever that reaches.
        return view if self._settings.network_mode == "none" else replace(view, egress="")

    def _check_program(self, path: str) -> None:
        """Do nothing: the program is in the image, and if it is missing tini's message is in the log."""

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        self._seat = kwargs.pop("seat", None) or self._seat
        self._engine = kwargs.pop("engine", None) or self._engine
        return await super().pre_launch(**kwargs)

    def _plan(self, cmd: Sequence[str], folders: LaunchFolders, options: Mapping[str, Any]) -> Launch:
        launch = super()._plan(cmd, folders, options)
        if self._seat is not None:
            # What all kernels have that differ in nothing but their owner's choice.
            self._common = super()._plan(cmd, folders, {"limits": launch.limits})
        return launch

    async def _start(self, launch: Launch) -> None:
        if self._seat is not None:
            await self._fork(self._seat, launch)
            return
        if self._engine is None:
            self._own_engine = Engine(self.url)
            await self._own_engine.open()
            self._engine = self._own_engine
        engine = self._engine
        user = kernel_user(engine)
        if os.geteuid() == 0:
            await asyncio.to_thread(give_to, user, launch.folders)
        config = container_config(
            launch,
            self._settings,
            user=user,
            labels={INSTANCE_LABEL: engine.instance, KERNEL_LABEL: str(self.kernel_id)},
            processors=engine.processors,
            read_only_proc=not engine.selinux,
            names=self._may_name(engine) and can_fork(launch.argv),
        )
        self._container = container = engine.launch(launch, config)
        container.workspaces = lambda: self.workspaces
        self._follow(self._container.exited)
        await engine.until_running(self._container)

    async def _fork(self, seat: Seat, launch: Launch) -> None:
        assert self._engine is not None
        assert self._common is not None
        if not can_fork(launch.argv):
            raise NotForked("only our kernel for Python is forked")
        if self._settings.isolation != "container":
            raise NotForked("kernels under gVisor have containers of their own")
        await asyncio.to_thread(give_to, kernel_user(self._engine), launch.folders)
        key: Any = self._inner_info["key"]
        connection = {**self._inner_info, "key": key.decode()}
        named_for = kernel_user(self._engine) if self._may_name(self._engine) else None
        request = SeatRequest(launch, self._common, connection, self._shared_config, named_for)
        child = await seat.fork(request)
        child.workspaces = lambda: self.workspaces
        child.ending = self._look_last
        self._child = child
        self.way = "fork"
        self._follow(child.exited)

    def _shared_config(self, launch: Launch, places: ContainerPlaces) -> dict[str, Any]:
        engine, seat = self._engine, self._seat
        assert engine is not None
        assert seat is not None
        config = container_config(
            replace(launch, limits=places.limits(launch.limits)),
            self._settings,
            user=kernel_user(engine),
            labels={INSTANCE_LABEL: engine.instance, PRINCIPAL_LABEL: seat.shared_with},
            processors=engine.processors,
            read_only_proc=not engine.selinux,
            names=self._may_name(engine),
        )
        binds = [(places.sockets, SOCKETS_AT, True), (places.workspaces, WORKSPACES_AT, True)]
        if places.packages is not None:
            binds.append((places.packages, PACKAGES_AT, False))
        return shared_config(config, binds, self._settings, launch.limits)

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
        elif self._engine is not None and self._container is not None:
            self._engine.end(self._container)

    def _signal(self, signum: int) -> None:
        if signum not in (signal.SIGKILL, signal.SIGTERM):
            raise InvalidInput("A kernel in a container takes no signals: it needs interrupt_mode 'message'.")
        self._end()

    async def explain_kill(self) -> KernelExit | None:
        """Return the cause shown by the kernel's own cgroup, or by the engine for the container's memory."""
        if self._child is not None:
            return await self._child.explain_kill()
        return None if self._container is None else await Engine.explain_kill(self._container)

    async def log_tail(self) -> str:
        if self._child is not None:
            return self._child.log_tail()
        if self._engine is None or self._container is None:
            return ""
        return await self._engine.log_tail(self._container)

    async def files_given(self) -> None:
        await self.branch_files_given()
        if self._seat is not None and self._child is not None:
            await self._seat.files_given(self._child)
        if self._engine is None or self._container is None:
            return
        await self._engine.files_given(self._container)

    def _may_name(self, engine: Engine) -> bool:
        """Return whether branches may have own names, as far as is known before a container exists."""
        return (
            os.geteuid() == 0
            and not engine.rootless
            and self._settings.isolation == "container"
            and not mounts_in_workspace(self._settings)
        )

    async def make_names(self, folder: str, forked: int) -> Names | None:
        engine, container = self._engine, self._container
        if engine is None or not self._may_name(engine):
            return None
        if self._seat is not None and self._child is not None:
            return await self._seat.make_names(self._child, folder, forked, kernel_user(engine))
        if container is None or container.exited.done():
            return None
        # It is known where the engine is on this machine.
        process = None if container.watched is None else container.watched.process
        if process is None:
            return None
        user, group = kernel_user(engine)
        return await self._naming.make(
            NamesRequest(process, forked, folder, WORKSPACE, user, group, is_machines_user=True)
        )

    async def branch_files_given(self) -> None:
        # Of the launch, because kernels that were made of this one need it after its own end.
        launch = self._common if self._container is None else self._container.launch
        if self._engine is not None and launch is not None and os.geteuid() == 0:
            await asyncio.to_thread(give_to, kernel_user(self._engine), launch.folders)

    async def cleanup(self, restart: bool = False) -> None:
        await super().cleanup(restart)
        if self._seat is not None and not restart:
            self._leave(self._seat)
        if not restart and self._own_engine is not None:
            engine = self._own_engine
            self._own_engine = None
            self._engine = None
            await engine.close()

    def _leave(self, seat: Seat) -> None:
        """Give up a seat once the kernel's process has ended."""
        if self._child is None or self._child.exited.done():
            seat.leave()
        else:
            self._child.exited.add_done_callback(guarded(lambda _: seat.leave(), "end of a seat"))

    async def remove(self, *folders: Path) -> None:
        await super().remove(*folders)
        if self._seat is not None:
            self._seat.tidy()


def kernel_user(engine: Engine) -> tuple[int, int]:
    """Return the uid and gid of kernels, in their containers.

    With a rootless engine, root in a container is the engine's user, who must also run the gateway.
    """
    if engine.rootless:
        return 0, 0
    return IMAGE_USER if os.geteuid() == 0 else (os.geteuid(), os.getegid())


async def check_engine(engine: Engine, settings: ContainerSettings) -> str:
    """Return the image's id if kernels can start. Raises BackendUnavailable, ImageMissing."""
    info = await engine.call(APIClient.info)
    unlimited = [what for name, what in _LIMITS.items() if info.get(name) is False]
    if unlimited:
        raise BackendUnavailable(
            f"The Docker engine can't limit a container's {', '.join(unlimited)}. A rootless engine needs"
            " cgroup v2 for that."
        )
    if settings.runtime and settings.runtime not in info.get("Runtimes", {}):
        known = ", ".join(sorted(info.get("Runtimes", {})))
        raise BackendUnavailable(
            f"The Docker engine has no runtime {settings.runtime!r}, only {known}."
            " docs/how-to/run-kernels-in-containers.md says how to add one."
        )
    try:
        image = await engine.call(APIClient.inspect_image, settings.image)
    except ImageMissing:
        raise ImageMissing(
            f"The Docker engine has no image {settings.image}. Make it: cellgate image build"
        ) from None
    return str(image["Id"])
