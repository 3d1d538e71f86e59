"""The image cellgate/cellgate in a container with the rights of a pod, in the words of the engine.

A user namespace of the pod's own (`hostUsers`) is left out, and AppArmor where the machine has none.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from cellgate import Gateway
from tests.support.compose import DEPLOY
from tests.support.free_ports import free_port
from tests.support.one_image import docker_command
from tests.support.server import until

NAME = "cellgate-test-pod"
TOKEN = secrets.token_hex(16)
NOTHING = "bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc --dev /dev true"
"""A sandbox in which nothing happens."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


def pod() -> Mapping[str, Any]:
    """What the StatefulSet says of a pod."""
    found: Mapping[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "gateways.yaml").read_text())
    spec: Mapping[str, Any] = found["spec"]["template"]["spec"]
    return spec


def rights() -> dict[str, list[str]]:
    """The engine's words for each of the container's rights."""
    (container,) = pod()["containers"]
    user = pod()["securityContext"]
    own = container["securityContext"]
    words = {
        "allowPrivilegeEscalation": ["--security-opt=no-new-privileges"],
        "capabilities": [f"--cap-drop={name}" for name in own["capabilities"]["drop"]],
        "readOnlyRootFilesystem": ["--read-only"],
        "seccompProfile": [f"--security-opt=seccomp={own['seccompProfile']['type'].lower()}"],
        "appArmorProfile": [f"--security-opt=apparmor={own['appArmorProfile']['type'].lower()}"],
        "procMount": ["--security-opt=systempaths=unconfined"],
    }
    assert {*own} == {*words}
    return words | {"user": [f"--user={user['runAsUser']}:{user['runAsGroup']}"]}


def test_kernels_are_sandboxes_and_a_stop_is_orderly(one_image: str) -> None:
    port = free_port()
    given = [word for words in rights().values() for word in words]
    started = docker_command(
        *("run", "--detach", f"--name={NAME}", *given, f"--publish=127.0.0.1:{port}:8888"),
        *("--tmpfs=/tmp", "--tmpfs=/volume:mode=0777", "--env=CELLGATE_DATA_DIR=/volume/cellgate"),
        *(f"--env=CELLGATE_TOKEN={TOKEN}", one_image, "serve", "--ip=0.0.0.0", "--backend=sandbox"),
    )
    try:
        assert started.returncode == 0, started.stderr
        ask = "import urllib.request as web; web.urlopen('http://127.0.0.1:8888/readyz', timeout=5)"
        until(
            lambda: docker_command("exec", NAME, "python3", "-c", ask).returncode == 0,
            "the gateway is not ready",
            120,
        )
        with Gateway.sync(f"http://127.0.0.1:{port}", TOKEN) as gateway, gateway.session() as session:
            assert session.run("import pandas; 6 * 7").text == "42"
            assert session.run("%%bash\necho $((6 * 7))").stdout == "42\n"
            assert session.model().isolation == "sandbox"
        stopped = docker_command("stop", "--time=60", NAME)
        assert stopped.returncode == 0, stopped.stderr
        found = docker_command("inspect", "--format={{.State.ExitCode}} {{.State.OOMKilled}}", NAME)
        assert found.stdout == "0 false\n", docker_command("logs", NAME).stderr
    finally:
        docker_command("rm", "--force", "--volumes", NAME)


@pytest.mark.parametrize("left_out", ["", "seccompProfile", "procMount"])
def test_a_sandbox_needs_each_right(one_image: str, left_out: str) -> None:
    """Without one of the two the engine's default counts, and no sandbox starts."""
    given = [word for name, words in rights().items() if name != left_out for word in words]
    done = docker_command("run", "--rm", *given, "--tmpfs=/tmp", "--entrypoint=sh", one_image, "-c", NOTHING)
    assert (done.returncode == 0) == (not left_out), done.stderr
