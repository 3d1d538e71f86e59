"""An engine that is not there: what was tried to reach it is closed, even while somebody keeps the error."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.engine.image import build_image
from cellgate_kernels.engine.sweep import sweep
from cellgate_kernels.specs.environments import ListedEnvironment


@pytest.fixture(params=["missing", "dead"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a socket that is missing, or that nobody listens on any more."""
    path = tmp_path / "docker.sock"
    if request.param == "dead":
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    return f"unix://{path}"


def sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith("socket:")}


async def test_opening_an_engine_leaves_no_socket(url: str) -> None:
    before = sockets()
    with pytest.raises(BackendUnavailable) as kept:
        await Engine(url).open()
    assert sockets() == before
    assert url in kept.value.message


def test_building_an_image_leaves_no_socket(url: str) -> None:
    before = sockets()
    with pytest.raises(BackendUnavailable) as kept:
        build_image(url, "cellgate/none", print, requirements=ListedEnvironment.MINIMAL.lock)
    assert sockets() == before
    assert url in kept.value.message


def test_a_sweep_finds_nothing_to_do(url: str, caplog: pytest.LogCaptureFixture) -> None:
    before = sockets()
    assert not sweep(url, "nobody", 1.0)
    assert sockets() == before
    assert "left to the next start" in caplog.text
    caplog.clear()
