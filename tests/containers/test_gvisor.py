"""The core of the backends' contract on gVisor."""

from __future__ import annotations

import pytest

from tests.gateway.kernels.test_provisioner_contract import (
    test_a_cell_runs_and_state_is_kept,
    test_a_restart_gives_a_new_process_to_the_same_client,
    test_an_interrupt_message_ends_a_cell_and_its_children,
    test_memory_beyond_the_limit_hurts_this_kernel_only,
    test_no_variable_of_the_gateway_reaches_the_kernel,
    test_the_end_of_a_kernel_is_explained,
)
from tests.support.kernels import StartKernel


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
