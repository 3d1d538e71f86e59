"""What a first cell should not stumble over: exit(), help, displays that fail, programs, input."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.support.nightly import at_night, mostly_nightly
from tests.support.requirements import require
from tests.support.server import IN_TIME, GatewayProcess, together


@pytest.mark.parametrize(
    ("code", "printed"), [("print('before')\nexit()", "before\n"), ("quit()", ""), ("exit", ""), ("quit", "")]
)
def test_exit_ends_the_kernel_in_its_own_cell(
    gateway: GatewayProcess, session: str, code: str, printed: str
) -> None:
    result = gateway.execute(session, code)
    assert (result["status"], result["cause"], result["stdout"]) == ("died", "kernel_exit", printed)
    assert gateway.execute(session, "1 + 1")["text"] == "2"


def test_sys_exit_says_nothing_of_a_terminal(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "import sys\nsys.exit(3)")
    assert (result["status"], result["error"]["ename"], result["stderr"]) == ("error", "SystemExit", "")
    # Warnings of the code itself are shown.
    assert (
        "To exit: mine"
        in gateway.execute(session, "import warnings; warnings.warn('To exit: mine')")["stderr"]
    )


def test_exit_never_ends_the_next_cell(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 1")
    codes = ["exit()", "40 + 2"]
    first, second = (gateway.submit(session, code) for code in codes)
    assert gateway.ended(session, first)["status"] == "died"
    # Cells that were queued for the lost kernel don't run without its variables.
    assert gateway.ended(session, second)["status"] == "cancelled"
    assert [gateway.execute(session, "40 + 2")["text"] for _ in range(3)] == ["42"] * 3


def test_what_a_program_registered_for_its_exit_runs(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "import atexit\natexit.register(print, 'goodbye')\nexit()")
    assert (result["status"], result["stdout"]) == ("died", "goodbye\n")


def test_exit_may_keep_the_kernel(gateway: GatewayProcess, session: str) -> None:
    assert gateway.execute(session, "x = 5\nexit(keep_kernel=True)")["status"] == "ok"
    assert gateway.execute(session, "x")["text"] == "5"


@pytest.mark.parametrize(
    ("argument", "printed", "status"), [("3", "", 3), ("0", "", 0), ("'the reason'", "the reason\n", 1)]
)
def test_exit_takes_a_status_or_what_to_say_as_pythons_own_does(
    gateway: GatewayProcess, session: str, argument: str, printed: str, status: int
) -> None:
    result = gateway.execute(session, f"exit({argument})\nprint('after')")
    assert (result["status"], result["cause"]) == ("died", "kernel_exit")
    assert (result["stdout"], result["stderr"]) == ("", printed)
    assert result["error"]["evalue"] == f"The kernel exited with code {status}."


@pytest.mark.parametrize("code", ["len?", "len??", "%pdoc len", "?len"])
def test_help_is_output(gateway: GatewayProcess, session: str, code: str) -> None:
    result = gateway.execute(session, code)
    assert "Return the number of items in a container." in result["text"]
    assert [output["output_type"] for output in result["outputs"]] == ["display_data"]
    notebook = gateway.get(f"/v1/sessions/{session}/notebook").json()
    shown = notebook["cells"][-1]["outputs"][0]["data"]["text/plain"]
    assert "number of items" in "".join(shown)


@pytest.mark.parametrize(
    "method", ["def _repr_html_(self)", "def __repr__(self)", "def _repr_mimebundle_(self, **_)"]
)
def test_a_display_that_fails_shows_its_traceback(gateway: GatewayProcess, session: str, method: str) -> None:
    result = gateway.execute(session, f"class Odd:\n    {method}: raise ValueError('odd')\nOdd()")
    assert (result["status"], result["cause"], result["error"]) == ("ok", None, None)
    assert "ValueError: odd" in result["text"]
    assert "NoneType" not in result["text"]
    assert result["outputs"][0]["output_type"] == "error"


def test_a_program_that_fails_says_its_status_and_its_error(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "%%bash\nls /not-there\nexit 3")
    assert (result["status"], result["error"]["ename"]) == ("error", "CalledProcessError")
    assert "/not-there" in result["stderr"]
    assert "exit status 3" in result["text"]
    assert "run_cell_magic" not in result["text"]


def test_a_program_that_is_deaf_to_interrupts_does_not_cost_others_their_plain_errors(
    gateway: GatewayProcess, session: str
) -> None:
    deaf = "%%bash\ntrap '' INT TERM\nwhile true; do sleep 1; done"
    result = gateway.execute(session, deaf, timeout=IN_TIME)
    assert (result["status"], result["error"]["ename"]) == ("timeout", "CalledProcessError")
    assert "Custom TB Handler failed" not in result["text"]
    assert "TypeError" not in result["text"]
    later = gateway.execute(session, "%%bash\nexit 3")
    assert later["text"] == "CalledProcessError: Command 'the program' returned non-zero exit status 3."


@pytest.mark.parametrize("code", ["!sleep 600", "x = !sleep 600", "def f():\n    !sleep 600\nf()"])
def test_a_command_at_its_deadline_is_a_timeout_and_ends_its_cell(
    gateway: GatewayProcess, session: str, code: str
) -> None:
    gateway.execute(session, "before = 5")
    result = gateway.execute(session, f"{code}\nimport time\nwhile True: time.sleep(1)", timeout=IN_TIME)
    assert (result["status"], result["cause"]) == ("timeout", "cell_timeout")
    assert result["error"]["ename"] == "KeyboardInterrupt"
    # What the cell was in is shown, and not how the command is run.
    assert "sleep 600" in result["text"]
    assert "zmqshell" not in result["text"]
    assert "bootstrap" not in result["text"]
    assert result["kernel"]["replaced"] is False
    assert gateway.execute(session, "before")["text"] == "5"


def test_a_command_gets_the_variables_that_its_cell_or_function_has(
    gateway: GatewayProcess, session: str
) -> None:
    """As in plain Jupyter, whatever their names."""
    code = """
def local(command, system):
    !echo {command} $system
    shown = !echo {command} $system
    return shown
shell, run, name, status = 1, 2, 3, 4
!echo {shell} {run} {name} {status}
local(5, 6)"""
    result = gateway.execute(session, code)
    assert (result["stdout"].split(), result["text"].splitlines()[-1]) == (list("123456"), "['5 6']")


def test_a_program_started_by_python_has_a_traceback(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "import subprocess\nsubprocess.run(['false'], check=True)")
    assert result["error"]["ename"] == "CalledProcessError"
    assert "subprocess.run(['false'], check=True)" in result["text"]


@pytest.mark.parametrize("kernel", ["python3", "bash"])
@pytest.mark.parametrize("status", mostly_nightly([1, 3, 127, 255], {3}))
def test_a_blocks_exit_code_is_its_programs(
    gateway: GatewayProcess, session: str, kernel: str, status: int
) -> None:
    assert gateway.post("/v1/sessions", {"session": session, "kernel": kernel}).status == 201
    blocks = [{"language": "bash", "code": f"(exit {status})"}]
    answer = gateway.post(f"/v1/sessions/{session}/execute-blocks", {"blocks": blocks}).json()
    assert answer["exit_code"] == status


@pytest.mark.parametrize("kernel", ["python3", "bash"])
def test_a_block_that_a_signal_ended_has_the_exit_code_that_a_shell_gives_it(
    gateway: GatewayProcess, session: str, kernel: str
) -> None:
    assert gateway.post("/v1/sessions", {"session": session, "kernel": kernel}).status == 201
    ends = {"python3": "kill -TERM $$", "bash": "sh -c 'kill -TERM $$'"}[kernel]
    blocks = [{"language": "bash", "code": ends}]
    answer = gateway.post(f"/v1/sessions/{session}/execute-blocks", {"blocks": blocks}).json()
    assert answer["exit_code"] == 128 + signal.SIGTERM


INSTALL = "install cellgate-none"
HOW = "by `cellgate packages install` or a line `%pip install NAME`, if its operator allows them"


@pytest.mark.parametrize(
    "code",
    [
        f"!pip {INSTALL}",
        at_night(f"%pip {INSTALL}"),
        at_night(f"!python -m pip {INSTALL}"),
        at_night(f"%%bash\npip {INSTALL}"),
        at_night(f"import subprocess\nprint(subprocess.run('pip {INSTALL}'.split(), check=True, stderr=-1))"),
    ],
)
def test_pip_without_an_index_says_how_packages_come(
    start_gateway: StartGateway, sandbox: None, code: str
) -> None:
    gateway = start_gateway(backend="sandbox")
    result = gateway.execute("s", code)
    assert result["stderr"].count(HOW) == 1
    assert "--allow-package NAME" in result["stderr"]
    assert "Retrying" not in result["text"]
    assert gateway.execute("s", "!pip install pip\n!false")["stderr"] == ""
    raising = f"get_ipython().system_raise_on_error = True\n!pip {INSTALL}"
    assert gateway.execute("s", raising)["stderr"].count(HOW) == 1


def test_uv_without_an_index_says_how_packages_come(start_gateway: StartGateway, sandbox: None) -> None:
    """A kernel's environment has none; a user brings it."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        require("uv", "there is no uv beside the interpreter of the tests")
    gateway = start_gateway(backend="sandbox")
    gateway.execute("s", "1")
    shutil.copy(uv, gateway.workspace("s"))
    for command in ("pip install", "tool install"):
        result = gateway.execute("s", f"!./uv {command} cellgate-none\nprint('ended with', _exit_code)")
        assert result["status"] == "ok"
        assert result["stdout"].splitlines()[-1] == "ended with 1"
        assert "network was disabled" in result["stdout"]
        assert result["stderr"].count(HOW) == 1


def test_input_without_any_says_how_to_give_some(gateway: GatewayProcess, session: str) -> None:
    for code in ("input()", "import getpass\ngetpass.getpass()"):
        result = gateway.execute(session, code)
        assert result["error"]["ename"] == "StdinNotImplementedError"
        assert '"stdin": ["..."]' in result["error"]["evalue"]
        assert "bootstrap" not in result["text"]
    assert gateway.execute(session, "input()", stdin=["given"])["text"].endswith("'given'")


def test_many_exits_at_once_end_only_their_own_kernels(gateway: GatewayProcess, session: str) -> None:
    def leave(number: int) -> tuple[str, str]:
        key = f"{session}-{number}"
        try:
            return gateway.execute(key, "exit()")["status"], gateway.execute(key, "'here'")["text"]
        finally:
            gateway.delete(f"/v1/sessions/{key}")

    assert together(4, leave) == [("died", "'here'")] * 4


FULL = {
    "many small objects": "x = []\nprint('before')\nwhile True: x.append(list(range(5)))",
    "some large ones": "x = []\nprint('before')\nwhile True: x.append(bytes(range(250)) * 40_000)",
}


@pytest.mark.parametrize("code", FULL.values(), ids=FULL)
def test_a_cell_that_takes_all_memory_says_so_and_no_more(
    gateway: GatewayProcess, session: str, code: str
) -> None:
    """Its variables are still there, so there is none for what says it either."""
    if gateway.get("/v1/info").json()["isolation"] != "sandbox":
        pytest.skip("nothing but a sandbox limits what a process allocates")
    assert gateway.post("/v1/sessions", {"session": session, "limits": {"memory": "384m"}}).status == 201
    for _ in range(2):
        result = gateway.execute(session, code)
        assert (result["status"], result["error"]["ename"]) == ("error", "MemoryError"), result
        assert (result["stdout"], result["stderr"]) == ("before\n", ""), result
        assert "MemoryError" in result["text"]
        assert gateway.execute(session, "print(len(x) > 10)\ndel x")["stdout"] == "True\n"
