"""Kernels that sleep, in containers: frozen for real, their memory in a swap file of the test's own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.api.client import APIClient

from cellgate_kernels.provisioners.control_group import ControlGroup
from tests.conftest import StartGateway
from tests.containers.conftest import Containers
from tests.support.requirements import require
from tests.support.server import GatewayProcess, together, until

pytestmark = pytest.mark.usefixtures("no_container_left")

MIB = 1024 * 1024
SWAP = 1024 * MIB
AFTER = 1.0

Start = Callable[..., GatewayProcess]
Groups = Callable[[GatewayProcess], list[ControlGroup]]


@pytest.fixture
def start(start_gateway: StartGateway, docker: None) -> Start:
    """Starts gateways on containers whose kernels sleep after a second without use."""
    if os.geteuid() != 0:
        require("control groups", "only root may freeze a container's group")

    def begin(data_dir: Path | None = None, **options: object) -> GatewayProcess:
        options = {"pool_size": 0, "sleep_after": AFTER, **options}
        return start_gateway(data_dir, backend="docker", **options)

    return begin


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """A swap file; afterwards all that is in it is read back, and it is gone."""
    file = tmp_path / "swap"
    with file.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, SWAP)
    file.chmod(0o600)
    subprocess.run(["mkswap", file], check=True, capture_output=True, timeout=60)
    turned_on = subprocess.run(["swapon", file], check=False, capture_output=True, text=True, timeout=60)
    if turned_on.returncode:
        require("swap", turned_on.stderr.strip())
    yield
    subprocess.run(["swapoff", file], check=True, capture_output=True, timeout=120)
    file.unlink()


@pytest.fixture
def groups(containers: Containers, client: APIClient) -> Groups:
    """The control groups of a gateway's containers."""

    def find(gateway: GatewayProcess) -> list[ControlGroup]:
        found = []
        for container in sorted(containers(gateway)):
            group = ControlGroup.of(client.inspect_container(container)["State"]["Pid"])
            assert group is not None
            found.append(group)
        return found

    return find


def until_asleep(gateway: GatewayProcess, *sessions: str) -> None:
    for session in sessions:
        until(lambda name=session: gateway.model(name)["state"] == "asleep", f"{session} does not sleep")


def test_a_sleeping_kernel_gives_its_memory_back_and_loses_nothing(
    start: Start, groups: Groups, swap: None
) -> None:
    gateway = start()
    gateway.execute("s", f"import threading\nx = bytearray(b'x' * {150 * MIB})")
    (group,) = groups(gateway)
    assert group.memory_used() > 150 * MIB
    until_asleep(gateway, "s")
    until(lambda: group.memory_used() < 15 * MIB, "its memory is not given back")
    assert group.frozen
    kernel = gateway.model("s")["kernel_id"]
    result = gateway.execute("s", "x.count(b'x'), threading.active_count() > 0")
    assert (result["status"], result["text"]) == ("ok", f"({150 * MIB}, True)")
    assert result["kernel"]["replaced"] is False
    assert gateway.model("s")["kernel_id"] == kernel
    until_asleep(gateway, "s")
    assert gateway.execute("s", "len(x)")["text"] == str(150 * MIB)


def test_many_sleep_and_are_all_woken_at_once(start: Start, groups: Groups, swap: None) -> None:
    gateway = start(max_kernels=8)
    names = [f"s{number}" for number in range(6)]
    for name in names:
        gateway.execute(name, f"x = {name!r}")
    until_asleep(gateway, *names)
    assert all(group.frozen for group in groups(gateway))
    answers = together(len(names), lambda index: gateway.execute(names[index], "x"))
    assert [answer["text"] for answer in answers] == [repr(name) for name in names]
    counts = gateway.get("/v1/info").json()["sessions"]
    assert counts["asleep"] + counts["idle"] == len(names)


def test_a_thread_that_prints_or_computes_keeps_its_kernel_awake(start: Start, groups: Groups) -> None:
    gateway = start()
    gateway.execute(
        "prints",
        "import threading, time\n"
        "def tick():\n  while True: print('tick', flush=True); time.sleep(0.2)\n"
        "threading.Thread(target=tick, daemon=True).start()",
    )
    gateway.execute(
        "computes",
        "import threading\nn = 0\n"
        "def count():\n  global n\n  while True: n += 1\n"
        "threading.Thread(target=count, daemon=True).start()",
    )
    gateway.execute("rests", "x = 1")
    until_asleep(gateway, "rests")
    time.sleep(3 * AFTER)
    assert [gateway.model(name)["state"] for name in ("prints", "computes")] == ["idle", "idle"]


def test_an_interrupt_a_restart_and_an_end_of_sleeping_kernels(start: Start, containers: Containers) -> None:
    gateway = start()
    for name in ("one", "two", "three"):
        gateway.execute(name, "x = 1")
    until_asleep(gateway, "one", "two", "three")
    assert gateway.post("/v1/sessions/one/interrupt").status == 204
    assert gateway.execute("one", "x")["text"] == "1"
    assert gateway.post("/v1/sessions/two/restart").status == 200
    assert gateway.execute("two", "'x' in globals()")["text"] == "False"
    assert gateway.delete("/v1/sessions/three").status == 204
    until(lambda: len(containers(gateway)) == 2, "a sleeper's container is left")
    assert gateway.stop() == 0


def test_a_program_wakes_its_kernel_and_keeps_it_awake(start: Start, groups: Groups) -> None:
    gateway = start()
    gateway.execute("s", "x = 1")
    (group,) = groups(gateway)
    until_asleep(gateway, "s")
    answer = gateway.post("/v1/sessions/s/processes", {"argv": ["echo", "awake"]})
    assert answer.json()["stdout"] == "awake\n"
    until_asleep(gateway, "s")
    running = gateway.post("/v1/sessions/s/processes", {"argv": ["sleep", str(4 * AFTER)], "wait": False})
    assert running.status == 202, running.body
    path = f"/v1/sessions/s/processes/{running.json()['process']}"
    while gateway.get(path).json()["state"] == "running":
        assert not group.frozen
        time.sleep(0.1)
    until_asleep(gateway, "s")


def test_a_sleeping_kernel_that_is_killed_is_found_dead(
    start: Start, containers: Containers, client: APIClient
) -> None:
    gateway = start()
    gateway.execute("s", "x = 1")
    until_asleep(gateway, "s")
    for container in containers(gateway):
        client.kill(container)
    until(lambda: gateway.model("s")["state"] == "dead", "its death is not seen")
    result = gateway.execute("s", "'x' in globals()")
    assert (result["text"], result["kernel"]["replaced"]) == ("False", True)


def test_sleepers_of_a_killed_gateway_go_on_with_the_next(start: Start, groups: Groups, swap: None) -> None:
    gateway = start()
    gateway.execute("s", "x = 42")
    until_asleep(gateway, "s")
    assert [group.frozen for group in groups(gateway)] == [True]
    gateway.kill()
    successor = start(gateway.data_dir)
    assert successor.execute("s", "x")["text"] == "42"
    until_asleep(successor, "s")
    assert successor.stop() == 0


def test_sleepers_that_are_kept_wake_with_the_stop(start: Start, groups: Groups) -> None:
    gateway = start(keep_kernels=True)
    gateway.execute("s", "x = 42")
    until_asleep(gateway, "s")
    assert gateway.stop() == 0
    assert [group.frozen for group in groups(gateway)] == [False]
    successor = start(gateway.data_dir)
    assert successor.execute("s", "x")["text"] == "42"
