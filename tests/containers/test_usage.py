"""What cells in containers used: in one of their own, and in one that sessions of a principal share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cellgate_kernels.base.resources import MIB
from tests.conftest import serving
from tests.gateway.execution.test_usage import CHILD, ORPHAN, SPIN, WRITE, usage_of
from tests.support.server import GatewayProcess, until

PER = ["session", pytest.param("principal", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))]


@pytest.fixture(scope="module", params=PER)
def gateway(
    request: pytest.FixtureRequest, docker: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway whose kernels are in containers."""
    folder = tmp_path_factory.mktemp("gateway") / "data"
    with serving(folder, "docker", container_per=request.param) as process:
        yield process


def test_a_container_is_measured(gateway: GatewayProcess, session: str) -> None:
    for code in (CHILD, ORPHAN):
        assert usage_of(gateway, session, code)["cpu_seconds"] > 0.4
    assert usage_of(gateway, session, "1")["cpu_seconds"] < 0.2
    held = f"held = bytearray(b'x' * {100 * MIB}); del held"
    assert usage_of(gateway, session, held)["memory_peak"] > 100 * MIB
    written = usage_of(gateway, session, WRITE)
    assert written["disk_written"] >= 10 * MIB
    assert (written["network_sent"], written["network_received"]) == (0, 0)


def test_a_session_is_measured_apart_from_others(gateway: GatewayProcess, session: str) -> None:
    other = f"{session}-other"
    spinning = gateway.submit(other, SPIN.replace("0.5", "3"))
    try:
        until(lambda: "started" in [each["type"] for each in gateway.recorded(other)], "it does not begin")
        assert usage_of(gateway, session, "import time; time.sleep(0.5)")["cpu_seconds"] < 0.2
        assert gateway.ended(other, spinning)["usage"]["cpu_seconds"] > 2.5
    finally:
        gateway.delete(f"/v1/sessions/{other}")
