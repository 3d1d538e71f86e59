"""A pytest plugin: real kernels through jupyter_client alone, and a check that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq.asyncio
from docker.api.client import APIClient
from jupyter_client.manager import AsyncKernelManager

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.engine.container import KERNEL_LABEL
from cellgate_kernels.forking.server import ForkServer, ForkSettings
from cellgate_kernels.limits.cgroups import Cgroups
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.backend import CELL_TIMEOUT, NewManager, RunningKernel, StartKernel
from cellgate_kernels.walls.kernel_uids import KernelUids
from tests.support.nightly import at_night

SETTLE_TIMEOUT = 30.0

CONTAINERS = {"docker": "", "gvisor": "runsc"}
"""Backends of tests that are containers, each with its engine's runtime."""

EACH_CONTAINER = ["docker", at_night("gvisor")]
"""Parameters for what is the same with each runtime: tried with the engine's usual one before each change.
With gVisor its own part is, which is the core of the contract, and attacks.
"""


def own_processes() -> list[psutil.Process]:
    """All processes below this one but engines, databases and shared gateways, which start others at will."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            words = child.cmdline()
            forks = any("multiprocessing" in word for word in words)
            programs = {"serve", "dockerd", "containerd"} & set(words)
            if not forks and not programs and child.name() != "postgres":
                found += [child, *child.children(recursive=True)]
    return found


def zygote_processes(server: ForkServer) -> set[psutil.Process]:
    """Those of a fork server that are no kernel's."""
    found: set[psutil.Process] = set()
    for outer in map(psutil.Process, server.processes()):
        found |= {outer, *(inner for inner in outer.children())}
        found |= {zygote for inner in outer.children() for zygote in inner.children()}
    return found


def _snapshot() -> dict[str, set[str]]:
    fds = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the folder
            fds.add(f"{link.name} {str(link.readlink()).split(':')[0]}")
    children = set()
    for child in own_processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            children.add(f"{child.pid} {child.name()}")
    tasks = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
    return {"fds": fds, "processes": children, "tasks": tasks}


@pytest.fixture
async def no_leaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Path]:
    """Fails the test if a process, descriptor, task or temporary file is left; gives the temporary folder."""
    tmp_path_factory.getbasetemp()  # before pytest would make it in our folder
    folder = Path(tempfile.mkdtemp(prefix="cg-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    # The loop's helper threads and zmq open what they keep at their first use.
    await asyncio.to_thread(zmq.zmq_version)
    before = _snapshot()
    try:
        yield folder
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while True:
            left = {kind: now - before[kind] for kind, now in _snapshot().items()}
            left["files"] = set(os.listdir(folder))  # noqa: PTH208
            if not any(left.values()) or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        assert not any(left.values()), f"left behind: { {k: v for k, v in left.items() if v} }"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


each_backend = pytest.mark.parametrize("backend", ["process", "sandbox"], indirect=True)
"""For tests of what the backends do each in their own way; the others are on the sandbox alone."""


FORK = "fork"
"""The sandbox, where kernels are forked."""

FORKS_FIRST = [FORK, at_night("sandbox")]
"""Parameters for what does not depend on how a sandbox came to be: before each change, as most of them do."""


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The sandbox, or what a test is parametrised with."""
    name = str(getattr(request, "param", "sandbox"))
    if name in ("sandbox", FORK):
        request.getfixturevalue("sandbox")
    return name


@pytest.fixture
def fork_settings() -> ForkSettings:
    """Of the fork server: nothing but ipykernel is loaded, because that is quicker."""
    return ForkSettings(modules=())


async def kernel_uids(name: str, folder: Path) -> KernelUids | None:
    """What gives kernels whose folders are in this one a uid each; None where that can't be."""
    try:
        return await KernelUids.find(name, [folder])
    except BackendUnavailable:
        return None


@pytest.fixture
async def fork_server(
    backend: str, no_leaks: Path, fork_settings: ForkSettings
) -> AsyncIterator[ForkServer | None]:
    """What forks the kernels of a test; None where none are forked."""
    if backend != FORK:
        yield None
        return
    try:
        cgroups = Cgroups.find(no_leaks.name)
    except BackendUnavailable:
        cgroups = None
    uids = await kernel_uids(no_leaks.name, no_leaks)
    server = ForkServer([(no_leaks, True)], cgroups, fork_settings, uids)
    yield server
    await server.close()


class Manager(AsyncKernelManager):
    """Starts kernels by forking them, if there is a fork server."""

    fork_server: ForkServer | None = None

    async def _async_pre_start_kernel(self, **options: Any) -> tuple[list[str], dict[str, Any]]:
        if self.fork_server is not None:
            options["fork_server"] = self.fork_server
        return await super()._async_pre_start_kernel(**options)

    pre_start_kernel = _async_pre_start_kernel  # type: ignore[assignment]


@pytest.fixture
def catalog(backend: str, request: pytest.FixtureRequest) -> KernelspecCatalog:
    if backend in CONTAINERS:
        return KernelspecCatalog(backend="docker", provisioner_config={"runtime": CONTAINERS[backend]})
    folder = request.getfixturevalue("kernel_prefix") / "kernels"
    return KernelspecCatalog(backend="sandbox" if backend == FORK else backend, kernel_dirs=[str(folder)])


def containers_of(kernel_ids: Sequence[str]) -> list[str]:
    """The names of all containers that were made for these kernels."""
    client = APIClient()
    try:
        return [
            container["Names"][0]
            for kernel_id in kernel_ids
            for container in client.containers(all=True, filters={"label": f"{KERNEL_LABEL}={kernel_id}"})
        ]
    finally:
        client.close()


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def new_manager(
    backend: str,
    catalog: KernelspecCatalog,
    no_leaks: Path,
    context: zmq.asyncio.Context,
    fork_server: ForkServer | None,
) -> AsyncIterator[Callable[[], AsyncKernelManager]]:
    """Makes managers of kernels that are not started yet; the test is checked for leaks."""
    made: list[AsyncKernelManager] = []

    def make() -> AsyncKernelManager:
        manager = Manager(
            kernel_name="python3", kernel_spec_manager=catalog, context=context, autorestart=False
        )
        manager.fork_server = fork_server
        made.append(manager)
        return manager

    yield make
    if backend in CONTAINERS:
        ids = [manager.kernel_id for manager in made if manager.kernel_id]
        for _ in range(int(SETTLE_TIMEOUT / 0.1)):
            if not containers_of(ids):
                break
            await asyncio.sleep(0.1)
        assert not containers_of(ids)


@pytest.fixture
async def start_kernel(
    new_manager: Callable[[], AsyncKernelManager], fork_server: ForkServer | None
) -> AsyncIterator[StartKernel]:
    """Starts kernels and ends them after the test; then none of their processes may exist."""
    running: list[RunningKernel] = []

    async def start(*, kernel_name: str = "python3", **options: Any) -> RunningKernel:
        manager = new_manager()
        manager.kernel_name = kernel_name
        await manager.start_kernel(**options)
        client = manager.client()
        kernel = RunningKernel(manager, client)
        running.append(kernel)
        client.start_channels(hb=False)
        await client.wait_for_ready(timeout=CELL_TIMEOUT)
        return kernel

    yield start
    processes = own_processes()
    if fork_server is not None:
        zygotes = zygote_processes(fork_server)
        processes = [process for process in processes if process not in zygotes]
    for kernel in running:
        kernel.client.stop_channels()
        await kernel.manager.shutdown_kernel(now=True)
    # What a kernel started in a session of its own learns of its end from the system, a little later.
    for _ in range(int(SETTLE_TIMEOUT / 0.05)):
        if not (left := [process for process in processes if process.is_running()]):
            break
        await asyncio.sleep(0.05)
    assert not left


class WithOurChecks:
    """The backends' contract with this plugin's kernels, and its checks that nothing of them is left."""

    @pytest.fixture
    def new_manager(self, new_manager: NewManager) -> NewManager:
        return new_manager

    @pytest.fixture
    def start_kernel(self, start_kernel: StartKernel) -> StartKernel:
        return start_kernel
