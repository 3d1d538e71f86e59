"""The `docker` backend: a kernel in a container without network, capabilities or a writable system.

Each kernel has its own container; we talk to it over Unix sockets in a folder mounted at /run/kernel. The
image (Dockerfile.kernel) contains the interpreter, so the kernelspec's command is a path in the image. With
the runtime ``runsc`` the same container runs on gVisor. ``container`` has a container's configuration,
``engine`` makes the calls. A gateway shares one engine among its kernels through the launch keyword `engine`.
Other Jupyter programs need not know that: without it a kernel gets a connection of its own.

Files belong to the user that the kernel runs as: the gateway's own or, under a root gateway, the image's.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import zmq
from docker.api.client import APIClient
from jupyter_client.connect import KernelConnectionInfo
from traitlets import Enum, List, Unicode

from cellgate_kernels import trees
from cellgate_kernels.errors import BackendUnavailable, ImageMissing, InvalidInput
from cellgate_kernels.limits import ResourceLimits
from cellgate_kernels.provisioners.base import CellgateProvisioner, KernelView, Launch
from cellgate_kernels.provisioners.container import (
    FIRST_PORT,
    IMAGE,
    IMAGE_USER,
    INSTANCE_LABEL,
    KERNEL_LABEL,
    PORTS,
    VIEW,
    ContainerSettings,
    container_config,
    inner_port,
)
from cellgate_kernels.provisioners.engine import SOCKET, Container, Engine
from cellgate_kernels.provisioners.folders import LaunchFolders

_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "processor time"}
"""What an engine reports that it can limit, by its own names."""


class DockerProvisioner(CellgateProvisioner):
    """Kernels in containers. Interrupts work by message only. `engine` is a launch keyword: see above."""

    image = Unicode(IMAGE, help="The image, as the engine knows it.")
    runtime = Unicode(help="The engine's runtime, such as runsc; default: the engine's.")
    transport = Enum(("ipc", "tcp"), "ipc", help="Unix sockets, or TCP published on loopback with CurveZMQ.")
    network = Unicode(help="The engine's network for kernels; default: none at all.")
    mounts: List[str] = List(Unicode(), help="Further folders of the engine's host: SOURCE:TARGET[:rw].")
    url = Unicode(SOCKET, help="The engine's address, for kernels launched without one.")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = ContainerSettings(
            self.image, self.runtime, str(self.transport), self.network, tuple(self.mounts)
        )
        self.isolation = self._settings.isolation
        self._engine: Engine | None = None
        self._own_engine: Engine | None = None
        self._container: Container | None = None

    @classmethod
    async def check(cls) -> None:
        """Raises BackendUnavailable or ImageMissing when Docker's usual socket or the image is not there."""
        engine = Engine()
        await engine.open()
        try:
            await check_engine(engine, ContainerSettings())
        finally:
            await engine.close()

    @property
    def image_used(self) -> Mapping[str, str]:
        """The image's name, and its id: the digest that distinguishes it from others of that name."""
        if self._container is None or not self._container.image:
            return {}
        return {"image": self._settings.image, "image_digest": self._container.image}

    @property
    def process(self) -> int | None:
        """The container's first process; None with an engine on another machine, and after its end."""
        container = self._container
        if container is None or container.watched is None or container.exited.done():
            return None
        return container.watched.process

    async def get_provisioner_info(self) -> dict[str, Any]:
        """What `load_provisioner_info` needs except the engine, as JSON values. Only of a running kernel."""
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
        self._folders = LaunchFolders(Path(info["runtime"]), Path(info["workspace"]), owns_workspace=False)
        self._leftovers = info.get("leftovers")
        self._engine = engine = info["engine"]
        launch = Launch((), {}, ResourceLimits(**info["limits"]), self._folders)
        self._container = container = engine.adopt(info["container"], launch)
        self._exited = container.exited
        self._attached = True
        await engine.until_running(container)

    def detach(self) -> None:
        """Leave the container running when its engine's owner ends."""
        if self._engine is not None and self._container is not None:
            self._engine.detach(self._container)

    def _view(self, folders: LaunchFolders) -> KernelView:
        # With an engine's network, what ignores the proxy would reach whatever that reaches.
        return VIEW if self._settings.network_mode == "none" else replace(VIEW, egress="")

    def _check_program(self, path: str) -> None:
        """Does nothing: the program is in the image, and if it is missing tini's message is in the log."""

    def _connection(self, folders: LaunchFolders) -> tuple[KernelConnectionInfo, KernelConnectionInfo]:
        outer, inner = super()._connection(folders)
        if self._settings.transport == "ipc":
            return outer, inner
        public, secret = zmq.curve_keypair()
        tcp: KernelConnectionInfo = {
            **outer,
            "transport": "tcp",
            "curve_publickey": public.decode(),
            "curve_secretkey": secret.decode(),
        }
        ports: Any = {name: FIRST_PORT + number for name, number in PORTS.items()}
        unknown: Any = dict.fromkeys(PORTS, 0)
        return {**tcp, "ip": "127.0.0.1", **unknown}, {**tcp, "ip": "0.0.0.0", **ports}  # noqa: S104

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """The launch's keywords. Does nothing that would have to be undone."""
        self._engine = kwargs.pop("engine", None) or self._engine
        return await super().pre_launch(**kwargs)

    async def _start(self, launch: Launch) -> None:
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
            host_ports=self._ports,
            read_only_proc=not engine.selinux,
        )
        self._container = engine.launch(launch, config)
        self._exited = self._container.exited
        await engine.until_running(self._container)
        if self._ports:
            self._take_ports(await engine.call(APIClient.inspect_container, self._container.name))

    @property
    def _ports(self) -> Mapping[str, int]:
        """The ports to publish, by channel; a relaunch reuses the earlier ones, because clients know them."""
        if self._settings.transport == "ipc":
            return {}
        return {name: int(self.connection_info.get(name, 0)) for name in PORTS}  # type: ignore[call-overload]

    def _take_ports(self, inspected: Mapping[str, Any]) -> None:
        published = inspected["NetworkSettings"]["Ports"]
        for name in PORTS:
            port = int(published[inner_port(name)][0]["HostPort"])
            self.connection_info[name] = port  # type: ignore[literal-required]

    def _end(self) -> None:
        if self._engine is not None and self._container is not None:
            self._engine.end(self._container)

    def _signal(self, signum: int) -> None:
        if signum not in (signal.SIGKILL, signal.SIGTERM):
            raise InvalidInput(
                "A kernel in a container takes no signals; its kernelspec needs interrupt_mode 'message'."
            )
        self._end()

    async def log_tail(self) -> str:
        """The end of the stderr of the kernel's process, which cells do not write to; at most 8 KiB."""
        if self._engine is None or self._container is None:
            return ""
        return await self._engine.log_tail(self._container)

    async def files_given(self) -> None:
        """Give the files to the kernel's user, and allow them even over its disk limit."""
        if self._engine is None or self._container is None:
            return
        if os.geteuid() == 0:
            await asyncio.to_thread(give_to, kernel_user(self._engine), self._container.launch.folders)
        await self._engine.files_given(self._container)

    async def cleanup(self, restart: bool = False) -> None:
        """End the kernel if it still runs and, unless a restart follows, remove all that the launch made."""
        await super().cleanup(restart)
        if not restart and self._own_engine is not None:
            engine = self._own_engine
            self._own_engine = None
            self._engine = None
            await engine.close()


def kernel_user(engine: Engine) -> tuple[int, int]:
    """The uid and gid of kernels, in their containers.

    With a rootless engine, root in a container is the user who runs the engine, who must also run the
    gateway.
    """
    if engine.rootless:
        return 0, 0
    return IMAGE_USER if os.geteuid() == 0 else (os.geteuid(), os.getegid())


async def check_engine(engine: Engine, settings: ContainerSettings) -> str:
    """Check that kernels can be started with these settings; returns the image's id.

    Raises BackendUnavailable or ImageMissing.
    """
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


def give_to(user: tuple[int, int], folders: LaunchFolders) -> None:
    """Give a root gateway's folders to the kernel's user. Links in the workspace are not followed.

    Files beyond the limits of a walk keep their owner, an earlier kernel's user. Raises OSError, also on too
    many open files.
    """
    for path in (folders.sockets, folders.connection_file, folders.workspace):
        os.chown(path, *user, follow_symlinks=False)
    walk = trees.Walk(folders.workspace)
    for entry in walk:
        with suppress(FileNotFoundError):
            os.chown(entry.name, *user, dir_fd=entry.folder, follow_symlinks=False)
    if walk.hindered is not None:
        raise walk.hindered
