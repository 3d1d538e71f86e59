"""The contract of all isolation backends, on containers."""

from __future__ import annotations

import pytest

from cellgate_kernels.testing.backend import BackendContract
from tests.gateway.kernels.test_provisioner_contract import (
    test_a_clients_own_variables_for_installers_count,
    test_a_flood_of_log_is_read_and_only_its_end_kept,
    test_a_kernelspecs_own_variables_are_filled_in,
    test_a_program_that_is_not_there_fails_the_launch_or_ends_it,
    test_an_installer_without_a_way_out_gives_up_at_once,
    test_memory_beyond_the_limit_hurts_this_kernel_only,
    test_the_usual_libraries_work_within_the_default_limits,
)
from tests.support.kernels import WithOurChecks


@pytest.fixture
def backend(docker: None) -> str:
    """The engine's usual runtime; others do the core of the contract."""
    return "docker"


class TestContract(WithOurChecks, BackendContract):
    """Of these kernels."""
