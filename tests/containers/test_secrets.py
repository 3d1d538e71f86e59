"""Secrets of sessions in containers: masked as everywhere, unknown to others, masked again when adopted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docker.api.client import APIClient

from tests.conftest import StartGateway
from tests.containers.conftest import Containers
from tests.containers.test_adoption import until_printed
from tests.gateway.execution.test_secrets import (
    CERTIFICATE,
    KEY,
    assert_no_value,
    open_session,
    put,
    test_a_changed_secret_is_for_the_next_kernel,
    test_no_door_shows_a_value,
)
from tests.support.kernels import CONTAINERS
from tests.support.server import GatewayProcess, until

pytestmark = pytest.mark.usefixtures("no_container_left")

# What a kernel can find of others: processes and their variables, all files that it may read.
LOOK_AROUND = """
import glob, subprocess
seen = ''
for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):
    try:
        seen += open(path, 'rb').read().decode(errors='replace')
    except OSError:
        pass
places = ['/run', '/workspace', '/tmp', '/dev/shm', '/etc']
found = subprocess.run(['grep', '-rl', START + END, *places], capture_output=True, text=True).stdout
print(START + END in seen, found.split())
"""
# The value is printed as a whole in each of three times: with the gateway, without one, with the next.
GO_ON = """
import os, time
key = os.environ['API_KEY']
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.02)
print('with', key, flush=True)
wait_for('killed')
print('without', key[:7], end='', flush=True)
print(key[7:], flush=True)
open('alone', 'w').close()
wait_for('go')
print('with the next', key)
raise ValueError(key)
"""
# The halves of the value are printed on both sides of the death of one gateway, and of the start of the next.
HALVES = """
import os, time
key = os.environ['API_KEY']
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.02)
def say(*words):
    print(*words, end='', flush=True)
print('begun', flush=True)
say('1', key[:7])
open('half', 'w').close()
wait_for('killed')
say(key[7:], '2', key[:5])
open('alone', 'w').close()
wait_for('go')
say(key[5:], '3', key[:4])
"""


@pytest.fixture
def gateway(start_gateway: StartGateway, tmp_path: Path, backend: str) -> GatewayProcess:
    """On containers of one runtime, with two secrets."""
    data = tmp_path / "data"
    put(data, "API_KEY", KEY)
    put(data, "CERT", CERTIFICATE)
    return start_gateway(data, backend="docker", runtime=CONTAINERS[backend], log_level="DEBUG")


@pytest.mark.nightly
def test_a_value_is_in_its_own_container_only(
    gateway: GatewayProcess, containers: Containers, client: APIClient
) -> None:
    open_session(gateway, "API_KEY")
    assert gateway.execute("s", "import os; print(os.environ['API_KEY'])")["stdout"] == "[secret API_KEY]\n"
    (its_own,) = containers(gateway)
    gateway.execute("other", f"START, END = {KEY[:5]!r}, {KEY[5:]!r}")
    assert gateway.execute("other", LOOK_AROUND)["stdout"] == "False []\n"
    described = client.inspect_container(its_own)
    assert f"API_KEY={KEY}" in described["Config"].pop("Env")
    assert_no_value(json.dumps(described).encode(), client.logs(its_own))
    (others,) = containers(gateway) - {its_own}
    assert_no_value(json.dumps(client.inspect_container(others)).encode(), client.logs(others))
    for stored in (gateway.data_dir / "kernels").iterdir():
        assert_no_value(stored.read_bytes())


def test_an_adopted_kernel_is_masked_with_what_it_said_in_between(
    gateway: GatewayProcess, start_gateway: StartGateway, backend: str
) -> None:
    open_session(gateway, "API_KEY")
    execution = gateway.submit("s", GO_ON)
    until_printed(gateway, execution, "with [")
    workspace = gateway.workspace("s")
    gateway.kill()
    (workspace / "killed").touch()
    until((workspace / "alone").exists, "the cell doesn't go on without a gateway")
    put(gateway.data_dir, "API_KEY", "another-value")
    successor = start_gateway(
        gateway.data_dir, backend="docker", runtime=CONTAINERS[backend], log_level="DEBUG"
    )
    (workspace / "go").touch()
    result = successor.ended("s", execution)
    mark = "[secret API_KEY]"
    assert result["stdout"] == f"with {mark}\nwithout {mark}\nwith the next {mark}\n"
    assert result["error"]["evalue"] == mark
    assert successor.execute("s", "print(key, 'another-value')")["stdout"] == f"{mark} {mark}\n"
    answer = successor.post("/v1/sessions/s/restart", timeout=120)
    assert answer.status == 200, answer.body
    assert successor.execute("s", "import os; len(os.environ['API_KEY'])")["text"] == "13"
    audit = successor.get("/v1/sessions/s/audit").body
    assert successor.stop() == 0
    files = [each for each in successor.data_dir.rglob("*") if each.is_file()]
    assert_no_value(audit, successor.log.read_bytes(), *(each.read_bytes() for each in files))


@pytest.mark.nightly
def test_halves_printed_on_both_sides_of_an_adoption_are_masked(
    gateway: GatewayProcess, start_gateway: StartGateway, backend: str
) -> None:
    open_session(gateway, "API_KEY")
    execution = gateway.submit("s", HALVES)
    until_printed(gateway, execution, "begun")
    workspace = gateway.workspace("s")
    until((workspace / "half").exists, "the cell doesn't print the first half")
    gateway.kill()
    (workspace / "killed").touch()
    until((workspace / "alone").exists, "the cell doesn't go on without a gateway")
    successor = start_gateway(gateway.data_dir, backend="docker", runtime=CONTAINERS[backend])
    (workspace / "go").touch()
    mark = "[secret API_KEY]"
    shown = f"begun\n1 {mark} 2 {mark} 3 {KEY[:4]}"
    assert successor.ended("s", execution)["stdout"] == shown
    streams = [event for event in successor.recorded("s") if event["type"] == "stream"]
    assert "".join(event["text"] for event in streams) == shown
