"""The configurations in deploy/jupyterhub: a real JupyterHub with each, whose spawner starts gateways."""

from __future__ import annotations

import json
import os
import pwd
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from docker.api.client import APIClient
from traitlets.config import Config

from tests.clients.hubs import CONFIG, DEPLOY, NEWEST, Hub, given_to, program_of, running, running_hub
from tests.clients.processes import ENVIRONMENT, SCRIPTS
from tests.support.browser import Browsers, opened
from tests.support.requirements import require
from tests.support.server import until
from tests.support.swarm import Machine, machines


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


def build_images(client: APIClient) -> None:
    """Build the image cellgate/server as its Dockerfile says, of the gateway's and the kernels' images."""
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


@pytest.mark.nightly
def test_containers_of_docker_spawner(tmp_path: Path, docker: None) -> None:
    """With the image that deploy/jupyterhub/Dockerfile makes of the gateway's and the kernels' images."""
    client = APIClient()
    bridge = client.inspect_network("bridge")["IPAM"]["Config"][0]
    address = bridge.get("Gateway") or str(next(ip_network(bridge["Subnet"]).hosts()))
    try:
        build_images(client)
        with running_hub(tmp_path, deploy="docker", hub_ip=address) as hub:
            a_day(hub)
        assert not client.containers(all=True, filters={"name": "jupyter-ada"})
    finally:
        for volume in client.volumes(filters={"name": "cellgate-ada"})["Volumes"] or ():
            client.remove_volume(volume["Name"])
        client.close()


def node_in_swarm(user: str, *nodes: str) -> str:
    """The node of a user's servers, by the configuration for a swarm."""
    path = DEPLOY / "swarm" / "jupyterhub_config.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLGATE_NODES", " ".join(nodes))
        # Only the Hub's environment has it.
        patch.setitem(sys.modules, "dockerspawner", SimpleNamespace(SwarmSpawner=object))  # type: ignore[arg-type]
        found = runpy.run_path(str(path), {"get_config": Config})
    return str(found["node_of"](user))


def test_a_user_of_a_swarm_stays_on_a_node_that_stays() -> None:
    """In whatever order they are named, and unless a new one takes the user over."""
    users = [f"user-{number}" for number in range(60)]
    before = [node_in_swarm(user, "a", "b", "c") for user in users]
    assert set(before) == {"a", "b", "c"}
    assert [node_in_swarm(user, "c", "b", "a") for user in users] == before
    for user, was in zip(users, before, strict=True):
        assert node_in_swarm(user, "a", "b", "c", "d") in {was, "d"}
        assert was == "c" or node_in_swarm(user, "a", "b") == was


def test_a_swarm_without_nodes_for_its_volumes_is_refused() -> None:
    with pytest.raises(ValueError, match="in CELLGATE_NODES"):
        node_in_swarm("ada")


@contextmanager
def hub_in_swarm(folder: Path, swarm: list[Machine], **variables: str) -> Iterator[Hub]:
    """A Hub as a service on the first machine, with Traefik and with the programs of this machine."""
    first, program = swarm[0], program_of(NEWEST)
    everywhere = {"public_ip": "0.0.0.0", "hub_ip": "0.0.0.0"}
    given = given_to(folder, program, deploy="swarm", traefik=True, **everywhere)
    public = given["public"]
    first.docker("network", "create", "--driver", "overlay", "--attachable", "cellgate")
    told = {"HUB_TEST": json.dumps(given), "HOME": str(folder), "PATH": f"{program.parent}:/usr/bin:/bin"}
    interpreter = program.with_name("python").resolve()
    read_only = {"/usr", str(interpreter.parents[1]), str(DEPLOY.parents[1]), str(ENVIRONMENT)}
    mounts = [f"type=bind,source={path},target={path},readonly" for path in sorted(read_only)]
    mounts += [f"type=bind,source={path},target={path}" for path in (folder, "/var/run/docker.sock")]
    first.docker(
        *("service", "create", "--detach", "--no-resolve-image", "--name", "hub", "--user", "0:0"),
        *("--network", "cellgate", "--endpoint-mode", "dnsrr", "--workdir", str(folder)),
        *("--constraint", f"node.hostname=={first.name}"),
        *("--publish", f"mode=host,published={public},target={public}"),
        *(word for mount in mounts for word in ("--mount", mount)),
        *(word for name, value in (told | variables).items() for word in ("--env", f"{name}={value}")),
        *("cellgate/server", str(program), "--config", str(CONFIG)),
    )
    started = Hub(public, first.address)

    def serves() -> bool:
        with suppress(OSError):
            return started.ask("GET", "/hub/api/", token="")[0] == 200
        return False

    try:
        until(serves, "the Hub does not serve", 60)
        yield started
    except BaseException:
        sys.stderr.write(first.docker("service", "ps", "--no-trunc", "hub"))
        sys.stderr.write(first.docker("service", "logs", "hub")[-10_000:])
        raise


def a_second_server(hub: Hub, user: str = "ada") -> None:
    """It runs beside the user's first one, with sessions of its own; a browser signs in to the first."""
    hub.start(user)
    hub.start(user, "second")
    token, _ = hub.token(user)
    at = f"/user/{user}/second/v1/sessions"
    status, result = hub.ask("POST", f"{at}/y/execute", {"code": "6 * 7"}, token=token)
    assert (status, result["text"]) == (200, "42")
    status, found = hub.ask("GET", at, token=token)
    assert (status, [each["session"] for each in found["sessions"]]) == (200, ["y"])
    with ExitStack() as stack:
        browsers = Browsers()
        stack.callback(browsers.close)
        page = stack.enter_context(opened(browsers.get()))
        page.goto(f"{hub.origin}/user/{user}/")
        page.wait_for_url("**/hub/login**")
        page.fill("#username_input", user)
        page.fill("#password_input", "x")
        page.click("#login_submit")
        page.wait_for_selector(f"header .who:text-is('{user}')")
    hub.stop(user, "second")
    hub.stop(user)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_services_of_swarm_spawner(tmp_path: Path, docker: None) -> None:
    """On three engines; what a user keeps is on one of them, where their next server is, too."""
    client = APIClient()
    try:
        build_images(client)
    finally:
        client.close()
    folder, data_dir = tmp_path / "hub", tmp_path / "data"
    folder.mkdir()
    data_dir.mkdir()
    with machines(3, data_dir, ["cellgate/server"]) as swarm:
        first, *others = swarm
        nodes = " ".join(machine.name for machine in others)
        with hub_in_swarm(folder, swarm, CELLGATE_NODES=nodes) as hub:
            for user in ("ada", "bob"):
                a_day(hub, user)
            a_second_server(hub)
            assert "Traceback" not in first.docker("service", "logs", "hub")
            kept = {machine.name: machine.docker("volume", "ls", "--quiet").split() for machine in swarm}
            for volume in ("cellgate-ada-", "cellgate-ada-second", "cellgate-bob-"):
                where = [name for name, volumes in kept.items() if volume in volumes]
                assert where == [node_in_swarm(volume.split("-")[1], *nodes.split())]
            assert first.docker("service", "ls", "--format", "{{.Name}}") == "hub"


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
