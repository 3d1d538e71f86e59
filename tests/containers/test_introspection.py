"""What a kernel in a container is asked between its cells: the tests of the machine's own backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import serving
from tests.gateway.sessions.test_introspection import (
    test_completions_are_those_of_the_session,
    test_methods_of_classes_are_not_called,
    test_names_are_looked_up,
    test_nothing_is_recorded_counted_or_remembered,
    test_variables_have_types_and_summaries,
)
from tests.gateway.sessions.test_rows import (
    test_a_frame_of_pandas_opens_as_rows,
    test_methods_of_classes_in_a_table_are_not_called,
)
from tests.gateway.sessions.test_sessions import test_a_model_tells_what_its_kernel_uses_if_asked
from tests.support.server import GatewayProcess


@pytest.fixture(scope="module")
def gateway(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway whose kernels are in containers."""
    with serving(tmp_path_factory.mktemp("gateway") / "data", "docker") as process:
        yield process
