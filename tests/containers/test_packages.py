"""Packages of kernels in containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.gateway.packages.test_packages import (
    gateway_for,
    imported,
    index,
    install,
    key,
    test_a_kernel_cannot_change_what_others_get,
    test_an_ended_session_leaves_no_packages,
    test_installed_packages_are_there_at_once_and_after_a_restart,
    test_pip_in_a_cell_finds_what_was_got_for_it,
    test_the_second_session_downloads_nothing,
    versions,
)
from tests.support.server import GatewayProcess
from tests.support.wheels import Index


@pytest.fixture(scope="module")
def any_gateway(
    docker: None, tmp_path_factory: pytest.TempPathFactory, index: Index
) -> Iterator[GatewayProcess]:
    """A gateway that allows everything of the index."""
    yield from gateway_for(tmp_path_factory.mktemp("packages-docker") / "data", "docker", index)


def test_an_adopted_kernel_keeps_its_packages(
    docker: None, start_gateway: StartGateway, index: Index, tmp_path: Path
) -> None:
    options = {"packages": "*", "package_index": index.url, "pool_size": 0}
    gateway = start_gateway(tmp_path / "data", "docker", **options)
    install(gateway, "s", "banana")
    gateway.kill()
    gateway = start_gateway(tmp_path / "data", "docker", **options)
    assert imported(gateway, "s", "banana") == "1.0"
    assert versions(gateway.get("/v1/sessions/s/packages")) == {"apple": "1.0", "banana": "1.0"}
    assert gateway.post("/v1/sessions/s/restart").status == 200
    assert imported(gateway, "s", "banana") == "1.0"
    assert gateway.delete("/v1/sessions/s").status == 204
