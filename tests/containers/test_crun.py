"""The core of the backends' contract on crun, another runtime of the engine; the engine is the tests' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.gateway.kernels.test_provisioner_contract import (
    test_a_cell_runs_and_state_is_kept,
    test_a_restart_gives_a_new_process_to_the_same_client,
    test_an_interrupt_message_ends_a_cell_and_its_children,
    test_memory_beyond_the_limit_hurts_this_kernel_only,
    test_no_variable_of_the_gateway_reaches_the_kernel,
    test_the_end_of_a_kernel_is_explained,
)
from tests.support.engines import OwnEngine
from tests.support.kernels import CONTAINERS


@pytest.fixture(scope="module")
def crun(docker: None) -> Iterator[OwnEngine]:
    """An engine that knows crun."""
    engine = OwnEngine(live_restore=False, runtimes=["crun"])
    try:
        engine.start()
        yield engine
    finally:
        engine.end()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> str:
    """Its ends are those of containers."""
    monkeypatch.setitem(CONTAINERS, "crun", "crun")
    return "crun"


@pytest.fixture
def catalog(crun: OwnEngine) -> KernelspecCatalog:
    """Kernelspecs of that engine."""
    options = crun.options
    config = {"url": options.pop("docker_url"), "runtime": "crun", **options}
    return KernelspecCatalog(backend="docker", provisioner_config=config)
