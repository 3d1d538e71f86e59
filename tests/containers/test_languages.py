"""Sessions in bash and in JavaScript whose kernels are containers."""

from __future__ import annotations

import json

import pytest

from tests.conftest import StartGateway
from tests.gateway.execution.test_languages import (
    SPECS,
    test_a_session_of_another_language_is_a_session,
    test_memory_beyond_the_limit_is_the_cells_error_or_the_kernels_end,
)
from tests.support.server import GatewayProcess, until


@pytest.fixture
def any_gateway(docker: None, start_gateway: StartGateway) -> GatewayProcess:
    """A gateway that keeps no kernel warm."""
    return start_gateway(backend="docker", pool_size=0, interrupt_grace=20)


@pytest.fixture
def out_of_memory() -> dict[str, str]:
    """The engine ends whatever takes too much."""
    return {"bash": "died", "javascript": "died"}


def test_a_running_cell_of_another_language_outlives_the_gateway(
    docker: None, start_gateway: StartGateway
) -> None:
    waits = {
        "bash": "echo begun; until [ -e go ]; do sleep 0.05; done; f",
        "javascript": """console.log("begun");
        const there = () => { try { return Deno.statSync("go"); } catch { return null; } };
        while (!there()) await new Promise((done) => setTimeout(done, 50));
        f()""",
    }
    sets = {"bash": "f() { echo ended; }", "javascript": "const f = () => console.log('ended')"}
    gateway = start_gateway(backend="docker", pool_size=0)
    running = {}
    for language, code in waits.items():
        gateway.execute(language, sets[language], language=language)
        running[language] = gateway.submit(language, code)
        until(
            lambda key=language: "begun" in json.dumps(gateway.recorded(key)[-3:]), "the cell has not begun"
        )
    gateway.kill()
    successor = start_gateway(gateway.data_dir, backend="docker", pool_size=0)
    for language, execution in running.items():
        assert successor.model(language)["kernel"] == SPECS[language][0]
        (successor.workspace(language) / "go").touch()
        result = successor.ended(language, execution)
        assert (result["status"], result["stdout"]) == ("ok", "begun\nended\n")
