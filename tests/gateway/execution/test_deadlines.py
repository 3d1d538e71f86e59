"""Deadlines that hold: of a cell, of an idle session, of a session's life."""

from __future__ import annotations

import time

import pytest

from tests.conftest import StartGateway
from tests.support.server import IN_TIME, GatewayProcess, until

DEAF = """
import time
open('file.txt', 'w').write('kept')
print('begun', flush=True)
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print('no', flush=True)
"""


def test_a_cell_beyond_its_time_is_interrupted_and_keeps_output_and_variables(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.post("/v1/sessions", {"session": session})
    kernel = gateway.model(session)["kernel_id"]
    code = "x = 1\nprint('so far')\nimport time\nwhile True: time.sleep(0.01)"
    result = gateway.execute(session, code, timeout=IN_TIME)
    assert (result["status"], result["cause"]) == ("timeout", "cell_timeout")
    assert result["stdout"] == "so far\n"
    assert result["error"]["ename"] == "KeyboardInterrupt"
    assert result["outputs"][-1]["output_type"] == "error"
    said = f"[cellgate: The cell ran longer than {IN_TIME:g} s; its output until then is above.]"
    assert result["text"].endswith(f"\n{said}")
    assert gateway.result(session, result["execution"]) == result
    exported = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"][-1]["outputs"]
    assert "".join(exported[-1]["data"]["text/plain"]) == said
    assert result["kernel"] == {"state": "idle", "replaced": False}
    assert result["duration_ms"] >= 1000 * IN_TIME
    assert gateway.execute(session, "x")["text"] == "1"
    assert gateway.model(session)["kernel_id"] == kernel


def test_a_cell_that_ignores_the_interrupt_loses_its_kernel_and_nothing_else(
    strict: GatewayProcess, strict_session: str
) -> None:
    strict.execute(strict_session, "x = 1")
    kernel = strict.model(strict_session)["kernel_id"]
    strict.warm()
    events = strict.events(
        "POST", f"/v1/sessions/{strict_session}/execute", {"code": DEAF, "timeout": IN_TIME}
    )
    told = []
    for event in events:
        told.append(event)
        if event["type"] == "started":
            waiting = [strict.submit(strict_session, "1") for _ in range(2)]
    finished = told[-1]
    assert (finished["status"], finished["cause"]) == ("timeout", "cell_timeout")
    lost = {"cause": "cell_timeout", "files": "kept"}
    assert finished["kernel"] == {"state": "idle", "replaced": True, **lost}
    result = strict.result(strict_session, finished["execution"])
    assert result["stdout"] == "begun\nno\n"
    assert result["error"]["ename"] == "CellTimeout"
    assert result["text"] == f"begun\nno\n[cellgate: CellTimeout: {result['error']['evalue']}]"
    ended = [strict.ended(strict_session, execution) for execution in waiting]
    assert {(each["status"], each["cause"]) for each in ended} == {("cancelled", "kernel_replaced")}
    following = strict.execute(strict_session, "print('x' in globals(), open('file.txt').read())")
    assert (following["stdout"], following["kernel"]["replaced"]) == ("False kept\n", False)
    assert strict.model(strict_session)["kernel_id"] != kernel
    causes = [e["cause"] for e in strict.recorded(strict_session) if e["type"] == "session"]
    assert "cell_timeout" in causes


AWAITS = {
    "sleep": "await asyncio.sleep(600)",
    "gather": "await asyncio.gather(*(asyncio.sleep(600) for _ in range(3)))",
    "server": "await (await asyncio.start_server(print, '127.0.0.1', 0)).serve_forever()",
    "thread": "await asyncio.to_thread(asleep.wait)",
    "blocks": "await asyncio.sleep(0)\nwhile True: time.sleep(0.01)",
}


@pytest.mark.parametrize("awaits", AWAITS.values(), ids=AWAITS)
def test_a_cell_that_awaits_is_interrupted_at_its_deadline_and_keeps_its_variables(
    gateway: GatewayProcess, session: str, awaits: str
) -> None:
    gateway.execute(session, "import asyncio, threading, time\nasleep = threading.Event()\nx = 1")
    result = gateway.execute(session, f"print('so far')\n{awaits}", timeout=IN_TIME)
    assert (result["status"], result["stdout"]) == ("timeout", "so far\n")
    assert result["kernel"] == {"state": "idle", "replaced": False}
    assert gateway.execute(session, "asleep.set(); x")["text"] == "1"


def test_the_queue_of_a_cell_that_was_only_interrupted_goes_on(gateway: GatewayProcess, session: str) -> None:
    late = gateway.submit(session, "import time\nwhile True: time.sleep(0.01)", timeout=0.4)
    following = gateway.submit(session, "'ran'")
    assert gateway.ended(session, late)["status"] == "timeout"
    assert gateway.ended(session, following)["text"] == "'ran'"


# What a kernel sends once at the end of a cell is not sent: of that type, from the next message on.
MUTE = """
session = get_ipython().kernel.session
send = session.send
def mute(stream, message, *args, **kwargs):
    content = message.get('content', {{}}) if isinstance(message, dict) else args[0]
    kind = message if isinstance(message, str) else message['header']['msg_type']
    if kind != '{kind}' or content.get('execution_state', 'idle') != 'idle':
        return send(stream, message, *args, **kwargs)
    session.send = send
    return session.msg(kind, content)
session.send = mute
print('done')
"""


@pytest.mark.parametrize("kind", ["execute_reply", "status"])
def test_a_cell_whose_reply_or_idle_is_lost_is_over_all_the_same(
    gateway: GatewayProcess, session: str, kind: str
) -> None:
    gateway.execute(session, "1")
    result = gateway.execute(session, MUTE.format(kind=kind), timeout=IN_TIME)
    # It ended before its deadline; what was missing then had a time of its own.
    assert (result["status"], result["cause"], result["stdout"]) == ("ok", None, "done\n")
    assert result["duration_ms"] >= 5000
    assert result["kernel"] == {"state": "idle", "replaced": False}
    assert gateway.execute(session, "2")["text"] == "2"


def test_time_in_the_queue_does_not_count(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session, f"import time; input(); time.sleep({IN_TIME})")
    waiting = gateway.submit(session, "'ran'", timeout=IN_TIME)
    gateway.answer(session, held)
    result = gateway.ended(session, waiting)
    assert (result["status"], result["text"]) == ("ok", "'ran'")
    assert result["queue_ms"] >= 1000 * IN_TIME


def test_a_question_that_nobody_answers_ends_at_the_deadline(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1")
    body = {"code": "print('before'); input('? ')", "timeout": IN_TIME}
    events = list(gateway.events("POST", f"/v1/sessions/{session}/execute", body))
    assert "input_request" in {event["type"] for event in events}
    assert (events[-1]["status"], events[-1]["cause"]) == ("timeout", "cell_timeout")
    assert events[-1]["kernel"] == {"state": "idle", "replaced": False}
    assert gateway.execute(session, "x")["text"] == "1"


def test_a_sessions_cell_timeout_is_the_default_of_its_cells(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session, "limits": {"cell_timeout": 0.5}})
    endless = "import time\nwhile True: time.sleep(0.01)"
    late = gateway.execute(session, endless)
    assert late["status"] == "timeout"
    assert "The cell ran longer than 0.5 s" in late["text"]
    patient = gateway.execute(session, "import time; time.sleep(0.7); 'ran'", timeout=120)
    assert (patient["status"], patient["text"]) == ("ok", "'ran'")


def test_a_deadline_with_an_environment_leaves_none_of_it(gateway: GatewayProcess, session: str) -> None:
    endless = "import os, time\nprint(os.environ['A'])\nwhile True: time.sleep(0.01)"
    result = gateway.execute(session, endless, timeout=IN_TIME, env={"A": "b"})
    assert (result["status"], result["stdout"]) == ("timeout", "b\n")
    assert gateway.execute(session, "print(os.environ.get('A'))")["stdout"] == "None\n"


def test_children_of_a_cell_end_with_it(gateway: GatewayProcess, session: str) -> None:
    code = "import subprocess\nwith subprocess.Popen(['sleep', '600']) as child: print('begun'); child.wait()"
    result = gateway.execute(session, code, timeout=IN_TIME)
    assert (result["status"], result["stdout"]) == ("timeout", "begun\n")
    assert result["kernel"]["replaced"] is False
    children = "open(f'/proc/self/task/{os.getpid()}/children').read()"
    assert gateway.execute(session, f"import os; {children}")["text"] == "''"


@pytest.mark.parametrize("timeout", [0, -1, 1e9, "soon", True])
def test_times_that_can_not_be_are_refused(gateway: GatewayProcess, session: str, timeout: object) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": "1", "timeout": timeout})
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert "timeout" in answer.json()["detail"]
    assert gateway.get(f"/v1/sessions/{session}").status == 404


def test_the_gateways_cell_timeout_is_the_default(start_gateway: StartGateway) -> None:
    gateway = start_gateway(cell_timeout=0.5)
    assert gateway.get("/v1/info").json()["limits"]["cell_timeout"] == 0.5
    result = gateway.execute("s", "import time\nwhile True: time.sleep(0.01)")
    assert (result["status"], result["cause"]) == ("timeout", "cell_timeout")


# ---- sessions


def limited(gateway: GatewayProcess, session: str, **limits: float) -> None:
    """Make a session with these limits."""
    answer = gateway.post("/v1/sessions", {"session": session, "limits": limits})
    assert answer.status == 201


def test_an_idle_session_ends_and_can_be_gone_on_with(strict: GatewayProcess, strict_session: str) -> None:
    # The session must not have ended before its cell asks.
    limited(strict, strict_session, idle_timeout=IN_TIME)
    strict.execute(strict_session, "x = 1; open('file.txt', 'w').write('kept')")
    until(lambda: strict.model(strict_session)["state"] == "ended", "it did not end")
    assert strict.model(strict_session)["cause"] == "idle_timeout"
    shown = strict.execute(strict_session, "print('x' in globals(), open('file.txt').read())")
    assert shown["stdout"] == "False kept\n"
    sessions = [e for e in strict.recorded(strict_session) if e["type"] == "session"]
    # It may have ended once more since.
    assert [(e["state"], e["cause"]) for e in sessions[:3]] == [
        ("idle", "created"),
        ("ended", "idle_timeout"),
        ("idle", "resumed"),
    ]


def test_a_session_that_works_is_not_idle(strict: GatewayProcess, strict_session: str) -> None:
    limited(strict, strict_session, idle_timeout=0.3)
    result = strict.execute(strict_session, "import time; time.sleep(1); 'ran'")
    assert (result["status"], result["text"]) == ("ok", "'ran'")
    until(lambda: strict.model(strict_session)["state"] == "ended", "it did not end")


def test_a_dead_session_that_nobody_uses_ends(strict: GatewayProcess, strict_session: str) -> None:
    limited(strict, strict_session, idle_timeout=0.3)
    strict.execute(strict_session, "import os; os._exit(1)")
    until(lambda: strict.model(strict_session)["state"] == "ended", "it did not end")
    assert strict.model(strict_session)["cause"] == "idle_timeout"


def test_a_session_ends_with_its_lifetime_whatever_it_does(
    strict: GatewayProcess, strict_session: str
) -> None:
    # The session must not have ended before its cell asks: a new one of the same key would have no limit.
    strict.warm()
    limited(strict, strict_session, lifetime=2 * IN_TIME)
    held = strict.hold(strict_session, "print('so far'); input()")
    until(lambda: strict.model(strict_session)["state"] == "ended", "it did not end")
    assert strict.model(strict_session)["cause"] == "lifetime"
    result = strict.result(strict_session, held)
    assert (result["status"], result["cause"], result["stdout"]) == ("interrupted", "lifetime", "so far\n")


def test_ended_sessions_give_their_kernels_back(start_gateway: StartGateway) -> None:
    gateway = start_gateway(cull_interval=0.05)
    keys = ["one", "two", "three"]
    for key in keys:
        limited(gateway, key, idle_timeout=0.2)
    for key in keys:
        until(lambda key=key: gateway.model(key)["state"] == "ended", "it did not end")  # type: ignore[misc]
    until(lambda: gateway.get("/v1/info").json()["pool"]["in_use"] == 0, "kernels are in use by nobody")


def test_requests_that_meet_an_ending_session_are_served(start_gateway: StartGateway) -> None:
    gateway = start_gateway(idle_timeout=0.1, cull_interval=0.05)
    for number in range(10):
        answer = gateway.post("/v1/sessions/s/execute", {"code": f"{number}"})
        assert answer.status == 200, answer.body
        assert answer.json()["text"] == str(number)
        time.sleep(0.1 + number * 0.01)  # each request comes a little later into the session's end
