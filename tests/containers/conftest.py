"""What tests of containers share: which there are, and a check that none is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.api.client import APIClient

from cellgate_kernels.provisioners.container import INSTANCE_LABEL
from tests.support.kernels import CONTAINERS
from tests.support.server import GatewayProcess

Containers = Callable[[GatewayProcess], set[str]]


@pytest.fixture(params=CONTAINERS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each runtime, for tests that come from where they are run on this machine's own backends."""
    request.getfixturevalue(request.param)
    return str(request.param)


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
