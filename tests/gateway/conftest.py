"""A second shared gateway, with bounds so small that tests reach them; and what tests of containers share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.api.client import APIClient

from cellgate_kernels.provisioners.container import INSTANCE_LABEL
from tests.conftest import serving
from tests.server import GatewayProcess

Containers = Callable[[GatewayProcess], set[str]]


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway whose queues, graces and caps are small, for all tests of them."""
    with serving(
        tmp_path_factory.mktemp("strict") / "data",
        max_queue=2,
        interrupt_grace=0.5,
        keep_alive=0.2,
        cull_interval=0.05,
        text_cap="64k",
        data_cap="64k",
    ) as process:
        yield process


@pytest.fixture
def strict_session(strict: GatewayProcess) -> Iterator[str]:
    """A key on the strict gateway that no other test uses; its session is ended afterwards."""
    key = f"test-{uuid.uuid4().hex[:12]}"
    yield key
    strict.delete(f"/v1/sessions/{key}")


def surviving(gateway: GatewayProcess) -> Iterator[str]:
    """A session that must stay alive, with its variables."""
    gateway.execute("other", "x = 1")
    yield "other"
    result = gateway.execute("other", "x + 1")
    assert (result["status"], result["text"]) == ("ok", "2"), result


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
