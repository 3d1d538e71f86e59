"""``cellgate exec`` and ``files`` as users call them: processes against a gateway's process."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import uuid

import pytest

from tests.gateway.cli.conftest import Shell
from tests.support.commands import INSTALLED
from tests.support.server import GatewayProcess


def test_code_runs_with_its_output_alone_on_stdout(shell: Shell, gateway: GatewayProcess) -> None:
    done = shell.call("exec", "import sys\nprint('out'); print('err', file=sys.stderr); 6 * 7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n42\n", "err\n")
    sessions = gateway.get("/v1/sessions?limit=1000").json()["sessions"]
    states = {model["state"] for model in sessions if model["session"].startswith("exec-")}
    assert states == {"ended"}


def test_code_may_be_in_another_language_in_a_session_of_its_own_or_in_pythons(
    shell: Shell, session: str
) -> None:
    done = shell.call("exec", "echo $BASH_VERSION; exit_with() { return 3; }; exit_with", "--language", "sh")
    assert (done.returncode, done.stdout[:2]) == (1, "5.")
    shell.call("exec", "open('f', 'w').write('by python')", "--session", session)
    done = shell.call(
        "exec", "console.log(Deno.readTextFileSync('f'))", "--language=js", "--session", session
    )
    assert (done.returncode, done.stdout) == (0, "by python\n")
    done = shell.call("exec", "1", "--language", "cobol")
    assert done.returncode == 2
    assert "python, bash, sh" in done.stderr


def test_a_markdown_files_blocks_run_in_their_languages(shell: Shell) -> None:
    blocks = {"python": "open('n', 'w').write('7')", "bash": "cat n && echo", "js": "console.log(6 * 7)"}
    text = "".join(f"```{language}\n{code}\n```\n" for language, code in blocks.items())
    (shell.folder / "guide.md").write_text(text)
    done = shell.call("run", "guide.md", "--all-languages")
    assert done.returncode == 0, done.stderr
    assert "42\n" in done.stdout
    done = shell.call("run", "guide.md", "--language", "bash")
    assert done.returncode == 1, "there is no file n in the session of bash"


def test_a_named_session_keeps_its_variables_and_stdin_may_bring_the_code(shell: Shell, session: str) -> None:
    assert shell.call("exec", "x = 20", "--session", session).returncode == 0
    done = shell.call("exec", "-", "--session", session, stdin="y = x + 1\nprint(y)\n")
    assert (done.returncode, done.stdout) == (0, "21\n")


def test_what_fails_leaves_with_1_and_says_why(shell: Shell, session: str) -> None:
    failed = shell.call("exec", "1 / 0", "--session", session)
    assert failed.returncode == 1
    assert "ZeroDivisionError: division by zero" in failed.stdout
    late = shell.call("exec", "print('on')\nwhile True: pass", "--session", session, "--timeout", "1")
    assert (late.returncode, late.stdout[:3]) == (1, "on\n")
    assert "timeout (cell_timeout)" in late.stderr
    assert "\nThe cell ran longer than 1 s; its output until then is above.\n" in late.stderr
    dead = shell.call("exec", "import os; os._exit(3)", "--session", session)
    assert dead.returncode == 1
    assert "\nKernelDied: The kernel exited with code 3.\n" in dead.stderr


def test_ctrl_c_interrupts_the_code(shell: Shell, gateway: GatewayProcess, session: str) -> None:
    code = "import time\nprint('on', flush=True)\ntime.sleep(60)"
    with subprocess.Popen(
        [INSTALLED, "exec", code, "--session", session],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    executions = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert executions[-1]["status"] == "interrupted"


@pytest.mark.parametrize(
    "words",
    [
        ("exec",),
        ("exec", ""),
        ("exec", "1", "--timeout", "0"),
        ("exec", "-"),
        ("files",),
        ("files", "push", "s", "f"),
        ("files", "put", "s"),
        ("files", "get", "s"),
        ("files", "ls"),
        ("files", "rm", "s", "a", "b"),
        ("files", "put", "s", "no-such-file"),
    ],
)
def test_wrong_usage_is_2(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.call(*words)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("cellgate: ")
    assert done.stderr.count("\n") == 1


def test_files_go_in_and_out(shell: Shell, session: str) -> None:
    data = os.urandom(100_000)
    (shell.folder / "data.bin").write_bytes(data)
    done = shell.call("files", "put", session, "data.bin")
    assert done.stdout.startswith("data.bin  100000 bytes  sha256 ")
    assert shell.call("files", "put", session, "data.bin", "sub/copy.bin").returncode == 0
    listed = shell.call("files", "ls", session).stdout.splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in listed] == [
        ("100000", "data.bin"),
        ("100000", "sub/copy.bin"),
    ]
    refused = shell.call("files", "get", session, "data.bin")
    assert refused.returncode == 2
    assert "exists" in refused.stderr
    assert shell.call("files", "get", session, "sub/copy.bin").stdout == "copy.bin\n"
    assert (shell.folder / "copy.bin").read_bytes() == data
    assert shell.call("files", "rm", session, "data.bin").returncode == 0
    gone = shell.call("files", "get", session, "data.bin", "other.bin")
    assert gone.returncode == 2
    assert not (shell.folder / "other.bin").exists()


def on_terminal(shell: Shell, *argv: str) -> bytes:
    """What a command that succeeds shows on a terminal."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [INSTALLED, *argv],
            cwd=shell.folder,
            env={**shell.environment, "TERM": "xterm", "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            shown = b""
            while part := _read(ours):
                shown += part
            assert process.wait(60) == 0
            return shown
    finally:
        os.close(ours)


def test_a_large_transfer_shows_how_far_it_is_on_a_terminal(shell: Shell) -> None:
    with (shell.folder / "large.bin").open("wb") as file:
        file.truncate(20_000_000)
    session = f"test-{uuid.uuid4().hex[:12]}"
    shown = on_terminal(shell, "files", "put", session, "large.bin")
    assert b"large.bin" in shown
    assert b"20.0 MB" in shown
    size = shell.call("exec", "import os; print(os.stat('large.bin').st_size)", "--session", session)
    assert size.stdout == "20000000\n"


def test_an_export_shows_that_it_is_being_made_and_then_how_far_it_is(shell: Shell) -> None:
    session = f"test-{uuid.uuid4().hex[:12]}"
    assert shell.call("exec", "print('y' * 200_000)", "--session", session).returncode == 0
    shown = on_terminal(shell, "export", session, "--to", "html", "-o", "page.html")
    assert b"converting to html" in shown
    assert b"page.html" in shown
    assert (shell.folder / "page.html").stat().st_size > 200_000
    small = shell.call("export", session, "-o", "it.ipynb", "--no-outputs")
    assert (small.returncode, small.stdout, small.stderr) == (0, "it.ipynb\n", "")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has closed: Linux's way to say so
        return b""
