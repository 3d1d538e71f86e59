"""The core of the backends' contract on crun, another runtime of the engine; the engine is the tests' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.backend import BackendCore
from tests.gateway.kernels.test_provisioner_contract import (
    test_memory_beyond_the_limit_hurts_this_kernel_only,
)
from tests.support.engines import OwnEngine
from tests.support.kernels import CONTAINERS, WithOurChecks


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


class TestContract(WithOurChecks, BackendCore):
    """Of these kernels."""
