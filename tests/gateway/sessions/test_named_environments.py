"""Sessions in environments that an operator has added, with real kernels: what they get, as it changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from cellgate import Gateway
from cellgate.wire.environments import SessionEnvironment
from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.specs.added_environments import AddedEnvironments, Recipe
from cellgate_kernels.specs.catalog import data_folder
from cellgate_kernels.specs.manifest import MANIFEST
from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.gateway.doors.e2b_requests import Sandbox, control
from tests.gateway.doors.e2b_requests import make as make_sandbox
from tests.support.commands import cellgate
from tests.support.requirements import require
from tests.support.server import PATIENCE, TOKEN, GatewayProcess

MODULE = "import humanize; print(humanize.__version__)"
pytestmark = pytest.mark.timeout(180)  # the first test of each process builds an environment


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory, kernel_prefix: Path) -> Path:
    """A prefix with the usual kernels, and the environment ``old``: ipykernel and an old humanize."""
    prefix = tmp_path_factory.mktemp("named")
    shutil.copytree(kernel_prefix / "kernels", data_folder(prefix) / "kernels")
    for left in (2, 1, 0):  # an index may fail for a moment
        try:
            AddedEnvironments(prefix).add("old", Recipe(requirements="humanize==4.11.0\nipykernel>=7"))
        except BackendUnavailable as error:
            if not left:
                require("packages", f"no package index: {error.message}")
        else:
            break
    return prefix


@pytest.fixture(scope="module")
def kernels(prefix: Path) -> str:
    return json.dumps([str(data_folder(prefix) / "kernels")])


@pytest.fixture(scope="module")
def served(prefix: Path, kernels: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that began without any environment of its own; ``old`` was added later."""
    aside = prefix / "aside"
    (data_folder(prefix) / "kernels" / "old").rename(aside)
    with serving(
        tmp_path_factory.mktemp("data") / "data",
        "auto",
        docker_url=NO_ENGINE,
        kernel_dirs=kernels,
        doors="e2b,opensandbox,piston",
    ) as process:
        assert process.get("/v1/environments").json() == {"environments": []}
        aside.rename(data_folder(prefix) / "kernels" / "old")
        yield process


def printed(gateway: GatewayProcess, session: str, code: str, **fields: object) -> str:
    result = gateway.execute(session, code, **fields)
    assert result["status"] == "ok", result
    return "".join(output["text"] for output in result["outputs"] if output["output_type"] == "stream")


def make(gateway: GatewayProcess, session: str, **fields: object) -> dict[str, Any]:
    answer = gateway.post("/v1/sessions", {"session": session, **fields})
    assert answer.status in {200, 201}, answer.json()
    model: dict[str, Any] = answer.json()
    return model


def renew(prefix: Path, name: str, requirements: str) -> None:
    """Build it as if an index had other versions now."""
    recipe = data_folder(prefix) / "kernels" / name / "environment.json"
    recipe.write_bytes(msgspec.json.encode(Recipe(requirements=requirements)))
    assert AddedEnvironments(prefix).build(name).changed


def test_a_session_names_its_environment_and_the_record_has_its_digest(served: GatewayProcess) -> None:
    model = make(served, "first", environment="old")
    assert model["kernel"] == "old"
    assert model["environment"]["name"] == "old"
    assert printed(served, "first", MODULE) == "4.11.0\n"
    named = model["environment"]
    [listed] = served.get("/v1/environments").json()["environments"]
    assert listed == {**named, "python": listed["python"], "packages": listed["packages"]}
    locked = served.get("/v1/environments/old").json()
    assert "humanize==4.11.0 \\\n    --hash=sha256:" in locked.pop("lock")
    assert locked == listed
    assert served.get("/v1/environments/new").reason == "not_found"
    recorded = [row["environment"] for row in served.recorded("first") if "environment" in row]
    assert recorded[0]["environment"] == named
    metadata = served.get("/v1/sessions/first/notebook").json()["metadata"]
    assert metadata["cellgate"]["environment"] == named
    assert metadata["cellgate"]["packages"]["humanize"] == "4.11.0"
    assert metadata["kernelspec"] == {"name": "old", "display_name": "Python 3 (old)", "language": "python"}
    info = served.get("/v1/info").json()
    assert info["environment"]["old"]["packages"]["humanize"] == "4.11.0"
    assert info["fork_server"]["old"] == info["fork_server"]["python3"]
    # Jupyter's clients find it, too.
    assert served.get("/api/kernelspecs/old").json()["spec"]["metadata"] == {"cellgate_environment": named}
    # It is the session's for good.
    assert served.get("/v1/sessions/first").json()["environment"] == named
    assert (
        make(served, "first", environment="OLD", kernel="python3", language="python")["environment"] == named
    )
    answer = served.post("/v1/sessions", {"session": "first", "kernel": "python3"})
    assert (answer.status, answer.reason) == (409, "conflict")
    assert served.post("/v1/sessions/first/restart").json()["environment"] == named
    served.delete("/v1/sessions/first")
    assert make(served, "first")["environment"] == named
    served.delete("/v1/sessions/first")
    # Others are as ever.
    assert "environment" not in make(served, "usual")
    assert served.post("/v1/sessions", {"session": "usual", "environment": "old"}).status == 409
    assert "environment" not in make(served, "usual", environment="standard")
    served.delete("/v1/sessions/usual")


def test_a_single_cell_names_one(served: GatewayProcess) -> None:
    result = served.post("/v1/execute", {"code": MODULE, "environment": "old"}).json()
    assert result["text"] == "4.11.0\n"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"environment": "new"}, 'There is no environment "new". Available: old'),
        ({"environment": "python3"}, 'There is no environment "python3". Available: old'),
        ({"environment": "minimal"}, 'There is no environment "minimal". Available: old'),
        ({"environment": ""}, 'There is no environment "". Available: old'),
        ({"environment": "old", "kernel": "bash"}, "has a kernel of Python, not 'bash'; leave `kernel` out"),
        ({"environment": "old", "language": "bash"}, "has a kernel of Python; leave `language` out"),
        ({"environment": 3}, "environment"),
    ],
)
def test_what_contradicts_is_refused(served: GatewayProcess, fields: dict[str, object], told: str) -> None:
    answer = served.post("/v1/sessions", {"session": "none", **fields})
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert told in answer.json()["detail"]
    assert served.get("/v1/sessions/none").status == 404


def test_the_client_and_the_commands_name_one(served: GatewayProcess, tmp_path: Path) -> None:
    with Gateway.sync(served.url, served.token) as gateway:
        [found] = gateway.environments()
        assert found.name == "old"
        assert gateway.environment("old").digest == found.digest
        with gateway.session(environment="old") as session:
            assert session.run(MODULE).text == "4.11.0\n"
            assert session.model().environment == SessionEnvironment(name="old", digest=found.digest)
        assert gateway.execute_once(MODULE, environment="old").text == "4.11.0\n"
    at = ["--url", served.url, "--token", served.token]
    assert cellgate("exec", MODULE, "--environment", "old", *at).stdout == "4.11.0\n"
    notebook = tmp_path / "n.ipynb"
    source = tmp_path / "n.py"
    source.write_text(MODULE)
    assert cellgate("run", source, "-o", notebook, "--environment", "old", *at).returncode == 0
    written = json.loads(notebook.read_text())
    assert written["metadata"]["cellgate"]["environment"] == {"name": "old", "digest": found.digest}
    # Whatever its name is now, the digest counts.
    written["metadata"]["cellgate"]["environment"]["name"] = written["metadata"]["kernelspec"]["name"] = "was"
    notebook.write_text(json.dumps(written))
    assert "environment same" in cellgate("replay", notebook, *at).stdout


def test_one_that_is_renewed_or_removed_changes_no_session_that_runs(
    prefix: Path, kernels: str, start_gateway: StartGateway
) -> None:
    AddedEnvironments(prefix).add("changing", Recipe(base="old"))
    gateway = start_gateway(kernel_dirs=kernels, warm_kernels='["changing"]', pool_size=1)
    before = make(gateway, "before", environment="changing")["environment"]
    renew(prefix, "changing", "humanize==4.12.0\nipykernel>=7")
    after = make(gateway, "after", environment="changing")["environment"]
    assert after["name"] == before["name"]
    assert after["digest"] != before["digest"]
    assert printed(gateway, "before", MODULE) == "4.11.0\n"
    assert printed(gateway, "after", MODULE) == "4.12.0\n"
    told = gateway.get("/v1/sessions/after/notebook").json()["metadata"]["cellgate"]
    assert told["packages"]["humanize"] == "4.12.0"
    # Of the same name, but not the same: the digest that was recorded is another name's.
    report = gateway.post("/v1/sessions/before/replay").json()
    assert (report["kernel"], report["environment"]["agreement"]) == ("old", "same")
    assert AddedEnvironments(prefix).remove("changing") == 1
    assert [each["name"] for each in gateway.get("/v1/environments").json()["environments"]] == ["old"]
    answer = gateway.post("/v1/sessions", {"environment": "changing"})
    assert answer.json()["detail"] == 'There is no environment "changing". Available: old'
    # It goes on, and can be found and restarted.
    assert make(gateway, "after", environment="changing")["environment"] == after
    assert gateway.post("/v1/sessions/after/restart").status == 200
    assert printed(gateway, "after", MODULE) == "4.12.0\n"
    assert printed(gateway, "after", "print(__import__('os').environ['A'])", env={"A": "b"}) == "b\n"
    gateway.delete("/v1/sessions/after")
    answer = gateway.post("/v1/sessions", {"session": "after"})
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert "had the environment 'changing', which is not here any more" in answer.json()["detail"]
    answer = gateway.post("/v1/sessions/after/replay")
    assert answer.status == 400
    assert "which is not here any more, and no other has its digest" in answer.json()["detail"]


def test_a_replay_with_other_packages_names_both_digests(
    prefix: Path, kernels: str, start_gateway: StartGateway
) -> None:
    AddedEnvironments(prefix).add("moving", Recipe(requirements="humanize==4.12.0\nipykernel>=7"))
    gateway = start_gateway(kernel_dirs=kernels)
    before = make(gateway, "a", environment="moving")["environment"]
    gateway.execute("a", MODULE)
    renew(prefix, "moving", "humanize==4.11.0\nipykernel>=7")
    answer = gateway.post("/v1/sessions/a/replay")
    assert (answer.status, answer.reason) == (409, "environment_differs")
    now = gateway.get("/v1/environments/moving").json()["digest"]
    detail = answer.json()["detail"]
    assert f"environment (digest) moving ({before['digest'][:12]}) -> moving ({now[:12]})" in detail
    assert "humanize 4.12.0 -> 4.11.0" in detail
    AddedEnvironments(prefix).remove("moving")


def test_a_template_of_e2b_is_an_environment(served: GatewayProcess) -> None:
    """So is that of its contexts of Python. Any other template is what all sessions get."""
    body = {"templateID": "old", "metadata": {}, "envVars": {}}
    told = control(served, "POST", "v2/sandboxes", body).json()
    sandbox = Sandbox(served, told["sandboxID"], told["envdAccessToken"])
    assert (told["templateID"], served.model(sandbox.session)["environment"]["name"]) == ("old", "old")
    assert sandbox.run(MODULE).stdout == "4.11.0\n"
    context = sandbox.server("POST", "contexts", json={"language": "python"}).json()["id"]
    assert sandbox.run(MODULE, context_id=context).stdout == "4.11.0\n"
    assert sandbox.control("DELETE").status_code == 204
    usual = make_sandbox(served)
    assert "environment" not in served.model(usual.session)
    assert usual.control("DELETE").status_code == 204


def test_an_image_of_opensandbox_is_an_environment(served: GatewayProcess) -> None:
    headers = {"OPEN-SANDBOX-API-KEY": TOKEN}
    url = f"{served.url}/opensandbox/v1/sandboxes"
    asked = {"image": {"uri": "old"}, "timeout": 100}
    made = requests.post(url, json=asked, headers=headers, timeout=PATIENCE).json()
    live = served.get("/v1/sessions?state=live").json()["sessions"]
    (model,) = (each for each in live if (each["metadata"] or {}).get("sandbox") == made["id"])
    assert (made["image"], model["environment"]["name"]) == ({"uri": "old"}, "old")
    assert requests.delete(f"{url}/{made['id']}", headers=headers, timeout=PATIENCE).status_code == 204


def test_a_version_of_piston_is_that_of_an_environment(served: GatewayProcess, prefix: Path) -> None:
    """Of one that the usual environment has not; here its manifest is made to say so."""
    environment = next(each for each in AddedEnvironments(prefix).all() if each.named.name == "old")
    manifest = data_folder(environment.folder) / MANIFEST
    written = manifest.read_text()
    kernelspec = data_folder(prefix) / "kernels" / "old" / "kernel.json"
    url = f"{served.url}/piston/api/v2"
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def versions() -> list[str]:
        found = requests.get(f"{url}/runtimes", headers=headers, timeout=PATIENCE).json()
        return [each["version"] for each in found if each["language"] == "python"]

    (usual,) = versions()
    assert usual == environment.python
    try:
        manifest.write_text(json.dumps(json.loads(written) | {"python": "3.99.1"}))
        os.utime(kernelspec)
        assert versions() == [usual, "3.99.1"]
        program = {"language": "py", "version": "3.99.1", "files": [{"content": MODULE}]}
        ran = requests.post(f"{url}/execute", json=program, headers=headers, timeout=PATIENCE).json()
        assert (ran["version"], ran["run"]["stdout"]) == ("3.99.1", "4.11.0\n")
    finally:
        manifest.write_text(written)
        os.utime(kernelspec)
    assert versions() == [usual]
