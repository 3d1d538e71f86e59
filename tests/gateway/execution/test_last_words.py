"""What a cell wrote before its kernel died is in answer, stream and record: whole, in order, once."""

from __future__ import annotations

import pytest

from tests.support.server import GatewayProcess

ENDS = {
    "exit": "os._exit(3)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "segv": "ctypes.string_at(0)",
    "abort": "os.abort()",
}
WRITES = """
import ctypes, os, signal, sys
print('flushed', flush=True)
for number in range(300): print(number, 'é')
print('to stderr', file=sys.stderr)
print('last', end='')
"""
OUT = "flushed\n" + "".join(f"{number} é\n" for number in range(300)) + "last"


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_all_that_was_printed_is_there(gateway: GatewayProcess, session: str, end: str) -> None:
    result = gateway.execute(session, WRITES + end)
    assert result["status"] == "died"
    assert (result["stdout"], result["stderr"]) == (OUT, "to stderr\n")
    assert result["truncated"] is False
    recorded = [event for event in gateway.recorded(session) if event["type"] == "stream"]
    assert "".join(event["text"] for event in recorded if event["name"] == "stdout") == OUT
    # The next kernel knows nothing of it.
    assert gateway.execute(session, "print('next')")["stdout"] == "next\n"


def test_a_stream_tells_it_before_the_end(gateway: GatewayProcess, session: str) -> None:
    body = {"code": "import os\nprint('one')\nprint('two')\nos._exit(1)"}
    told = list(gateway.events("POST", f"/v1/sessions/{session}/execute", body))
    assert "".join(event["text"] for event in told if event["type"] == "stream") == "one\ntwo\n"
    assert [event["type"] for event in told if event["type"] in ("stream", "finished")][-1] == "finished"


def test_text_that_was_sent_comes_only_once(gateway: GatewayProcess, session: str) -> None:
    """In between there is time enough for ipykernel to send it, or half of it."""
    for pause in (0, 0.005, 0.01, 0.02, 0.1):
        code = f"import os, time\nfor n in range(5): print(n); time.sleep({pause})\nos._exit(1)"
        assert gateway.execute(session, code)["stdout"] == "0\n1\n2\n3\n4\n"


def test_the_words_of_c_code_and_of_a_fault_are_there(gateway: GatewayProcess, session: str) -> None:
    faults = "import ctypes, faulthandler, os\nfaulthandler.enable()\n"
    result = gateway.execute(session, faults + "os.write(1, b'from C\\n')\nctypes.string_at(0)")
    assert (result["status"], result["stdout"]) == ("died", "from C\n")
    assert "Fatal Python error: Segmentation fault" in result["stderr"]
    assert "string_at" in result["stderr"]


def test_a_flood_before_a_death_is_cut_as_ever(strict: GatewayProcess, strict_session: str) -> None:
    code = "import os\nprint('first', flush=True)\nfor n in range(100_000): print(n)\nos._exit(1)"
    result = strict.execute(strict_session, code)
    assert (result["status"], result["truncated"]) == ("died", True)
    assert result["stdout"].startswith("first\n0\n1\n")
    assert "[cellgate: output cut here" in result["stdout"]


def test_a_branch_and_its_parent_have_their_own(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "import os; print('parent')")
    branch = gateway.post(f"/v1/sessions/{session}/branch", {}).json()["session"]
    for each in (branch, session):
        result = gateway.execute(each, f"print('{each}'); os._exit(1)")
        assert (result["status"], result["stdout"]) == ("died", f"{each}\n")


def test_a_fork_of_a_cell_says_its_words_to_the_cell(gateway: GatewayProcess, session: str) -> None:
    """Whole and in order, before the cell's own end or behind it: they are in a pipe, which outlives both."""
    code = (
        "import os\nprint('parent')\nchild = os.fork()\n"
        "if not child:\n    print('child', flush=True); os._exit(0)\n"
        "os.waitpid(child, 0)\nos._exit(1)"
    )
    result = gateway.execute(session, code)
    assert (result["status"], result["stdout"]) == ("died", "parent\nchild\n")
