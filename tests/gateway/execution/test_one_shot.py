"""POST /v1/execute: a cell in a kernel of its own, which leaves nothing unless it is asked to."""

from __future__ import annotations

import json
import os
import uuid

import pytest

from tests.support.server import IN_TIME, GatewayProcess, Response, together, until


def one_shot(gateway: GatewayProcess, code: str, **fields: object) -> Response:
    """POST /v1/execute."""
    return gateway.post("/v1/execute", {"code": code, **fields})


def on_disk(gateway: GatewayProcess, words: str) -> bool:
    """Whether these words are in the database or its log."""
    files = list(gateway.data_dir.glob("record.sqlite3*"))
    assert files
    return any(words.encode() in path.read_bytes() for path in files)


def file_names(gateway: GatewayProcess) -> set[str]:
    """All names in the data folder; folders come and go with kernels meanwhile, which os.walk bears."""
    return {name for _, _, names in os.walk(gateway.data_dir) for name in names}


def test_each_one_gets_a_fresh_kernel(gateway: GatewayProcess) -> None:
    first = one_shot(gateway, "x = 1; open('file.txt', 'w').close(); print('out'); 6 * 7")
    assert first.status == 200
    result = first.json()
    assert (result["status"], result["text"], result["execution_count"]) == ("ok", "out\n42", 1)
    second = one_shot(gateway, "import os; print('x' in globals(), os.listdir())").json()
    assert (second["stdout"], second["execution_count"]) == ("False []\n", 1)
    assert second["session"] != result["session"]


@pytest.mark.alone
def test_it_leaves_nothing_in_lists_or_on_the_disk(gateway: GatewayProcess, session: str) -> None:
    marker, control = uuid.uuid4().hex, uuid.uuid4().hex
    gateway.execute(session, f"print('{control}')")
    result = one_shot(gateway, f"print('{marker}')", env={"A": marker}).json()
    assert result["stdout"] == f"{marker}\n"
    gateway.execute(session, "'what was written before this is on the disk now'")
    assert on_disk(gateway, control)
    assert not on_disk(gateway, marker)
    listed = gateway.get("/v1/sessions?limit=1000").json()["sessions"]
    assert result["session"] not in {model["session"] for model in listed}
    for path in ("", f"/executions/{result['execution']}", "/events", "/notebook"):
        assert gateway.get(f"/v1/sessions/{result['session']}{path}").status == 404


def test_its_kernel_and_its_files_are_gone_afterwards(gateway: GatewayProcess) -> None:
    name = f"{uuid.uuid4().hex}.txt"
    assert one_shot(gateway, f"open('{name}', 'w').close()").json()["status"] == "ok"
    until(lambda: name not in file_names(gateway), "its files are still there")

    def given_back() -> bool:
        info = gateway.get("/v1/info").json()
        return bool(info["pool"]["in_use"] == sum(info["sessions"].values()))

    until(given_back, "its kernel is still in use")


def test_a_recorded_one_is_an_ended_session(gateway: GatewayProcess) -> None:
    marker = uuid.uuid4().hex
    result = one_shot(gateway, f"print('{marker}')", record=True).json()
    key = result["session"]
    until(lambda: gateway.model(key)["state"] == "ended", "it did not end")
    assert gateway.model(key)["cause"] == "one_shot"
    listed = gateway.get("/v1/sessions?limit=1000&state=ended").json()["sessions"]
    assert key in {model["session"] for model in listed}
    kept = gateway.result(key, result["execution"])
    assert {**kept, "kernel": None} == {**result, "kernel": None}
    notebook = gateway.get(f"/v1/sessions/{key}/notebook").json()
    assert [cell["outputs"][0]["text"] for cell in notebook["cells"]] == [[f"{marker}\n"]]


@pytest.mark.parametrize("record", [True, False])
def test_it_streams(gateway: GatewayProcess, record: bool) -> None:
    body = {"code": "print('a', end=''); 1", "record": record}
    events = list(gateway.events("POST", "/v1/execute", body))
    assert [e["type"] for e in events] == ["queued", "started", "stream", "execute_result", "finished"]
    assert events[-1]["status"] == "ok"
    with gateway.stream("POST", "/v1/execute", body, accept="text/event-stream") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        text = answer.read().decode()
    data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in data] == [event["type"] for event in events]


def test_it_streams_while_the_cell_runs(gateway: GatewayProcess) -> None:
    body = {"code": "print('first', end='', flush=True)\nwhile True: pass", "on_disconnect": "interrupt"}
    before = gateway.get("/v1/info").json()["pool"]["in_use"]
    with gateway.stream("POST", "/v1/execute", body) as answer:
        events = (json.loads(line) for line in answer)
        assert next(event for event in events if event["type"] == "stream")["text"] == "first"
    until(
        lambda: gateway.get("/v1/info").json()["pool"]["in_use"] <= before, "a client that left runs a kernel"
    )


def test_it_has_a_deadline(strict: GatewayProcess) -> None:
    result = one_shot(strict, "print('a', flush=True)\nimport time; time.sleep(600)", timeout=IN_TIME).json()
    assert (result["status"], result["cause"], result["stdout"]) == ("timeout", "cell_timeout", "a\n")
    limits = {"cell_timeout": 0.5}
    assert one_shot(strict, "while True: pass", limits=limits).json()["status"] == "timeout"


def test_it_dies_alone(gateway: GatewayProcess) -> None:
    result = one_shot(gateway, "import os; os._exit(2)").json()
    assert (result["status"], result["cause"], result["error"]["ename"]) == (
        "died",
        "kernel_exit",
        "KernelDied",
    )
    assert one_shot(gateway, "1").json()["status"] == "ok"


def test_it_takes_input_variables_limits_and_a_kernel(gateway: GatewayProcess) -> None:
    code = (
        "import os, resource; print(input(), os.environ['A'], resource.getrlimit(resource.RLIMIT_FSIZE)[0])"
    )
    result = one_shot(
        gateway, code, stdin=["line"], env={"A": "b"}, limits={"disk": "512m"}, kernel="python3"
    ).json()
    assert result["stdout"] == f"line b {512 * 1024 * 1024}\n"
    asked = one_shot(gateway, "input()").json()
    assert asked["error"]["ename"] == "StdinNotImplementedError"


@pytest.mark.parametrize(
    "fields", [{"kernel": "fortran"}, {"wait": False}, {"session": "s"}, {"timeout": 0}, {"code": 1}]
)
def test_what_it_can_not_do_is_refused(gateway: GatewayProcess, fields: dict[str, object]) -> None:
    answer = gateway.post("/v1/execute", {"code": "1", **fields})
    assert (answer.status, answer.reason) == (400, "bad_request")


def test_six_at_once_have_six_kernels(gateway: GatewayProcess) -> None:
    code = "import uuid; own = globals().get('own') or uuid.uuid4().hex; own"
    answers = together(6, lambda _: one_shot(gateway, code))
    assert [answer.status for answer in answers] == [200] * 6
    assert len({answer.json()["text"] for answer in answers}) == 6
    assert {answer.json()["execution_count"] for answer in answers} == {1}
