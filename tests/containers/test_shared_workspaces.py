"""Sessions with one workspace whose kernels have containers: the test of this machine's backends, adoption,
and what kernels of one container can't have.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import StartGateway, serving
from tests.gateway.sessions.test_shared_workspaces import (
    other,
    printed,
    test_kernels_of_two_languages_work_on_the_same_files,
)
from tests.support.server import GatewayProcess

__all__ = ["other", "test_kernels_of_two_languages_work_on_the_same_files"]


@pytest.fixture(scope="module")
def gateway(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway whose kernels are in containers."""
    with serving(tmp_path_factory.mktemp("gateway") / "data", "docker", pool_size=0) as process:
        yield process


@pytest.mark.usefixtures("docker", "no_container_left")
def test_the_next_gateway_goes_on_with_both_in_one_workspace(start_gateway: StartGateway) -> None:
    first = start_gateway(backend="docker", pool_size=0)
    first.execute("a", "open('a.txt', 'w').write('a')")
    assert first.post("/v1/sessions", {"session": "b", "workspace_of": "a"}).status == 201
    # The folder is that of a kernel which has ended.
    first.post("/v1/sessions/a/restart")
    first.execute("b", "x = 1; open('b.txt', 'w').write('b')")
    first.kill()

    second = start_gateway(first.data_dir, backend="docker", pool_size=0)
    assert second.model("a")["shares_workspace_with"] == ["b"]
    assert second.execute("b", "x, open('a.txt').read()")["text"] == "(1, 'a')"
    assert second.delete("/v1/sessions/b").status == 204
    assert printed(second, "a", "print(open('a.txt').read(), open('b.txt').read())") == "a b\n"


@pytest.mark.usefixtures("docker", "no_container_left")
def test_kernels_of_one_container_have_their_own_files(start_gateway: StartGateway) -> None:
    gateway = start_gateway(backend="docker", pool_size=0, container_per="principal")
    gateway.execute("a", "1")
    refused = gateway.post("/v1/sessions", {"session": "b", "workspace_of": "a"})
    assert (refused.status, refused.reason) == (409, "cannot_share")
