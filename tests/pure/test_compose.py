"""deploy/compose.yaml and compose-cluster.yaml as text: what they name is there, the gateways of a cluster
differ in their numbers alone, and `cellgate serve` knows their settings. `tests/containers` runs it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellgate.cli.serve.serve import ServeApp
from tests.support.deployed import VARIABLE, filled, is_setting

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "compose-cluster.yaml"
OF_GATEWAYS = {"PGPASSFILE"}
"""Variables of a gateway that are not Cellgate's."""
GATEWAY_NUMBERS = ["1", "2", "3"]


@cache
def services() -> Mapping[str, Mapping[str, Any]]:
    """The services, with the one variable that has to be given."""
    found: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        filled(FILE.read_text(), {"CELLGATE_TOKEN": "a-long-token"})
    )["services"]
    return found


def gateways() -> dict[str, Mapping[str, Any]]:
    return {name: each for name, each in services().items() if name.startswith("gateway-")}


def test_one_variable_must_be_given_and_all_are_named_above() -> None:
    """The comment says which there are; a default is the same wherever a variable stands."""
    text = FILE.read_text()
    comment = text[: text.index("version:")]
    found = VARIABLE.findall(text)
    assert {name for name, how, _ in found if how == "?"} == {"CELLGATE_TOKEN"}
    assert {name for name, _, _ in found if name not in comment} == set()
    assert len({(name, default) for name, _, default in found}) == len({name for name, _, _ in found})


def test_what_services_need_is_there() -> None:
    """Services that others wait for, files of this folder, images that one of them builds."""
    built = {each["image"] for each in services().values() if "build" in each}
    for name, service in services().items():
        assert set(service.get("depends_on", ())) <= set(services()), name
        for source in (volume.partition(":")[0] for volume in service.get("volumes", ())):
            assert source.startswith("/") or (DEPLOY / source).exists(), source
        assert "build" in service or service["image"] in built or service["image"].partition(":")[2], name
        assert ("build" in service) == ("restart" not in service), name
    for service in services().values():
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / "Dockerfile").is_file()


SINGLE = DEPLOY / "compose.yaml"


def single(**given: str) -> tuple[ServeApp, Mapping[str, Any]]:
    """The gateway of compose.yaml with these variables in `.env`, as Compose gives them: its own last."""
    service = yaml.safe_load(filled(SINGLE.read_text(), given))["services"]["gateway"]
    own = {name: str("" if value is None else value) for name, value in service["environment"].items()}
    app = ServeApp(environment={**given, **own})
    command, *words = service["command"]
    assert command == "serve"
    app.initialize(words)
    return app, service


def test_one_gateway_serves_without_a_variable_and_all_are_named_above() -> None:
    app, service = single()
    text = SINGLE.read_text()
    found = VARIABLE.findall(text)
    assert {name for name, how, _ in found if how == "?"} == set()
    assert {name for name, _, _ in found if name not in text[: text.index("version:")]} == set()
    assert len({(name, default) for name, _, default in found}) == len({name for name, _, _ in found})
    assert (app.ip, app.port, app.backend, app.data_dir) == ("0.0.0.0", 8888, "docker", "/var/lib/cellgate")
    assert (app.log_json, app.log_level, app.keep_kernels, app.token) == (True, logging.INFO, False, "")
    assert service["env_file"] == [".env"]
    assert f"{app.data_dir}:{app.data_dir}" in service["volumes"]
    assert int(service["stop_grace_period"].removesuffix("s")) > app.shutdown_grace + 30
    assert service["logging"]["options"] == {"max-size": "50m", "max-file": "5"}


def test_any_setting_of_one_gateway_is_a_line_of_its_file() -> None:
    given = {
        "CELLGATE_PORT": "9000",
        "CELLGATE_DATA_DIR": "/srv/cellgate",
        "CELLGATE_DOCKER_SOCKET": "/run/user/1000/docker.sock",
        "CELLGATE_LOG_LEVEL": "debug",
        "CELLGATE_LOG_JSON": "false",
        "CELLGATE_KEEP_KERNELS": "true",
        "CELLGATE_TOKEN_FILE": "/srv/cellgate/token",
        "CELLGATE_ALLOW_HOST": "gate.example.org",
        "CELLGATE_POOL_SIZE": "4",
        "CELLGATE_SHUTDOWN_GRACE": "20",
    }
    app, service = single(**given)
    assert service["ports"] == ["127.0.0.1:9000:8888"]
    assert "/run/user/1000/docker.sock:/var/run/docker.sock" in service["volumes"]
    assert (app.port, app.data_dir, app.token_file) == (8888, "/srv/cellgate", "/srv/cellgate/token")
    assert (app.log_level, app.log_json, app.keep_kernels) == (logging.DEBUG, False, True)
    assert (app.allowed_hosts, app.pool_size, app.shutdown_grace) == (["gate.example.org"], 4, 20.0)


@pytest.mark.parametrize("file", [FILE, SINGLE])
def test_images_that_are_built_here_are_pulled_from_nowhere(file: Path) -> None:
    """Anybody could give a registry one of this name, and the gateway has the engine's socket."""
    found = yaml.safe_load(filled(file.read_text(), {"CELLGATE_TOKEN": "a-long-token"}))["services"]
    ours = {
        name: ("build" in each, each.get("pull_policy"))
        for name, each in found.items()
        if each.get("image", "").startswith("cellgate/")
    }
    assert ours
    assert {
        name: policy for name, (built, policy) in ours.items() if policy != ("build" if built else "never")
    } == {}


def test_the_proxy_sees_its_own_folder_alone() -> None:
    """Beside the file of Compose is `.env`, with the administrator's token."""
    (mounted,) = services()["proxy"]["volumes"]
    source, target, access = mounted.split(":")
    assert (target, access) == ("/usr/local/etc/haproxy", "ro")
    assert [each.name for each in (DEPLOY / source).iterdir()] == ["haproxy.cfg"]


def test_the_database_has_no_secret_but_its_own() -> None:
    """The cluster's key, which encrypts users' secrets in the database, is not beside them."""
    (of_database,) = _sources("database", "/run/cellgate")
    (of_gateways,) = {source for name in gateways() for source in _sources(name, "/run/cellgate")}
    made = dict(re.findall(r"keep secrets/(\w+)/([\w.]+)", services()["setup"]["entrypoint"][2]))
    assert (Path(of_database).name, Path(of_gateways).name) == ("database", "gateways")
    assert Path(of_database).parent == Path(of_gateways).parent
    assert made["database"] == "password"


def test_no_build_and_no_commit_takes_the_file_of_variables() -> None:
    """The guide keeps the administrator's token in `deploy/.env`."""
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    assert "**/.env" in (ROOT / ".dockerignore").read_text().splitlines()


def _sources(service: str, target: str) -> list[str]:
    """What a service has at a place."""
    mounts = [volume.split(":") for volume in services()[service]["volumes"]]
    return [source for source, place, *_ in mounts if place == target]


def test_gateways_differ_in_their_numbers_alone() -> None:
    """So that a further one is a copy; HAProxy and the making of ids know the same."""
    numbers = [name.removeprefix("gateway-") for name in gateways()]
    assert numbers == GATEWAY_NUMBERS
    plain = {json.dumps(each).replace(name, "gateway-N") for name, each in gateways().items()}
    assert len(plain) == 1
    assert services()["setup"]["command"] == numbers
    assert services()["proxy"]["depends_on"] == [*gateways()]
    servers = re.findall(
        r"^    server (\S+) (\S+)$", (DEPLOY / "haproxy" / "haproxy.cfg").read_text(), re.MULTILINE
    )
    assert servers == [(number * 8, f"gateway-{number}:8888") for number in numbers] * 4


def test_a_proxy_before_haproxy_sets_what_haproxy_leaves_to_it() -> None:
    haproxy = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    left = set(re.findall(r"(?:set|del)-header (X-\S+)(?: \S+)? unless before$", haproxy, re.MULTILINE))
    assert left == {"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host"}
    nginx = (DEPLOY / "nginx.conf").read_text()
    assert left <= set(re.findall(r"^ +proxy_set_header (\S+) \$\w+;$", nginx, re.MULTILINE))


def test_serve_knows_the_gateways_settings() -> None:
    for name, service in gateways().items():
        command, *words = service["command"]
        variables = {key: str(value) for key, value in service["environment"].items()}
        assert command == "serve"
        app = ServeApp(environment=variables)
        app.initialize(words)
        assert (app.cluster, app.advertise) == (
            "postgresql://cellgate@database/cellgate",
            f"http://{name}:8888",
        )
        assert (app.backend, app.keep_kernels, app.ip) == ("docker", True, "0.0.0.0")
        assert [key for key in variables if key not in OF_GATEWAYS and not is_setting(app, key)] == []
        data = f"{app.data_dir}:{app.data_dir}"
        assert data in service["volumes"]
        folders = {volume.split(":")[1] for volume in service["volumes"]}
        assert {str(Path(variables[key]).parent) for key in ("CELLGATE_CLUSTER_KEY", "PGPASSFILE")} <= folders
