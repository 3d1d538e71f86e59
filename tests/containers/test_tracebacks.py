"""What a user sees of an error in a container is what plain IPython in the same environment shows."""

from __future__ import annotations

import pytest

from tests.conftest import StartGateway
from tests.gateway.execution.test_tracebacks import (
    test_a_deadline_shows_where_the_code_was,
    test_errors_are_shown_as_plain_ipython_shows_them,
)
from tests.support.server import GatewayProcess


@pytest.fixture
def backend(docker: None, start_gateway: StartGateway) -> GatewayProcess:
    """A gateway with containers."""
    return start_gateway(backend="docker")
