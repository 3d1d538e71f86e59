"""Compose with deploy/compose-cluster.yaml: three gateways, PostgreSQL and HAProxy on a real engine.

They are updated one at a time, killed, added and taken away while clients run cells.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker.api.client import APIClient

from cellgate import Gateway
from cellgate_kernels.engine.container import INSTANCE_LABEL
from tests.support.cluster_load import Door, at_rest, load, losses
from tests.support.compose import DEPLOY, Compose, composed, make_stand_ins
from tests.support.free_ports import free_port
from tests.support.server import until

TOKEN = secrets.token_hex(16)
FILE = "compose-cluster.yaml"
HAPROXY = "haproxy/haproxy.cfg"
PROJECT = "cellgate-test-cluster"
GATEWAYS = ("gateway-1", "gateway-2", "gateway-3")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Cluster:
    """The running project. `deploy` is a copy of the folder, which a test may change."""

    run: Compose
    engine: APIClient
    deploy: Path
    data: Path
    port: int

    @property
    def door(self) -> Door:
        """HAProxy's address, and the administrator's token."""
        return Door(f"http://127.0.0.1:{self.port}", TOKEN, self.check_record)

    def container(self, service: str) -> Mapping[str, Any]:
        """The engine's description of a service's container."""
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        (found,) = self.engine.containers(all=True, filters={"label": labels})
        described: Mapping[str, Any] = self.engine.inspect_container(found)
        return described

    def wait_for(self, *services: str) -> None:
        """Wait until the engine finds services healthy."""
        for service in services:
            until(
                lambda service=service: self.container(service)["State"]["Health"]["Status"] == "healthy",  # type: ignore[misc]
                f"{service} is not healthy",
                120,
            )

    def wait_for_all(self) -> None:
        """Wait until all gateways are healthy, and up as the others see them."""
        self.wait_for(*GATEWAYS)
        up = Counter({"up": len(GATEWAYS)})
        until(lambda: Counter(self.nodes(GATEWAYS[0]).values()) == up, "not all nodes are up")

    def nodes(self, service: str) -> dict[str, str]:
        """The state of each node, by its service's name, as `cellgate node list` in a gateway shows it."""
        listed = json.loads(self.cellgate(service, "node", "list", "--json"))
        return {each["url"].removeprefix("http://").removesuffix(":8888"): each["state"] for each in listed}

    def cellgate(self, service: str, *words: str) -> str:
        """Run a command in a gateway's container; return what it prints."""
        return self.run("exec", "-T", service, "cellgate", *words)

    def kernels(self, service: str) -> list[Any]:
        """The containers of a gateway's kernels."""
        instance = (self.data / service / "instance").read_text()
        found: list[Any] = self.engine.containers(all=True, filters={"label": f"{INSTANCE_LABEL}={instance}"})
        return found

    def home(self, session: str) -> str:
        """The service that has a session."""
        return f"gateway-{self.door.owner(session)[0]}"

    def check_record(self) -> None:
        """Check every chain of the record, in a gateway that runs."""
        up = next(each for each in GATEWAYS if self.container(each)["State"]["Running"])
        self.cellgate(up, "verify", "--record", "postgresql://cellgate@database/cellgate")


@pytest.fixture(scope="module")
def cluster(docker: None) -> Iterator[Cluster]:
    """The whole file, up; the gateways' stop at the end is an orderly one, which leaves no kernel."""
    engine = APIClient()
    place = Path(tempfile.mkdtemp(prefix="cg-cluster-"))
    deploy, data, port = place / "deploy", place / "data", free_port()
    deploy.mkdir()
    (deploy / HAPROXY).parent.mkdir()
    for name in (FILE, HAPROXY):
        shutil.copy(DEPLOY / name, deploy / name)
    settings = {"CELLGATE_TOKEN": TOKEN, "CELLGATE_PORT": str(port), "CELLGATE_DATA_DIR": str(data)}
    settings |= make_stand_ins(engine)
    with composed(engine, PROJECT, DEPLOY / FILE, settings) as build:
        build("build", "setup")
    try:
        with composed(engine, PROJECT, deploy / FILE, settings) as run:
            run("up", "--detach", "--no-build")
            found = Cluster(run, engine, deploy, data, port)
            found.wait_for_all()
            yield found
            run("up", "--detach", "--no-build", *GATEWAYS, settings={"CELLGATE_KEEP_KERNELS": "false"})
            found.wait_for(*GATEWAYS)
            run("stop")
            assert [kernel for service in GATEWAYS for kernel in found.kernels(service)] == []
            assert [found.container(service)["State"]["ExitCode"] for service in GATEWAYS] == [0, 0, 0]
    finally:
        engine.close()
        shutil.rmtree(place)


def test_secrets_are_made_and_users_are_everywhere(cluster: Cluster) -> None:
    """No password is in the file, and a user who was added at one gateway is known to all."""
    place = cluster.data / "secrets"
    made = {str(each.relative_to(place)): each.stat().st_mode & 0o777 for each in place.glob("*/*")}
    assert made == {"database/password": 0o600, "gateways/cluster.key": 0o600, "gateways/pgpass": 0o600}
    assert len((place / "database" / "password").read_text()) == 48
    cluster.cellgate("gateway-2", "user", "add", "ada")
    token = json.loads(cluster.cellgate("gateway-3", "token", "create", "--user", "ada", "--json"))["token"]
    with Gateway.sync(cluster.door.url, token) as gateway:
        assert gateway.me().principal == "ada"
        for _ in GATEWAYS:
            with gateway.session() as session:
                assert session.run("import os; 6 * os.getuid()").text == "6000"
                assert session.model().isolation == "container"


def test_an_update_of_one_gateway_after_the_other_is_not_noticed(cluster: Cluster) -> None:
    """Each container is replaced, as after `docker compose build`; variables and running cells are kept."""
    with load(cluster.door, newcomers=True) as (clients, progress):
        for service in GATEWAYS:
            before = cluster.container(service)["Id"]
            cluster.run("up", "--detach", "--no-deps", "--no-build", "--force-recreate", service)
            cluster.wait_for(service)
            assert cluster.container(service)["Id"] != before
            progress()
    assert losses(clients) == {}


def test_a_gateway_that_crashes_is_started_again_and_adopts_its_kernels(cluster: Cluster) -> None:
    with load(cluster.door) as (clients, progress):
        crashed = cluster.home(clients[0].session)
        with at_rest(clients):
            os.kill(cluster.container(crashed)["State"]["Pid"], signal.SIGKILL)
        progress()
    assert cluster.container(crashed)["RestartCount"] >= 1
    assert losses(clients) == {}
    cluster.wait_for_all()


def test_sessions_of_a_gateway_that_is_gone_go_on_elsewhere(cluster: Cluster) -> None:
    """Killed as by a machine that fails: its clients wait for the lease, the others notice nothing."""
    with load(cluster.door) as (clients, progress):
        homes = {client.session: cluster.home(client.session) for client in clients}
        gone = homes[clients[0].session]
        killed = time.monotonic()
        cluster.run("kill", gone)
        progress()
        (other, *_) = {*GATEWAYS} - {gone}
        assert cluster.nodes(other)[gone] == "down"
    for client in clients:
        if homes[client.session] == gone:
            assert client.causes() == ["node_lost"]
            print(f"{client.session}: elsewhere {client.back_after(killed):.1f} s after the kill")
        else:
            assert client.is_unbroken()
    cluster.run("up", "--detach", "--no-deps", "--no-build", gone)
    cluster.wait_for_all()


def test_a_fourth_gateway_comes_and_goes(cluster: Cluster) -> None:
    """Written into the file as a copy of the third, and into HAProxy's; no other gateway is touched."""
    file, proxy = cluster.deploy / FILE, cluster.deploy / HAPROXY
    text = file.read_text()
    block = text[text.index("  gateway-3:\n") : text.index("  proxy:\n")]
    file.write_text(
        text.replace(block, block + block.replace("gateway-3", "gateway-4")).replace(
            'command: ["1", "2", "3"]', 'command: ["1", "2", "3", "4"]'
        )
    )
    server = "    server 33333333 gateway-3:8888\n"
    proxy.write_text(
        proxy.read_text().replace(server, server + server.replace("33333333 gateway-3", "44444444 gateway-4"))
    )
    before = [cluster.container(service)["Id"] for service in (*GATEWAYS, "database", "proxy")]
    with load(cluster.door) as (_, progress):
        cluster.run("up", "--detach", "--no-build", "gateway-4")
        cluster.wait_for("gateway-4")
        cluster.run("kill", "-s", "USR2", "proxy")
        progress()
        with Gateway.sync(cluster.door.url, TOKEN) as gateway:
            names = [f"new-{secrets.token_hex(4)}" for _ in range(40)]

            def is_used() -> bool:
                name = names.pop()
                gateway.session(name).run("x = 1")
                return cluster.home(name) == "gateway-4"

            until(is_used, "the fourth gateway gets no session")
        keep = {"CELLGATE_KEEP_KERNELS": "false"}
        cluster.run("up", "--detach", "--no-deps", "--no-build", "gateway-4", settings=keep)
        cluster.wait_for("gateway-4")
        node = (cluster.data / "gateway-4" / "instance").read_text()
        cluster.cellgate("gateway-1", "node", "drain", node)
        progress()
        cluster.run("stop", "gateway-4")
        progress()
    cluster.cellgate("gateway-1", "node", "remove", node)
    assert {*cluster.nodes("gateway-1")} == {*GATEWAYS}
    assert cluster.kernels("gateway-4") == []
    assert [cluster.container(service)["Id"] for service in (*GATEWAYS, "database", "proxy")] == before
    cluster.run("rm", "--force", "--stop", "gateway-4")
    for name in (FILE, HAPROXY):
        shutil.copy(DEPLOY / name, cluster.deploy / name)
