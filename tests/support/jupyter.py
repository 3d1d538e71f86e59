"""A Jupyter kernel for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import NO_ENGINE, serving
from tests.support.server import GatewayProcess


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for all tests of the Jupyter door."""
    data = tmp_path_factory.mktemp("jupyter") / "data"
    with serving(data, "auto", docker_url=NO_ENGINE, pool_size=2) as process:
        yield process


@pytest.fixture
def start_kernel(jupyter: GatewayProcess) -> Iterator[Callable[..., str]]:
    """Starts kernels by POST /api/kernels; they end with the test."""
    started: list[str] = []

    def start(body: object = None) -> str:
        answer = jupyter.post("/api/kernels", body)
        assert answer.status == 201, answer.body
        started.append(answer.json()["id"])
        return started[-1]

    yield start
    for kernel in started:
        jupyter.delete(f"/api/kernels/{kernel}")


@pytest.fixture
def kernel(start_kernel: Callable[..., str]) -> str:
    """A fresh kernel's id."""
    return start_kernel()
