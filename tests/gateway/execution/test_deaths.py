"""Kernels that die: in a cell, between cells, by themselves or by a signal; the session goes on."""

from __future__ import annotations

import pytest

from tests.support.server import GatewayProcess, until

KEEP = "x = 1; open('file.txt', 'w').write('kept')"
SHOW = "print('x' in globals(), open('file.txt').read())"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os._exit(3)", "exited with code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
    ],
)
def test_a_death_in_a_cell_is_its_result_and_the_next_cell_gets_a_fresh_kernel(
    gateway: GatewayProcess, session: str, end: str, said: str
) -> None:
    gateway.execute(session, KEEP)
    first = gateway.model(session)["kernel_id"]
    held = gateway.hold(session, f"import os, signal; print('last words'); input(); {end}")
    gateway.answer(session, held)
    result = gateway.ended(session, held)
    assert (result["status"], result["cause"]) == ("died", "kernel_exit")
    assert result["stdout"] == "last words\n"
    assert result["error"]["ename"] == "KernelDied"
    assert said in result["error"]["evalue"]
    assert result["text"] == f"last words\n[cellgate: KernelDied: {result['error']['evalue']}]"
    exported = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"][-1]["outputs"]
    assert "".join(exported[-1]["data"]["text/plain"]) == result["text"].removeprefix("last words\n")
    assert result["kernel"] == {"state": "dead", "replaced": False}
    model = gateway.model(session)
    assert (model["state"], model["cause"]) == ("dead", "kernel_exit")
    following = gateway.execute(session, SHOW)
    assert (following["status"], following["stdout"]) == ("ok", "False kept\n")
    lost = {"cause": "kernel_exit", "files": "kept"}
    assert following["kernel"] == {"state": "idle", "replaced": True, **lost}
    assert gateway.execute(session, "2")["kernel"] == {"state": "idle", "replaced": False}
    model = gateway.model(session)
    assert model["state"] == "idle"
    assert model["kernel_id"] != first


def test_a_death_is_told_though_the_cell_showed_an_error_before(
    gateway: GatewayProcess, session: str
) -> None:
    shown = "import os\ntry: 1 / 0\nexcept ZeroDivisionError: get_ipython().showtraceback()\n"
    ask = "import sys; sys.stdout.flush(); input(); os._exit(3)"
    held = gateway.hold(session, shown + ask)
    gateway.answer(session, held)
    result = gateway.ended(session, held)
    assert result["error"]["ename"] == "KernelDied"
    assert "ZeroDivisionError: division by zero" in result["text"]
    assert result["text"].endswith("\n[cellgate: KernelDied: The kernel exited with code 3.]")


def test_what_waits_behind_a_death_is_cancelled(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session, "import os; input(); os._exit(1)")
    waiting = [gateway.submit(session, "1") for _ in range(2)]
    gateway.answer(session, held)
    assert gateway.ended(session, held)["status"] == "died"
    ended = [gateway.ended(session, execution) for execution in waiting]
    assert {(each["status"], each["cause"]) for each in ended} == {("cancelled", "kernel_died")}
    assert gateway.execute(session, "2")["text"] == "2"


def test_a_death_between_cells_is_seen_and_recorded(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, KEEP)
    leaves = (
        "import os, threading, time\n"
        "def leave():\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    os._exit(4)\n"
        "threading.Thread(target=leave).start()"
    )
    assert gateway.execute(session, leaves)["status"] == "ok"
    (gateway.workspace(session) / "go").touch()
    until(lambda: gateway.model(session)["state"] == "dead", "nobody noticed")
    assert gateway.model(session)["cause"] == "kernel_exit"
    last = gateway.recorded(session)[-1]
    assert (last["type"], last["state"], last["cause"]) == ("session", "dead", "kernel_exit")
    following = gateway.execute(session, SHOW)
    assert (following["stdout"], following["kernel"]["replaced"]) == ("False kept\n", True)
    assert [e["cause"] for e in gateway.recorded(session) if e["type"] == "session"][-1] == "kernel_exit"


def test_a_cell_that_was_sent_as_the_kernel_died_gets_an_answer(
    gateway: GatewayProcess, session: str
) -> None:
    for _ in range(3):
        gateway.execute(session, "import os, threading; t = threading.Timer(0.01, os._exit, [1]); t.start()")
        # It ran before the death, died with the kernel, or ran in a fresh one: it has ended.
        assert gateway.execute(session, "'ran'")["finished_at"] is not None
    until(lambda: gateway.execute(session, "'ran'")["status"] == "ok", "the session does not go on")


def test_a_dead_session_can_be_restarted_and_deleted(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, KEEP)
    gateway.execute(session, "import os; os._exit(1)")
    answer = gateway.post(f"/v1/sessions/{session}/restart")
    assert (answer.status, answer.json()["state"]) == (200, "idle")
    following = gateway.execute(session, SHOW)
    assert (following["stdout"], following["kernel"]["cause"]) == ("False kept\n", "kernel_restarted")
    gateway.execute(session, "import os; os._exit(1)")
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    assert gateway.model(session)["state"] == "ended"


def test_quitting_ends_the_session_s_kernel_and_not_the_session(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, KEEP)
    assert gateway.execute(session, "quit()")["status"] == "died"
    until(lambda: gateway.model(session)["state"] == "dead", "the kernel did not end")
    assert gateway.execute(session, SHOW)["stdout"] == "False kept\n"


def test_a_dead_sessions_stream_tells_the_death(gateway: GatewayProcess, session: str) -> None:
    body = {"code": "print('x', end=''); input(); import os; os._exit(1)"}
    told = []
    for event in gateway.events("POST", f"/v1/sessions/{session}/execute", body):
        told.append(event)
        if event["type"] == "input_request":
            gateway.answer(session, event["execution"])
    types = [event["type"] for event in told]
    assert types[:2] == ["queued", "started"]
    assert set(types[2:-1]) == {"stream", "input_request", "input_reply"}
    assert types[-1] == "finished"
    assert (told[-1]["status"], told[-1]["error"]["ename"]) == ("died", "KernelDied")


def test_a_death_in_a_cell_with_its_own_variables_is_noticed_at_once(
    gateway: GatewayProcess, session: str
) -> None:
    """Not only at its deadline: what sets the variables waits for the kernel's death too."""
    result = gateway.execute(session, "import os; os._exit(3)", env={"NAME": "value"}, timeout=100)
    assert (result["status"], result["cause"]) == ("died", "kernel_exit")
    assert gateway.execute(session, "'next'")["text"] == "'next'"
