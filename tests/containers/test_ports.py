"""Ports of programs inside containers, also where the runtime has a network stack of its own."""

from __future__ import annotations

import os

import pytest

from tests.conftest import StartGateway
from tests.gateway.ports.conftest import ECHO, Browser, Ports, base_of, key
from tests.gateway.ports.test_ports import (
    AUTHORIZED,
    test_a_port_that_nobody_listens_on_is_a_page_that_tries_again,
    test_a_reader_who_leaves_lets_the_program_go,
    test_a_web_server_that_a_cell_started_is_seen_in_a_browser,
    test_a_websocket_is_relayed,
    test_bodies_of_any_size_pass_both_ways,
    test_the_end_of_a_session_ends_its_connections,
)
from tests.support.kernels import CONTAINERS
from tests.support.requirements import require
from tests.support.server import until

pytestmark = pytest.mark.usefixtures("no_container_left")

AFTER = 1.0


@pytest.fixture
def ports(start_gateway: StartGateway, backend: str) -> Ports:
    gateway = start_gateway(backend="docker", runtime=CONTAINERS[backend], ports_port=0)
    return Ports(gateway, base_of(gateway))


@pytest.mark.nightly
def test_a_connection_wakes_a_kernel_that_sleeps(start_gateway: StartGateway, docker: None) -> None:
    if os.geteuid() != 0:
        require("control groups", "only root may freeze a container's group")
    gateway = start_gateway(backend="docker", ports_port=0, sleep_after=AFTER)
    ports = Ports(gateway, base_of(gateway))
    gateway.execute("s", f"code = {ECHO!r}")
    gateway.execute("s", "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', code, '8000'])")
    url = f"{ports.base}/s/8000/"
    until(lambda: Browser().open(url, **AUTHORIZED).status == 200, "it does not listen")
    for _ in range(2):
        until(lambda: gateway.model("s")["state"] == "asleep", "it does not sleep")
        assert Browser().open(url, **AUTHORIZED).status == 200
        assert gateway.model("s")["state"] == "idle"
