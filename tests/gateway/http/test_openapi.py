"""`/openapi.json` and `/docs` of a gateway."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cellgate.http.openapi.document import build_document
from cellgate.http.openapi.examples import load_examples
from cellgate.http.openapi.page import command_of
from cellgate.http.routes import TABLE
from tests.support.server import TOKEN, GatewayProcess

WRONG = {"400", "404", "405", "406", "411", "413", "415", "500"}
NOT_THERE = {
    "get_environment",
    "get_execution",
    "get_output",
    "answer_input",
    "cancel_execution",
    "list_rows",
    "move_widget",
    "get_process",
    "write_process_input",
    "signal_process",
    "end_process",
    "open_port",
    "undo_cell",
    "delete_token",
}
"""What the examples of these name exists in them only, or not in this gateway."""


def test_the_document_needs_no_token(gateway: GatewayProcess) -> None:
    answer = gateway.get("/openapi.json", token=None)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    told: dict[str, Any] = answer.json()
    assert told["info"]["version"] == gateway.get("/v1/info").json()["version"]
    assert told["paths"].keys() == build_document(TABLE, "1")["paths"].keys()


def test_the_page_has_every_operation_and_loads_nothing(gateway: GatewayProcess) -> None:
    answer = gateway.get("/docs", token=None)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'; style-src 'unsafe-inline';")
    assert "script-src" not in policy
    page = answer.body.decode()
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!#|openapi\.json)", page)
    for path, item in build_document(TABLE, "1")["paths"].items():
        for each in item.values():
            assert f'<article id="{each["operationId"]}">' in page
            assert path in page
    # Every link inside of the page leads somewhere.
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))


def in_a_shell(script: str, folder: Path) -> str:
    """What the commands print."""
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def test_what_the_page_begins_with_runs_as_it_stands(gateway: GatewayProcess, tmp_path: Path) -> None:
    page = gateway.get("/docs", token=None).body.decode()
    setting, cell, program = map(
        html.unescape, re.findall(r'<pre class="copy[ a-z]*">(.*?)</pre>', page, re.S)[:3]
    )
    assert setting == f"export TOKEN=YOUR-TOKEN URL={gateway.url}"
    setting = setting.replace("YOUR-TOKEN", TOKEN)
    assert json.loads(in_a_shell(f"{setting}\n{cell}", tmp_path))["text"] == "42\n"
    (tmp_path / "hello.py").write_text(program.replace("YOUR-TOKEN", TOKEN))
    done = subprocess.run(
        [sys.executable, "hello.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "42\n\n"


def test_no_example_is_refused_as_a_wrong_request(gateway: GatewayProcess, tmp_path: Path) -> None:
    """All of them, in the order of the page; what can't be there is not found, and nothing else is."""
    (tmp_path / "areas.csv").write_text("name,area\nAsia,44.6\n")
    (tmp_path / "names.csv").write_text("Asia\n")
    described = {
        each["operationId"]: (method.upper(), path, each)
        for path, item in build_document(TABLE, "1")["paths"].items()
        for method, each in item.items()
    }
    setting = f"export TOKEN={TOKEN} URL={gateway.url}"
    last = ("delete_file", "end_checkpoint", "end_session")
    names = [
        name for task in load_examples().tasks for name in task.operations if name != "open_event_socket"
    ]
    refused = []
    for name in (*(each for each in names if each not in last), *last):
        line = command_of(*described[name]).replace(" -o ", " -o saved-") + " -w '\\n%{http_code}'"
        *answer, status = in_a_shell(f"{setting}\n{line}", tmp_path).splitlines()
        if status in WRONG if name not in NOT_THERE else status != "404":
            refused.append((name, status, answer))
    gateway.delete("/v1/sessions/analysis-log")
    assert refused == []
