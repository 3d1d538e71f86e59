"""What tests of containers share: which there are, and a check that none is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.api.client import APIClient

from cellgate_kernels.engine.container import INSTANCE_LABEL
from tests.support.kernels import EACH_CONTAINER
from tests.support.one_image import made_image
from tests.support.server import GatewayProcess

Containers = Callable[[GatewayProcess], set[str]]

AT_EACH_CHANGE = frozenset(
    {
        # Modules: the contract with the engine's usual runtime, the core of it on gVisor, and all walls.
        "test_provisioner_contract",
        "test_gvisor",
        "test_hostile",
        "test_hostile_languages",
        "test_forged_environments",
        "test_walls",
        "test_egress",
        "test_disk_limits",
        "test_branch_names",
        # One test of each thing that is there in sandboxes, too.
        "test_a_cell_runs_and_state_is_kept",
        "test_a_sleeping_kernel_gives_its_memory_back_and_loses_nothing",
        "test_all_that_was_printed_is_there",
        "test_a_web_server_that_a_cell_started_is_seen_in_a_browser",
        "test_cells_run_as_in_python",
        "test_each_cell_can_be_undone",
        "test_each_goes_its_own_way",
        "test_everything_is_as_it_was",
        "test_files_of_alternatives_are_their_own_under_every_name",
        "test_installed_packages_are_there_at_once_and_after_a_restart",
        "test_the_session_goes_on_with_files_of_every_name",
        "test_variables_have_types_and_summaries",
    }
)
"""Of the tests that are imported from where they run on this machine's own backends; the rest is nightly."""


ONE_CASE = {"test_all_that_was_printed_is_there": "kill", "test_what_a_kernel_keeps_is_bounded": "files"}
"""The case of an imported test that is tried at each change: how the others differ has nothing to do with
containers.
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave to the night what an imported test would find once more."""
    if not isinstance(item, pytest.Function):
        return
    imported = item.function.__module__ != item.module.__name__
    case = ONE_CASE.get(item.originalname)
    is_another = case is not None and case not in item.callspec.id.split("-")
    if imported and (is_another or not {item.path.stem, item.originalname} & AT_EACH_CHANGE):
        item.add_marker(pytest.mark.nightly)


@pytest.fixture(params=EACH_CONTAINER)
def backend(request: pytest.FixtureRequest) -> str:
    """Each runtime, for tests that come from where they are run on this machine's own backends."""
    request.getfixturevalue(request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def one_image(docker: None) -> str:
    """The image with a gateway and its kernels."""
    return made_image()


@pytest.fixture
def no_container_left(client: APIClient, tmp_path: Path) -> Iterator[None]:
    """Checked when all gateways of the test have stopped: asked for by a mark it comes before them."""
    yield
    for instance in tmp_path.glob("*/instance"):
        label = f"{INSTANCE_LABEL}={instance.read_text()}"
        assert client.containers(all=True, filters={"label": label}) == []


@pytest.fixture
def containers(client: APIClient) -> Containers:
    """The ids of all containers of a gateway, running or not."""

    def list_them(gateway: GatewayProcess) -> set[str]:
        instance = (gateway.data_dir / "instance").read_text()
        listed = client.containers(all=True, filters={"label": f"{INSTANCE_LABEL}={instance}"})
        return {container["Id"] for container in listed}

    return list_them
