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
from tests.containers.test_per_principal import MOUNTS
from tests.gateway.kernels.test_provisioner_contract import (
    test_a_cell_runs_and_state_is_kept,
    test_a_clients_own_variables_for_installers_count,
    test_a_file_beyond_the_limit_is_an_error_in_the_cell,
    test_a_flood_of_log_is_read_and_only_its_end_kept,
    test_a_variable_that_would_be_more_than_one_is_refused,
    test_an_installer_without_a_way_out_gives_up_at_once,
    test_an_interrupt_message_ends_a_cell_and_its_children,
    test_kill_wait_and_cleanup_may_be_repeated,
    test_memory_beyond_the_limit_hurts_this_kernel_only,
    test_no_variable_of_the_gateway_reaches_the_kernel,
    test_polling_only_reads_a_future,
    test_shutdown_with_notice_works_too,
    test_the_end_of_a_kernel_is_explained,
    test_the_usual_libraries_work_within_the_default_limits,
    test_two_kernels_share_neither_key_nor_sockets,
)
from tests.support.kernels import SETTLE_TIMEOUT

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
