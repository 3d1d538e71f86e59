"""``cellgate exec`` and ``files`` as users call them: processes against a gateway's process."""

from __future__ import annotations

import base64
import http.server
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.gateway.cli.conftest import Shell
from tests.support.commands import INSTALLED
from tests.support.nightly import mostly_nightly
from tests.support.server import GatewayProcess

NOT_NEEDED = frozenset(
    {
        "IPython",
        "PIL",
        "cryptography",
        "jsonschema",
        "jupyter_client",
        "jupyter_core",
        "markdown_it",
        "nbformat",
    }
    | {"packaging", "prompt_toolkit", "pygments", "rich", "structlog", "tornado", "zmq"}
    | {f"cellgate.{room}" for room in ("execution", "files", "http", "jobs", "server", "sessions")}
)
"""What other commands need, and `exec` would only wait for: importing is most of a short command's time."""


@pytest.mark.parametrize("words", [("--session", "quick"), (), ("--json",)])
def test_a_cell_waits_for_no_module_that_other_commands_need(shell: Shell, words: Sequence[str]) -> None:
    done = subprocess.run(
        [INSTALLED, "exec", "6 * 7", *words],
        cwd=shell.folder,
        env={**shell.environment, "PYTHONPROFILEIMPORTTIME": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert "42" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "cellgate.cli.run.exec" in imported
    assert imported & NOT_NEEDED == set()


def test_code_runs_with_its_output_alone_on_stdout(shell: Shell, gateway: GatewayProcess) -> None:
    def of_exec() -> dict[str, str]:
        sessions = gateway.get("/v1/sessions?limit=1000").json()["sessions"]
        return {each["session"]: each["state"] for each in sessions if each["session"].startswith("exec-")}

    before = of_exec()
    done = shell.call("exec", "import sys\nprint('out'); print('err', file=sys.stderr); 6 * 7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n42\n", "err\n")
    made = {session: state for session, state in of_exec().items() if session not in before}
    assert list(made.values()) == ["ended"]


def test_tables_charts_and_bars_are_told_as_in_results(shell: Shell) -> None:
    code = """from tqdm.auto import tqdm
for number in tqdm(range(2), desc='up'): print(number)
import pandas, plotly.graph_objects
display(pandas.DataFrame({'a': [10]}).style)
plotly.graph_objects.Figure()"""
    done = shell.call("exec", code)
    *lines, bar = done.stdout.splitlines()
    assert lines == ["0", "1", "   a", "0  10", "[Plotly chart]"]
    assert bar.startswith("up: 100%|██████████| 2/2 [00:0")


def test_help_is_output_and_quitting_says_what_it_did(shell: Shell) -> None:
    done = shell.call("exec", "len?")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Return the number of items in a container." in done.stdout
    done = shell.call("exec", "print('before'); exit()")
    assert (done.returncode, done.stdout) == (1, "before\n")
    assert "died (kernel_exit)" in done.stderr


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


@pytest.mark.parametrize("where", mostly_nightly([(), ("--session", "mine")], [()]))
def test_who_waits_for_a_kernel_sees_how_many_are_before(
    start_gateway: StartGateway, tmp_path: Path, where: tuple[str, ...]
) -> None:
    gateway = start_gateway(pool_size=0, max_kernels=1, claim_timeout=60)
    gateway.execute("holder", "1")
    with Shell(gateway, tmp_path).start("exec", "6 * 7", *where) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "waits for a kernel, 0 before it\n"
        assert gateway.delete("/v1/sessions/holder").status == 204
        assert waiting.communicate(timeout=60) == ("42\n", "")


def test_a_named_session_keeps_its_variables_and_stdin_may_bring_the_code(shell: Shell, session: str) -> None:
    assert shell.call("exec", "x = 20", "--session", session).returncode == 0
    done = shell.call("exec", "-", "--session", session, stdin="y = x + 1\nprint(y)\n")
    assert (done.returncode, done.stdout) == (0, "21\n")


@pytest.mark.parametrize("words", [("exec", "x = 1"), ("run", "one.py")])
def test_a_session_made_with_checkpoints_can_be_undone(
    shell: Shell, session: str, words: tuple[str, ...]
) -> None:
    (shell.folder / "one.py").write_text("x = 1")
    shell.call(*words, "--session", session, "--checkpoints")
    assert any(
        line.split() == ["checkpoints", "after", "each", "cell"]
        for line in shell.lines("session", "info", session)
    )
    shell.lines("exec", "x = 2", "--session", session)
    assert shell.lines("session", "undo", session) == [
        "undone: 1 cell; variables and files are as at the checkpoint auto-1"
    ]
    assert shell.lines("exec", "x", "--session", session, "--checkpoints") == ["1"]


def test_a_session_that_makes_no_checkpoints_does_not_begin_to(shell: Shell, session: str) -> None:
    shell.lines("exec", "x = 1", "--session", session)
    refused = shell.call("exec", "x", "--session", session, "--checkpoints")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "checkpoint" in refused.stderr


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


@pytest.mark.parametrize("name", ["analysis.py", "two words.ipynb"])
def test_who_gives_it_a_file_is_told_what_runs_files(shell: Shell, name: str) -> None:
    unknown = shell.call("exec", name)
    assert "cellgate run" not in unknown.stderr
    (shell.folder / name).write_text("x = 1\n")
    done = shell.call("exec", name)
    assert done.returncode == 1
    assert done.stderr.endswith(f"{name} is a file here: cellgate run {shlex.quote(name)}\n")
    too_long = shell.call("exec", f"{'x' * 5000}.py")
    assert (too_long.returncode, too_long.stderr) == (1, "")


def test_stdin_answers_input_line_by_line_and_its_end_is_the_end_of_input(shell: Shell, session: str) -> None:
    shell.call("exec", "ask = lambda: print(repr(input('? ')))", "--session", session)
    done = shell.call("exec", "ask(); ask()", "--session", session, stdin="Ada\r\nL\u00e9a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "'Ada'\n'L\u00e9a'\n", "")
    short = shell.call("exec", "ask(); ask()", "--session", session, stdin="one\n")
    assert (short.returncode, short.stdout.startswith("'one'\n")) == (1, True)
    assert "EOFError" in short.stdout
    # Whatever is not asked for is not read.
    with shell.start("exec", "6 * 7", "--session", session) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "42\n"
        assert process.wait(60) == 0


def test_lines_come_when_they_are_asked_for_and_one_that_never_comes_is_no_hang(
    shell: Shell, session: str
) -> None:
    code = "while (x := input()) != 'end': print(x.upper(), flush=True)"
    with shell.start("exec", code, "--session", session) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in ("a", "b"):
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{word.upper()}\n"
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait(60) == 0
    with shell.start("exec", "input()", "--session", session, "--timeout", "1") as process:
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert "timeout (cell_timeout)" in process.stderr.read()


def test_input_that_is_not_text_stops_the_cell(shell: Shell, gateway: GatewayProcess, session: str) -> None:
    with shell.start("exec", "input()", "--session", session) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.buffer.write(b"\xff\n")
        process.stdin.close()
        assert process.wait(60) == 2
        assert process.stderr.read().splitlines()[-1] == "cellgate: stdin is not UTF-8 text"
    assert gateway.model(session)["state"] == "idle"


def test_at_a_terminal_prompts_are_shown_and_passwords_are_not(shell: Shell, session: str) -> None:
    code = "import getpass; (input('name? '), getpass.getpass('word? '), print('\\x1b[2Jred'))"
    with shell.terminal("exec", code, "--session", session) as terminal:
        terminal.until(r"name\? ")
        terminal.send("Ada\n")
        terminal.until(r"word\? ")
        terminal.send("secret\n")
        terminal.until(r"red\r\n\('Ada', 'secret', None\)\r\n")
        assert terminal.ended() == 0
    assert terminal.raw.count(b"secret") == 1
    assert b"\x1b[2J" not in terminal.raw


def test_json_is_the_result_alone(shell: Shell, session: str) -> None:
    done = shell.call("exec", "print('a' * 300); 1 / 0", "--session", session, "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert (result["status"], result["stdout"], result["error"]["ename"]) == (
        "error",
        "a" * 300 + "\n",
        "ZeroDivisionError",
    )
    asked = shell.call("exec", "input()", "--json", stdin="Ada\n")
    assert json.loads(asked.stdout)["text"] == "'Ada'"


PLOT = "from IPython.display import Image; Image(data=__import__('base64').b64decode('{png}'))"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_pictures_are_shown_saved_or_described(shell: Shell, session: str) -> None:
    code = PLOT.format(png=PNG)
    words = ("exec", code, "--session", session)
    assert shell.call(*words).stdout == "[image/png 1x1]\n"
    assert not (shell.folder / f"{session}-images").exists()
    saved = shell.call(*words, "--images", "save").stdout
    assert saved == f"[image/png 1x1 saved: {session}-images/2-1.png]\n"
    assert (shell.folder / f"{session}-images" / "2-1.png").read_bytes() == base64.b64decode(PNG)
    assert (
        shell.call(*words, "--images", "my figures").stdout == "[image/png 1x1 saved: my figures/3-1.png]\n"
    )
    with shell.terminal(*words, KITTY_WINDOW_ID="1") as terminal:
        assert terminal.ended() == 0
    assert re.search(rb"\x1b_Ga=T,f=100,q=2,m=0;[A-Za-z0-9+/=]+\x1b\\\r\n", terminal.raw)
    # One that is asked: it says that it has sixel.
    with shell.terminal(*words) as terminal:
        terminal.raw_until(b"\x1b[c")
        terminal.send("\x1b[?62;4;22c")
        assert terminal.ended() == 0
    assert b'\x1bP0;1;0q"1;1;1;1#' in terminal.raw
    assert b"22c" not in terminal.raw
    (shell.folder / "plot.py").write_text(code)
    with shell.terminal("run", "plot.py", KITTY_WINDOW_ID="1") as terminal:
        assert terminal.ended() == 0
    assert b"\x1b_Ga=T,f=100,q=2,m=0;" in terminal.raw
    assert shell.call("run", "plot.py", "--images=save").stdout == (
        "[image/png 1x1 saved: plot-images/1-1.png]\n"
    )


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


def test_a_file_may_be_put_and_got_into_a_folder(shell: Shell, session: str) -> None:
    (shell.folder / "data.bin").write_bytes(b"1")
    assert shell.lines("files", "put", session, "data.bin", "raw/")[0].startswith("raw/data.bin  1 bytes")
    (shell.folder / "got").mkdir()
    assert shell.lines("files", "get", session, "raw/data.bin", "got") == ["got/data.bin"]
    refused = shell.call("files", "get", session, "raw/data.bin", "got/")
    assert (refused.returncode, refused.stderr) == (
        2,
        "cellgate: got/data.bin exists; name a file to replace it\n",
    )


def test_what_is_no_file_is_not_replaced(shell: Shell, session: str) -> None:
    """Root would replace /dev/stdout for everybody."""
    shell.lines("exec", "open('data.bin', 'w').close()", "--session", session)
    os.mkfifo(shell.folder / "pipe")
    (shell.folder / "stdout").symlink_to("/proc/self/fd/1")
    for name in ("pipe", "stdout"):
        for words in (("export", session, "-o", name), ("files", "get", session, "data.bin", name)):
            done = shell.call(*words)
            assert (done.returncode, done.stdout) == (2, ""), words
            assert (
                done.stderr == f"cellgate: {name} can't be written: It is no file, but a device or a pipe\n"
            )
    assert (shell.folder / "pipe").is_fifo()
    assert (shell.folder / "stdout").is_symlink()
    # Where stdout is a file, a link to such a link leads to one.
    (shell.folder / "link").symlink_to("stdout")
    command = [INSTALLED, "export", session, "-o", "link"]
    with (shell.folder / "printed").open("w") as file:
        done = subprocess.run(
            command,
            cwd=shell.folder,
            env=shell.environment,
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
            check=False,
        )
    assert (done.returncode, "It is no file, but a device or a pipe" in done.stderr) == (2, True)
    assert (shell.folder / "link").is_symlink()


def on_terminal(shell: Shell, *argv: str, to: str = "stderr", code: int = 0) -> bytes:
    """What a command that ends with this code shows on a terminal, which is one of its streams alone."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [INSTALLED, *argv],
            cwd=shell.folder,
            env={**shell.environment, "TERM": "xterm", "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=theirs if to == "stdout" else subprocess.DEVNULL,
            stderr=theirs if to == "stderr" else subprocess.DEVNULL,
        ) as process:
            os.close(theirs)
            shown = b""
            while part := _read(ours):
                shown += part
            assert process.wait(60) == code
            return shown
    finally:
        os.close(ours)


EVIL = (
    r"print('a\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b(0\x9b2Jb', file=sys.{to}); raise ValueError('c\x1b]0;t\x07d')"
)


@pytest.mark.parametrize("to", ["stderr", "stdout"])
@pytest.mark.parametrize("command", ["exec", "run"])
def test_a_cell_does_nothing_to_a_terminal_that_is_one_of_two_streams(
    shell: Shell, to: str, command: str
) -> None:
    code = "import sys; " + EVIL.format(to=to)
    (shell.folder / "evil.py").write_text(code)
    shown = on_terminal(shell, command, code if command == "exec" else "evil.py", to=to, code=1).decode()
    assert "a2Jb" in shown
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]*+[mK])", shown)


class Refusing(http.server.BaseHTTPRequestHandler):
    """A gateway that refuses everything, in words that somebody else may have chosen."""

    def do_GET(self) -> None:
        told = "There is no a\x1b]0;title\x07\x1b(0\x9b2J in the session"
        body = json.dumps({"status": 404, "reason": "not_found", "detail": told}).encode()
        self.send_response(404)
        self.send_header("Content-Type", "application/problem+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_a_refusal_with_words_of_others_is_shown_as_they_are(shell: Shell) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            shown = on_terminal(shell, "sessions", "--url", address, "--token", "t", code=2).decode()
        finally:
            server.shutdown()
            thread.join()
    assert shown == "cellgate: There is no a\\x1b]0;title\\x07\\x1b(0\\x9b2J in the session\r\n"


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


EXPORTS = {
    ("-o", "it.html"): b"<!DOCTYPE html>",
    ("-o", "it.htm"): b"<!DOCTYPE html>",
    ("-o", "it.md"): b"```python\n",
    ("-o", "it.zip"): b"PK",
    ("-o", "other.html", "--to", "ipynb"): b"{",
    ("-o", "it.ipynb"): b"{",
    ("-o", "it"): b"{",
    ("-o", "it.pdf", "--to", "ipynb"): b"{",
}


def test_an_export_is_what_its_name_says(shell: Shell, session: str) -> None:
    shell.lines("exec", "6 * 7", "--session", session)
    for words, begins in EXPORTS.items():
        shell.lines("export", session, *words)
        assert (shell.folder / words[1]).read_bytes().lstrip().startswith(begins), words


def test_a_script_has_the_extension_of_its_session_s_language(shell: Shell, session: str) -> None:
    shell.lines("exec", "echo hi", "--session", session, "--language", "bash")
    shell.lines("export", session, "-o", "it.sh")
    assert shell.lines("export", session, "--to", "script") == [f"{session}.sh"]
    assert (shell.folder / f"{session}.sh").read_text() == (shell.folder / "it.sh").read_text() != ""
    refused = shell.call("export", session, "-o", "it.py")
    assert refused.returncode == 2
    assert refused.stderr == "cellgate: it.py: the name of a script of this session ends in .sh\n"
    assert not (shell.folder / "it.py").exists()


def test_the_command_is_a_module_too(shell: Shell) -> None:
    called = subprocess.run(
        [sys.executable, "-m", "cellgate", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert called.stdout == shell.call("--version").stdout != ""
