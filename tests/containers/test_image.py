"""What is in the kernel image, as a cell finds it and as the gateway tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from docker.api.client import APIClient

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.base.settings import IMAGE, SOCKET
from cellgate_kernels.engine.container import INSTANCE_LABEL
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.engine.image import built_of
from tests.conftest import StartGateway
from tests.gateway.server.test_environment import test_it_is_what_a_cell_finds
from tests.support.server import GatewayProcess

PROGRAMS = ("git", "curl", "jq", "unzip", "sqlite3")
FIGURE = """
import warnings, matplotlib.pyplot as plt
warnings.simplefilter("error")
figure, axes = plt.subplots()
axes.set_title("日本語 中文 简体 한국어", weight="bold")
axes.set_xlabel("中文 ひらがな", style="italic")
for kind in ("png", "svg", "pdf"):
    figure.savefig(f"figure.{kind}")
"""


@pytest.fixture
def gateway(docker: None, start_gateway: StartGateway) -> GatewayProcess:
    """A gateway that keeps no kernel warm."""
    return start_gateway(backend="docker", pool_size=0)


def test_the_programs_that_cells_expect_are_there(gateway: GatewayProcess, session: str) -> None:
    told = gateway.get("/v1/info").json()["environment"]["python3"]["programs"]
    assert set(PROGRAMS) <= set(told)
    code = """%%bash -e
    git init -q . && git -c user.name=x -c user.email=x@x commit -q --allow-empty -m begun
    git log --format=%s
    echo '{"a": [1, 2]}' | jq -c .a
    sqlite3 :memory: 'select 6 * 7'
    curl --silent --version | cut -c 1-4 | head -1
    python -m zipfile -c packed.zip .git/HEAD
    unzip -p packed.zip
    """
    assert gateway.execute(session, code)["stdout"] == "begun\n[1,2]\n42\ncurl\nref: refs/heads/master\n"


@pytest.mark.nightly
def test_figures_have_chinese_japanese_and_korean_letters(gateway: GatewayProcess, session: str) -> None:
    """matplotlib warns of each letter that it has no picture of, and of a weight that a font lacks."""
    result = gateway.execute(session, FIGURE)
    assert (result["status"], result["stderr"]) == ("ok", "")
    assert [output for output in result["outputs"] if output["output_type"] == "stream"] == []


def test_the_image_says_what_it_was_built_of(docker: None) -> None:
    assert built_of(SOCKET, IMAGE) == "standard"
    assert built_of(SOCKET, "cellgate/never-built") is None


async def test_a_file_of_an_image_is_read_bounded_and_nothing_is_left(client: APIClient) -> None:
    engine = Engine()
    await engine.open()
    try:
        manifest = await engine.read_from_image(IMAGE, "/opt/cellgate/share/cellgate/manifest.json", 20)
        assert manifest == b'{"environment": "sta'
        assert await engine.read_from_image(IMAGE, "/opt/cellgate/absent", 20) is None
        assert await engine.read_from_image(IMAGE, "/opt/cellgate/share", 20) is None
        assert await engine.read_from_image(IMAGE, "/dev/zero", 20) is None
        label = f"{INSTANCE_LABEL}={engine.instance}"
        assert client.containers(all=True, filters={"label": label}) == []
        with pytest.raises(BackendUnavailable):
            await engine.read_from_image("cellgate/never-built", "/x", 20)
    finally:
        await engine.close()
