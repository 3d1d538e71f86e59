"""Containers of gateways that stop, crash, share an engine or lose it. All on a real engine."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker.api.client import APIClient

from cellgate_kernels.engine.container import INSTANCE_LABEL
from tests.conftest import StartGateway
from tests.containers.conftest import Containers
from tests.support.server import until

pytestmark = pytest.mark.usefixtures("no_container_left")

ENGINE = "/var/run/docker.sock"


class Relay:
    """A Unix socket that passes everything on to the engine while it is `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pairs: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.open()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def open(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """The engine is gone: nothing listens, and every connection ends."""
        if self._listener is not None:
            self.path.unlink()
            listener, self._listener = self._listener, None
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for end in self._pairs:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.socket(socket.AF_UNIX)
                far.connect(ENGINE)
                self._pairs += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        self.close()
        for end in self._pairs:
            end.close()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    relay = Relay(tmp_path / "engine.sock")
    yield relay
    relay.end()


def test_a_gateway_that_stops_leaves_no_container(
    start_gateway: StartGateway, containers: Containers
) -> None:
    gateway = start_gateway(backend="docker", pool_size=1)
    assert gateway.execute("s", "import os; os.getuid()")["text"] == "1000"
    assert gateway.model("s")["isolation"] == "container"
    assert containers(gateway)
    assert gateway.stop() == 0
    assert containers(gateway) == set()


def test_a_second_signal_leaves_no_container_either(
    start_gateway: StartGateway, containers: Containers
) -> None:
    gateway = start_gateway(backend="docker", pool_size=2, shutdown_grace=600)
    gateway.execute("s", "x = 1")
    running = gateway.submit("s", "import time\nwhile True: time.sleep(0.02)")
    until(lambda: gateway.result("s", running)["status"] == "running", "the cell does not run")
    gateway.process.terminate()
    until(lambda: "Stopping" in gateway.log.read_text(), "the gateway does not take the first signal")
    said = gateway.log.read_text()
    gateway.process.terminate()
    assert gateway.process.wait(60) == -signal.SIGTERM
    assert containers(gateway) == set()
    assert gateway.log.read_text() == said, "nobody asked how each of them ended"
    successor = start_gateway(gateway.data_dir, backend="docker", pool_size=0)
    assert successor.model("s")["state"] == "ended"


def test_two_gateways_on_one_engine_leave_each_other_alone(
    start_gateway: StartGateway, containers: Containers
) -> None:
    one = start_gateway(backend="docker", pool_size=1)
    other = start_gateway(backend="docker", pool_size=1)
    other.execute("s", "x = 1")
    assert not containers(one) & containers(other)
    one.stop()
    one.kill()
    start_gateway(one.data_dir, backend="docker", pool_size=0)
    assert other.execute("s", "x")["text"] == "1"


def test_a_container_that_somebody_removes_is_a_death_with_a_cause(
    start_gateway: StartGateway, containers: Containers, client: APIClient
) -> None:
    gateway = start_gateway(backend="docker", pool_size=0)
    execution = gateway.hold("s")
    for container in containers(gateway):
        client.remove_container(container, force=True)
    result = gateway.ended("s", execution)
    assert (result["status"], result["cause"]) == ("died", "kernel_exit")
    assert gateway.execute("s", "1")["kernel"]["replaced"] is True


def test_an_engine_that_goes_away_and_comes_back(
    relay: Relay, start_gateway: StartGateway, containers: Containers
) -> None:
    gateway = start_gateway(backend="docker", docker_url=relay.url, pool_size=0, burst_size=0)
    gateway.execute("old", "x = 1")
    relay.close()
    until(
        lambda: "container_engine" in gateway.get("/readyz", token=None).json()["missing"],
        "the gateway does not notice that its engine is gone",
    )
    refused = gateway.post("/v1/sessions", {"session": "new"})
    assert (refused.status, refused.reason) == (503, "kernel_start_failed")
    assert "Docker engine" in refused.json()["detail"]
    assert gateway.execute("old", "x")["text"] == "1"

    relay.open()
    until(
        lambda: gateway.get("/readyz", token=None).json()["missing"] == [],
        "the gateway does not notice that its engine is back",
    )
    assert gateway.execute("new", "1 + 1")["text"] == "2"
    assert gateway.execute("old", "x")["text"] == "1"
    assert len(containers(gateway)) == 2


def test_a_kernel_that_could_not_be_removed_is_removed_later(
    relay: Relay, start_gateway: StartGateway, containers: Containers
) -> None:
    gateway = start_gateway(backend="docker", docker_url=relay.url, pool_size=0, burst_size=0)
    gateway.execute("s", "1")
    relay.close()
    assert gateway.delete("/v1/sessions/s").status == 204
    relay.open()
    until(lambda: not containers(gateway), "the container is still there")


def test_a_container_that_only_a_former_life_asked_for_is_removed(
    start_gateway: StartGateway, containers: Containers, client: APIClient
) -> None:
    """The engine makes it although who asked was killed, and maybe after the next start has looked around."""
    gateway = start_gateway(backend="docker", pool_size=0, burst_size=0)
    instance = (gateway.data_dir / "instance").read_text()
    client.create_container(
        "cellgate/kernel:latest", name=f"cellgate-{instance[:8]}-late", labels={INSTANCE_LABEL: instance}
    )
    until(lambda: containers(gateway) == set(), "it is left")


def test_auto_says_how_to_get_containers(start_gateway: StartGateway) -> None:
    gateway = start_gateway(backend="auto", docker_url="unix:///nonexistent/docker.sock")
    until(lambda: "cellgate image build" in gateway.log.read_text(), "it does not say how")


def test_auto_takes_containers_where_an_engine_has_the_image(start_gateway: StartGateway) -> None:
    gateway = start_gateway(backend="auto", pool_size=0)
    info = gateway.get("/v1/info").json()
    assert (info["backend"], info["isolation"]) == ("docker", "container")
