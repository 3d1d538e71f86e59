"""The contract of all isolation backends, on containers."""

from __future__ import annotations

import pytest

from tests.gateway.kernels.test_provisioner_contract import (
    test_a_cancelled_launch_leaves_nothing,
    test_a_cell_runs_and_state_is_kept,
    test_a_clients_own_variables_for_installers_count,
    test_a_file_beyond_the_limit_is_an_error_in_the_cell,
    test_a_flood_of_log_is_read_and_only_its_end_kept,
    test_a_folder_too_long_for_sockets_fails_the_launch,
    test_a_given_workspace_is_used_and_kept,
    test_a_kernelspecs_own_variables_are_filled_in,
    test_a_missing_workspace_fails_the_launch,
    test_a_program_that_is_not_there_fails_the_launch_or_ends_it,
    test_a_program_without_a_path_fails_the_launch,
    test_a_restart_gives_a_new_process_to_the_same_client,
    test_a_variable_that_would_be_more_than_one_is_refused,
    test_an_installer_without_a_way_out_gives_up_at_once,
    test_an_interrupt_message_ends_a_cell_and_its_children,
    test_kill_wait_and_cleanup_may_be_repeated,
    test_memory_beyond_the_limit_hurts_this_kernel_only,
    test_no_variable_of_the_gateway_reaches_the_kernel,
    test_nothing_happens_to_a_provisioner_that_never_launched,
    test_polling_only_reads_a_future,
    test_shutdown_with_notice_works_too,
    test_the_end_of_a_kernel_is_explained,
    test_the_log_tells_why_a_kernel_did_not_start,
    test_the_usual_libraries_work_within_the_default_limits,
    test_two_kernels_share_neither_key_nor_sockets,
)


@pytest.fixture
def backend(docker: None) -> str:
    """The engine's usual runtime; others do the core of the contract."""
    return "docker"
