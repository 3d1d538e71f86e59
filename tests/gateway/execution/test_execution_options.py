"""What a request may ask of one execution: input, silence, variables, a key, a view of its result."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.conftest import StartGateway
from tests.support.server import GatewayProcess, Response, send, together, until

SHOW = "import os; print(os.environ.get('CELL_VARIABLE'), os.environ.get('HOME'))"


def execute(gateway: GatewayProcess, session: str, code: str, key: str, **fields: object) -> Response:
    """An execution with an Idempotency-Key."""
    path = f"/v1/sessions/{session}/execute"
    return gateway.post(path, {"code": code, **fields}, headers={"Idempotency-Key": key})


# ---- stdin


def test_lines_of_stdin_answer_the_cells_inputs(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "print([input('a? '), input('b? ')])", stdin=["one", "zwei ü"])
    assert (result["status"], result["stdout"]) == ("ok", "['one', 'zwei ü']\n")


@pytest.mark.parametrize("lines", [[], ["only"]])
def test_an_exhausted_stdin_is_the_end_of_the_file(
    gateway: GatewayProcess, session: str, lines: list[str]
) -> None:
    result = gateway.execute(session, "while True: print(input())", stdin=lines)
    assert (result["status"], result["error"]["ename"]) == ("error", "EOFError")
    assert result["stdout"] == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("size", [1, 4_000_000])
def test_what_a_cell_printed_before_it_asked_comes_before_the_question(
    gateway: GatewayProcess, session: str, size: int
) -> None:
    # Without an end of its own: the kernel may send that apart.
    code = f"for n in range(2): print({size} * str(n), end=''); input()"
    gateway.execute(session, code, stdin=["", ""])
    types = [event["type"] for event in gateway.recorded(session)]
    turn = ["stream", "input_request"]
    assert types[types.index("queued") :] == ["queued", "started", *turn, *turn, "finished"]


def test_input_without_anybody_to_ask_is_a_clear_error(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "input('name? ')")
    assert (result["status"], result["error"]["ename"]) == ("error", "StdinNotImplementedError")
    assert "input" in result["error"]["evalue"]
    assert gateway.execute(session, "1 + 1")["text"] == "2"


def test_a_stream_shows_the_question_and_takes_the_answer(gateway: GatewayProcess, session: str) -> None:
    code = "import getpass\nprint(input('name? '), getpass.getpass('word? '))"
    events = gateway.events("POST", f"/v1/sessions/{session}/execute", {"code": code})
    shown = []
    for event in events:
        if event["type"] == "input_request":
            shown.append((event["prompt"], event["password"]))
            gateway.answer(session, event["execution"], f"answer {len(shown)}")
        if event["type"] == "finished":
            assert event["status"] == "ok"
    assert shown == [("name? ", False), ("word? ", True)]
    [execution] = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert gateway.result(session, execution["execution"])["stdout"] == "answer 1 answer 2\n"
    replies = [event for event in gateway.recorded(session) if event["type"] == "input_reply"]
    assert [(each["prompt"], each.get("value")) for each in replies] == [
        ("name? ", "answer 1"),
        ("word? ", None),
    ]
    (cell,) = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"]
    text = "".join("".join(each["text"]) for each in cell["outputs"])
    assert text == "name? answer 1\nword? \nanswer 1 answer 2\n"


def test_of_a_long_answer_the_beginning_is_recorded(gateway: GatewayProcess, session: str) -> None:
    execution = gateway.hold(session, "len(input())")
    gateway.answer(session, execution, "x" * 100_000)
    assert gateway.ended(session, execution)["text"] == "100000"
    (reply,) = [event for event in gateway.recorded(session) if event["type"] == "input_reply"]
    assert reply["value"] == "x" * 10_000


def test_answers_that_nobody_asked_for_are_refused(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session, "input(); open('asked', 'w').close(); import time; time.sleep(60)")
    waiting = gateway.submit(session, "input()")
    path = f"/v1/sessions/{session}/executions"
    assert gateway.post(f"{path}/{waiting}/input", {"value": "x"}).reason == "bad_request"
    assert gateway.post(f"{path}/{held}/input", {"value": "a\x00b"}).reason == "bad_request"
    assert gateway.post(f"{path}/{held}/input", {}).reason == "bad_request"
    gateway.answer(session, held)
    until((gateway.workspace(session) / "asked").exists, "the answer did not arrive")
    assert gateway.post(f"{path}/{held}/input", {"value": "x"}).reason == "bad_request"
    gateway.post(f"{path}/{held}/cancel")
    gateway.ended(session, held)
    assert gateway.post(f"{path}/{held}/input", {"value": "x"}).reason == "not_found"


# ---- silent and env


def test_a_silent_cell_runs_outside_the_numbering(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    result = gateway.execute(session, "x = 5; print('said'); x", silent=True)
    assert (result["status"], result["stdout"]) == ("ok", "said\n")
    assert [output["output_type"] for output in result["outputs"]] == ["stream"]
    assert gateway.execute(session, "x")["execution_count"] == 2
    failed = gateway.execute(session, "1 / 0", silent=True)
    assert (failed["status"], failed["error"]["ename"]) == ("error", "ZeroDivisionError")


def test_the_environment_of_one_execution_is_gone_after_it(gateway: GatewayProcess, session: str) -> None:
    before = gateway.execute(session, SHOW)["stdout"]
    home = before.split()[1]
    with_env = {"CELL_VARIABLE": 'it\'s "quoted" \\n ü', "HOME": "/elsewhere"}
    child = "import subprocess; print(subprocess.check_output('echo $HOME', shell=True, text=True), end='')"
    assert gateway.execute(session, child, env=with_env)["stdout"] == "/elsewhere\n"
    assert gateway.execute(session, SHOW, env=with_env)["stdout"] == 'it\'s "quoted" \\n ü /elsewhere\n'
    assert gateway.execute(session, SHOW)["stdout"] == f"None {home}\n"
    assert gateway.execute(session, "1 / 0", env=with_env)["status"] == "error"
    assert gateway.execute(session, SHOW)["stdout"] == f"None {home}\n"
    assert gateway.execute(session, SHOW)["execution_count"] == 7


def test_the_environment_of_one_execution_leaves_variables_and_the_record_alone(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "_o, _j, _e, _k, _v = 1, 2, 3, 4, 5")
    secret = uuid.uuid4().hex
    result = gateway.execute(session, "len(os.environ['SECRET'])", env={"SECRET": secret})
    assert result["error"]["ename"] == "NameError"
    kept = "[globals().get(name) for name in ('_o', '_j', '_e', '_k', '_v')]"
    assert gateway.execute(session, kept)["text"] == "[1, 2, 3, 4, 5]"
    assert secret not in json.dumps(gateway.recorded(session))


def test_a_restart_does_not_wait_for_the_environment_of_what_it_ends(start_gateway: StartGateway) -> None:
    gateway = start_gateway(interrupt_grace=600)
    code = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)"
    execution = gateway.submit("s", code, env={"A": "b"})
    until(lambda: gateway.result("s", execution)["stdout"], "the cell does not begin")
    assert gateway.post("/v1/sessions/s/restart", timeout=60).status == 200
    assert gateway.execute("s", "1 + 1")["text"] == "2"


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "nul\x00"}, {"A": 1}, ["A"]])
def test_an_environment_that_can_not_be_is_refused(
    gateway: GatewayProcess, session: str, env: object
) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": "1", "env": env})
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert gateway.get(f"/v1/sessions/{session}").status == 404


# ---- Idempotency-Key


def test_a_repeated_request_gets_the_first_ones_execution(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "count = 0")
    first = execute(gateway, session, "count += 1; count", "a").json()
    again = execute(gateway, session, "count += 1; count", "a")
    assert (again.status, again.json()) == (200, first)
    assert execute(gateway, session, "count += 1; count", "b").json()["text"] == "2"
    later = execute(gateway, session, "count += 1; count", "a", wait=False)
    assert (later.status, later.json()["execution"]) == (202, first["execution"])
    events = gateway.stream(
        "POST", f"/v1/sessions/{session}/execute", {"code": "count += 1; count"}, **{"Idempotency-Key": "a"}
    )
    with events as answer:
        told = [json.loads(line) for line in answer]
    assert {event["execution"] for event in told} == {first["execution"]}
    assert [event["type"] for event in told] == ["queued", "started", "execute_result", "finished"]
    assert gateway.execute(session, "count")["text"] == "2"


def test_ten_concurrent_requests_of_one_key_run_once(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "count = 0")
    answers = together(10, lambda _: execute(gateway, session, "count += 1; count", "a"))
    assert [answer.status for answer in answers] == [200] * 10
    assert all(answer.json() == answers[0].json() for answer in answers)
    assert gateway.execute(session, "count")["text"] == "1"
    assert len(gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]) == 3


def test_another_request_under_a_used_key_is_a_conflict(gateway: GatewayProcess, session: str) -> None:
    first = execute(gateway, session, "1", "a")
    held = gateway.hold(session)
    running = execute(gateway, session, "2", "b", wait=False)
    for code, key, fields in (("2", "a", {}), ("1", "a", {"timeout": 5}), ("3", "b", {}), ("1", "b", {})):
        assert execute(gateway, session, code, key, **fields).reason == "conflict"
    gateway.answer(session, held)
    assert gateway.ended(session, running.json()["execution"])["text"] == "2"
    assert execute(gateway, session, "1", "a").json() == first.json()


def test_one_key_in_two_sessions_means_two_executions(gateway: GatewayProcess, session: str) -> None:
    other = f"{session}-other"
    try:
        first = execute(gateway, session, "1", "a").json()
        second = execute(gateway, other, "1", "a").json()
        assert first["execution"] != second["execution"]
    finally:
        gateway.delete(f"/v1/sessions/{other}")


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_that_is_none_is_refused(gateway: GatewayProcess, session: str, key: str) -> None:
    assert execute(gateway, session, "1", key).reason == "bad_request"


def test_a_repeated_request_is_known_after_a_crash_of_the_gateway(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    first = execute(gateway, "s", "print('once')", "a").json()
    gateway.kill()
    gateway = start_gateway(gateway.data_dir)
    assert execute(gateway, "s", "print('once')", "a").json() == first
    assert execute(gateway, "s", "print('twice')", "a").reason == "conflict"
    assert len(gateway.get("/v1/sessions/s/executions").json()["executions"]) == 1


# ---- on_disconnect


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson", "text/event-stream"])
@pytest.mark.parametrize("wish", ["interrupt", "continue"])
def test_a_client_that_leaves_takes_its_cell_along_if_it_wished_so(
    gateway: GatewayProcess, session: str, wish: str, accept: str
) -> None:
    gateway.post("/v1/sessions", {"session": session})
    go = gateway.workspace(session) / "go"
    code = (
        "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n'end'"
    )
    connection = gateway.connect()
    body = {"code": code, "on_disconnect": wish}
    send(connection, "POST", f"/v1/sessions/{session}/execute", body, headers={"Accept": accept})
    execution = _only_execution(gateway, session)
    until(lambda: gateway.result(session, execution)["stdout"], "the cell does not begin")
    connection.close()
    if wish == "continue":
        go.touch()
    result = gateway.ended(session, execution)
    expected = ("ok", None, "begun\n'end'") if wish == "continue" else ("interrupted", "client_disconnected")
    assert (result["status"], result["cause"], result["text"])[: len(expected)] == expected


def test_a_waiting_cell_of_a_client_that_left_never_runs(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session)
    connection = gateway.connect()
    body = {"code": "ran = True", "on_disconnect": "interrupt"}
    send(connection, "POST", f"/v1/sessions/{session}/execute", body)
    path = f"/v1/sessions/{session}/executions?after=1"
    [waiting] = until(lambda: gateway.get(path).json()["executions"], "it is not queued")
    connection.close()
    until(lambda: gateway.model(session)["queue_length"] == 0, "it still waits")
    gateway.answer(session, held)
    result = gateway.ended(session, waiting["execution"])
    assert (result["status"], result["cause"]) == ("cancelled", "client_disconnected")
    assert gateway.execute(session, "'ran' in globals()")["text"] == "False"


def _only_execution(gateway: GatewayProcess, session: str) -> str:
    path = f"/v1/sessions/{session}/executions"
    [execution] = until(lambda: gateway.get(path).json()["executions"], "nothing is queued")
    return str(execution["execution"])


# ---- the view of a result

COLOURED = "print('\\x1b[31mred\\x1b[0m'); 1 / 0"


def test_plain_results_have_no_terminal_codes(gateway: GatewayProcess, session: str) -> None:
    path = f"/v1/sessions/{session}/execute"
    plain = gateway.post(f"{path}?plain=true", {"code": COLOURED})
    assert plain.json()["stdout"] == "red\n"
    assert b"u001b" not in plain.body.lower()
    execution = plain.json()["execution"]
    as_is = gateway.result(session, execution)
    assert as_is["stdout"] == "\x1b[31mred\x1b[0m\n"
    assert "\x1b[" in as_is["error"]["traceback"][0]
    assert gateway.result(session, execution, "?plain=1") == plain.json()
    assert gateway.post(f"{path}?plain=maybe", {"code": "1"}).reason == "bad_request"


def test_long_texts_are_cut_for_those_who_wish_it(gateway: GatewayProcess, session: str) -> None:
    path = f"/v1/sessions/{session}/execute?max_text=1000"
    cut = gateway.post(path, {"code": "print('a' * 5000 + 'z'); 'b' * 5000"}).json()
    assert len(cut["stdout"]) == len(cut["text"]) == 1000
    assert cut["stdout"].startswith("aaa")
    assert cut["stdout"].endswith("az\n")
    assert f"GET /v1/sessions/{session}/executions/{cut['execution']}" in cut["stdout"]
    assert len(cut["outputs"][1]["data"]["text/plain"]) == 1000
    whole = gateway.result(session, cut["execution"])
    assert (len(whole["stdout"]), whole["truncated"]) == (5002, False)
    for query in ("max_text=99", "max_text=x", "max_text=-1"):
        refused = gateway.post(f"/v1/sessions/{session}/execute?{query}", {"code": "1"})
        assert refused.reason == "bad_request"
