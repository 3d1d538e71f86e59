"""Jupyter's REST interface: what its clients send, and what they need of the answers."""

from __future__ import annotations

import re
import uuid
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime

import pytest

from tests.support.server import TOKEN, GatewayProcess, together


def check_model(model: dict[str, object]) -> None:
    """A kernel's model as GatewayClient takes it."""
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    assert re.fullmatch(r"\w+-\w+-\w+-\w+-\w+", str(model["id"]))
    datetime.strptime(str(model["last_activity"]), "%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: DTZ007
    assert model["name"] == "python3"
    assert model["execution_state"] == "idle"
    assert type(model["connections"]) is int


def test_api_tells_the_version_to_anybody(jupyter: GatewayProcess) -> None:
    answer = jupyter.get("/api", token=None)
    assert (answer.status, list(answer.json())) == (200, ["version"])


def test_kernelspecs_have_what_clients_read(jupyter: GatewayProcess) -> None:
    specs = jupyter.get("/api/kernelspecs?user=somebody").json()
    assert specs["default"] == "python3"
    spec = specs["kernelspecs"]["python3"]
    assert spec["name"] == "python3"
    assert spec["resources"] == {}
    assert spec["spec"]["language"] == "python"
    assert spec["spec"]["argv"]
    assert jupyter.get("/api/kernelspecs/python3").json() == spec
    assert jupyter.get("/api/kernelspecs/python").json()["name"] == "python3"


def test_a_kernelspec_that_is_not_there_is_404_in_jupyters_form(jupyter: GatewayProcess) -> None:
    answer = jupyter.get("/api/kernelspecs/cobol")
    assert answer.status == 404
    assert set(answer.json()) == {"message", "reason"}
    assert jupyter.get("/kernelspecs/python3/kernel.json").status == 404
    assert jupyter.get("/kernelspecs/python3/..%2Fkernel.json").status == 404


@pytest.mark.parametrize(
    "body", [None, b"", b"{}", b"null", {"name": "python3"}, {"name": "python", "path": "a", "new": 1}]
)
def test_any_usual_body_starts_a_kernel(
    jupyter: GatewayProcess, start_kernel: Callable[..., str], body: object
) -> None:
    kernel = start_kernel(body)
    model = jupyter.get(f"/api/kernels/{kernel}").json()
    check_model(model)
    assert model in jupyter.get("/api/kernels").json()
    assert jupyter.delete(f"/api/kernels/{kernel}").status == 204
    assert jupyter.get(f"/api/kernels/{kernel}").status == 404
    assert jupyter.delete(f"/api/kernels/{kernel}").status == 404


def test_the_content_type_of_fetch_starts_a_kernel_too(jupyter: GatewayProcess) -> None:
    """fetch() calls a string text/plain, and so does @jupyterlab/services. The Origin is still checked."""
    headers = {"Content-Type": "text/plain;charset=UTF-8"}
    answer = jupyter.post("/api/kernels", {"name": "python3"}, headers=headers)
    assert answer.status == 201, answer.body
    assert jupyter.delete(f"/api/kernels/{answer.json()['id']}").status == 204
    foreign = headers | {"Origin": "http://evil.example"}
    assert jupyter.post("/api/kernels", {"name": "python3"}, headers=foreign).status == 403


@pytest.mark.parametrize("body", [b"[]", b"{", {"name": 1}, {"env": {"A": 1}}, {"name": "cobol"}])
def test_a_body_that_makes_no_sense_is_400_and_starts_nothing(jupyter: GatewayProcess, body: object) -> None:
    before = jupyter.get("/api/kernels").json()
    answer = jupyter.post("/api/kernels", body)
    assert answer.status == 400
    assert answer.json()["message"]
    assert jupyter.get("/api/kernels").json() == before


def test_restart_and_interrupt_take_any_body(jupyter: GatewayProcess, kernel: str) -> None:
    assert jupyter.post(f"/api/kernels/{kernel}/interrupt", {"kernel_id": kernel}).status == 204
    assert jupyter.post(f"/api/kernels/{kernel}/interrupt").status == 204
    answer = jupyter.post(f"/api/kernels/{kernel}/restart")
    assert answer.status == 200
    check_model(answer.json())
    assert answer.json()["id"] == kernel


@pytest.mark.parametrize(
    ("header", "query", "status"),
    [
        (f"token {TOKEN}", "", 200),
        (f"Bearer {TOKEN}", "", 200),
        ("Basic " + b64encode(f"user:{TOKEN}".encode()).decode(), "", 200),
        (None, f"?token={TOKEN}", 200),
        ("token ", f"?token={TOKEN}", 200),
        ("token ", "", 401),
        ("token wrong", f"?token={TOKEN}", 401),
        ("Basic !!", "", 401),
        (None, "", 401),
    ],
)
def test_every_usual_way_to_send_the_token(
    jupyter: GatewayProcess, header: str | None, query: str, status: int
) -> None:
    headers = {"Authorization": header} if header else {}
    answer = jupyter.get(f"/api/kernels{query}", token=None, headers=headers)
    assert answer.status == status
    if status == 401:
        assert set(answer.json()) == {"message", "reason"}


def test_a_kernel_is_a_session_of_the_native_interface(jupyter: GatewayProcess, kernel: str) -> None:
    assert kernel in {session["session"] for session in jupyter.get("/v1/sessions").json()["sessions"]}
    assert jupyter.execute(kernel, "1+1")["text"] == "2"


def test_a_native_session_is_a_kernel_with_a_stable_id(jupyter: GatewayProcess) -> None:
    key = f"named-{uuid.uuid4().hex[:8]}"
    assert jupyter.post("/v1/sessions", {"session": key}).status == 201
    before = {kernel["id"] for kernel in jupyter.get("/api/kernels").json()}
    jupyter.post(f"/v1/sessions/{key}/restart")
    assert {kernel["id"] for kernel in jupyter.get("/api/kernels").json()} == before
    found = [k for k in before if jupyter.get(f"/v1/sessions/{k}").status == 404]
    assert len(found) == 1
    assert jupyter.delete(f"/api/kernels/{found[0]}").status == 204
    assert jupyter.model(key)["state"] == "ended"


def test_the_environment_of_one_request_reaches_one_kernel(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    """Twelve requests at once, some with a secret of their own; no kernel sees another's."""
    gateway = start_gateway(max_kernels=60, concurrent_starts=2, claim_timeout=100)

    def start(index: int) -> tuple[str, object]:
        body = {"env": {"SECRET": f"secret-{index}", f"ONLY_{index}": "1"}} if index % 3 == 0 else {}
        answer = gateway.post("/api/kernels", body, timeout=110)
        assert answer.status == 201, answer.body
        code = "import os; print(os.environ.get('SECRET'), sorted(k for k in os.environ if k[:5] == 'ONLY_'))"
        kernel = answer.json()["id"]
        seen = gateway.execute(kernel, code)["stdout"]
        gateway.delete(f"/api/kernels/{kernel}")
        wanted = f"secret-{index} ['ONLY_{index}']\n" if body else "None []\n"
        return seen, wanted

    for seen, wanted in together(12, start):
        assert seen == wanted


def test_jupyters_sessions_bind_a_path_to_a_kernel(jupyter: GatewayProcess, kernel: str) -> None:
    path = f"{uuid.uuid4()}.ipynb"
    body = {"path": path, "name": "n", "type": "notebook", "kernel": {"id": kernel}}
    made = jupyter.post("/api/sessions", body)
    assert made.status == 201
    model = made.json()
    assert model["kernel"]["id"] == kernel
    assert model["notebook"] == {"path": path, "name": "n"}
    assert jupyter.post("/api/sessions", body).json()["id"] == model["id"]
    assert model in jupyter.get("/api/sessions").json()
    assert (
        jupyter.request("PATCH", f"/api/sessions/{model['id']}", {"path": "b.ipynb"}).json()["path"]
        == "b.ipynb"
    )
    assert jupyter.delete(f"/api/sessions/{model['id']}").status == 204
    assert jupyter.get(f"/api/sessions/{model['id']}").status == 404
    assert jupyter.get(f"/api/kernels/{kernel}").status == 404


def test_a_jupyter_session_goes_with_its_kernel(jupyter: GatewayProcess) -> None:
    model = jupyter.post("/api/sessions", {"path": str(uuid.uuid4()), "kernel": {"name": "python3"}}).json()
    assert jupyter.delete(f"/api/kernels/{model['kernel']['id']}").status == 204
    assert jupyter.get(f"/api/sessions/{model['id']}").status == 404


def test_a_document_s_path_is_the_title_of_its_session(jupyter: GatewayProcess) -> None:
    def title(kernel: str) -> object:
        model = jupyter.model(kernel)
        assert model["metadata"] == {"title": model["title"]}
        return model["title"]

    first, second = f"{uuid.uuid4()}.ipynb", f"{uuid.uuid4()}.ipynb"
    opened = jupyter.post("/api/sessions", {"path": first, "kernel": {"name": "python3"}}).json()
    kernel = opened["kernel"]["id"]
    assert title(kernel) == first
    for _ in range(2):
        jupyter.request("PATCH", f"/api/sessions/{opened['id']}", {"path": second})
        assert title(kernel) == second
    changes = [each for each in jupyter.recorded(kernel) if each.get("cause") == "changed"]
    assert [each["metadata"] for each in changes] == [{"title": second}], "once, as any change"
    # Another document with the same kernel is not what the session is about.
    jupyter.post("/api/sessions", {"path": "other.ipynb", "kernel": {"id": kernel}})
    assert title(kernel) == second
    jupyter.delete(f"/api/kernels/{kernel}")
    assert title(kernel) == second, "the record keeps it"
    # Jupyter Server has no path to give with a kernel but this variable, which the kernel does not get.
    made = jupyter.post("/api/kernels", {"env": {"JPY_SESSION_NAME": "work/a.ipynb"}}).json()["id"]
    assert title(made) == "work/a.ipynb"
    seen = jupyter.execute(made, "import os; print('JPY_SESSION_NAME' in os.environ)")
    assert seen["stdout"] == "False\n"
    plain = jupyter.post("/api/kernels").json()["id"]
    assert title_of(jupyter.model(plain)) is None
    for each in (made, plain):
        jupyter.delete(f"/api/kernels/{each}")


def title_of(model: dict[str, object]) -> object:
    assert model["metadata"] == {}
    return model["title"]


def test_files_and_variables_are_the_same_from_both_sides(jupyter: GatewayProcess) -> None:
    """A Jupyter client's kernel and the native interface: one session, one workspace."""
    model = jupyter.post("/api/sessions", {"path": "both.ipynb", "kernel": {"name": "python3"}}).json()
    key = model["kernel"]["id"]
    assert jupyter.request("PUT", f"/v1/sessions/{key}/files/data.csv", b"1,2").status == 201
    assert jupyter.execute(key, "open('made.txt', 'w').write(open('data.csv').read())")["status"] == "ok"
    listed = jupyter.get(f"/v1/sessions/{key}/files").json()["files"]
    assert [file["path"] for file in listed] == ["data.csv", "made.txt"]
    assert key in [kernel["id"] for kernel in jupyter.get("/api/kernels").json()]
    jupyter.delete(f"/api/sessions/{model['id']}")
