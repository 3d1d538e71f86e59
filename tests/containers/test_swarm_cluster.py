"""deploy/swarm.yaml on three engines of a swarm, with PostgreSQL and HAProxy beside it.

The gateways are updated one after the other, and a machine fails, while clients run cells.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pytest
from docker.api.client import APIClient

from cellgate import Gateway
from cellgate_kernels.base.settings import IMAGE
from cellgate_kernels.engine.container import INSTANCE_LABEL
from tests.support.cluster_load import Client, Door, at_rest, load, losses
from tests.support.compose import DEPLOY, NAMES, composed, make_stand_ins
from tests.support.free_ports import free_port
from tests.support.server import until
from tests.support.swarm import HERE, Machine, machines

TOKEN = secrets.token_hex(16)
PASSWORD = secrets.token_hex(16)
PROJECT = "cellgate-test-swarm"
BUILT, GATEWAY = "cellgate/gateway:latest", "registry.example.org/cellgate/gateway"
MISSING = 9
"""A version of which there is no image."""
SERVICE = "cellgate_gateway"
DATABASE = "postgresql://cellgate@db.example.org/cellgate"
HAPROXY = "haproxy/haproxy.cfg"
BESIDE = """
version: "3.8"
services:
  database:
    image: ${CELLGATE_POSTGRES_IMAGE}
    environment:
      POSTGRES_USER: cellgate
      POSTGRES_DB: cellgate
      POSTGRES_PASSWORD_FILE: /run/cellgate/password
      POSTGRES_INITDB_ARGS: --encoding=UTF8 --locale=C.UTF-8
    volumes: ["${FOLDER}:/run/cellgate:ro"]
    ports: ["${HERE}:5432:5432"]
  names:
    image: ${NAMES}
    command: ${COMMAND}
    ports: ["${HERE}:53:53/udp", "${HERE}:53:53/tcp"]
  proxy:
    image: ${CELLGATE_HAPROXY_IMAGE}
    sysctls: {net.ipv4.tcp_retries2: 5}
    volumes: ["${FOLDER}/haproxy:/usr/local/etc/haproxy:ro"]
    ports: ["127.0.0.1:${PORT}:8888"]
"""
"""What is not in the stack: database, proxy, and the names of all machines."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Cluster:
    """The running stack. `data_dir`: of each gateway, on its machine."""

    machines: list[Machine]
    data_dir: Path
    port: int

    @property
    def door(self) -> Door:
        """HAProxy's address, and the administrator's token."""
        return Door(f"http://127.0.0.1:{self.port}", TOKEN, self.check_record)

    @property
    def manager(self) -> Machine:
        """A machine that is up."""
        return next(each for each in self.machines if each.is_up)

    def deploy(self, version: int) -> None:
        """Deploy the stack with a version of the gateway's image."""
        variables = {
            "CELLGATE_CLUSTER": DATABASE,
            "CELLGATE_GATEWAY_IMAGE": f"{GATEWAY}:{version}",
            "CELLGATE_DATA_DIR": str(self.data_dir),
            "CELLGATE_TRUSTED_PROXIES": HERE,
        }
        words = ["--resolve-image", "never", "--compose-file", str(DEPLOY / "swarm.yaml"), "cellgate"]
        self.manager.docker("stack", "deploy", *words, variables=variables)

    def update(self) -> str:
        """What has become of the last update."""
        words = ("service", "inspect", SERVICE, "--format", "{{json .UpdateStatus}}")
        return str((json.loads(self.manager.docker(*words)) or {}).get("State"))

    def gateway(self, machine: Machine) -> str:
        """The container of a machine's gateway that runs; empty if there is none."""
        return machine.docker("ps", "--quiet", "--filter", f"label=com.docker.swarm.service.name={SERVICE}")

    def cellgate(self, *words: str) -> str:
        """Run a command in a gateway that runs; return what it prints."""
        machine = next(each for each in self.machines if each.is_up and self.gateway(each))
        return machine.docker("exec", self.gateway(machine), "cellgate", *words)

    def node(self, machine: Machine) -> str:
        """The id of a machine's gateway."""
        return (machine.data_dir / "instance").read_text()

    def home(self, client: Client) -> Machine:
        """The machine that has a client's session."""
        node = self.door.owner(client.session)
        return next(machine for machine in self.machines if self.node(machine) == node)

    def kernels(self, machine: Machine) -> list[str]:
        """The containers of all kernels on a machine that run."""
        return machine.docker("ps", "--quiet", "--filter", f"label={INSTANCE_LABEL}").split()

    def states(self) -> dict[str, str]:
        """The state of each node, by its machine's name."""
        listed = json.loads(self.cellgate("node", "list", "--json"))
        return {each["url"].removeprefix("http://").removesuffix(":8888"): each["state"] for each in listed}

    def wait_for_all(self) -> None:
        """Wait until each machine's gateway is healthy, and all are up as one of them sees it."""

        def is_healthy(machine: Machine) -> bool:
            found = self.gateway(machine)
            wanted = "{{.State.Health.Status}}"
            return bool(found) and machine.docker("inspect", "--format", wanted, found) == "healthy"

        for machine in self.machines:
            until(lambda machine=machine: is_healthy(machine), f"{machine.name} has no gateway")  # type: ignore[misc]
        up = Counter({"up": len(self.machines)})
        until(lambda: Counter(self.states().values()) == up, "not all nodes are up")

    def check_record(self) -> None:
        """Check every chain of the record."""
        self.cellgate("verify", "--record", DATABASE)


def make_secrets(folder: Path, manager: Machine) -> None:
    """Make the files that the guide names, and give them to the swarm."""
    files = {
        "cluster.key": secrets.token_bytes(32),
        "token": f"{TOKEN}\n".encode(),
        "pgpass": f"db.example.org:5432:cellgate:cellgate:{PASSWORD}\n".encode(),
    }
    for name, text in files.items():
        (folder / name).write_bytes(text)
        secret = f"cellgate-{name.replace('.', '-')}"
        manager.docker("secret", "create", secret, str(folder / name))


def name_servers(cluster: Cluster) -> str:
    """HAProxy's file, with a line for each machine in the place of each example."""
    text = (DEPLOY / HAPROXY).read_text()
    for number, machine in enumerate(cluster.machines, 1):
        example = f"server {str(number) * 8} gateway-{number}:8888"
        assert text.count(example) == 4
        text = text.replace(example, f"server {cluster.node(machine)[:8]} {machine.address}:8888")
    return text


@pytest.fixture(scope="module")
def cluster(docker: None) -> Iterator[Cluster]:
    """The stack, up, on three machines with the label."""
    engine = APIClient()
    place = Path(mkdtemp(prefix="cg-stack-"))
    data_dir, port = place / "data", free_port()
    for folder in (data_dir, place / "haproxy"):
        folder.mkdir()
    (place / "password").write_text(PASSWORD)
    settings = {"CELLGATE_TOKEN": TOKEN, **make_stand_ins(engine, NAMES)}
    with composed(engine, PROJECT, DEPLOY / "compose-cluster.yaml", settings) as build:
        build("build", "setup")
    try:
        with machines(3, data_dir, [BUILT, IMAGE]) as made:
            names = {"db.example.org": HERE} | {machine.name: machine.address for machine in made}
            command = [f"--host-record={name},{address}" for name, address in names.items()]
            settings |= {"FOLDER": str(place), "HERE": HERE, "NAMES": NAMES, "PORT": str(port)}
            (place / "beside.yaml").write_text(BESIDE.replace("${COMMAND}", json.dumps(command)))
            with composed(engine, PROJECT, place / "beside.yaml", settings) as run:
                run("up", "--detach", "database", "names")
                found = Cluster(made, data_dir, port)
                make_secrets(place, found.manager)
                for machine in made:
                    for version in (1, 2):
                        machine.docker("tag", BUILT, f"{GATEWAY}:{version}")
                    found.manager.docker("node", "update", "--label-add", "cellgate=true", machine.name)
                found.deploy(1)
                found.wait_for_all()
                (place / HAPROXY).write_text(name_servers(found))
                run("up", "--detach", "proxy")
                yield found
    finally:
        engine.close()
        shutil.rmtree(place)


def test_a_session_by_the_proxy(cluster: Cluster) -> None:
    with Gateway.sync(cluster.door.url, TOKEN) as gateway, gateway.session() as session:
        assert session.run("6 * 7").text == "42"
        assert session.model().isolation == "container"


def test_a_newer_image_takes_the_place_of_the_former_one_unnoticed(cluster: Cluster) -> None:
    """Machine by machine, as the swarm does it; variables and running cells are kept."""
    with load(cluster.door, newcomers=True) as (clients, progress):
        before = {machine.name: cluster.gateway(machine) for machine in cluster.machines}
        cluster.deploy(2)

        until(lambda: cluster.update() == "completed", "the update does not end", 300)
        progress()
        after = {machine.name: cluster.gateway(machine) for machine in cluster.machines}
        assert all(after[name] and after[name] != before[name] for name in before)
    assert losses(clients) == {}


def test_an_image_that_is_missing_is_given_up_unnoticed(cluster: Cluster) -> None:
    """The machine whose gateway has stopped for it gets the former one within the lease."""
    with load(cluster.door) as (clients, progress):
        cluster.deploy(MISSING)
        until(lambda: cluster.update() == "rollback_completed", "the update is not given up", 300)
        progress()
        cluster.wait_for_all()
    assert losses(clients) == {}


def test_a_gateway_that_crashes_is_replaced_and_its_kernels_are_adopted(cluster: Cluster) -> None:
    with load(cluster.door) as (clients, progress):
        home = cluster.home(clients[0])
        crashed = cluster.gateway(home)
        with at_rest(clients):
            home.docker("kill", crashed)
        progress()
        assert cluster.gateway(home) not in {"", crashed}
    assert losses(clients) == {}


def test_a_machine_is_taken_away_and_given_back(cluster: Cluster) -> None:
    """By the guide's commands."""
    with load(cluster.door) as (clients, progress):
        homes = {client.session: cluster.home(client) for client in clients}
        gone = homes[clients[0].session]
        gone.docker("exec", cluster.gateway(gone), "cellgate", "node", "drain", cluster.node(gone))
        progress()
        cluster.manager.docker("node", "update", "--label-rm", "cellgate", gone.name)
        until(lambda: not cluster.gateway(gone), "the gateway does not stop")
        stopped = time.monotonic()
        gone.docker("rm", "--force", *cluster.kernels(gone))
        progress()
    for client in clients:
        if homes[client.session] == gone:
            assert client.causes() == ["node_lost"]
            print(f"{client.session}: elsewhere {client.back_after(stopped):.1f} s after the stop")
        else:
            assert client.is_unbroken()
    assert cluster.kernels(gone) == []
    cluster.manager.docker("node", "update", "--label-add", "cellgate=true", gone.name)
    cluster.wait_for_all()


def test_sessions_of_a_machine_that_fails_go_on_elsewhere(cluster: Cluster) -> None:
    """Its cable is out, so nobody is told: its clients wait for the lease, the others notice nothing."""
    with load(cluster.door) as (clients, progress):
        homes = {client.session: cluster.home(client) for client in clients}
        gone = homes[clients[0].session]
        killed = time.monotonic()
        gone.kill()
        progress()
        assert cluster.states()[gone.name] == "down"
    for client in clients:
        if homes[client.session] == gone:
            assert client.causes() == ["node_lost"]
            print(f"{client.session}: elsewhere {client.back_after(killed):.1f} s after the end")
        else:
            assert client.is_unbroken()
    gone.start()
    cluster.wait_for_all()
