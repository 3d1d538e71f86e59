"""deploy/kubernetes as text: each name leads to what has it, pods have no right that sandboxes do not need,
and `cellgate serve` knows their settings. `tests/clients/test_manifests.py` checks the files by Kubernetes'
schemas, and `tests/containers/test_pod.py` what the rights are for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellgate.cli.serve.serve import ServeApp
from cellgate.http.metrics import Metrics
from tests.support.deployed import is_setting
from tests.support.listening import OPEN
from tests.support.requirements import require

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
POD = "cellgate-0"
OF_PODS = {"POD_NAME", "PGPASSWORD"}
"""Variables of a pod that are not Cellgate's."""

Document = Mapping[str, Any]


@cache
def kustomization() -> Document:
    found: Document = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return found


@cache
def documents() -> list[Document]:
    """All resources."""
    texts = [(FOLDER / name).read_text() for name in kustomization()["resources"]]
    return [found for text in texts for found in yaml.safe_load_all(text)]


def of(kind: str) -> list[Document]:
    return [each for each in documents() if each["kind"] == kind]


def one(kind: str) -> Document:
    (found,) = of(kind)
    return found


def template() -> Document:
    found: Document = one("StatefulSet")["spec"]["template"]
    return found


def container() -> Document:
    (found,) = template()["spec"]["containers"]
    return found


def generated(kind: str) -> dict[str, set[str]]:
    """The keys of each Secret or ConfigMap that kustomize makes, by its name."""
    return {
        each["name"]: {
            *(literal.partition("=")[0] for literal in each.get("literals", ())),
            *(Path(file).name for file in each.get("files", ())),
        }
        for each in kustomization()[kind]
    }


def secret_keys() -> list[tuple[str, str]]:
    """What the pod takes of secrets: their names and keys."""
    of_variables = [
        each["valueFrom"]["secretKeyRef"]
        for each in container()["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    ]
    of_volumes = [
        {"name": volume["secret"]["secretName"], "key": item["key"]}
        for volume in template()["spec"]["volumes"]
        if "secret" in volume
        for item in volume["secret"]["items"]
    ]
    return [(each["name"], each["key"]) for each in (*of_variables, *of_volumes)]


def variables() -> dict[str, str]:
    """The gateway's environment in its first pod."""
    found = dict(literal.split("=", 1) for literal in kustomization()["configMapGenerator"][0]["literals"])
    for each in container()["env"]:
        found[each["name"]] = each["value"] if "value" in each else f"a-value-of-{each['name']}"
    found["POD_NAME"] = POD
    return {name: value.replace("$(POD_NAME)", POD) for name, value in found.items()}


def serve_app() -> ServeApp:
    """The gateway's command, as far as its options go."""
    command, *words = container()["args"]
    assert command == "serve"
    app = ServeApp(environment=variables())
    app.initialize(words)
    return app


def test_every_file_is_used() -> None:
    there = {path.name for path in FOLDER.glob("*.yaml")}
    assert there == {*kustomization()["resources"], "kustomization.yaml"}
    (image,) = kustomization()["images"]
    assert container()["image"] == image["name"]
    assert f"docker build -t {image['name']} deploy\n" in (FOLDER.parent / "Dockerfile").read_text()
    assert one("Namespace")["metadata"]["name"] == kustomization()["namespace"]


def test_each_mount_has_a_volume_and_each_volume_a_mount() -> None:
    claims = {each["metadata"]["name"] for each in one("StatefulSet")["spec"]["volumeClaimTemplates"]}
    volumes = {each["name"] for each in template()["spec"]["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    assert claims & volumes == set()
    assert {*mounts} == claims | volumes
    data = Path(variables()["CELLGATE_DATA_DIR"])
    assert claims == {name for name, path in mounts.items() if data.is_relative_to(path)}
    key = Path(variables()["CELLGATE_CLUSTER_KEY"])
    (secret,) = (each for each in template()["spec"]["volumes"] if "secret" in each)
    assert key.parent == Path(mounts[secret["name"]])
    assert key.name in {item["path"] for item in secret["secret"]["items"]}


def test_what_is_referred_to_is_made() -> None:
    secrets, maps = generated("secretGenerator"), generated("configMapGenerator")
    assert [each for each in secret_keys() if each[1] not in secrets.get(each[0], ())] == []
    assert {key for _, key in secret_keys()} == {key for keys in secrets.values() for key in keys}
    assert {each["configMapRef"]["name"] for each in container()["envFrom"]} == {*maps}
    target = one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target == {
        "apiVersion": one("StatefulSet")["apiVersion"],
        "kind": "StatefulSet",
        "name": one("StatefulSet")["metadata"]["name"],
    }
    assert "replicas" not in one("StatefulSet")["spec"], "the autoscaler's number would be overwritten"


def test_no_secret_is_in_the_repository() -> None:
    """Its files are the operator's, in a folder that git does not take."""
    (made,) = kustomization()["secretGenerator"]
    assert {Path(file).parent.as_posix() for file in made["files"]} == {"secrets"}
    assert {*made} == {"name", "files"}
    assert "deploy/kubernetes/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_selectors_match_the_pods() -> None:
    labels = template()["metadata"]["labels"].items()
    (spread,) = template()["spec"]["topologySpreadConstraints"]
    policy = one("NetworkPolicy")["spec"]
    among_themselves = [
        peer["podSelector"]["matchLabels"]
        for rule in (*policy["ingress"], *policy["egress"])
        for peer in (*rule.get("from", ()), *rule.get("to", ()))
        if {*peer} == {"podSelector"}
    ]
    assert len(among_themselves) == 2
    for selector in (
        one("StatefulSet")["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
        *among_themselves,
        *(each["spec"]["selector"] for each in of("Service")),
    ):
        assert selector
        assert selector.items() <= labels


def test_ports_are_the_containers() -> None:
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    for service in of("Service"):
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["httpGet"]["port"] in ports
    (rule,) = one("NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for port in rule["ports"]} == {*ports}
    assert [*ports.values()] == [serve_app().port]


def test_pods_that_have_started_stay_reachable_while_none_is_ready() -> None:
    """As while PostgreSQL is away, which all of them notice at once."""
    paths = {
        name: container()[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/readyz", "readiness": "/healthz", "liveness": "/healthz"}


def test_a_gateway_is_reached_by_the_name_it_tells_the_others() -> None:
    """Also while it is not ready, as it goes on with its sessions."""
    nodes = next(each for each in of("Service") if each["spec"].get("clusterIP") == "None")
    assert nodes["metadata"]["name"] == one("StatefulSet")["spec"]["serviceName"]
    assert nodes["spec"]["publishNotReadyAddresses"] is True
    assert serve_app().advertise == f"http://{POD}.{nodes['metadata']['name']}:{serve_app().port}"
    clients = next(each for each in of("Service") if each is not nodes)
    assert "publishNotReadyAddresses" not in clients["spec"]
    assert clients["metadata"]["name"] in serve_app().given.allowed_hosts


def test_serve_knows_the_pods_settings() -> None:
    app = serve_app()
    assert [name for name in variables() if name not in OF_PODS and not is_setting(app, name)] == []
    assert (app.backend, app.ip) == ("sandbox", "0.0.0.0")
    assert template()["spec"]["enableServiceLinks"] is False, "CELLGATE_PORT would be the Service's"


def test_a_pod_has_no_right_that_sandboxes_do_not_need() -> None:
    pod, own = template()["spec"], container()["securityContext"]
    assert (pod["hostUsers"], pod["automountServiceAccountToken"]) == (False, False)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {*pod}
    assert own == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "Unconfined"},
        "appArmorProfile": {"type": "Unconfined"},
        "procMount": "Unmasked",
    }
    assert [each for each in pod["volumes"] if "hostPath" in each] == []


def test_a_pod_that_stops_has_the_time_for_it() -> None:
    """Its last command, the cells that run, and as long again for kernels."""
    shell, option, script = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    assert f'cellgate node drain "$(cat {serve_app().data_dir}/instance)"; ' in script
    (pause,) = re.findall(r"sleep (\d+)", script)
    readiness = container()["readinessProbe"]
    assert int(pause) >= readiness["periodSeconds"] * readiness["failureThreshold"]
    grace = template()["spec"]["terminationGracePeriodSeconds"]
    assert grace >= int(pause) + 2 * serve_app().shutdown_grace


def test_the_autoscaler_asks_for_a_metric_that_there_is() -> None:
    (metric,) = one("HorizontalPodAutoscaler")["spec"]["metrics"]
    asked, target = metric["pods"]["metric"], metric["pods"]["target"]
    samples = [
        sample.labels
        for family in Metrics().registry.collect()
        for sample in family.samples
        if sample.name == asked["name"]
    ]
    assert asked["selector"]["matchLabels"] in samples
    assert int(target["averageValue"]) < serve_app().max_kernels


def test_kernels_and_gateway_fit_into_a_pod() -> None:
    (size, unit) = re.fullmatch(r"(\d+)(\w+)", container()["resources"]["limits"]["memory"]).groups()  # type: ignore[union-attr]
    (kernel, small) = re.fullmatch(r"(\d+)(\w+)", str(serve_app().memory)).groups()  # type: ignore[union-attr]
    assert (unit, small) == ("Gi", "g")
    assert int(size) > serve_app().max_kernels * int(kernel)


def test_kustomize_makes_one_text_of_them(tmp_path: Path) -> None:
    """What it makes of the operator's files is what the pods refer to; it needs no cluster."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        require("kubectl", "it is not installed")
    folder = shutil.copytree(FOLDER, tmp_path / "kubernetes", ignore=shutil.ignore_patterns("secrets"))
    (folder / "secrets").mkdir()
    for name in ("cluster.key", "password", "token"):
        (folder / "secrets" / name).write_text(f"of {name}")
    done = subprocess.run(
        [kubectl, "kustomize", folder], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    pods = next(each for each in made if each["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    (secret,) = (each for each in made if each["kind"] == "Secret")
    (settings,) = (each for each in made if each["kind"] == "ConfigMap")
    (gateway,) = pods["containers"]
    assert gateway["image"] == "registry.example.org/cellgate/cellgate:1"
    assert gateway["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert {volume["secret"]["secretName"] for volume in pods["volumes"] if "secret" in volume} == {
        secret["metadata"]["name"]
    }
    assert {*secret["data"]} == {"cluster.key", "password", "token"}
    assert len(made) == len(documents()) + 2


@pytest.mark.parametrize("host", ["10.1.2.3:8888", "[fd00::3]:8888"])
def test_a_gateway_on_all_addresses_answers_probes(host: str) -> None:
    """A probe that says nothing else has the pod's address as `Host`."""
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert "httpHeaders" not in container()[probe]["httpGet"]
    replace(OPEN, any_address=serve_app().ip == "0.0.0.0").check_host(host)
