"""The contract of all isolation backends, on kernels that are forked in a container which they share.

Left out is what can't be asked of them: a workspace or a program that is not the gateway's choice, failures
of a launch by itself, and a restart in the same place, which a gateway never does.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import zmq.asyncio
from docker.api.client import APIClient
from jupyter_client.manager import AsyncKernelManager

from cellgate_kernels.base import trees
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.engine.container import INSTANCE_LABEL
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.forking.server import ForkSettings
from cellgate_kernels.forking.shared_containers import Seat, SharedContainers
from cellgate_kernels.forking.shared_places import Roots, Sharers
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.backend import BackendContract
from tests.containers.test_per_principal import MOUNTS
from tests.gateway.kernels.test_provisioner_contract import (
    test_a_clients_own_variables_for_installers_count,
    test_a_flood_of_log_is_read_and_only_its_end_kept,
    test_an_installer_without_a_way_out_gives_up_at_once,
    test_memory_beyond_the_limit_hurts_this_kernel_only,
    test_the_usual_libraries_work_within_the_default_limits,
)
from tests.support.kernels import SETTLE_TIMEOUT, WithOurChecks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only a gateway that is root shares containers")


@pytest.fixture
def backend(docker: None) -> str:
    return "docker"


@pytest.fixture
def catalog(backend: str) -> KernelspecCatalog:
    return KernelspecCatalog(backend=backend, provisioner_config={"mounts": MOUNTS})


@pytest.fixture
async def containers(no_leaks: Any) -> AsyncIterator[SharedContainers]:
    """Whose folders are empty in the end, and whose containers are gone."""
    roots = Roots(no_leaks / "run", no_leaks / "work")
    for folder in (roots.runtime, roots.workspaces):
        folder.mkdir()
    engine = Engine()
    await engine.open()
    made = SharedContainers(engine, roots, ForkSettings(modules=()))
    yield made
    await made.close()
    await engine.close()
    for folder in (roots.runtime, roots.workspaces):
        folder.rmdir()


class Manager(AsyncKernelManager):
    """Starts kernels on seats, as a launcher does."""

    containers: SharedContainers
    seat: Seat | None = None

    async def _async_pre_start_kernel(self, **options: Any) -> tuple[list[str], dict[str, Any]]:
        self.kernel_id = options.pop("kernel_id", str(uuid.uuid4()))
        limits = options.get("limits") or ResourceLimits()
        self.seat = seat = self.containers.seat(Sharers("ada", self.kernel_name, limits), self.kernel_id)
        workspace = seat.workspaces / self.kernel_id
        workspace.mkdir()
        given = {"seat": seat, "sockets": seat.sockets, "engine": self.containers.engine}
        return await super()._async_pre_start_kernel(**options, **given, workspace=workspace)

    pre_start_kernel = _async_pre_start_kernel  # type: ignore[assignment]


@pytest.fixture
async def new_manager(
    catalog: KernelspecCatalog, containers: SharedContainers, context: zmq.asyncio.Context
) -> AsyncIterator[Callable[[], AsyncKernelManager]]:
    """Makes managers of kernels that are not started yet; nothing may be left of their containers."""
    made: list[Manager] = []

    def make() -> AsyncKernelManager:
        manager = Manager(
            kernel_name="python3", kernel_spec_manager=catalog, context=context, autorestart=False
        )
        manager.containers = containers
        made.append(manager)
        return manager

    yield make
    seats = [(manager.seat, manager.kernel_id) for manager in made if manager.seat is not None]
    for seat, kernel_id in seats:
        assert kernel_id is not None
        trees.remove(seat.workspaces / kernel_id)
    left: list[Any] = []
    label = f"{INSTANCE_LABEL}={containers.engine.instance}"
    for _ in range(int(SETTLE_TIMEOUT / 0.1)):
        left = await containers.engine.call(APIClient.containers, all=True, filters={"label": label})
        if not left:
            break
        await asyncio.sleep(0.1)
    assert not left
    for seat, _ in seats:
        seat.tidy()


class TestContract(WithOurChecks, BackendContract):
    """Of these kernels."""

    test_a_cancelled_launch_leaves_nothing = None  # type: ignore[assignment]
    test_a_folder_too_long_for_sockets_fails_the_launch = None  # type: ignore[assignment]
    test_a_given_workspace_is_used_and_kept = None  # type: ignore[assignment]
    test_a_missing_workspace_fails_the_launch = None  # type: ignore[assignment]
    test_a_program_without_a_path_fails_the_launch = None  # type: ignore[assignment]
    test_a_restart_gives_a_new_process_to_the_same_client = None  # type: ignore[assignment]
    test_nothing_happens_to_a_provisioner_that_never_launched = None  # type: ignore[assignment]
    test_the_log_tells_why_a_kernel_did_not_start = None  # type: ignore[assignment]
