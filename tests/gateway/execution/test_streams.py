"""Standard output and error of cells' children and of C code: in the answer of their own cell, and whole."""

from __future__ import annotations

from tests.support.server import GatewayProcess


def test_what_children_write_is_in_the_answer_of_their_cell(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "import os, subprocess, sys")
    for number in range(30):
        out = gateway.execute(session, f"os.system('echo {number}; echo e{number} >&2'); None")
        assert (out["stdout"], out["stderr"]) == (f"{number}\n", f"e{number}\n")
        written = gateway.execute(session, f"os.write(1, b'w{number}')")
        assert written["stdout"] == f"w{number}"


def test_it_is_there_before_an_error_and_where_a_cell_has_replaced_its_streams(
    gateway: GatewayProcess, session: str
) -> None:
    failed = gateway.execute(session, "import os, io, sys\nos.system('echo before')\n1 / 0")
    assert [output["output_type"] for output in failed["outputs"]] == ["stream", "error"]
    replaced = gateway.execute(session, "sys.stdout = io.StringIO(); os.system('echo replaced'); None")
    assert replaced["stdout"] == "replaced\n"


def test_letters_of_children_are_whole(gateway: GatewayProcess, session: str) -> None:
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', \"print('漢é😀' * 5000)\"]); None"
    result = gateway.execute(session, code)
    assert result["stdout"] == "漢é😀" * 5000 + "\n"


def test_bytes_that_are_no_letters_stop_nothing(gateway: GatewayProcess, session: str) -> None:
    assert gateway.execute(session, r"import os; os.write(1, b'a\xffb\n'); None")["stdout"] == "a\ufffdb\n"
    # Half of a letter waits for its other half.
    assert gateway.execute(session, r"os.write(1, b'\xe6\xbc'); None")["stdout"] == ""
    assert gateway.execute(session, r"os.write(1, b'\xa2\n'); None")["stdout"] == "漢\n"


def test_nothing_of_the_machinery_is_in_a_cells_output(gateway: GatewayProcess, session: str) -> None:
    code = "from IPython.display import JSON, display\ndisplay(JSON({'a': float('nan')}))"
    result = gateway.execute(session, code)
    assert (result["status"], result["stderr"]) == ("ok", "")
    assert result["outputs"][0]["data"]["application/json"] == {"a": "nan"}
    shown = gateway.execute(session, "print('a\\ud800b')")
    assert (shown["stdout"], shown["stderr"]) == ("a\\ud800b\n", "")
