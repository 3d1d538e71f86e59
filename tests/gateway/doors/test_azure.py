"""The door of Azure's dynamic sessions, called as the clients of AutoGen, LangChain and others call it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import requests

from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.opening import open_users
from cellgate_kernels.base.resources import MIB
from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until

OLDER, NEWER, NEWEST = "2024-02-02-preview", "2025-02-02-preview", "2025-10-02-preview"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with the door."""
    folder = tmp_path_factory.mktemp("azure") / "data"
    with serving(folder, "sandbox", doors="azure", cell_timeout=20, docker_url=NO_ENGINE) as process:
        yield process


def ask(
    gateway: GatewayProcess,
    method: str,
    path: str,
    identifier: str | None = "one",
    *,
    version: str = OLDER,
    token: str = TOKEN,
    **more: Any,
) -> requests.Response:
    """One request; these clients all send their parameters in this way."""
    query = f"api-version={version}" + ("" if identifier is None else f"&identifier={quote(identifier)}")
    url = f"{gateway.url}/azure/{path}{'&' if '?' in path else '?'}{query}"
    headers = {"Authorization": f"Bearer {token}"}
    return requests.request(method, url, headers=headers, timeout=more.pop("timeout", PATIENCE), **more)


def told(answer: requests.Response) -> Any:
    """What a good answer has."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    return answer.json()


def run(gateway: GatewayProcess, code: str, identifier: str = "one", **more: Any) -> Any:
    """A cell, by the older API."""
    body = {"codeInputType": "inline", "executionType": "synchronous", "code": code, **more}
    answer = ask(gateway, "POST", "code/execute", identifier, json={"properties": body})
    ran = told(answer)["properties"]
    assert list(ran) == ["status", "stdout", "stderr", "result"]
    return ran


def execute(gateway: GatewayProcess, identifier: str = "one", **body: Any) -> Any:
    """A cell or a command, by the newer API."""
    return told(ask(gateway, "POST", "executions", identifier, version=NEWER, json=body))


def names(gateway: GatewayProcess, identifier: str = "one") -> list[str]:
    """The names of files, by the older API."""
    return [
        each["properties"]["filename"] for each in told(ask(gateway, "GET", "files", identifier))["value"]
    ]


def refused(answer: requests.Response) -> tuple[int, str]:
    """The status and the code of a refusal in Azure's form."""
    error = answer.json()["error"]
    assert set(error) == {"code", "message"}
    assert error["message"]
    return answer.status_code, error["code"]


# ---- cells


def test_autogen_looks_around_and_runs_its_cells(gateway: GatewayProcess) -> None:
    listed = run(gateway, "\nimport pkg_resources\n[d.project_name for d in pkg_resources.working_set]\n")
    # AutoGen takes stderr and the result as one text.
    assert (listed["status"], listed["stderr"]) == ("Success", "")
    packages = {each.strip(" '") for each in str(listed["result"]).strip("[]").split(",\n")}
    assert {"pandas", "numpy"} <= packages
    assert run(gateway, "import os; os.chdir('/mnt/data')")["result"] == ""
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nopen('made.txt', 'w').write('three')"
    ran = run(gateway, code)
    assert ran == {"status": "Success", "stdout": "out\n", "stderr": "err\n", "result": 5}
    assert "made.txt" in names(gateway)
    assert ask(gateway, "GET", "files/content/made.txt").content == b"three"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("6 * 7", 42),
        ("-1.5e-7", -1.5e-07),
        ("float('nan')", "nan"),
        ("'42'", "'42'"),
        ("True", "True"),
        ("[1, 2]", "[1, 2]"),
        ("None", ""),
        ("x = 1", ""),
        ("10 ** 400", "1" + "0" * 400),
        ("6; print('shown')", ""),
    ],
)
def test_a_value_is_a_number_or_its_text_and_never_null(
    gateway: GatewayProcess, code: str, value: object
) -> None:
    ran = run(gateway, code)
    assert (ran["result"], type(ran["result"])) == (value, type(value))


def test_a_picture_is_a_result(gateway: GatewayProcess) -> None:
    made = f"""
import base64
from IPython.display import Image, display
pixel = Image(base64.b64decode('{PIXEL}'))
"""
    expected = {"type": "image", "format": "png", "base64_data": PIXEL}
    assert run(gateway, f"{made}\npixel")["result"] == expected
    assert execute(gateway, code="display(pixel); x = 1")["result"]["executionResult"] == expected


def test_a_failure_is_told_in_stderr(gateway: GatewayProcess) -> None:
    ran = run(gateway, "print('before')\n1/0")
    assert (ran["status"], ran["stdout"], ran["result"]) == ("Failure", "before\n", "")
    assert ran["stderr"].endswith("ZeroDivisionError: division by zero\n")
    assert "\x1b" not in ran["stderr"]


def test_a_deadline_and_a_kernels_death_are_failures(gateway: GatewayProcess) -> None:
    run(gateway, "kept = 5", "ends")
    slow = run(gateway, "print('begun')\nimport time; time.sleep(60)", "ends", timeoutInSeconds=1)
    assert (slow["status"], slow["stdout"]) == ("Failure", "begun\n")
    assert "The cell ran longer than it may" in slow["stderr"]
    assert run(gateway, "kept", "ends", timeoutInSeconds=1_000_000)["result"] == 5
    died = run(gateway, "import os; os._exit(3)", "ends")
    assert died["status"] == "Failure"
    assert "KernelDied" in died["stderr"]
    assert run(gateway, "1", "ends")["result"] == 1


def test_large_output_comes_whole(gateway: GatewayProcess) -> None:
    ran = run(gateway, "print('x' * 2_000_000)\n'y' * 1_000_000")
    assert (len(ran["stdout"]), len(ran["result"])) == (2_000_001, 1_000_002)


def test_a_cell_whose_client_leaves_is_stopped(gateway: GatewayProcess) -> None:
    run(gateway, "1", "leaves")
    body = {"properties": {"code": "import time\nwhile True: time.sleep(0.1)"}}
    with pytest.raises(requests.Timeout):
        ask(gateway, "POST", "code/execute", "leaves", json=body, timeout=(PATIENCE, 1))
    key = key_of(gateway, "leaves")

    def last() -> tuple[str, str | None]:
        found = gateway.get(f"/v1/sessions/{key}/executions?newest=true&limit=1").json()["executions"][0]
        result = gateway.result(key, found["execution"])
        return result["status"], result["cause"]

    until(lambda: last() == ("interrupted", "client_disconnected"), "it runs on")
    assert run(gateway, "2", "leaves")["result"] == 2


# ---- sessions


def key_of(gateway: GatewayProcess, identifier: str, token: str = TOKEN) -> str:
    """The key of the session of this identifier."""
    listed = gateway.get("/v1/sessions?limit=1000", token=token).json()["sessions"]
    (key,) = (each["session"] for each in listed if (each["metadata"] or {}).get("identifier") == identifier)
    return str(key)


@pytest.mark.parametrize("identifier", ["sess/ 1", "ü+&=%41", "x" * 1000])
def test_any_text_names_a_session(gateway: GatewayProcess, identifier: str) -> None:
    run(gateway, "mine = 7", identifier)
    assert run(gateway, "mine", identifier)["result"] == 7
    assert run(gateway, "mine", f"{identifier} ")["status"] == "Failure"
    model = gateway.model(key_of(gateway, identifier))
    assert model["metadata"] == {"door": "azure", "identifier": identifier}
    assert model["limits"]["idle_timeout"] == 300
    assert gateway.get(f"/v1/sessions/{model['session']}/audit/verify").json()["valid"] is True


def test_what_is_asked_for_must_have_a_session_and_something_to_do(gateway: GatewayProcess) -> None:
    cell = {"properties": {"code": "1"}}
    for identifier in (None, "", "x" * 1025):
        bad = ask(gateway, "POST", "code/execute", identifier, json=cell)
        assert refused(bad) == (400, "bad_request")
        bad = ask(gateway, "POST", "files/upload", identifier, files={"file": ("a", b"")})
        assert refused(bad) == (400, "bad_request")
    for body in (
        {},
        {"properties": {}},
        {"properties": {"code": 1}},
        {"properties": {"code": "1", "timeoutInSeconds": -1}},
    ):
        assert refused(ask(gateway, "POST", "code/execute", json=body)) == (400, "bad_request")
    for more in ({}, {"code": "1", "shellCommand": "ls"}, {"code": "1", "executionType": "asynchronous"}):
        bad = ask(gateway, "POST", "executions", version=NEWER, json=more)
        assert refused(bad) == (400, "bad_request")
    bad = ask(
        gateway, "POST", "executions", version=NEWER, json={"code": "MQ==", "codeInputType": "inlineBase64"}
    )
    assert refused(bad) == (400, "bad_request")


def test_each_user_has_sessions_of_their_own_and_tokens_have_their_limits(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway(doors="all")
    with open_users(gateway.data_dir, create=True) as store:
        tokens = {}
        for name in ("ada", "bob"):
            store.add_user(name, Role.USER)
            tokens[name] = store.create_token(name, reach=Reach())[1]
        reads = frozenset({Permission.READ})
        tokens["reads"] = store.create_token("ada", scopes=reads, reach=Reach())[1]
        tokens["agent"] = store.create_token("ada", reach=Reach("agent-"))[1]
        tokens["door"] = store.create_token("ada", reach=Reach("azure-"))[1]
    cell = {"properties": {"code": "x = globals().get('x', 0) + 1; x"}}

    def said(name: str) -> requests.Response:
        return ask(gateway, "POST", "code/execute", token=tokens[name], json=cell)

    assert [told(said(name))["properties"]["result"] for name in ("ada", "bob", "door")] == [1, 1, 2]
    assert key_of(gateway, "one", tokens["ada"]) == key_of(gateway, "one", tokens["bob"])
    for name in ("reads", "agent"):
        assert refused(said(name)) == (403, "forbidden")
        upload = ask(gateway, "POST", "files/upload", token=tokens[name], files={"file": ("a", b"1")})
        assert refused(upload) == (403, "forbidden")
        assert refused(ask(gateway, "GET", "files", token=tokens[name])) == (403, "forbidden")
        for path in ("files", "files/upload"):
            upload = ask(gateway, "PUT", path, "put", token=tokens[name], files={"file": ("a", b"1")})
            assert refused(upload) == (405, "method_not_allowed")
    listed = gateway.get("/v1/sessions?limit=1000", token=tokens["ada"]).json()["sessions"]
    assert [each["metadata"]["identifier"] for each in listed] == ["one"]
    assert refused(ask(gateway, "GET", "files", token="wrong"))[0] == 401
    assert start_gateway().post("/azure/code/execute?identifier=one", cell).status == 404


# ---- files


def test_files_come_and_go_by_the_older_api(gateway: GatewayProcess) -> None:
    one = "files"
    assert names(gateway, one) == [], "of a session that there never was"
    sent = {
        "in%20file.csv": "in file.csv",  # aiohttp
        "%2Fmnt%2Fdata%2Fdeep%2Fa.csv": "deep/a.csv",
        "/mnt/data/b.csv": "b.csv",  # LlamaIndex, Semantic Kernel
        "100%25.txt": "100%.txt",
    }
    for name, arrived in sent.items():
        answer = ask(gateway, "POST", "files/upload", one, files={"file": (name, b"a,b", "text/csv")})
        (entry,) = told(answer)["value"]
        assert (entry["properties"]["filename"], entry["properties"]["size"]) == (arrived, 3)
        assert entry["properties"]["lastModifiedTime"].endswith("Z")
        got = ask(gateway, "GET", f"files/content/{quote(arrived)}", one)
        assert (got.status_code, got.content) == (200, b"a,b")
        assert got.headers["Content-Disposition"].startswith("attachment;")
    assert sorted(names(gateway, one)) == sorted(sent.values())
    assert run(gateway, "print(open('/mnt/data/in file.csv').read())", one)["stdout"] == "a,b\n"
    for name in ("../out", "%2e%2e%2fout", "/etc/passwd", "/workspace//mnt/data/b", "a%00b"):
        bad = ask(gateway, "POST", "files/upload", one, files={"file": (name, b"1")})
        assert refused(bad) == (400, "bad_request")
    assert refused(ask(gateway, "GET", "files/content/none.txt", one)) == (404, "not_found")
    assert refused(ask(gateway, "GET", "files/content/none.txt", "nobody's")) == (404, "not_found")
    assert refused(ask(gateway, "GET", "files/content/..%2F..%2Fetc%2Fpasswd", one)) == (400, "bad_request")


def test_a_form_that_is_called_json_is_a_form(gateway: GatewayProcess) -> None:
    """As Semantic Kernel sends it once it has run a cell."""
    form = requests.Request("POST", gateway.url, files={"file": ("/mnt/data/f.txt", b"abc")}).prepare()
    label = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    url = f"{gateway.url}/azure/files/upload?api-version={OLDER}&identifier=labels"
    answer = requests.post(url, data=form.body, headers=label, timeout=PATIENCE)
    assert told(answer)["value"][0]["properties"]["filename"] == "f.txt"
    assert names(gateway, "labels") == ["f.txt"]
    for body in (b"{}", b'{"no": "form"}' * 10):
        bad = requests.post(url, data=body, headers=label, timeout=PATIENCE)
        assert refused(bad) == (415, "unsupported_media")


def test_files_and_commands_by_the_newer_api(gateway: GatewayProcess) -> None:
    one = "newer"
    for path, name in (("/mnt/data", "a.txt"), ("/mnt/data/sub", "b.csv"), ("/", "content")):
        upload = {"file": (name, b"12345", "application/octet-stream")}
        entry = told(ask(gateway, "POST", f"files?path={path}", one, version=NEWER, files=upload))
        assert entry.pop("lastModifiedAt")
        kind = {"a.txt": "text/plain", "b.csv": "text/csv", "content": "application/octet-stream"}[name]
        assert entry == {"name": name, "type": "file", "contentType": kind, "sizeInBytes": 5}
    listed = told(ask(gateway, "GET", "files", one, version=NEWER))["value"]
    assert [(each["name"], each["sizeInBytes"]) for each in listed] == [
        ("a.txt", 5),
        ("content", 5),
        ("sub/b.csv", 5),
    ]
    for folder in ("/mnt/data/sub", "/sub", "sub"):
        listed = told(ask(gateway, "GET", f"files?path={folder}", one, version=NEWER))["value"]
        assert [each["name"] for each in listed] == ["b.csv"]
    bad = ask(gateway, "GET", "files?path=/workspace//mnt/data/sub", one, version=NEWER)
    assert refused(bad) == (400, "bad_request")
    for name in ("a.txt", "content", "sub/b.csv"):
        assert ask(gateway, "GET", f"files/{name}/content", one, version=NEWER).content == b"12345"
    ran = execute(gateway, one, shellCommand="wc -c < a.txt; echo no >&2; exit 3")
    assert (ran["identifier"], ran["status"]) == (one, "3")
    assert (ran["result"]["stdout"], ran["result"]["stderr"]) == ("5\n", "no\n")
    ran = execute(gateway, one, shellCommand="echo begun; sleep 60", timeoutInSeconds=1)
    assert (ran["status"], ran["result"]["stdout"]) == ("124", "begun\n")
    assert ran["result"]["stderr"]
    assert execute(gateway, one, shellCommand="kill -9 $$")["status"] == "137"
    cell = {"codeInputType": "Inline", "executionType": "Synchronous", "code": "print(7*9)\n5"}
    ran = execute(gateway, one, timeoutInSeconds=60, **cell)
    assert (ran["status"], ran["identifier"], ran["executionType"]) == ("Succeeded", one, "Synchronous")
    assert isinstance(ran["result"].pop("executionTimeInMilliseconds"), int)
    assert ran["result"] == {"stdout": "63\n", "stderr": "", "executionResult": 5}
    assert execute(gateway, one, code="1/0")["status"] == "Failed"


def test_a_session_is_ended_with_its_files(gateway: GatewayProcess) -> None:
    one = "ended"
    run(gateway, "open('a.txt', 'w').write('1'); x = 1", one)
    key = key_of(gateway, one)
    for _ in range(2):
        assert ask(gateway, "DELETE", "session", one, version=NEWEST).status_code == 204
    assert gateway.model(key)["state"] == "ended"
    assert names(gateway, one) == []
    assert run(gateway, "x", one)["status"] == "Failure"
    assert ask(gateway, "DELETE", "session", "never there", version=NEWEST).status_code == 204


def test_a_large_upload_passes_without_memory(gateway: GatewayProcess) -> None:
    size = 100
    run(gateway, "1", "large")
    process = psutil.Process(gateway.process.pid)
    before = process.memory_info().rss
    most = before
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="large.bin"\r\n\r\n'
    tail = b"\r\n--b--\r\n"
    connection = gateway.connect()
    try:
        connection.putrequest("POST", f"/azure/files/upload?identifier=large&api-version={OLDER}")
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", str(len(head) + size * MIB + len(tail)))
        connection.endheaders()
        connection.send(head)
        for _ in range(size):
            connection.send(bytes(MIB))
            most = max(most, process.memory_info().rss)
        connection.send(tail)
        with connection.getresponse() as answer:
            listed = json.loads(answer.read())["value"]
    finally:
        connection.close()
    assert [each["properties"]["size"] for each in listed] == [size * MIB]
    assert most - before < 40 * MIB
    with requests.get(
        f"{gateway.url}/azure/files/content/large.bin?identifier=large",
        headers={"X-API-Key": TOKEN},
        timeout=PATIENCE,
        stream=True,
    ) as got:
        assert sum(map(len, got.iter_content(MIB))) == size * MIB
