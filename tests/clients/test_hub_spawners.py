"""The configurations in deploy/jupyterhub: a real JupyterHub with each, whose spawner starts gateways."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.api.client import APIClient

from tests.clients.hubs import DEPLOY, Hub, running, running_hub
from tests.clients.processes import ENVIRONMENT, SCRIPTS
from tests.support.requirements import require
from tests.support.server import until


def a_day(hub: Hub, user: str = "ada") -> None:
    """A user's server starts, runs a cell, ends, starts again, and has kept the record."""
    hub.start(user)
    token, _ = hub.token(user)
    cell = ("POST", f"/user/{user}/v1/sessions/x/execute", {"code": "x = 6 * 7; x"})
    status, result = hub.ask(*cell, token=token)
    assert (status, result["text"]) == (200, "42")
    hub.stop(user)
    hub.start(user)
    status, found = hub.ask("GET", f"/user/{user}/v1/sessions/x/executions", token=token)
    assert (status, len(found["executions"])) == (200, 1)
    hub.stop(user)


def made_in(folder: Path) -> list[dict[str, Any]]:
    """What the API server of a test was given, and what is wrong with it."""
    path = folder / "made.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.nightly
def test_pods_of_kube_spawner(tmp_path: Path) -> None:
    """With an API server of ours, whose only node runs the pod's arguments and environment as a process."""
    interpreter = ENVIRONMENT / "hub" / "bin" / "python"
    log, config = tmp_path / "api.log", tmp_path / "kubeconfig"
    command: list[str | Path] = [interpreter, SCRIPTS / "kube_api.py", tmp_path]
    with running([*command, sys.executable, "-m", "cellgate.cli.main"], log):
        line = until(lambda: log.exists() and next(iter(log.read_text().splitlines()), ""), "no API", 30)
        cluster = {"name": "test", "cluster": {"server": json.loads(line)["url"]}}
        context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
        user: dict[str, Any] = {"name": "test", "user": {}}
        whole = {"current-context": "test", "clusters": [cluster], "contexts": [context], "users": [user]}
        config.write_text(yaml.safe_dump(whole))
        with running_hub(tmp_path, deploy="kubernetes", KUBECONFIG=str(config)) as hub:
            a_day(hub)
    made = made_in(tmp_path)
    assert [each["problem"] for each in made] == [""] * len(made)
    kinds = sorted(each["made"]["kind"] for each in made)
    assert kinds == ["PersistentVolumeClaim", "Pod", "Pod"], "one claim for both of the server's pods"
    claim = next(each["made"] for each in made if each["made"]["kind"] == "PersistentVolumeClaim")
    pod = next(each["made"] for each in made if each["made"]["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    for mount in container["volumeMounts"]:
        assert volumes[mount["name"]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert mount["mountPath"] == "/home/cellgate"
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_the_values_for_zero_to_jupyterhub_say_the_same_as_the_configuration() -> None:
    values = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
    config = (DEPLOY / "kubernetes" / "jupyterhub_config.py").read_text()
    server = values["singleuser"]
    words = ", ".join(f'"{word}"' for word in server["cmd"])
    assert f"c.KubeSpawner.cmd = [{words}]" in config
    for limit in (server["memory"]["guarantee"], server["memory"]["limit"], server["storage"]["capacity"]):
        assert f'"{limit}"' in config
    assert server["storage"]["homeMountPath"] == "/home/cellgate"
    assert server["extraPodConfig"]["terminationGracePeriodSeconds"] == 15
    assert "c.KubeSpawner.delete_grace_period = 15" in config


@pytest.mark.nightly
def test_containers_of_docker_spawner(tmp_path: Path, docker: None) -> None:
    """With the image that deploy/jupyterhub/Dockerfile makes of the gateway's and the kernels' images."""
    client = APIClient()
    bridge = client.inspect_network("bridge")["IPAM"]["Config"][0]
    address = bridge.get("Gateway") or str(next(ip_network(bridge["Subnet"]).hosts()))
    base = {"BASE_IMAGE": "cellgate/base:local"} if client.images("cellgate/base:local") else {}
    top = DEPLOY.parents[1]
    for tag, folder, arguments in (("cellgate/gateway", top, base), ("cellgate/server", DEPLOY, {})):
        words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        built = subprocess.run(
            ["docker", "build", "--tag", tag, *words, folder],
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert built.returncode == 0, built.stdout + built.stderr
    try:
        with running_hub(tmp_path, deploy="docker", hub_ip=address) as hub:
            a_day(hub)
        assert not client.containers(all=True, filters={"name": "jupyter-ada"})
    finally:
        for volume in client.volumes(filters={"name": "cellgate-ada"})["Volumes"] or ():
            client.remove_volume(volume["Name"])
        client.close()


@pytest.fixture
def ada() -> Iterator[str]:
    """A user of the system with a home."""
    if os.geteuid() != 0:
        require("root", "only root makes users of the system")
    name = f"cellgate-{os.getpid()}"
    subprocess.run(["useradd", "--create-home", name], check=True, timeout=60)
    try:
        yield name
    finally:
        subprocess.run(["userdel", "--remove", "--force", name], check=True, timeout=60, capture_output=True)


@pytest.mark.nightly
def test_processes_of_local_process_spawner(tmp_path: Path, ada: str) -> None:
    """Each gateway is a process of the system's user, and so is all that it starts and keeps."""
    tmp_path.chmod(0o755)
    with running_hub(tmp_path, deploy="local") as hub:
        hub.add(ada)
        a_day(hub, ada)
    home = Path(pwd.getpwnam(ada).pw_dir)
    assert (home / ".local" / "share" / "cellgate" / "record.sqlite3").owner() == ada
