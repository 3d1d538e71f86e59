"""Rollbacks of sessions in containers over HTTP: the tests of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import serving
from tests.gateway.sessions.test_checkpoints import (
    auto,
    test_a_branch_has_checkpoints_of_its_own,
    test_a_cell_that_ends_its_kernel_is_undone,
    test_a_cell_that_hangs_is_undone,
    test_each_cell_can_be_undone,
    test_the_record_keeps_what_was_undone,
    test_variables_and_files_go_back_as_often_as_is_wanted,
)
from tests.gateway.sessions.test_exploring import (
    test_an_undo_takes_back_the_alternative_that_was_chosen,
    test_files_of_alternatives_are_their_own_under_every_name,
    test_the_session_goes_on_as_the_first_that_ends_well,
    test_the_session_goes_on_with_files_of_every_name,
)
from tests.support.server import GatewayProcess


@pytest.fixture(scope="module")
def gateway(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose kernels are in containers."""
    with serving(tmp_path_factory.mktemp("undo") / "data", "docker", pool_size=1) as process:
        yield process
