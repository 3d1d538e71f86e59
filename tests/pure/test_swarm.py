"""deploy/swarm.yaml as text: `docker stack deploy` takes each of its keys, its secrets are those that the
gateway reads, and `cellgate serve` knows the settings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cellgate.cli.serve.serve import ServeApp
from tests.support.deployed import VARIABLE, filled, is_setting
from tests.support.requirements import require

FILE = Path(__file__).parents[2] / "deploy" / "swarm.yaml"
DATABASE = "postgresql://cellgate@db.example.org/cellgate"
OF_GATEWAYS = {"PGPASSFILE"}
"""Variables of a gateway that are not Cellgate's."""
TAKEN = frozenset({
    *("image", "command", "environment", "ports", "secrets", "volumes", "cap_drop", "cap_add"),
    *("read_only", "sysctls", "stop_grace_period", "healthcheck", "deploy", "networks", "configs"),
    *("hostname", "init"),
})  # fmt: skip
"""Keys of a service that a stack takes. Others, such as `restart` and `security_opt`, it leaves out."""
FOLDER = "/run/secrets"
GIVEN = {"CELLGATE_CLUSTER": DATABASE, "CELLGATE_GATEWAY_IMAGE": "registry.example.org/cellgate/gateway:1"}


def stack(**given: str) -> Mapping[str, Any]:
    """The file, filled in."""
    found: Mapping[str, Any] = yaml.safe_load(filled(FILE.read_text(), {**GIVEN, **given}))
    return found


def gateway(**given: str) -> Mapping[str, Any]:
    (found,) = stack(**given)["services"].values()
    assert isinstance(found, dict)
    return found


def serve_app() -> ServeApp:
    """The gateway's command, as far as its options go."""
    command, *words = gateway()["command"]
    assert command == "serve"
    variables = {name: str(value) for name, value in gateway()["environment"].items()}
    app = ServeApp(environment={**variables, "CELLGATE_ADVERTISE": "http://one:8888"})
    app.initialize(words)
    return app


def test_two_variables_must_be_given_and_all_are_named_above() -> None:
    text = FILE.read_text()
    comment = text[: text.index("version:")]
    found = VARIABLE.findall(text)
    assert {name for name, how, _ in found if how == "?"} == {*GIVEN}
    assert {name for name, _, _ in found if name not in comment} == set()
    assert len({(name, default) for name, _, default in found}) == len({name for name, _, _ in found})


def test_a_stack_takes_each_key() -> None:
    assert {*gateway()} - TAKEN == set()
    assert gateway()["deploy"]["mode"] == "global"
    assert "hostname" not in gateway()


def test_secrets_are_there_and_only_their_owner_reads_them() -> None:
    """A password's file is read only then."""
    declared, used = stack()["secrets"], gateway()["secrets"]
    assert {each["source"] for each in used} == {*declared}
    assert {each["mode"] for each in used} == {0o400}
    assert {each["external"] for each in declared.values()} == {True}
    names = ("CELLGATE_CLUSTER_KEY", "CELLGATE_TOKEN_FILE", "PGPASSFILE")
    read = {gateway()["environment"][name] for name in names}
    assert read == {f"{FOLDER}/{each['target']}" for each in used}


def test_others_reach_a_gateway_at_its_machine() -> None:
    """Also with another port, and not by the swarm's own way to any of them."""
    for given in ({}, {"CELLGATE_PORT": "9000"}):
        (port,) = gateway(**given)["ports"]
        assert (port["mode"], port["target"]) == ("host", serve_app().port)
        advertised = gateway(**given)["environment"]["CELLGATE_ADVERTISE"]
        assert advertised == f"http://{{{{.Node.Hostname}}}}:{port['published']}"


def test_serve_knows_the_settings() -> None:
    app = serve_app()
    assert (app.cluster, app.backend, app.keep_kernels, app.ip) == (DATABASE, "docker", True, "0.0.0.0")
    variables = gateway()["environment"]
    assert [name for name in variables if name not in OF_GATEWAYS and not is_setting(app, name)] == []
    assert f"{app.data_dir}:{app.data_dir}" in gateway()["volumes"]


def test_one_gateway_after_the_other_is_replaced_and_has_the_time_for_it() -> None:
    update = gateway()["deploy"]["update_config"]
    assert (update["parallelism"], update["order"]) == (1, "stop-first")
    assert int(gateway()["stop_grace_period"].removesuffix("s")) >= 2 * serve_app().shutdown_grace
    assert gateway()["deploy"]["restart_policy"]["delay"] == "1s"


def test_a_gateway_that_opens_no_more_sessions_is_not_ended() -> None:
    """A swarm replaces what is not healthy, and a drained gateway is not ready."""
    test = " ".join(gateway()["healthcheck"]["test"])
    assert f"http://127.0.0.1:{serve_app().port}/healthz" in test
    assert "readyz" not in test


def test_the_client_of_docker_reads_it() -> None:
    """By its own schema; it asks no engine."""
    docker = shutil.which("docker")
    if docker is None:
        require("stack", "there is no client of Docker")
    words = [docker, "stack", "config"]
    help_text = subprocess.run([*words, "--help"], check=False, capture_output=True, text=True, timeout=60)
    if "docker stack config" not in help_text.stdout:
        require("stack", "this client of Docker has no `docker stack config`")
    done = subprocess.run(
        [*words, "--compose-file", FILE],
        check=False,
        env={"PATH": os.environ["PATH"], **GIVEN},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = yaml.safe_load(done.stdout)["services"]["gateway"]
    assert found["environment"]["CELLGATE_ADVERTISE"] == "http://{{.Node.Hostname}}:8888"
