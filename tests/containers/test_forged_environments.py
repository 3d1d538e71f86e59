"""Containers whose variables run code before anybody asks them anything, as attackers make them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.packages.test_forged_environments import (
    foreign,
    forging,
    index,
    key,
    test_a_forged_environment_reaches_no_installer,
    test_a_session_s_variables_tell_nothing_of_its_environment,
)
from tests.support.kernels import CONTAINERS, EACH_CONTAINER
from tests.support.server import GatewayProcess
from tests.support.wheels import Index


@pytest.fixture(scope="module", params=EACH_CONTAINER)
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, index: Index
) -> Iterator[GatewayProcess]:
    """Each runtime."""
    request.getfixturevalue(request.param)
    data = tmp_path_factory.mktemp(f"forged-{request.param}") / "data"
    with forging(data, "docker", index, runtime=CONTAINERS[request.param]) as process:
        yield process
