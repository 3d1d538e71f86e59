"""The core of the backends' contract on gVisor."""

from __future__ import annotations

import pytest

from cellgate_kernels.testing.backend import BackendCore, StartKernel
from tests.gateway.kernels.test_provisioner_contract import (
    test_memory_beyond_the_limit_hurts_this_kernel_only,
)
from tests.support.kernels import WithOurChecks


@pytest.fixture
def backend(gvisor: None) -> str:
    return "gvisor"


async def test_space_is_not_given_at_once(start_kernel: StartKernel) -> None:
    """It would be, before anybody looks."""
    kernel = await start_kernel()
    code = """
import os
file = os.open("large", os.O_RDWR | os.O_CREAT)
try:
    os.posix_fallocate(file, 0, 1_000_000_000)
except OSError as error:
    print(type(error).__name__, os.fstat(file).st_blocks)
print(os.write(file, b"1" * 100_000))
"""
    assert await kernel.print(code) == "PermissionError 0\n100000\n"


class TestContract(WithOurChecks, BackendCore):
    """Of these kernels."""
