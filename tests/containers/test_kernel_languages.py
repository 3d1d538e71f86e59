"""Kernels of other languages than Python, in containers."""

from __future__ import annotations

import pytest

from tests.gateway.kernels.test_kernel_languages import (
    language,
    test_a_picture_is_displayed_by_bash,
    test_a_program_after_an_interrupt_is_not_interrupted,
    test_an_interrupt_keeps_what_was_there_and_an_exit_is_the_kernels_end,
    test_an_interrupt_that_a_starting_program_missed_is_sent_again,
    test_cells_run_as_in_python,
    test_deno_shows_values_as_they_are,
    test_tabs_heredocs_and_long_lines_of_bash_are_only_text,
)


@pytest.fixture
def backend(docker: None) -> str:
    """The engine's usual runtime is enough here."""
    return "docker"
