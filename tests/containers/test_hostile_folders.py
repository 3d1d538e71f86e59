"""Whatever a cell in a container makes of its workspace: it is watched, moved, kept, exported and removed."""

from __future__ import annotations

import pytest

from tests.conftest import StartGateway
from tests.gateway.files.test_hostile_folders import lives_with_traps


@pytest.mark.nightly
@pytest.mark.usefixtures("docker")
def test_a_gateway_with_containers_lives_with_all_of_it(start_gateway: StartGateway) -> None:
    lives_with_traps(start_gateway(backend="docker", pool_size=0), "s")


@pytest.mark.nightly
@pytest.mark.usefixtures("gvisor")
def test_a_gateway_with_gvisor_lives_with_all_of_it(start_gateway: StartGateway) -> None:
    lives_with_traps(start_gateway(backend="docker", pool_size=0, runtime="runsc"), "s")
