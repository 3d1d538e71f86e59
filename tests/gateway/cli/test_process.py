"""``cellgate process``: programs in a session run, fed, signalled, watched and ended, as users do."""

from __future__ import annotations

import json
import re
import signal

from tests.gateway.cli.conftest import Shell
from tests.support.server import GatewayProcess, until

PATIENCE = 60.0
STUBBORN = "trap 'echo again' INT; echo ready; while :; do sleep 0.1; done"


def running(gateway: GatewayProcess, session: str) -> list[str]:
    listed = gateway.get(f"/v1/sessions/{session}/processes").json()["processes"]
    return [each["process"] for each in listed if each["state"] == "running"]


def test_a_program_is_shown_and_its_exit_code_passed_on(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "import os; os.mkdir('there')")
    shell.environment["MINE"] = "passed on"
    done = shell.call(
        *("process", "run", session, "--cwd", "there", "--env", "A=b c", "--env", "MINE", "--"),
        *("sh", "-c", 'pwd; echo "$A $MINE"; echo oh >&2; exit 7', "--help", "--json"),
    )
    folder, variables = done.stdout.splitlines()
    assert folder.endswith("/there")
    assert (variables, done.stderr, done.returncode) == ("b c passed on", "oh\n", 7)
    # No shell stands between the user and the program, nor do our own options.
    assert shell.lines("process", "run", session, "--", "printf", "%s|", "a b", "--json", "x=y") == [
        "a b|--json|x=y|"
    ]


def test_a_missing_session_is_made_and_a_missing_program_is_an_error(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    assert shell.lines("process", "run", session, "--", "echo", "hi") == ["hi"]
    assert gateway.get(f"/v1/sessions/{session}").json()["state"] == "idle"
    done = shell.call("process", "run", session, "--", "no-such-program")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'no-such-program' can't be started: No such file" in done.stderr
    unset = shell.call("process", "run", session, "--env", "NOT_SET", "--", "true")
    assert (unset.returncode, "NOT_SET=VALUE" in unset.stderr) == (2, True)
    forgotten = shell.call("process", "run", session)
    assert forgotten.returncode == 2
    assert "SESSION -- PROGRAM..." in forgotten.stderr
    unseparated = shell.call("process", "run", session, "ls", "-l")
    assert unseparated.returncode == 2
    assert "there is no option -l" in unseparated.stderr
    assert "put -- before the program" in unseparated.stderr


def test_what_is_piped_in_is_the_programs_input(shell: Shell, session: str) -> None:
    text = "".join(f"line {number}\n" for number in range(300_000))
    # More than the gateway keeps for a program that does not read yet.
    done = shell.call("process", "run", session, "--", "sh", "-c", "sleep 1; wc -c", stdin=text)
    assert (done.stdout.strip(), done.returncode) == (str(len(text)), 0)


def test_json_is_the_whole_process(shell: Shell, session: str) -> None:
    done = shell.call("process", "run", session, "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    model = json.loads(done.stdout)
    assert (model["stdout"], model["stderr"], model["exit_code"]) == ("out\n", "err\n", 3)
    assert (done.stderr, done.returncode) == ("", 3)


def test_a_deadline_and_a_signal_are_said(shell: Shell, session: str) -> None:
    late = shell.call("process", "run", session, "--timeout", "0.2", "--", "sleep", "600")
    assert late.returncode == 128 + signal.SIGTERM
    assert "--timeout" in late.stderr
    killed = shell.call("process", "run", session, "--", "sh", "-c", "kill -KILL $$")
    assert killed.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in killed.stderr


def test_ctrl_c_is_the_programs_and_a_second_one_ends_it(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    with shell.terminal("process", "run", session, "--", "sh", "-c", STUBBORN) as terminal:
        terminal.until("ready")
        terminal.send("\x03")
        terminal.until("again")
        assert len(running(gateway, session)) == 1
        terminal.send("\x03")
        assert terminal.ended() == 128 + signal.SIGTERM
    assert running(gateway, session) == []


def test_a_terminal_is_typed_into_the_program_only_if_asked(shell: Shell, session: str) -> None:
    with shell.terminal("process", "run", session, "--", "cat") as terminal:
        assert terminal.ended() == 0
    with shell.terminal(
        "process", "run", session, "--stdin", "--", "sh", "-c", "read a; echo =$a="
    ) as terminal:
        terminal.send("typed\n")
        terminal.until("=typed=")
        assert terminal.ended() == 0


def test_a_program_can_not_repaint_the_terminal(shell: Shell, session: str) -> None:
    painted = r"printf '\033[31mred\033[0m \033]0;title\007\033[2Jdone\n'"
    with shell.terminal("process", "run", session, "--", "sh", "-c", painted) as terminal:
        terminal.until("done")
        assert terminal.ended() == 0
        assert b"\x1b[31mred" in terminal.raw
        assert b"title" not in terminal.raw
        assert b"\x1b[2J" not in terminal.raw


def test_a_run_that_nobody_reads_ends_its_program(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    with shell.start(
        "process", "run", session, "--", "sh", "-c", "while echo y; do sleep 0.05; done"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "y\n"
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
    until(lambda: not running(gateway, session), "the program goes on")


def test_a_stop_of_the_command_stops_the_program(shell: Shell, gateway: GatewayProcess, session: str) -> None:
    with shell.start("process", "run", session, "--", "sh", "-c", "echo on; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert running(gateway, session) == []


def test_a_program_is_started_listed_watched_signalled_and_ended(
    shell: Shell, gateway: GatewayProcess, session: str
) -> None:
    (process,) = shell.lines("process", "start", session, "--", "sh", "-c", "echo begun; exec sleep 600")
    assert re.fullmatch(r"p-[0-9a-f]{12}", process)
    with shell.start("process", "watch", session, process) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "begun\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE) == 130
    heading, line = shell.lines("process", "ls", session)
    assert heading.split()[0] == "PROCESS"
    assert line.split()[:2] == [process, "running"]
    assert line.endswith("sh -c 'echo begun; exec sleep 600'")
    assert shell.lines("process", "signal", session, process, "int") == []
    seen = shell.call("process", "watch", session, process, "--json")
    events = [json.loads(each) for each in seen.stdout.splitlines()]
    assert [each["type"] for each in events] == ["process_started", "process_output", "process_exited"]
    assert seen.returncode == 128 + signal.SIGINT

    started = json.loads(shell.call("process", "start", session, "--json", "--", "sleep", "600").stdout)
    other = started["process"]
    assert shell.lines("process", "end", session, other, process) == []
    assert shell.call("process", "watch", session, other).returncode == 128 + signal.SIGTERM
    states = [each["signal"] for each in json.loads(shell.call("process", "ls", session, "--json").stdout)]
    assert states == ["SIGINT", "SIGTERM"]
    unknown = shell.call("process", "end", session, "p-000000000000")
    assert unknown.returncode == 2
