"""The walls of tests/gateway/kernels/test_walls.py, around containers."""

from __future__ import annotations

import pytest

from cellgate_kernels.testing.backend import StartKernel
from tests.gateway.kernels.test_walls import (
    calls_are_filtered,
    test_a_cell_cant_lower_its_score_for_running_out_of_memory,
    test_no_other_abi_makes_the_sockets_that_the_first_one_refuses,
    test_no_set_id_file_survives_in_a_workspace,
    test_nobody_can_hold_a_file_for_which_others_wait,
    test_proc_tells_of_the_kernels_own_processes_and_little_of_the_machine,
    test_sockets_are_of_a_few_families_and_none_leaves_the_network_namespace,
    test_space_for_files_is_had_by_writing_to_them,
    x86_64_only,
)


@x86_64_only
@pytest.mark.parametrize("backend", ["docker"], indirect=True)
async def test_calls_that_lead_out_are_refused_and_every_process_is_filtered(
    start_kernel: StartKernel,
) -> None:
    """gVisor's kernel is its own, and has no filter that a process could read."""
    await calls_are_filtered(start_kernel)
