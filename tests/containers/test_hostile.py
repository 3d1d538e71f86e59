"""Attacks by code in a container: those of tests/gateway/kernels/test_hostile.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.gateway.kernels.test_hostile import (
    attacked,
    test_daemons_do_not_survive_a_restart,
    test_killing_the_first_process_ends_this_kernel_at_most,
    test_no_attack_succeeds,
    test_nothing_of_the_gateway_is_in_sight,
    test_there_are_no_rights_and_no_network,
)
from tests.support.kernels import CONTAINERS


@pytest.fixture(scope="module", params=CONTAINERS)
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What all the attacks came to, with each runtime."""
    request.getfixturevalue(request.param)
    runtime = {"runtime": CONTAINERS[request.param]}
    catalog = KernelspecCatalog(backend="docker", provisioner_config=runtime)
    yield from attacked(catalog, tmp_path_factory.mktemp("gateway"))
