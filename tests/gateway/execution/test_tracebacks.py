"""What a user sees of an error is what plain IPython in the same environment shows for the same cells.

The reference is made in the kernel's own environment, by IPython without ipykernel and without a gateway.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.gateway.execution import tracebacks
from tests.support.server import IN_TIME, GatewayProcess

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CELL_FILE = re.compile(r"<ipython-input-\d+-\w+>|/\S*/ipykernel_\d+/\d+\.py")
_REFERENCE = """
import subprocess, sys
done = subprocess.run([sys.executable, "tracebacks.py"], capture_output=True, text=True)
print(done.stdout if done.returncode == 0 else done.stderr)
"""


@pytest.fixture
def backend(sandbox: None, start_gateway: StartGateway) -> GatewayProcess:
    """A gateway with sandboxes, with the default limits of a kernel."""
    return start_gateway(backend="sandbox")


def plain(text: str) -> str:
    """The text without what differs from run to run: colours, files that stand for cells, depths."""
    return re.sub(r"\d+ times", "N times", _CELL_FILE.sub("<cell>", _COLOUR.sub("", text)))


def reference(gateway: GatewayProcess) -> list[list[str]]:
    source = Path(tracebacks.__file__).read_bytes()
    answer = gateway.request("PUT", "/v1/sessions/reference/files/tracebacks.py", source)
    assert answer.status == 201, answer.body
    result = gateway.execute("reference", _REFERENCE, timeout=100)
    found = json.loads(result["stdout"])
    assert isinstance(found, list)
    return found


@pytest.mark.nightly
def test_errors_are_shown_as_plain_ipython_shows_them(backend: GatewayProcess) -> None:
    expected = iter(reference(backend))
    for name, cells in tracebacks.cases().items():
        for code in cells:
            result = backend.execute("s", code, timeout=100)
            traceback, printed = next(expected)
            shown = "\n".join(result["error"]["traceback"]) if result["error"] else ""
            assert plain(shown) == plain(traceback), f"{name}: {code}"
            assert plain(result["stderr"]) == plain(printed), f"{name}: {code}"
            assert not re.search(r"ipykernel/|ipykernel_launcher|bootstrap|gateway", shown), name
            if shown and "\x1b" in traceback:
                assert "\x1b[" in shown


def test_a_deadline_shows_where_the_code_was(backend: GatewayProcess) -> None:
    backend.execute("s", "import time\ndef wait():\n    time.sleep(600)")
    result = backend.execute("s", "x = 1\nwait()", timeout=IN_TIME)
    assert (result["status"], result["error"]["ename"]) == ("timeout", "KeyboardInterrupt")
    assert plain("\n".join(result["error"]["traceback"])).split("\n")[1:] == [
        "KeyboardInterrupt                         Traceback (most recent call last)",
        "Cell In[2], line 2",
        "      1 x = 1",
        "----> 2 wait()",
        "",
        "Cell In[1], line 3, in wait()",
        "      2 def wait():",
        "----> 3     time.sleep(600)",
        "",
        "KeyboardInterrupt: ",
    ]


def test_a_deadline_shows_where_the_code_of_a_plain_process_was(start_gateway: StartGateway) -> None:
    test_a_deadline_shows_where_the_code_was(start_gateway())
