"""Whatever a cell in a container makes of its workspace: it is watched, moved, kept, exported and removed."""

from __future__ import annotations

import pytest

from tests.conftest import StartGateway
from tests.gateway.files.test_hostile_folders import LEASE, links_lead_nowhere, lives_with_traps
from tests.support.kernels import CONTAINERS, EACH_CONTAINER


@pytest.mark.nightly
@pytest.mark.usefixtures("docker")
def test_a_gateway_with_containers_lives_with_all_of_it(start_gateway: StartGateway) -> None:
    lives_with_traps(start_gateway(backend="docker", pool_size=0), "s")


@pytest.mark.nightly
@pytest.mark.usefixtures("gvisor")
def test_a_gateway_with_gvisor_lives_with_all_of_it(start_gateway: StartGateway) -> None:
    lives_with_traps(start_gateway(backend="docker", pool_size=0, runtime="runsc"), "s")


@pytest.mark.parametrize("engine", EACH_CONTAINER)
def test_no_lease_and_no_link_of_a_container_reaches_the_gateway(
    start_gateway: StartGateway, request: pytest.FixtureRequest, engine: str
) -> None:
    request.getfixturevalue(engine)
    runtime = CONTAINERS[engine]
    gateway = start_gateway(backend="docker", pool_size=0, **({"runtime": runtime} if runtime else {}))
    refused = gateway.execute("s", LEASE)["text"]
    # gVisor has no leases.
    assert refused == ("Invalid argument\n" if runtime == "runsc" else "Operation not permitted\n")
    assert gateway.get("/v1/sessions/s/files/lease").body == b"held"
    gateway.delete("/v1/sessions/s/files/lease")
    links_lead_nowhere(gateway, "s")
