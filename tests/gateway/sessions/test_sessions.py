"""/v1/sessions: made once under a caller's key, looked at, listed, ended, and used again."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from tests.conftest import StartGateway
from tests.support.server import GatewayProcess, Response, together, until

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
MIB = 1024 * 1024


def make(gateway: GatewayProcess, session: str, **fields: object) -> Response:
    """POST /v1/sessions under this key."""
    return gateway.post("/v1/sessions", {"session": session, **fields})


# ---- get or create


def test_the_first_request_makes_a_session_and_the_second_finds_it(
    gateway: GatewayProcess, session: str
) -> None:
    first, second = make(gateway, session), make(gateway, session)
    assert (first.status, second.status) == (201, 200)
    assert first.headers["Location"] == second.headers["Location"] == f"/v1/sessions/{session}"
    assert first.json() == second.json() == gateway.model(session)


def test_a_session_model_has_the_fields_of_the_contract(gateway: GatewayProcess, session: str) -> None:
    model = make(gateway, session, metadata={"title": "Ünïcode", "deep": {"a": [1, None, 2.5]}}).json()
    assert model["session"] == session
    assert model["kernel"] == "python3"
    assert uuid.UUID(model["kernel_id"])
    assert model["state"] == "idle"
    assert model["isolation"] == gateway.get("/v1/info").json()["isolation"]
    assert RFC_3339.fullmatch(model["created_at"])
    assert RFC_3339.fullmatch(model["last_activity"])
    assert (model["execution_count"], model["queue_length"]) == (0, 0)
    assert model["limits"] == gateway.get("/v1/info").json()["limits"]
    assert model["metadata"] == {"title": "Ünïcode", "deep": {"a": [1, None, 2.5]}}


def test_twenty_concurrent_first_requests_make_one_kernel(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0)
    answers = together(20, lambda _: make(gateway, "one"))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["kernel_id"] for answer in answers}) == 1
    assert {answer.json()["state"] for answer in answers} == {"idle"}
    pool = gateway.get("/v1/info").json()["pool"]
    assert (pool["in_use"], pool["starting"], pool["waiting"]) == (1, 0, 0)


def test_concurrent_executions_in_an_absent_session_make_one_kernel(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0)
    pids = together(8, lambda _: gateway.execute("one", "import os; os.getpid()")["text"])
    assert len(set(pids)) == 1
    assert gateway.get("/v1/info").json()["pool"]["in_use"] == 1


def test_every_concurrent_request_learns_that_the_kernel_could_not_be_had(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway(pool_size=1, max_kernels=1, claim_timeout=0.3)
    until(lambda: gateway.get("/v1/info").json()["pool"]["warm"], "no warm kernel")
    assert make(gateway, "first").status == 201
    refused = together(3, lambda _: make(gateway, "second"))
    assert [answer.status for answer in refused] == [503] * 3
    assert {answer.reason for answer in refused} == {"pool_exhausted"}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert gateway.get("/v1/sessions/second").status == 404
    assert gateway.delete("/v1/sessions/first").status == 204
    until(lambda: make(gateway, "second").status == 201, "the place did not come free")


def test_without_a_key_the_gateway_makes_one(gateway: GatewayProcess) -> None:
    first, second = gateway.post("/v1/sessions"), gateway.post("/v1/sessions", {})
    keys = [answer.json()["session"] for answer in (first, second)]
    try:
        assert (first.status, second.status) == (201, 201)
        assert len(set(keys)) == 2
        assert gateway.execute(keys[0], "1 + 1")["text"] == "2"
    finally:
        for key in keys:
            gateway.delete(f"/v1/sessions/{key}")


def test_a_repeated_request_without_a_key_finds_the_session_of_the_first(gateway: GatewayProcess) -> None:
    """As after an answer that was lost: both have the same `Idempotency-Key`."""
    once, other = ({"Idempotency-Key": f"open {uuid.uuid4()}"} for _ in range(2))
    made: list[str] = []
    try:
        for body, headers, status in (({}, once, 201), ({}, once, 200), ({}, other, 201)):
            answer = gateway.post("/v1/sessions", body, headers=headers)
            made.append(answer.json()["session"])
            assert answer.status == status
        first, second, another = made
        assert first == second != another
        assert gateway.execute(first, "1 + 1")["text"] == "2"
        differs = gateway.post("/v1/sessions", {"language": "bash"}, headers=once)
        assert (differs.status, differs.reason) == (409, "conflict")
        named = gateway.post("/v1/sessions", {"session": another}, headers=once)
        assert (named.status, named.json()["session"]) == (200, another), "a name is a key of its own"
        for wrong in ("", "k" * 256):
            refused = gateway.post("/v1/sessions", {}, headers={"Idempotency-Key": wrong})
            assert (refused.status, refused.reason) == (400, "bad_request")
    finally:
        for key in set(made):
            gateway.delete(f"/v1/sessions/{key}")


def test_a_key_with_another_kernel_is_a_conflict_live_or_recorded(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    known = Path(sys.prefix) / "share" / "cellgate" / "kernels" / "python3"
    for name in ("python3", "other"):
        shutil.copytree(known, tmp_path / "kernels" / name)
    gateway = start_gateway(kernel_dirs=tmp_path / "kernels")
    assert make(gateway, "s", kernel="other").json()["kernel"] == "other"
    assert make(gateway, "s", kernel="python3").reason == "conflict"
    assert make(gateway, "s", kernel="OTHER").status == 200
    assert make(gateway, "s").status == 200
    assert gateway.delete("/v1/sessions/s").status == 204
    assert make(gateway, "s", kernel="python3").status == 409
    assert gateway.model("s")["state"] == "ended"


GIVEN = {
    "env": {"A": "1", "B": "2"},
    "limits": {"memory": "300m", "cell_timeout": 7},
    "metadata": {"title": "t", "deep": {"a": [1]}},
}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"env": {"A": "2"}}, "env (A)"),
        ({"env": {"A": "1", "C": ""}}, "env (C)"),
        ({"limits": {"memory": "301m"}}, "limits (memory)"),
        ({"limits": {"pids": 99, "cell_timeout": 8}}, "limits (pids, cell_timeout)"),
        ({"metadata": {"title": "u"}}, "metadata (title)"),
        ({"metadata": {"deep": {"a": [2]}}}, "metadata (deep)"),
        ({"metadata": {"n" * 100: 1}}, "metadata (" + "n" * 64 + "...)"),
        ({"env": {f"V{number}": "" for number in range(7)}}, "env (V0, V1, V2, V3, V4 and 2 more)"),
        (
            {"env": {"A": "x"}, "limits": {"pids": 99}, "metadata": {"q": 1}},
            "env (A), limits (pids), metadata (q)",
        ),
    ],
)
def test_a_session_that_has_other_things_than_asked_for_is_a_conflict_that_names_them(
    gateway: GatewayProcess, session: str, asked: dict[str, object], named: str
) -> None:
    made = make(gateway, session, **GIVEN)
    answer = make(gateway, session, **asked)
    assert (answer.status, answer.reason) == (409, "conflict")
    assert f"exists with other {named};" in answer.json()["detail"]
    assert gateway.model(session) == made.json()


def test_a_session_that_has_all_that_is_asked_for_is_found(gateway: GatewayProcess, session: str) -> None:
    made = make(gateway, session, **GIVEN)
    for asked in (
        GIVEN,
        {},
        {"env": {}, "limits": {}, "metadata": {}, "secrets": []},
        {"env": {"B": "2"}, "limits": {"memory": 300 * MIB}, "metadata": {"title": "t"}},
    ):
        answer = make(gateway, session, **asked)
        # Each of these is a use, which puts the session's end off.
        assert (answer.status, answer.json() | {"ends": None}) == (200, made.json() | {"ends": None})
    gateway.delete(f"/v1/sessions/{session}")
    again = make(gateway, session, env={"A": "other"}, metadata={"title": "new"})
    assert (again.status, again.json()["metadata"]) == (201, {"title": "new"})


def test_an_unknown_kernel_is_refused_and_makes_nothing(gateway: GatewayProcess, session: str) -> None:
    answer = make(gateway, session, kernel="fortran")
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert "python3" in answer.json()["detail"]
    assert gateway.get(f"/v1/sessions/{session}").status == 404


# ---- what reaches the kernel


def test_a_sessions_environment_reaches_every_kernel_of_it_and_no_record(
    gateway: GatewayProcess, session: str
) -> None:
    secret = uuid.uuid4().hex
    make(gateway, session, env={"API_KEY": secret, "EMPTY": ""})
    shown = "import os; print(os.environ['API_KEY'][::-1], repr(os.environ['EMPTY']))"
    assert gateway.execute(session, shown)["stdout"] == f"{secret[::-1]} ''\n"
    assert gateway.post(f"/v1/sessions/{session}/restart").status == 200
    assert gateway.execute(session, shown)["stdout"] == f"{secret[::-1]} ''\n"
    assert secret not in json.dumps([gateway.recorded(session), gateway.model(session)])


def test_a_sessions_limits_reach_the_kernel(gateway: GatewayProcess, session: str) -> None:
    limits = {"memory": "512m", "cpus": 0.5, "pids": 128, "disk": "100m", "cell_timeout": 30}
    model = make(gateway, session, limits=limits).json()
    expected = {"memory": 512 * MIB, "cpus": 0.5, "pids": 128, "disk": 100 * MIB, "cell_timeout": 30}
    assert {name: model["limits"][name] for name in limits} == expected
    assert model["limits"]["lifetime"] == 86400
    shown = "import resource as r; print(r.getrlimit(r.RLIMIT_DATA), r.getrlimit(r.RLIMIT_FSIZE))"
    inside = gateway.execute(session, shown)["stdout"]
    memory, _, *size = map(int, re.findall(r"\d+", inside))
    # A forked kernel shares what its zygote has, up to a quarter of a gigabyte, and may have as much besides.
    assert 512 * MIB <= memory < 768 * MIB
    assert size == [100 * MIB, 100 * MIB]
    too_much = gateway.execute(session, "bytearray(600_000_000)")
    assert (too_much["status"], too_much["error"]["ename"]) == ("error", "MemoryError")


@pytest.mark.parametrize(
    "limits",
    [{"memory": "1m"}, {"memory": "lots"}, {"cpus": 0}, {"pids": 1}, {"cell_timeout": 0}, {"speed": 1}],
)
def test_impossible_limits_are_refused_and_make_nothing(
    gateway: GatewayProcess, session: str, limits: dict[str, object]
) -> None:
    answer = make(gateway, session, limits=limits)
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert next(iter(limits)) in answer.json()["detail"]
    assert gateway.get(f"/v1/sessions/{session}").status == 404


# ---- looking at them


def test_lists_come_in_pages_by_order_of_making_and_by_state(gateway: GatewayProcess) -> None:
    keys = [f"list-{uuid.uuid4().hex[:8]}" for _ in range(4)]
    for key in keys:
        assert make(gateway, key).status == 201

    def listed(query: str) -> tuple[list[str], str | None]:
        page = gateway.get(f"/v1/sessions?{query}").json()
        return [model["session"] for model in page["sessions"]], page["next"]

    try:
        assert gateway.delete(f"/v1/sessions/{keys[2]}").status == 204
        assert listed(f"after={keys[0]}&limit=2") == (keys[1:3], keys[2])
        assert listed(f"after={keys[2]}&limit=2") == ([keys[3]], None)
        assert listed(f"after={keys[0]}&limit=3") == (keys[1:], None)
        assert listed(f"after={keys[3]}") == ([], None)
        assert listed(f"after={keys[0]}&state=ended") == ([keys[2]], None)
        assert listed(f"after={keys[0]}&state=idle&limit=1") == ([keys[1]], keys[1])
        assert listed(f"after={keys[1]}&state=idle&limit=1") == ([keys[3]], None)
        for model in gateway.get(f"/v1/sessions?after={keys[0]}").json()["sessions"]:
            assert model == gateway.model(model["session"])
    finally:
        for key in keys:
            gateway.delete(f"/v1/sessions/{key}")


def test_lists_may_begin_with_the_newest_and_be_searched(gateway: GatewayProcess) -> None:
    mark = uuid.uuid4().hex[:8]
    keys = [f"found-{mark}-{number}" for number in range(3)]
    try:
        for key in keys:
            assert make(gateway, key).status == 201
        other = f"other-{mark[::-1]}-x"
        assert make(gateway, other, metadata={"title": f"Über {mark.upper()}"}).status == 201
        assert gateway.delete(f"/v1/sessions/{keys[1]}").status == 204

        def listed(query: str) -> tuple[list[str], str | None]:
            page = gateway.get(f"/v1/sessions?{query}").json()
            return [model["session"] for model in page["sessions"]], page["next"]

        assert listed("newest=true&limit=2") == ([other, keys[2]], keys[2])
        assert listed(f"newest=true&limit=2&after={keys[2]}")[0] == [keys[1], keys[0]]
        assert listed(f"search={mark}") == ([*keys, other], None)
        assert listed(f"search=FOUND-{mark}&newest=true") == (keys[::-1], None)
        assert listed(f"search=%C3%BCber%20{mark}") == ([other], None)
        assert listed(f"search={mark}&state=live") == ([keys[0], keys[2], other], None)
        assert listed(f"search={mark}&state=live&newest=true&limit=2") == ([other, keys[2]], keys[2])
        assert listed(f"search={mark}&state=ended") == ([keys[1]], None)
        assert listed(f"search={mark}&after={keys[2]}") == ([other], None)
        assert listed(f"search={mark}-nothing") == ([], None)
        kernel = gateway.model(keys[0])["kernel_id"]
        folder = gateway.workspace(keys[2]).name
        assert listed(f"principal=*&search={kernel[:13]}") == ([keys[0]], None)
        assert listed(f"principal=*&search={folder}") == ([keys[2]], None)
        assert listed(f"search={kernel}") == ([], None)
    finally:
        for key in [*keys, f"other-{mark[::-1]}-x"]:
            gateway.delete(f"/v1/sessions/{key}")


@pytest.mark.alone
def test_a_model_tells_what_its_kernel_uses_if_asked(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "held = bytes(b'x' * 100_000_000)")
    assert not gateway.model(session).keys() & {"memory", "cpu", "executions"}

    def used() -> dict[str, float]:
        model = gateway.get(f"/v1/sessions/{session}?usage=true").json()
        listed = gateway.get(f"/v1/sessions?usage=true&search={session}").json()["sessions"]
        assert {each["session"] for each in listed} == {session}
        assert {"memory", "cpu", "executions"} <= listed[0].keys()
        return {name: model[name] for name in ("memory", "cpu", "executions")}

    before = until(lambda: used() if used()["memory"] > 100_000_000 else None, "its memory is not seen")
    assert before["executions"] == 1
    gateway.execute(session, "import time\nwhile time.process_time() < 3: pass")
    until(lambda: used()["cpu"] >= before["cpu"] + 0.5, "its processor time is not seen")
    assert used()["executions"] == 2
    gateway.delete(f"/v1/sessions/{session}")
    ended = gateway.get(f"/v1/sessions/{session}?usage=true").json()
    assert ended["executions"] == 2
    assert not ended.keys() & {"memory", "cpu"}


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "state=lost", "after=..", "newest=2"])
def test_a_list_refuses_what_it_does_not_know(gateway: GatewayProcess, query: str) -> None:
    assert gateway.get(f"/v1/sessions?{query}").reason == "bad_request"


def test_a_busy_session_shows_it_and_how_much_waits(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session)
    waiting = gateway.submit(session, "1")
    model = gateway.model(session)
    assert (model["state"], model["queue_length"]) == ("busy", 1)
    busy = gateway.get("/v1/sessions?state=busy&limit=1000").json()["sessions"]
    assert session in {each["session"] for each in busy}
    gateway.answer(session, held)
    gateway.ended(session, waiting)
    model = gateway.model(session)
    assert (model["state"], model["queue_length"], model["execution_count"]) == ("idle", 0, 2)
    assert model["last_activity"] > model["created_at"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/interrupt"),
        ("POST", "/restart"),
        ("GET", "/executions"),
        ("GET", "/executions/0"),
        ("POST", "/executions/0/cancel"),
        ("GET", "/events"),
        ("GET", "/notebook"),
    ],
)
def test_what_is_not_there_is_not_found(gateway: GatewayProcess, method: str, path: str) -> None:
    answer = gateway.request(method, f"/v1/sessions/never-made{path}")
    assert (answer.status, answer.reason) == (404, "not_found")


# ---- their end


def test_deleting_ends_the_kernel_removes_the_files_and_keeps_the_record(
    gateway: GatewayProcess, session: str
) -> None:
    file = f"{session}.txt"
    gateway.execute(session, f"open('{file}', 'w').write('x'); print('kept')")
    workspace = gateway.workspace(session)
    assert (workspace / file).exists()
    processes = psutil.Process(gateway.process.pid).children(recursive=True)
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    model = gateway.model(session)
    assert (model["state"], model["cause"], model["kernel_id"]) == ("ended", "deleted", None)
    assert model["execution_count"] == 1
    until(lambda: not workspace.exists(), "the workspace is still there")
    assert not [names for _, _, names in os.walk(workspace.parent) if file in names]
    until(lambda: any(not process.is_running() for process in processes), "its processes remain")
    [execution] = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert gateway.result(session, execution["execution"])["stdout"] == "kept\n"
    last = gateway.recorded(session)[-1]
    assert (last["type"], last["state"], last["cause"]) == ("session", "ended", "deleted")


def test_deleting_twice_is_no_error_and_an_ended_session_takes_no_orders(
    gateway: GatewayProcess, session: str
) -> None:
    make(gateway, session)
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    assert gateway.post(f"/v1/sessions/{session}/interrupt").status == 404
    assert gateway.post(f"/v1/sessions/{session}/restart").status == 404


def test_deleting_a_busy_session_answers_all_who_wait(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session, "print('so far'); input()")
    until(lambda: gateway.result(session, held)["stdout"] == "so far\n", "its output is not there")
    waiting = gateway.submit(session, "1")
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    running, queued = gateway.result(session, held), gateway.result(session, waiting)
    assert (running["status"], running["cause"]) == ("interrupted", "deleted")
    assert running["stdout"] == "so far\n"
    assert (queued["status"], queued["cause"]) == ("cancelled", "deleted")


def test_a_deleted_key_begins_anew_and_its_record_goes_on(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1; open('file.txt', 'w').close()")
    before = gateway.recorded(session)
    created = gateway.model(session)["created_at"]
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    answer = make(gateway, session)
    assert (answer.status, answer.json()["created_at"]) == (201, created)
    result = gateway.execute(session, "import os; print('x' in globals(), os.listdir())")
    assert (result["stdout"], result["execution_count"]) == ("False []\n", 1)
    after = gateway.recorded(session)
    assert after[: len(before)] == before
    assert [event["seq"] for event in after] == list(range(1, len(after) + 1))
    notebook = gateway.get(f"/v1/sessions/{session}/notebook").json()
    assert ["".join(cell["source"]).split(";")[0] for cell in notebook["cells"]] == ["x = 1", "import os"]
    numbers = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert [execution["number"] for execution in numbers] == [1, 2]


def test_an_execution_that_meets_a_delete_ends_once_and_as_the_record_says(
    gateway: GatewayProcess, session: str
) -> None:
    for _ in range(4):
        gateway.execute(session, "1")
        deleted, answer = together(
            2,
            lambda index: (
                gateway.post(f"/v1/sessions/{session}/execute", {"code": "6 * 7"})
                if index
                else gateway.delete(f"/v1/sessions/{session}")
            ),
        )
        assert deleted.status == 204
        assert answer.status == 200, answer.body
        execution = answer.json()["execution"]
        ends = [
            (event["status"], event["cause"])
            for event in gateway.recorded(session)
            if event["type"] == "finished" and event["execution"] == execution
        ]
        assert ends == [(answer.json()["status"], answer.json()["cause"])]
