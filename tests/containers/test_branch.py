"""Branches of kernels in containers: the tests of the sandbox, and what only a container's limits do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from cellgate_kernels.backends.docker import DockerProvisioner
from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelFolders, KernelLauncher, SharedBackend
from cellgate_kernels.protocol.messages import Channel
from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.gateway.kernels.test_branch import (
    parent,
    test_a_branch_has_a_copy_of_the_files_or_the_same,
    test_a_branch_that_does_not_come_up_leaves_its_parent_alone,
    test_a_busy_kernel_is_not_disturbed,
    test_a_debugger_is_an_obstacle_and_can_be_attached_in_a_branch,
    test_a_kill_ends_one,
    test_an_interrupt_stops_the_cell_of_one,
    test_an_obstacle_is_named,
    test_an_obstacle_is_overruled,
    test_begins_and_ends_together,
    test_branches_end_with_their_gateway_and_the_first_kernel_does_not,
    test_each_goes_its_own_way,
    test_ends_in_any_order,
    test_files_of_the_parent_outlive_a_branch_that_exits,
    test_nothing_piles_up,
    test_processes_of_cells_stay_the_parents,
    test_random_numbers_go_on_or_are_seeded,
    test_what_cells_opened_stays_open_down_the_line,
    test_what_clients_ask_of_it,
    test_what_works_in_a_branch,
    test_which_packages_work_in_a_branch,
    test_who_adopts_the_first_kernel_can_rely_on_the_end_of_the_others,
)
from tests.gateway.kernels.test_kernel import DEADLINE, folders, printed

EATS = "kept = bytearray(600 * 1024 * 1024)"


@pytest.fixture(params=["docker"])
def backend(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue("docker")
    return "docker"


@pytest.fixture
def catalog() -> KernelspecCatalog:
    image = os.environ.get("CELLGATE_IMAGE")
    return KernelspecCatalog(backend="docker", provisioner_config={} if image is None else {"image": image})


@pytest.fixture
async def launcher(catalog: KernelspecCatalog, folders: KernelFolders) -> AsyncIterator[KernelLauncher]:
    engine = Engine()
    await engine.open()
    yield KernelLauncher(catalog, folders, shared=SharedBackend(engine=engine))
    await engine.close()


@pytest.mark.parametrize("name", ["parent", "middle", "branch"])
async def test_memory_of_all_is_limited_and_one_is_ended(launcher: KernelLauncher, name: str) -> None:
    first = await launcher.start(KernelProfile("python3", ResourceLimits(memory=512 * MIB)))
    middle = await first.branch(BranchSpec())
    kernels: dict[str, Kernel] = {"parent": first, "middle": middle}
    kernels["branch"] = await middle.branch(BranchSpec())
    eater = kernels.pop(name)
    eater.connection.request(Channel.SHELL, "execute_request", {"code": EATS})
    ended = await asyncio.wait_for(asyncio.shield(eater.exited), DEADLINE)
    assert (ended.cause, ended.signal) == ("out_of_memory", signal.SIGKILL)
    for other in kernels.values():
        assert await printed(other, "print('alive')") == "alive\n"
    await asyncio.gather(eater.discard(), *(other.discard() for other in kernels.values()))


async def test_absolute_names_stay_those_of_the_parent(
    launcher: KernelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine gives nobody the right to make other mounts for a branch; who is not root can't, either."""
    monkeypatch.setattr(DockerProvisioner, "_may_name", lambda self, engine: False)
    parent = await launcher.start(KernelProfile("python3"))
    branch = await parent.branch(BranchSpec())
    shared = await parent.branch(BranchSpec(BranchWorkspace.SHARED))
    assert [kernel.has_own_names for kernel in (parent, branch, shared)] == [True, False, True]
    await printed(branch, "open('/workspace/its', 'w').close(); open('own', 'w').close()")
    found = [sorted(path.name for path in kernel.workspace.iterdir()) for kernel in (parent, branch)]
    assert found == [["its"], ["own"]]
    await asyncio.gather(*(kernel.discard() for kernel in (parent, branch, shared)))
