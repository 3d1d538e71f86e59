"""The core of the backends' contract on plain processes."""

from __future__ import annotations

import pytest

from cellgate_kernels.testing.backend import BackendCore
from tests.gateway.kernels.test_provisioner_contract import (
    test_memory_beyond_the_limit_hurts_this_kernel_only,
)
from tests.support.kernels import WithOurChecks


@pytest.fixture
def backend() -> str:
    return "process"


class TestContract(WithOurChecks, BackendCore):
    """Of these kernels."""
