"""The disk of a kernel in a container: wherever it writes and however it hides it, the sum is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.files.test_disk_limits import (
    bounding,
    other,
    test_a_kernel_that_prints_much_keeps_its_spool,
    test_what_a_kernel_keeps_is_bounded,
)
from tests.support.kernels import CONTAINERS, EACH_CONTAINER
from tests.support.server import GatewayProcess


@pytest.fixture(scope="module", params=EACH_CONTAINER)
def bounded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway whose kernels have 64 MiB of disk, with each runtime."""
    request.getfixturevalue(request.param)
    data = tmp_path_factory.mktemp("bounded") / "data"
    with bounding(data, "docker", CONTAINERS[request.param]) as process:
        yield process
