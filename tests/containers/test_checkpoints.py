"""Checkpoints of kernels in containers: the tests of the sandbox."""

from __future__ import annotations

from tests.containers.test_branch import backend, catalog, launcher
from tests.gateway.kernels.test_checkpoints import (
    session,
    test_a_checkpoint_holds_no_connection,
    test_a_closed_one_is_gone,
    test_a_kernel_that_died_is_rolled_back,
    test_a_kernel_that_hangs_is_rolled_back,
    test_a_workspace_of_its_own,
    test_checkpoints_of_what_was_rolled_back,
    test_everything_is_as_it_was,
    test_memory_is_what_only_held_forks_use,
    test_nobody_comes,
    test_nothing_piles_up,
    test_obstacles_are_named_or_overruled,
    test_one_of_a_dead_kernel_ends_the_sandbox_when_it_is_closed,
    test_one_of_a_young_kernel_can_be_gone_back_to_when_it_is_old,
    test_one_that_a_cell_kills_has_ended,
    test_one_that_a_cell_stops_can_be_closed,
    test_open_files_are_where_they_were,
    test_they_end_with_the_last_kernel_that_is_given_up,
    test_they_end_with_their_gateway_and_the_first_kernel_does_not,
    test_what_works_after_a_rollback,
    test_which_packages_work_after_a_rollback,
    test_who_adopts_the_kernel_can_rely_on_their_end,
)
from tests.gateway.kernels.test_kernel import folders
