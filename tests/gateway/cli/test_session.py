"""``cellgate session``: sessions listed, looked at, stopped, ended and watched, as users do."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.gateway.cli.conftest import Shell
from tests.support.server import GatewayProcess

PATIENCE = 30.0
SLEEP = "import time; print('on', flush=True); time.sleep(100)"


@pytest.fixture
def other(gateway: GatewayProcess) -> Iterator[str]:
    key = f"test-{uuid.uuid4().hex[:12]}"
    yield key
    gateway.delete(f"/v1/sessions/{key}")


def queue(gateway: GatewayProcess, session: str, *codes: str) -> list[str]:
    """Cells that are not waited for: their ids, once the first one runs."""
    path = f"/v1/sessions/{session}/execute"
    made = [gateway.post(path, {"code": code, "wait": False}).json()["execution"] for code in codes]
    deadline = time.monotonic() + PATIENCE
    while not any(event["type"] == "stream" for event in gateway.recorded(session)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return made


def statuses(gateway: GatewayProcess, session: str) -> list[str]:
    listed = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
    return [execution["status"] for execution in listed]


def test_the_session_used_last_is_listed_first_and_lines_of_a_pipe_are_never_folded(
    shell: Shell, gateway: GatewayProcess, session: str, other: str
) -> None:
    long = f"test-{'long' * 28}-{uuid.uuid4().hex[:8]}"
    for name in (session, other, long, session):
        gateway.execute(name, "1")
    gateway.delete(f"/v1/sessions/{long}")
    lines = shell.lines("session", "ls")
    assert lines[0].split() == [
        "SESSION",
        "STATE",
        "KERNEL",
        "CELLS",
        "LAST",
        "ACTIVITY",
        "(UTC)",
        "ISOLATION",
    ]
    places = [
        next(place for place, line in enumerate(lines) if line.startswith(name)) for name in (long, session)
    ]
    assert [lines[place].split()[1] for place in places] == ["ended", "idle"]
    names = [line.split()[0] for line in lines]
    assert names.index(session) < names.index(other)
    assert shell.lines("sessions") == lines
    live = [model["session"] for model in json.loads(shell.call("session", "ls", "--live", "--json").stdout)]
    assert long not in live
    assert live.index(session) < live.index(other)


def test_info_says_what_is_known_and_which_cells_run_and_wait(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    running, waiting = queue(gateway, session, SLEEP, "2")
    facts = dict(line.split(None, 1) for line in shell.lines("session", "info", session))
    assert (facts["session"], facts["state"], facts["kernel"]) == (session, "busy", "python3")
    assert facts["cells"] == "0, 1 waiting"
    assert facts["running"].startswith(running)
    assert facts["queued"].startswith(waiting)
    model = json.loads(shell.call("session", "info", session, "--json").stdout)
    assert [each["execution"] for each in model["unfinished"]] == [running, waiting]
    assert model["seq"] == len(gateway.recorded(session))


def test_an_interrupt_stops_the_running_cell_only(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    _, second = queue(gateway, session, SLEEP, "2")
    assert shell.lines("session", "interrupt", session) == [f"interrupted: {session}"]
    with shell.start("session", "watch", session, "--after", "0", "--json") as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if (event["type"], event["execution"]) == ("finished", second):
                break
        process.send_signal(signal.SIGINT)
    assert statuses(gateway, session) == ["interrupted", "ok"]
    assert shell.lines("session", "interrupt", session) == [f"nothing runs in {session}"]


def test_cancel_ends_one_cell_or_all_that_run_or_wait(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    first, second, third = queue(gateway, session, SLEEP, "2", "3")
    assert shell.lines("session", "cancel", session, second) == [f"cancelled: {second}"]
    assert shell.lines("session", "cancel", session) == [f"cancelled: {third}", f"cancelled: {first}"]
    assert gateway.execute(session, "4")["status"] == "ok"
    assert statuses(gateway, session) == ["interrupted", "cancelled", "cancelled", "ok"]
    assert shell.lines("session", "cancel", session) == [f"nothing runs or waits in {session}"]
    again = shell.call("session", "cancel", session, second)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)


def test_a_restart_loses_variables_and_keeps_files(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "x = 1; open('kept', 'w').close()")
    assert shell.lines("session", "restart", session) == [
        f"restarted: {session}; variables are gone, files are kept"
    ]
    assert gateway.execute(session, "import os; 'x' in globals(), os.listdir()")["text"] == (
        "(False, ['kept'])"
    )


def test_an_end_is_asked_for_on_a_terminal_and_not_elsewhere(
    shell: Shell, gateway: GatewayProcess, session: str, other: str
) -> None:
    def state(name: str) -> str:
        return str(gateway.get(f"/v1/sessions/{name}").json()["state"])

    for name in (session, other):
        gateway.execute(name, "1")
    with shell.terminal("session", "end", session, other) as terminal:
        terminal.until(r"End .*\[y/N\] ")
        terminal.send("\n")
        assert terminal.ended() == 1
    assert (state(session), state(other)) == ("idle", "idle")
    with shell.terminal("session", "end", session) as terminal:
        terminal.until(r"\[y/N\] ")
        terminal.send("y\n")
        terminal.until(f"ended: {session}; the record stays: cellgate export {session}")
        assert terminal.ended() == 0
    assert (state(session), state(other)) == ("ended", "idle")
    with shell.terminal("session", "end", other, "--yes") as terminal:
        assert terminal.ended() == 0
    assert state(other) == "ended"
    gateway.execute(other, "1")
    # One that is not there: nothing is ended.
    assert shell.call("session", "end", other, "never-was").returncode == 2
    assert state(other) == "idle"
    assert shell.lines("session", "end", other) == [
        f"ended: {other}; the record stays: cellgate export {other}"
    ]
    resumed = shell.call("session", "restart", other)
    assert resumed.returncode == 2
    assert f"cellgate exec 1 --session {other}" in resumed.stderr


def test_watching_shows_cells_of_any_client_and_says_how_to_go_on(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "'before'")
    with shell.start("session", "watch", session) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = process.stderr.readline()
        seen = len(gateway.recorded(session))
        assert begun == f"{session} is idle; watching from event {seen + 1} on, Ctrl-C leaves\n"
        gateway.execute(session, "if True:\n    print('\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07')\n1 / 0")
        lines = [process.stdout.readline().rstrip("\n") for _ in range(4)]
        assert lines[:3] == [
            "In [2]: if True:",
            "   ...:     print('\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07')",
            "   ...: 1 / 0",
        ]
        assert lines[3].rstrip() == "red"
        while not (line := process.stdout.readline()).startswith("[error"):
            assert "\x1b" not in line
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        last = len(gateway.recorded(session))
        assert (
            process.stderr.read() == f"to go on from here: cellgate session watch {session} --after {last}\n"
        )
    gateway.execute(session, "input('name?')", stdin=["Ada"])
    gateway.execute(session, "open('a.csv', 'w').write('12')")
    gateway.delete(f"/v1/sessions/{session}")
    done = shell.call("session", "watch", session, "--after", str(last))
    assert done.returncode == 0, "the session has ended"
    shown = done.stdout.splitlines()
    assert [line for line in shown if not line.startswith("[ok")] == [
        "In [3]: input('name?')",
        "[waits for input: name?]",
        "Out[3]: 'Ada'",
        "In [4]: open('a.csv', 'w').write('12')",
        "Out[4]: 2",
        "[file created: a.csv, 2 bytes]",
        "[session ended: deleted]",
    ]


def test_watching_begins_with_the_running_cell_and_ends_cleanly_with_ctrl_c(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "'earlier'")
    queue(gateway, session, SLEEP)
    with shell.terminal("session", "watch", session) as terminal:
        terminal.until(r"In \[2\]: import time")
        terminal.until("on\r\n")
        assert b"earlier" not in terminal.raw
        gateway.post(f"/v1/sessions/{session}/interrupt")
        terminal.until(r"KeyboardInterrupt")
        terminal.until(r"\[interrupted")
        terminal.send("\x03")
        terminal.until("to go on from here")
        assert terminal.ended() == 130
    assert b"Traceback (most recent call last):" not in terminal.raw


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage: cellgate session ls|info"),
        (("list",), "cellgate session does not know 'list'"),
        (("info",), "usage: cellgate session info SESSION"),
        (("info", "never-was"), "No session 'never-was'"),
        (("watch", "never-was"), "No session 'never-was'"),
        (("ls", "work"), "usage: cellgate session ls"),
        (("ls", "--state", "tired"), "state"),
        (("watch", "s", "--after", "-1"), "--after must be a whole number of at least 0, not -1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.call("session", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
