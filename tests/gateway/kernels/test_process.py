"""The core of the backends' contract on plain processes."""

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


@pytest.fixture
def backend() -> str:
    return "process"
