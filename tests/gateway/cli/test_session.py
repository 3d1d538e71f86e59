"""``cellgate session``: sessions listed, looked at, stopped, ended and watched, as users do."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.cli.conftest import Shell
from tests.support.server import GatewayProcess

PATIENCE = 60.0
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


def test_sessions_are_found_by_their_cells(
    shell: Shell, gateway: GatewayProcess, session: str, other: str
) -> None:
    gateway.execute(session, "print('an ' + 'armadillo')")
    gateway.execute(other, "1")
    (said,) = shell.lines("session", "ls", "--search", "An Armadillo")
    assert said == "No sessions. Their names and titles were searched; --cells searches their cells, too."
    assert shell.lines("session", "ls", "--search", "An Armadillo!", "--cells") == ["No sessions."]
    _, line = shell.lines("session", "ls", "--search", "An Armadillo", "--cells")
    assert line.startswith(session)


def test_the_session_used_last_is_listed_first_and_lines_of_a_pipe_are_never_folded(
    shell: Shell, gateway: GatewayProcess, session: str, other: str
) -> None:
    long = f"test-{'long' * 28}-{uuid.uuid4().hex[:8]}"
    for name in (session, other, long, session):
        gateway.execute(name, "1")
    gateway.delete(f"/v1/sessions/{long}")
    lines = shell.lines("session", "ls")
    # After these comes a column of titles if any session of the gateway has one.
    assert " ".join(lines[0].split()[:7]) == "SESSION STATE KERNEL CELLS LAST ACTIVITY (UTC)"
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
    assert facts["cells"] == "2, 1 waiting"
    assert facts["ends"].endswith(" (lifetime)")
    assert facts["limits"].startswith("memory 1 GiB, cpus 1, pids 256, disk 1 GiB, cell_timeout 60 s, ")
    assert facts["running"].startswith(running)
    assert facts["queued"].startswith(waiting)
    model = json.loads(shell.call("session", "info", session, "--json").stdout)
    assert [each["execution"] for each in model["unfinished"]] == [running, waiting]
    assert model["seq"] == len(gateway.recorded(session))


def test_cells_are_counted_as_in_the_console(
    shell: Shell, gateway: GatewayProcess, session: str, other: str
) -> None:
    """Undone ones too; a branch has its own, though the numbers at its cells go on."""
    gateway.post("/v1/sessions", {"session": session, "checkpoint": "auto"})
    for code in ("x = 1", "x = 2"):
        gateway.execute(session, code)
    shell.lines("session", "undo", session)
    shell.lines("session", "branch", session, "--as", other)
    assert gateway.execute(other, "x")["execution_count"] == 2
    listed = {line.split()[0]: line.split()[3] for line in shell.lines("session", "ls")[1:]}
    for name, count in ((session, 2), (other, 1)):
        executions = gateway.get(f"/v1/sessions/{name}/executions").json()["executions"]
        facts = dict(line.split(None, 1) for line in shell.lines("session", "info", name))
        assert (len(executions), listed[name], facts["cells"]) == (count, str(count), f"{count}, 0 waiting")


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


def test_what_changes_a_session_prints_json_too(shell: Shell, gateway: GatewayProcess, session: str) -> None:
    def told(*words: str) -> Any:
        done = shell.call("session", *words, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    first, second = queue(gateway, session, SLEEP, "2")
    assert told("cancel", session, second) == {"session": session, "cancelled": [second]}
    assert told("cancel", session) == {"session": session, "cancelled": [first]}
    gateway.execute(session, "1")
    assert told("interrupt", session) == {"session": session, "interrupted": False}
    assert told("restart", session)["session"] == session
    assert [model["state"] for model in told("end", session)] == ["ended"]


def test_a_branch_has_the_variables_and_says_where_it_is_from(
    shell: Shell, gateway: GatewayProcess, session: str, other: str
) -> None:
    gateway.execute(session, "x = 7")
    assert shell.lines("session", "branch", session, "--as", other) == [
        f"branched: {other}; it has the variables and files of {session}"
    ]
    assert gateway.execute(other, "x")["text"] == "7"
    told = shell.lines("session", "info", other)
    assert [line.split()[2] for line in told if line.startswith("branched from")] == [f"{session},"]
    assert [line.split()[-1] for line in told if line.startswith("same sandbox")] == [session]
    branched_at = gateway.get(f"/v1/sessions/{other}").json()["branched_from"]["seq"]
    drawn = [f"{session} (idle)", f"  {other} (idle, from {session} at event {branched_at})"]
    assert shell.lines("session", "tree", session) == drawn
    assert shell.lines("session", "tree", other) == drawn
    tree = json.loads(shell.call("session", "tree", other, "--json").stdout)
    assert [node["session"] for node in tree["ancestors"]] == [session]
    again = shell.call("session", "branch", session, "--as", other)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)


def test_alternatives_are_tried_side_by_side_and_the_session_stays_as_it_is(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "x = [1]")
    cells = ["x.append(2); print('a\\x07'); x", "1 / 0", "x.clear()"]
    lines = shell.lines("session", "explore", session, *cells)
    ends = [line for line in lines if line.startswith("[") and "(record: " in line]
    assert [end.partition(" (")[0] for end in ends] == ["[1] ok", "[2] error", "[3] ok"]
    assert lines[1:4] == ["a\\x07", "[1, 2]", ""]
    assert any(line.startswith("ZeroDivisionError") for line in lines)
    assert gateway.execute(session, "x")["text"] == "[1]"
    none = shell.call("session", "explore", session, "1 / 0", "exit()", "--timeout", "60")
    assert none.returncode == 1
    told = shell.call("session", "explore", session, "x[0]", "--keep-all", "--json")
    (kept,) = json.loads(told.stdout)["results"]
    assert (kept["branch"], kept["text"]) == ("kept", "1")
    assert gateway.execute(kept["session"], "x")["text"] == "[1]"
    assert shell.call("session", "end", kept["session"]).returncode == 0


def test_the_session_goes_on_as_the_first_alternative_that_ends_well(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "x = 1")
    lines = shell.lines("session", "explore", session, "y = 1 / 0", "y = x + 1", "y = 7", "--keep-first")
    ends = [line.partition(": ")[0] for line in lines if line.startswith("[")]
    assert ends[:2] == ["[1] error (record", "[2] ok (chosen"]
    assert gateway.execute(session, "y")["text"] == "2"
    both = shell.call("session", "explore", session, "1", "--keep-first", "--keep-all")
    assert (both.returncode, both.stdout, both.stderr.count("\n")) == (2, "", 1)
    assert "--keep-all and --keep-first exclude each other" in both.stderr


def test_variables_are_a_table(shell: Shell, gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    assert shell.lines("session", "variables", session) == [f"{session} has no variables"]
    gateway.execute(session, "rows = [1, 2, 3]; name = 'Ada'")
    heading, rows, name = shell.lines("session", "variables", session)
    assert heading.split() == ["NAME", "TYPE", "BYTES", "SUMMARY"]
    assert rows.split()[:2] + rows.split()[3:] == ["rows", "list", "3", "items"]
    assert name.split()[:2] + name.split()[3:] == ["name", "str", "'Ada'"]
    told = json.loads(shell.call("session", "variables", session, "--json").stdout)
    assert [each["name"] for each in told["variables"]] == ["rows", "name"]


def test_a_session_is_changed(shell: Shell, gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    renamed = shell.call("session", "rename", session, "Report")
    assert (renamed.returncode, "did you mean change?" in renamed.stderr) == (2, True)
    nothing = shell.call("session", "change", session)
    assert (nothing.returncode, "--title" in nothing.stderr) == (2, True)
    wrong = shell.call("session", "change", session, "--metadata", "[1]")
    assert (wrong.returncode, "--metadata is a JSON object" in wrong.stderr) == (2, True)
    before = gateway.model(session)["limits"]
    metadata = shell.lines("session", "change", session, "--metadata", '{"team": "ml"}')
    assert metadata == [f"changed: {session}"]
    told = shell.call("session", "change", session, "--title", "Für Mai", "--idle-time", "50", "--json")
    changed = json.loads(told.stdout)
    assert (changed["title"], changed["metadata"]["team"]) == ("Für Mai", "ml")
    assert changed["limits"] == before | {"idle_timeout": 50}
    assert "Für Mai" in next(line for line in shell.lines("session", "ls") if line.startswith(session))
    shell.lines("session", "change", session, "--title", "")
    assert gateway.model(session)["title"] is None
    shell.lines("session", "change", session, "--on-idle", "end")
    assert gateway.model(session)["limits"]["on_idle"] == "end"
    back = shell.call("session", "change", session, "--on-idle", "sleep")
    # Whether its kernel can sleep is the machine's matter.
    assert ("Its kernel can't sleep now" in back.stderr) == ("can_sleep" not in gateway.model(session))
    assert gateway.model(session)["limits"]["on_idle"] == "sleep"
    odd = shell.call("session", "change", session, "--on-idle", "nap")
    assert (odd.returncode, "sleep" in odd.stderr) == (2, True)
    gateway.delete(f"/v1/sessions/{session}")
    over = shell.call("session", "change", session, "--title", "late")
    assert (over.returncode, "has ended" in over.stderr) == (2, True)


def test_checkpoints_are_made_listed_and_gone_back_to(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "x = 1")
    assert shell.lines("session", "checkpoints", session) == [f"{session} has no checkpoint"]
    assert shell.call("session", "rollback", session).returncode == 2
    back = f"cellgate session rollback {session} good"
    assert shell.lines("session", "checkpoint", session, "--as", "good") == [
        f"checkpoint: good; back to it: {back}"
    ]
    gateway.execute(session, "x = 2")
    assert shell.lines("session", "undo", session) == [
        "undone: 1 cell; variables and files are as at the checkpoint good"
    ]
    for x in (2, 3):
        gateway.execute(session, f"x = {x}")
    assert shell.lines(*back.split()[1:]) == [
        "undone: 2 cells; variables and files are as at the checkpoint good"
    ]
    assert gateway.execute(session, "x")["text"] == "1"
    (line,) = shell.lines("session", "checkpoints", session)
    assert line.startswith("good  ")
    assert " after 1 cell" in line
    told = json.loads(shell.call("session", "checkpoints", session, "--json").stdout)
    assert [(each["name"], each["cells"]) for each in told] == [("good", 1)]
    made = json.loads(shell.call("session", "checkpoint", session, "--json").stdout)
    undone = json.loads(shell.call("session", "rollback", session, "--json").stdout)
    assert undone["rolled_back"] == {"checkpoint": made["name"], "undone": 0}
    taken = shell.call("session", "checkpoint", session, "--as", "good")
    assert (taken.returncode, taken.stdout, taken.stderr.count("\n")) == (2, "", 1)
    wrong = shell.call("session", "rollback", session, "another")
    assert (wrong.returncode, "There is no checkpoint 'another'" in wrong.stderr) == (2, True)


def test_a_checkpoint_in_spite_of_obstacles(shell: Shell, gateway: GatewayProcess, session: str) -> None:
    gateway.execute(
        session, "import threading; e = threading.Event(); threading.Thread(target=e.wait).start()"
    )
    refused = shell.call("session", "checkpoint", session)
    assert (refused.returncode, "--anyway" in refused.stderr) == (2, True)
    assert len(shell.lines("session", "checkpoint", session, "--anyway")) == 1
    gateway.execute(session, "e.set()")


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
        terminal.send("\x03")
        assert terminal.ended() == 130
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
        (("ls", "--cells"), "--cells needs --search TEXT"),
        (("watch", "s", "--after", "-1"), "--after must be a whole number of at least 0, not -1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.call("session", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
