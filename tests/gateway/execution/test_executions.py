"""Cells of one session: in order, one at a time, looked at, cancelled, interrupted, restarted."""

from __future__ import annotations

import uuid

import pytest

from tests.conftest import StartGateway
from tests.support.server import GatewayProcess, Response, together, until

FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"


def cancel(gateway: GatewayProcess, session: str, execution: str) -> Response:
    """POST .../cancel."""
    return gateway.post(f"/v1/sessions/{session}/executions/{execution}/cancel")


def begun(gateway: GatewayProcess, session: str, code: str = FOREVER) -> str:
    """Submit a cell that prints `begun`; returns its execution's id once that is seen."""
    execution = gateway.submit(session, code)
    until(lambda: gateway.result(session, execution)["stdout"] == "begun\n", "the cell does not begin")
    return execution


# ---- results


def test_cells_share_their_variables(gateway: GatewayProcess, session: str) -> None:
    define = gateway.execute(session, "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)")
    call = gateway.execute(session, "[fib(n) for n in range(10)]")
    assert (define["status"], define["outputs"], define["text"]) == ("ok", [], "")
    assert call["text"] == "[0, 1, 1, 2, 3, 5, 8, 13, 21, 34]"
    assert (define["execution_count"], call["execution_count"]) == (1, 2)


def test_a_result_has_the_fields_of_the_contract(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "import sys; print('out'); print('err', file=sys.stderr); 6 * 7")
    assert uuid.UUID(result["execution"])
    assert (result["session"], result["status"], result["cause"]) == (session, "ok", None)
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
    assert result["text"] == "out\nerr\n42"
    assert [output["output_type"] for output in result["outputs"]] == ["stream", "stream", "execute_result"]
    assert result["outputs"][2]["data"] == {"text/plain": "42"}
    assert (result["error"], result["truncated"]) == (None, False)
    assert result["kernel"] == {"state": "idle", "replaced": False}
    assert result["started_at"] <= result["finished_at"]
    assert result["queue_ms"] >= 0
    assert result["duration_ms"] > 0
    assert gateway.result(session, result["execution"]) == result


@pytest.mark.parametrize(("code", "ename"), [("1 / 0", "ZeroDivisionError"), ("def f(:", "SyntaxError")])
def test_a_cell_that_fails_is_a_result_and_the_next_one_runs(
    gateway: GatewayProcess, session: str, code: str, ename: str
) -> None:
    result = gateway.execute(session, f"print('before')\n{code}")
    assert (result["status"], result["cause"]) == ("error", None)
    assert result["error"]["ename"] == ename
    assert result["outputs"][-1] == {"output_type": "error", **result["error"]}
    assert ename in result["text"]
    assert "\x1b" not in result["text"]
    assert result["stdout"] == ("before\n" if ename == "ZeroDivisionError" else "")
    assert gateway.execute(session, "'next'")["text"] == "'next'"


def test_an_empty_cell_ends_well(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "")
    assert (result["status"], result["outputs"]) == ("ok", [])


# ---- without waiting


def test_an_execution_can_be_asked_for_later(gateway: GatewayProcess, session: str) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": "input(); 6 * 7", "wait": False})
    model = answer.json()
    execution = model["execution"]
    assert answer.status == 202
    assert answer.headers["Location"] == f"/v1/sessions/{session}/executions/{execution}"
    assert (model["outputs"], model["finished_at"], model["duration_ms"]) == ([], None, None)
    until(lambda: gateway.get(answer.headers["Location"]).json()["status"] == "running", "it does not run")
    path = f"/v1/sessions/{session}/executions/{execution}/input"
    until(lambda: gateway.post(path, {"value": ""}).status == 204, "it does not ask for input")
    assert gateway.ended(session, execution)["text"] == "42"


def test_a_running_cell_shows_its_output_so_far(gateway: GatewayProcess, session: str) -> None:
    execution = gateway.hold(session, "print('half'); input('more?'); print('whole')")
    until(lambda: gateway.result(session, execution)["stdout"] == "half\n", "its output is not there")
    result = gateway.result(session, execution)
    assert (result["status"], result["finished_at"]) == ("running", None)
    assert result["execution_count"] == 1
    gateway.answer(session, execution)
    result = gateway.ended(session, execution)
    assert result["stdout"].startswith("half\n")
    assert result["stdout"].endswith("whole\n")


def test_executions_are_listed_in_pages_newest_last(gateway: GatewayProcess, session: str) -> None:
    ids = [gateway.execute(session, code)["execution"] for code in ("1", "1 / 0", "3")]
    ids.append(gateway.hold(session))
    ids.append(gateway.submit(session, "5"))
    path = f"/v1/sessions/{session}/executions"
    whole = gateway.get(path).json()
    assert [each["execution"] for each in whole["executions"]] == ids
    assert [each["number"] for each in whole["executions"]] == [1, 2, 3, 4, 5]
    statuses = [each["status"] for each in whole["executions"]]
    assert statuses == ["ok", "error", "ok", "running", "queued"]
    assert whole["next"] is None
    first = gateway.get(f"{path}?limit=2").json()
    second = gateway.get(f"{path}?limit=3&after={first['next']}").json()
    assert first["executions"] + second["executions"] == whole["executions"]
    assert second["next"] is None
    assert gateway.get(f"{path}?after=5").json() == {"executions": [], "next": None}
    back = gateway.get(f"{path}?newest=true&limit=2").json()
    further = gateway.get(f"{path}?newest=true&limit=3&after={back['next']}").json()
    assert back["executions"] + further["executions"] == whole["executions"][::-1]
    assert (back["next"], further["next"]) == (4, None)
    assert gateway.get(f"{path}?limit=0").reason == "bad_request"
    gateway.answer(session, ids[3])


def test_an_execution_of_another_session_is_not_found(gateway: GatewayProcess, session: str) -> None:
    execution = gateway.execute(session, "1")["execution"]
    other = f"{session}-other"
    gateway.execute(other, "1")
    try:
        path = f"/v1/sessions/{other}/executions/{execution}"
        assert gateway.get(path).status == 404
        assert gateway.post(f"{path}/cancel").status == 404
        assert gateway.post(f"{path}/input", {"value": ""}).status == 404
    finally:
        gateway.delete(f"/v1/sessions/{other}")


# ---- the queue


def test_ten_cells_run_in_the_order_they_came_in(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session, "order = []; input()")
    ids = [gateway.submit(session, f"order.append({number})") for number in range(10)]
    positions = [e["position"] for e in gateway.recorded(session) if e["type"] == "queued"]
    assert positions == list(range(11))
    assert [gateway.result(session, execution)["status"] for execution in ids] == ["queued"] * 10
    gateway.answer(session, held)
    assert gateway.execute(session, "order")["text"] == str(list(range(10)))
    counts = [gateway.result(session, execution)["execution_count"] for execution in ids]
    assert counts == list(range(2, 12))
    events = gateway.recorded(session)
    ends = [e["execution"] for e in events if e["type"] == "finished"]
    starts = [e["execution"] for e in events if e["type"] == "started"]
    assert ends[:11] == starts[:11] == [held, *ids]


def test_a_full_queue_refuses_more_and_changes_nothing(strict: GatewayProcess, strict_session: str) -> None:
    held = strict.hold(strict_session)
    waiting = [strict.submit(strict_session, "1") for _ in range(2)]
    recorded = strict.recorded(strict_session)
    for accept in ("application/json", "application/x-ndjson"):
        refused = strict.post(
            f"/v1/sessions/{strict_session}/execute", {"code": "2"}, headers={"Accept": accept}
        )
        assert (refused.status, refused.reason) == (429, "queue_full")
        assert int(refused.headers["Retry-After"]) >= 1
    assert strict.recorded(strict_session) == recorded
    strict.answer(strict_session, held)
    assert [strict.ended(strict_session, execution)["status"] for execution in waiting] == ["ok", "ok"]
    assert strict.execute(strict_session, "3")["text"] == "3"


# ---- cancel and interrupt


def test_a_cancelled_cell_never_runs_and_the_others_do(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session)
    first, second, third = (gateway.submit(session, f"ran_{n} = True") for n in range(3))
    assert cancel(gateway, session, second).status == 204
    result = gateway.ended(session, second)
    assert (result["status"], result["cause"]) == ("cancelled", "cancelled")
    assert (result["started_at"], result["execution_count"], result["outputs"]) == (None, None, [])
    gateway.answer(session, held)
    assert [gateway.ended(session, each)["status"] for each in (first, third)] == ["ok", "ok"]
    ran = gateway.execute(session, "sorted(name for name in globals() if name.startswith('ran_'))")
    assert ran["text"] == "['ran_0', 'ran_2']"


def test_cancelling_a_waiting_cell_answers_its_client_at_once(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session)
    stream = gateway.events("POST", f"/v1/sessions/{session}/execute", {"code": "1"})
    assert (queued := next(stream))["type"] == "queued"
    assert cancel(gateway, session, queued["execution"]).status == 204
    finished = list(stream)[-1]
    assert (finished["type"], finished["status"]) == ("finished", "cancelled")
    gateway.answer(session, held)


def test_cancelling_the_running_cell_interrupts_it(gateway: GatewayProcess, session: str) -> None:
    execution = begun(gateway, session, f"kept = 1\n{FOREVER}")
    assert cancel(gateway, session, execution).status == 204
    result = gateway.ended(session, execution)
    assert result["status"] == "interrupted"
    assert result["stdout"] == "begun\n"
    assert result["error"]["ename"] == "KeyboardInterrupt"
    assert result["kernel"] == {"state": "idle", "replaced": False}
    assert gateway.execute(session, "kept")["text"] == "1"


def test_what_has_ended_can_not_be_cancelled(gateway: GatewayProcess, session: str) -> None:
    execution = gateway.execute(session, "1")["execution"]
    assert cancel(gateway, session, execution).reason == "conflict"
    assert cancel(gateway, session, "unknown").reason == "not_found"
    gateway.delete(f"/v1/sessions/{session}")
    assert cancel(gateway, session, execution).status == 409
    assert gateway.result(session, execution)["status"] == "ok"


def test_interrupting_a_session_ends_the_running_cell_only(gateway: GatewayProcess, session: str) -> None:
    running = begun(gateway, session)
    waiting = gateway.submit(session, "'ran'")
    assert gateway.post(f"/v1/sessions/{session}/interrupt").status == 204
    result = gateway.ended(session, running)
    assert (result["status"], result["cause"]) == ("interrupted", "interrupt_requested")
    assert gateway.ended(session, waiting)["text"] == "'ran'"


def test_who_interrupted_a_cell_is_recorded(gateway: GatewayProcess, session: str) -> None:
    by_session = begun(gateway, session)
    gateway.post(f"/v1/sessions/{session}/interrupt")
    assert gateway.ended(session, by_session)["interrupted_by"] == "default"
    by_execution = begun(gateway, session)
    cancel(gateway, session, by_execution)
    assert gateway.ended(session, by_execution)["interrupted_by"] == "default"
    by_itself = gateway.execute(session, "raise KeyboardInterrupt")
    late = gateway.execute(session, "import time; time.sleep(600)", timeout=1)
    ends = [each for each in gateway.recorded(session) if each["type"] == "finished"]
    assert [each.get("interrupted_by") for each in ends] == ["default", "default", None, None]
    assert "interrupted_by" not in by_itself | late


def test_interrupting_an_idle_session_harms_nothing(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1")
    for _ in range(3):
        assert gateway.post(f"/v1/sessions/{session}/interrupt").status == 204
    assert gateway.execute(session, "x")["text"] == "1"


def began(gateway: GatewayProcess, session: str, execution: str) -> bool:
    """Whether the kernel was given the cell."""
    of_cell = [event for event in gateway.recorded(session) if event["execution"] == execution]
    return "started" in {event["type"] for event in of_cell}


def test_a_cancel_right_after_the_submission_is_not_lost(gateway: GatewayProcess, session: str) -> None:
    for _ in range(8):
        execution = gateway.submit(session, FOREVER, timeout=10)
        assert cancel(gateway, session, execution).status == 204
        ended = gateway.ended(session, execution)
        assert ended["status"] == ("interrupted" if began(gateway, session, execution) else "cancelled")


def test_a_cancel_while_the_cell_waits_for_a_fresh_kernel_is_not_lost(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0)
    assert gateway.execute("s", "import os; os._exit(1)")["status"] == "died"
    execution = gateway.submit("s", "open('ran', 'w').close()\nwhile True: pass", timeout=10)
    assert cancel(gateway, "s", execution).status == 204
    ended = gateway.ended("s", execution)
    assert ended["status"] == ("interrupted" if began(gateway, "s", execution) else "cancelled")
    assert gateway.execute("s", "import os; os.path.exists('ran')")["text"] == "False"


def test_a_cancel_at_the_end_of_a_cell_does_not_hit_the_next(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "ran = []")
    ended_well = []
    for number in range(6):
        first = gateway.submit(session, f"ran.append({number})")
        second = gateway.submit(session, "import time; time.sleep(0.03); 'ran'")
        came_late = {204: False, 409: True}[cancel(gateway, session, first).status]
        assert gateway.ended(session, second)["text"] == "'ran'"
        if gateway.result(session, first)["status"] == "ok":
            ended_well.append(number)
        assert number in ended_well or not came_late
    assert gateway.execute(session, f"set({ended_well}) <= set(ran)")["text"] == "True"


# ---- restart


def test_a_restart_loses_the_variables_and_keeps_the_files(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1; open('file.txt', 'w').write('kept')")
    before = gateway.model(session)
    last = gateway.recorded(session)[-1]["seq"]
    answer = gateway.post(f"/v1/sessions/{session}/restart")
    assert (answer.status, answer.json()["state"]) == (200, "idle")
    assert answer.json()["kernel_id"] != before["kernel_id"]
    assert answer.json()["created_at"] == before["created_at"]
    shown = gateway.execute(session, "print('x' in globals(), open('file.txt').read())")
    assert (shown["stdout"], shown["execution_count"]) == ("False kept\n", 1)
    assert (shown["kernel"]["replaced"], shown["kernel"]["cause"]) == (True, "kernel_restarted")
    told = [e for e in gateway.recorded(session, last) if e["type"] == "session"]
    assert {event["cause"] for event in told} == {"kernel_restarted"}
    assert told[-1]["kernel_id"] == answer.json()["kernel_id"]


def test_a_restart_ends_what_runs_and_what_waits(gateway: GatewayProcess, session: str) -> None:
    running = begun(gateway, session)
    waiting = [gateway.submit(session, "1") for _ in range(2)]
    assert gateway.post(f"/v1/sessions/{session}/restart").status == 200
    result = gateway.result(session, running)
    assert (result["status"], result["cause"]) == ("interrupted", "kernel_restarted")
    assert result["stdout"] == "begun\n"
    ended = [gateway.result(session, execution) for execution in waiting]
    assert {(each["status"], each["cause"]) for each in ended} == {("cancelled", "kernel_restarted")}
    assert gateway.execute(session, "2")["text"] == "2"


def test_concurrent_restarts_leave_one_kernel_that_works(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    answers = together(3, lambda _: gateway.post(f"/v1/sessions/{session}/restart"))
    assert [answer.status for answer in answers] == [200] * 3
    assert gateway.model(session)["state"] == "idle"
    assert gateway.execute(session, "2")["execution_count"] == 1


def test_a_cell_sent_right_after_a_restart_runs_in_the_new_kernel(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "x = 1")
    gateway.post(f"/v1/sessions/{session}/restart")
    assert gateway.execute(session, "x")["error"]["ename"] == "NameError"
