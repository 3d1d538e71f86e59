"""Packages by the HTTP interface: a real uv, an index of tiny wheels on a real socket, real kernels."""

from __future__ import annotations

import io
import subprocess
import threading
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from cellgate.client import Conflict, Gateway
from cellgate.mcp.tools import McpTools
from tests.conftest import NO_ENGINE, StartGateway, serving, stop_cleanly
from tests.gateway.record.test_storage import mount
from tests.support.channels import channels, text
from tests.support.commands import INSTALLED
from tests.support.nightly import at_night, mostly_nightly
from tests.support.requirements import require
from tests.support.server import GatewayProcess, Response, together, until
from tests.support.wheels import PATIENCE, Index, build_wheel

MODULES = ("apple", "banana", "cherry")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("index")
    build_wheel(folder, "apple", "1.0")
    build_wheel(folder, "apple", "2.0")
    build_wheel(folder, "banana", requires=["apple<2"], scripts={"peel": "banana:main"})
    build_wheel(folder, "cherry", requires=["apple>=2"])
    build_wheel(folder, "wants_other_numpy", requires=["numpy<1"])
    build_wheel(folder, "wants_numpy", requires=["numpy"])
    build_wheel(folder, "traversal", members={"../../../../../escaped.py": b"x = 1\n"})
    build_wheel(folder, "absolute", members={"/tmp/cellgate-escaped.py": b"x = 1\n"})
    build_wheel(folder, "liar")
    build_wheel(folder, "large", members={"large/data.bin": bytes(3_000_000)})
    build_wheel(folder, "too_large_to_download", members={"data.bin": bytes(12_000_000)})
    build_wheel(folder, "too_large_to_unpack", members={"data.bin": bytes(12_000_000)}, compressed=True)
    build_wheel(folder, "two_packages", members={"other-1.0.dist-info/METADATA": b"Name: other\n"})
    build_wheel(folder, "wants_missing", requires=["missing"])
    build_wheel(folder, "wants_source", requires=["source"])
    build_wheel(folder, "other_machine").rename(folder / "other_machine-1.0-py3-none-win_amd64.whl")
    build_wheel(folder, "cut_off")
    (folder / "source-1.0.tar.gz").write_bytes(b"never read: it would have to be built")
    index = Index(folder)
    index.lie.add("liar")
    index.cut.add("cut_off")
    yield index
    index.close()


@pytest.fixture(scope="module")
def any_gateway(
    sandbox: None, tmp_path_factory: pytest.TempPathFactory, index: Index
) -> Iterator[GatewayProcess]:
    """A gateway with sandboxes that allows everything of the index."""
    yield from gateway_for(tmp_path_factory.mktemp("packages-sandbox") / "data", "sandbox", index)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, index: Index) -> Iterator[GatewayProcess]:
    yield from gateway_for(tmp_path_factory.mktemp("packages") / "data", "auto", index)


def gateway_for(data: Path, backend: str, index: Index) -> Iterator[GatewayProcess]:
    options = {} if backend == "docker" else {"docker_url": NO_ENGINE}
    with serving(
        data, backend, packages="*", package_index=index.url, package_disk="2m", **options
    ) as process:
        yield process


@pytest.fixture(scope="module")
def settled(gateway: GatewayProcess) -> str:
    """A session that has apple 1.0, and that nobody changes."""
    install(gateway, "settled", "apple==1.0")
    return "settled"


@pytest.fixture
def key(request: pytest.FixtureRequest) -> Iterator[str]:
    """A session of a test's own in whichever gateway it uses."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    used = {"any_gateway", "gateway"}.intersection(request.fixturenames)
    for fixture in used:
        request.getfixturevalue(fixture).delete(f"/v1/sessions/{name}")


def install(gateway: GatewayProcess, session: str, *install: str, **fields: object) -> Response:
    return gateway.post(
        f"/v1/sessions/{session}/packages", {"install": list(install), **fields}, timeout=PATIENCE
    )


def versions(answer: Response, what: str = "packages") -> dict[str, str]:
    assert answer.status == 200, answer.body
    return {each["name"]: each["version"] for each in answer.json()[what]}


def imported(gateway: GatewayProcess, session: str, module: str) -> str:
    return str(gateway.execute(session, f"import {module}; print({module}.VERSION)")["stdout"].strip())


def nothing_left(gateway: GatewayProcess) -> None:
    """No install has left a file; what was compiled for an earlier one may still be on its way."""
    work = gateway.data_dir / "packages" / "work"
    until(lambda: not list(work.iterdir()), "an install has left files")


# ---- on every backend --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", mostly_nightly(["process", "sandbox"], ["sandbox"]))
def test_a_data_folder_that_is_named_from_where_one_stands_has_packages_too(
    backend: str,
    index: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """uv and kernels begin in folders of their own, where such a name would lead elsewhere."""
    if backend == "sandbox":
        request.getfixturevalue("sandbox")
    monkeypatch.chdir(tmp_path)
    with serving(
        Path("d5"), backend, command=INSTALLED, docker_url=NO_ENGINE, packages="*", package_index=index.url
    ) as process:
        assert versions(install(process, "s", "apple==1.0"), "installed") == {"apple": "1.0"}
        assert imported(process, "s", "apple") == "1.0"


def test_installed_packages_are_there_at_once_and_after_a_restart(
    any_gateway: GatewayProcess, key: str
) -> None:
    assert any_gateway.execute(key, "import apple")["error"]["ename"] == "ModuleNotFoundError"
    answer = install(any_gateway, key, "banana")
    assert versions(answer, "installed") == {"apple": "1.0", "banana": "1.0"}
    assert imported(any_gateway, key, "banana") == "1.0"
    assert any_gateway.execute(key, "!peel")["stdout"].strip() == "1.0"
    assert any_gateway.post(f"/v1/sessions/{key}/restart").status == 200
    assert imported(any_gateway, key, "apple") == "1.0"
    assert versions(any_gateway.get(f"/v1/sessions/{key}/packages")) == {"apple": "1.0", "banana": "1.0"}


def test_the_second_session_downloads_nothing(any_gateway: GatewayProcess, key: str, index: Index) -> None:
    assert versions(install(any_gateway, key, "cherry")) == {"apple": "2.0", "cherry": "1.0"}
    asked = len(index.asked)
    assert versions(install(any_gateway, f"{key}-second", "cherry")) == {"apple": "2.0", "cherry": "1.0"}
    assert index.asked[asked:] == []
    assert imported(any_gateway, f"{key}-second", "cherry") == "1.0"
    any_gateway.delete(f"/v1/sessions/{key}-second")


def test_pip_in_a_cell_finds_what_was_got_for_it(any_gateway: GatewayProcess, key: str) -> None:
    code = "%pip install banana\nimport banana\nbanana.VERSION"
    result = any_gateway.execute(key, code)
    assert (result["status"], result["outputs"][-1]["data"]["text/plain"]) == ("ok", "'1.0'")
    assert [(each["name"], each["action"]) for each in result["packages"]] == [
        ("apple", "installed"),
        ("banana", "installed"),
    ]
    assert "Requirement already satisfied: banana" in result["stdout"]
    notebook = any_gateway.get(f"/v1/sessions/{key}/notebook").json()
    assert "".join(notebook["cells"][0]["source"]) == code


def test_a_kernel_cannot_change_what_others_get(any_gateway: GatewayProcess, key: str) -> None:
    install(any_gateway, key, "apple==1.0")
    attack = (
        "import apple, os\n"
        "for act in (lambda: open(apple.__file__, 'a'), lambda: os.unlink(apple.__file__),"
        " lambda: os.chmod(apple.__file__, 0o777), lambda: open('/run/packages/new.py', 'w')):\n"
        "    try:\n        act()\n        print('done')\n"
        "    except OSError:\n        print('refused')\n"
    )
    assert any_gateway.execute(key, attack)["stdout"].split() == ["refused"] * 4


def test_an_ended_session_leaves_no_packages(any_gateway: GatewayProcess, key: str) -> None:
    folder = any_gateway.data_dir / "packages"
    any_gateway.execute(key, "1")
    before = set((folder / "sessions").iterdir())
    install(any_gateway, key, "apple")
    site = folder / "sites" / any_gateway.model(key)["kernel_id"]
    (own,) = set((folder / "sessions").iterdir()) - before
    assert (site / "apple").is_dir()
    assert any_gateway.delete(f"/v1/sessions/{key}").status == 204
    assert not own.exists()
    until(lambda: not site.exists(), "the kernel's folder of packages is still there")
    assert imported(any_gateway, key, "apple") == ""
    assert versions(any_gateway.get(f"/v1/sessions/{key}/packages")) == {}


# ---- what is refused ---------------------------------------------------------------------------------------


def test_without_a_policy_nothing_is_installed(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    answer = install(gateway, "s", "apple")
    assert (answer.status, answer.reason) == (403, "packages_not_allowed")
    assert "--allow-package NAME" in answer.json()["detail"]
    answer = gateway.post("/v1/sessions/s/execute", {"code": "1", "packages": "auto"})
    assert (answer.status, answer.reason) == (403, "packages_not_allowed")
    answer = gateway.post("/v1/execute", {"code": "1", "packages": "auto"})
    assert (answer.status, answer.reason) == (403, "packages_not_allowed")
    assert gateway.get("/v1/sessions/s").status == 404
    assert gateway.get("/v1/info").json()["packages"] == []
    assert not (gateway.data_dir / "packages").exists()


def test_only_allowed_names_may_be_asked_for_and_what_they_need_comes_along(
    start_gateway: StartGateway, index: Index
) -> None:
    gateway = start_gateway(packages="Banana", package_index=index.url)
    answer = install(gateway, "s", "banana", "cherry")
    assert (answer.status, answer.reason) == (403, "packages_not_allowed")
    assert "cherry" in answer.json()["detail"]
    assert "Allowed here: banana;" in answer.json()["detail"]
    assert "--allow-package NAME" in answer.json()["detail"]
    assert gateway.get("/v1/sessions/s").status == 404
    assert versions(install(gateway, "s", "banana")) == {"apple": "1.0", "banana": "1.0"}
    result = gateway.execute("s", "%pip install cherry\nprint('ran')")
    found = result["status"], result["error"]["ename"], result["cause"]
    assert found == ("error", "PackagesNotAllowed", "packages_not_allowed")
    assert result["stdout"] == ""
    code = "import banana\ntry:\n    import cherry\nexcept ImportError:\n    print('without')"
    result = gateway.execute("s", code, packages="auto")
    assert (result["status"], result["stdout"]) == ("ok", "without\n")
    assert "may not be installed here: cherry. Allowed here: banana;" in result["stderr"]


@pytest.mark.parametrize(
    "requirement",
    [
        "--index-url=http://127.0.0.1/",
        "-r requirements.txt",
        "http://127.0.0.1/apple-1.0-py3-none-any.whl",
        "apple @ http://127.0.0.1/apple-1.0-py3-none-any.whl",
        "apple @ file:///etc/passwd",
        "git+https://127.0.0.1/apple",
        "./apple",
        "/tmp/apple.whl",
        "..",
        "",
        "apple\0",
        "apple\n--index-url=http://127.0.0.1/",
        "apple; import os",
        "\ud800",
        "a" * 501,
    ],
)
def test_what_is_no_requirement_is_refused(gateway: GatewayProcess, requirement: str) -> None:
    answer = install(gateway, "never-made", requirement)
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert gateway.get("/v1/sessions/never-made").status == 404


def test_bodies_that_ask_for_nothing_or_too_much_are_refused(gateway: GatewayProcess) -> None:
    for body in ({}, {"install": ["apple"] * 101}, {"install": "apple"}, {"uninstall": ["apple==1"]}):
        assert gateway.post("/v1/sessions/never-made/packages", body).status == 400
    assert gateway.get("/v1/sessions/never-made").status == 404


# ---- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "status", "reason", "told"),
    [
        (["no-such-package"], 422, "package_not_found", "no-such-package"),
        at_night(["apple>9"], 422, "package_not_found", "apple"),
        at_night(["source"], 422, "package_not_found", "source"),
        (["banana", "cherry"], 409, "package_conflict", "banana, cherry"),
        at_night(["numpy<1"], 409, "package_conflict", "numpy"),
        (["wants-other-numpy"], 409, "package_conflict", "wants-other-numpy"),
        at_night(["two-packages"], 422, "package_install_failed", "two-packages"),
        (["wants-missing"], 409, "package_conflict", "Because missing was not found"),
        at_night(["wants-source"], 409, "package_conflict", "source==1.0 has no usable wheels"),
        at_night(["other-machine"], 422, "package_not_found", "other-machine"),
        (["cut-off"], 503, "package_index_unavailable", "cut-off"),
        (["liar"], 422, "package_install_failed", "liar"),
        (["large"], 413, "quota_exceeded", "package_disk"),
    ],
)
def test_a_failed_install_says_why_and_changes_nothing(
    gateway: GatewayProcess, settled: str, wanted: list[str], status: int, reason: str, told: str
) -> None:
    answer = install(gateway, settled, *wanted)
    assert (answer.status, answer.reason) == (status, reason), answer.body
    assert told in answer.json()["detail"]
    assert versions(gateway.get(f"/v1/sessions/{settled}/packages")) == {"apple": "1.0"}
    assert imported(gateway, settled, "apple") == "1.0"
    nothing_left(gateway)


@pytest.mark.parametrize("name", ["traversal", "absolute"])
def test_what_a_wheel_would_write_elsewhere_is_left_out(gateway: GatewayProcess, key: str, name: str) -> None:
    assert versions(install(gateway, key, name)) == {name: "1.0"}
    assert imported(gateway, key, name) == "1.0"
    assert not Path("/tmp/cellgate-escaped.py").exists()
    assert list(gateway.data_dir.rglob("*escaped.py")) == []


def test_bytecode_is_added_afterwards_and_goes_with_the_package(gateway: GatewayProcess, key: str) -> None:
    install(gateway, key, "banana")
    site = gateway.data_dir / "packages" / "sites" / gateway.model(key)["kernel_id"]
    until(lambda: len(list(site.glob("*/__pycache__/__init__.*.pyc"))) == 2, "there is no bytecode")
    gateway.execute(key, "import banana, apple")
    assert versions(
        gateway.post(f"/v1/sessions/{key}/packages", {"uninstall": ["banana", "apple"]}), "removed"
    ) == {"apple": "1.0", "banana": "1.0"}
    assert list(site.iterdir()) == []
    install(gateway, f"{key}-second", "banana")
    second = gateway.data_dir / "packages" / "sites" / gateway.model(f"{key}-second")["kernel_id"]
    assert len(list(second.glob("*/__pycache__/__init__.*.pyc"))) == 2
    gateway.delete(f"/v1/sessions/{key}-second")


def test_a_script_runs_under_the_kernel_s_python(gateway: GatewayProcess, key: str) -> None:
    install(gateway, key, "banana")
    site = gateway.data_dir / "packages" / "sites" / gateway.model(key)["kernel_id"]
    assert (site / "bin" / "peel").read_text().startswith("#!/usr/bin/env python\n")
    assert (site / "bin" / "peel").stat().st_mode & 0o777 == 0o755
    assert not (site / ".lock").exists()


def test_what_the_kernel_has_is_not_downloaded(gateway: GatewayProcess, key: str) -> None:
    assert versions(install(gateway, key, "wants-numpy", "numpy")) == {"wants-numpy": "1.0"}


def test_a_full_disk_is_told_and_leaves_room_for_the_next(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=10m,mode=0700", "tmpfs", str(folder))
    options = {"packages": "*", "package_index": index.url, "storage_reserve": 0}
    try:
        with serving(folder / "data", **options) as process:
            for name in ("too-large-to-download", "too-large-to-unpack"):
                answer = install(process, "s", name)
                assert (answer.status, answer.reason) == (507, "storage_full"), answer.body
            assert versions(install(process, "s", "apple")) == {"apple": "2.0"}
            assert imported(process, "s", "apple") == "2.0"
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=60, check=True)


def test_an_index_that_fails_is_named(gateway: GatewayProcess, settled: str, index: Index) -> None:
    index.fail.add("failing")
    answer = install(gateway, settled, "failing")
    assert (answer.status, answer.reason) == (503, "package_index_unavailable")
    assert "failing" in answer.json()["detail"]


def test_an_index_that_never_answers_has_its_time(start_gateway: StartGateway, index: Index) -> None:
    gateway = start_gateway(packages="*", package_index=index.url, package_timeout=2)
    index.hang.add("slow")
    answer = install(gateway, "s", "slow")
    assert (answer.status, answer.reason) == (503, "package_index_unavailable")
    assert "package_timeout" in answer.json()["detail"]
    index.release()


def _begin(gateway: GatewayProcess, session: str, index: Index) -> tuple[threading.Thread, list[Response]]:
    """An install that hangs at the index."""
    index.hang.add("endless")
    answers: list[Response] = []
    thread = threading.Thread(target=lambda: answers.append(install(gateway, session, "endless")))
    thread.start()
    assert index.hanging.wait(PATIENCE)
    return thread, answers


def test_an_install_ends_with_its_session(gateway: GatewayProcess, key: str, index: Index) -> None:
    gateway.execute(key, "1")
    thread, answers = _begin(gateway, key, index)
    assert gateway.delete(f"/v1/sessions/{key}").status == 204
    thread.join(PATIENCE)
    assert [(answer.status, answer.reason) for answer in answers] == [(503, "shutting_down")]
    nothing_left(gateway)
    index.release()


def test_a_gateway_stops_in_the_middle_of_an_install(start_gateway: StartGateway, index: Index) -> None:
    gateway = start_gateway(packages="*", package_index=index.url)
    gateway.execute("s", "1")
    thread, answers = _begin(gateway, "s", index)
    stop_cleanly(gateway)
    thread.join(PATIENCE)
    assert [answer.status for answer in answers] in ([503], [])
    index.release()


def test_an_interrupt_ends_the_install_of_a_cell(gateway: GatewayProcess, key: str, index: Index) -> None:
    gateway.execute(key, "1")
    index.hang.add("endless")
    execution = gateway.submit(key, "%pip install endless")
    assert index.hanging.wait(PATIENCE)
    assert gateway.post(f"/v1/sessions/{key}/interrupt").status == 204
    assert gateway.ended(key, execution)["status"] == "cancelled"
    assert gateway.execute(key, "print('alive')")["stdout"] == "alive\n"
    index.release()


# ---- changes -----------------------------------------------------------------------------------------------


def test_another_version_replaces_the_one_that_is_there(gateway: GatewayProcess, key: str) -> None:
    install(gateway, key, "apple==1.0")
    assert versions(install(gateway, key, "apple"), "installed") == {}
    answer = install(gateway, key, "apple", upgrade=True)
    assert versions(answer, "installed") == {"apple": "2.0"}
    assert versions(answer, "removed") == {"apple": "1.0"}
    assert imported(gateway, key, "apple") == "2.0"
    assert gateway.execute(key, "from importlib.metadata import version; version('apple')")["text"] == "'2.0'"


def test_what_is_uninstalled_is_gone(gateway: GatewayProcess, key: str) -> None:
    install(gateway, key, "banana")
    answer = gateway.post(f"/v1/sessions/{key}/packages", {"uninstall": ["banana", "unknown"]})
    assert versions(answer, "removed") == {"banana": "1.0"}
    assert imported(gateway, key, "banana") == ""
    gateway.execute(key, "%pip uninstall -y apple")
    assert versions(gateway.get(f"/v1/sessions/{key}/packages")) == {}
    site = gateway.data_dir / "packages" / "sites" / gateway.model(key)["kernel_id"]
    assert list(site.iterdir()) == []


@pytest.mark.nightly
def test_installs_at_once_do_not_disturb_each_other(gateway: GatewayProcess, key: str) -> None:
    keys = [f"{key}-{number}" for number in range(4)]
    answers = together(4, lambda number: install(gateway, keys[number], ("banana", "cherry")[number % 2]))
    assert [len(versions(answer)) for answer in answers] == [2] * 4
    answers = together(2, lambda number: install(gateway, key, ("large", "banana")[number]))
    assert sorted(answer.status for answer in answers) == [200, 413]
    for name in keys:
        gateway.delete(f"/v1/sessions/{name}")


@pytest.mark.nightly
def test_the_cache_keeps_its_size(start_gateway: StartGateway, index: Index) -> None:
    gateway = start_gateway(packages="*", package_index=index.url, package_cache="2m")
    install(gateway, "s", "apple==1.0")
    install(gateway, "s", "large")
    wheels = gateway.data_dir / "packages" / "wheels"
    assert len(list(wheels.iterdir())) == 1
    assert imported(gateway, "s", "apple") == "1.0"
    assert gateway.post("/v1/sessions/s/restart").status == 200
    assert imported(gateway, "s", "apple") == "1.0"


# ---- cells -------------------------------------------------------------------------------------------------


def test_missing_imports_are_installed_on_request(gateway: GatewayProcess, key: str) -> None:
    code = "import json, banana\nfrom apple import VERSION\nprint(banana.VERSION)"
    assert gateway.execute(key, code)["status"] == "error"
    result = gateway.execute(key, code, packages="auto")
    assert (result["status"], result["stdout"]) == ("ok", "1.0\n")
    assert {each["name"] for each in result["packages"]} == {"apple", "banana"}
    assert gateway.execute(key, code, packages="auto")["packages"] == []


def test_imports_that_name_no_package_are_the_cell_s_own_errors(gateway: GatewayProcess, key: str) -> None:
    code = "import apple\ntry:\n    import tschüss, _private\nexcept ImportError:\n    print(apple.VERSION)"
    result = gateway.execute(key, code, packages="auto")
    assert (result["status"], result["stdout"]) == ("ok", "2.0\n"), result
    result = gateway.execute(key, "import " + ", ".join(f"no{n}" for n in range(101)), packages="auto")
    assert (result["error"]["ename"], result["packages"]) == ("InvalidInput", [])
    body = {"code": "#" * 300_000, "packages": "auto"}
    answer = gateway.post(f"/v1/sessions/{key}/execute", body)
    assert (answer.status, answer.reason) == (400, "bad_request")


def test_packages_of_one_cell_go_with_it(gateway: GatewayProcess, key: str) -> None:
    result = gateway.execute(key, "import cherry\n1 / 0", packages="temporary")
    assert result["error"]["ename"] == "ZeroDivisionError"
    assert [(each["name"], each["action"]) for each in result["packages"]] == [
        ("apple", "installed"),
        ("cherry", "installed"),
        ("apple", "removed"),
        ("cherry", "removed"),
    ]
    assert versions(gateway.get(f"/v1/sessions/{key}/packages")) == {}


def test_a_module_that_no_index_has_is_the_cell_s_own_error(gateway: GatewayProcess, key: str) -> None:
    result = gateway.execute(key, "import nowhere_to_be_found, apple", packages="auto")
    assert result["error"]["ename"] == "ModuleNotFoundError"
    assert [each["name"] for each in result["packages"]] == ["apple"]
    answer = gateway.post(f"/v1/sessions/{key}/execute", {"code": "1", "packages": "always"})
    assert answer.status == 400


def test_blocks_of_a_shell_may_run_pip(gateway: GatewayProcess, key: str) -> None:
    shell, pip = "```sh\npip install 'apple<2'\n```", "```pip\nbanana\n```"
    markdown = f"{shell}\n{pip}\n```python\nimport banana; print(banana.VERSION)\n```"
    answer = gateway.post(f"/v1/sessions/{key}/execute-blocks", {"markdown": markdown}, timeout=PATIENCE)
    assert (answer.json()["exit_code"], answer.json()["output"].splitlines()[-1]) == (0, "1.0")


def test_the_record_tells_what_was_installed(gateway: GatewayProcess, key: str) -> None:
    installed = install(gateway, key, "apple==1.0").json()["installed"]
    gateway.execute(key, "import apple")
    (event,) = [event for event in gateway.recorded(key) if event["type"] == "packages"]
    assert (event["execution"], event["action"], event["packages"]) == (None, "installed", installed)
    assert gateway.get(f"/v1/sessions/{key}/audit/verify").json()["valid"] is True
    notebook = gateway.get(f"/v1/sessions/{key}/notebook").json()
    provenance = notebook["metadata"]["cellgate"]
    assert provenance["installed_packages"] == installed
    assert provenance["packages"]["apple"] == "1.0"
    bundle = zipfile.ZipFile(io.BytesIO(gateway.get(f"/v1/sessions/{key}/bundle").body))
    assert "apple==1.0" in bundle.read("requirements.txt").decode().splitlines()


def test_a_replay_has_the_packages_of_the_record(gateway: GatewayProcess, key: str) -> None:
    install(gateway, key, "apple==1.0")
    gateway.execute(key, "import apple; print(apple.VERSION)")
    gateway.execute(key, "%pip install banana\nimport banana")
    report = gateway.post(f"/v1/sessions/{key}/replay", {}, timeout=PATIENCE).json()
    assert (report["environment"]["agreement"], report["different"]) == ("same", 0), report


def test_a_replay_without_the_packages_is_refused_and_says_why(
    start_gateway: StartGateway, index: Index, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    gateway = start_gateway(data, packages="*", package_index=index.url)
    install(gateway, "s", "apple==1.0")
    gateway.execute("s", "import apple; print(apple.VERSION)")
    stop_cleanly(gateway)
    gateway = start_gateway(data)
    answer = gateway.post("/v1/sessions/s/replay", {}, timeout=PATIENCE)
    assert (answer.status, answer.reason) == (409, "environment_differs")
    assert "apple 1.0 -> absent" in answer.json()["detail"]
    assert "operator" in answer.json()["detail"]
    report = gateway.post("/v1/sessions/s/replay", {"anyway": True}, timeout=PATIENCE).json()
    assert report["different"] == 1


# ---- other doors -------------------------------------------------------------------------------------------


def test_the_python_client_installs_and_tells_refusals_apart(gateway: GatewayProcess, key: str) -> None:
    with Gateway.sync(gateway.url, gateway.token) as client:
        session = client.session(key)
        changed = session.install("banana")
        assert [(each.name, each.requested) for each in changed.installed] == [
            ("apple", False),
            ("banana", True),
        ]
        assert [each.name for each in session.packages()] == ["apple", "banana"]
        assert [each.name for each in session.uninstall("banana").removed] == ["banana"]
        result = session.run("import banana; print(banana.VERSION)", packages="auto").check()
        assert (result.stdout, [each.name for each in result.packages]) == ("1.0\n", ["banana"])
        with pytest.raises(Conflict, match="numpy"):
            session.install("numpy<1")


async def test_jupyter_clients_get_packages_too(gateway: GatewayProcess) -> None:
    kernel = gateway.post("/api/kernels").json()["id"]
    async with channels(gateway, kernel) as client:
        messages = await client.run("%pip install banana\nimport banana; print(banana.VERSION)")
        assert text(messages).endswith("1.0\n")
        messages = await client.run("%pip install nowhere-to-be-found\nprint('ran')")
        (error,) = [m["content"] for m in messages if m["msg_type"] == "error"]
        assert error["ename"] == "PackageNotFound"
        assert not [m for m in messages if m["msg_type"] == "stream"]
    assert gateway.delete(f"/api/kernels/{kernel}").status == 204


async def test_a_model_installs_packages(gateway: GatewayProcess, key: str, tmp_path: Path) -> None:
    tools = McpTools(Gateway(gateway.url, gateway.token).session(key), tmp_path)
    assert await tools.install_packages(["banana"]) == "installed: apple 1.0, banana 1.0"
    assert await tools.install_packages(["banana"]) == "all of them were there already"
    with pytest.raises(ToolError, match="package_not_found"):
        await tools.install_packages(["nowhere-to-be-found"])


def test_a_package_of_the_real_index(start_gateway: StartGateway) -> None:
    gateway = start_gateway(packages="humanize")
    for _ in range(3):  # it may fail for a moment
        answer = install(gateway, "s", "humanize")
        if answer.status == 200:
            break
    else:
        require("packages", answer.body.decode())
    assert "humanize" in versions(answer)
    assert gateway.execute("s", "import humanize; humanize.naturalsize(10**6)")["text"] == "'1.0 MB'"
