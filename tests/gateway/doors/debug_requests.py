"""Run by test_e2b_debug.py beside a gateway with ``--e2b-debug``: requests as E2B's SDKs send them then.

Arguments: the gateway's folder and its URL. Prints one JSON object with what happened.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

from tests.support.server import TOKEN

CONTROL, FILES, CELLS = 3000, 49983, 49999


def ask(
    port: int, method: str, path: str, body: Any = None, *, host: str = "localhost", **headers: str
) -> tuple[int, str]:
    """Status and text of an answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"Host": f"{host}:{port}", "Content-Type": "application/json"} | named
    with closing(HTTPConnection("localhost", port, timeout=60)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def cell(code: str, **headers: str) -> str:
    """What a cell printed, or the name of its error; of a refusal its status."""
    status, lines = ask(CELLS, "POST", "/execute", {"code": code, "context_id": None}, **headers)
    if status != 200:
        return str(status)
    told = [json.loads(line) for line in lines.splitlines()]
    return "".join(each.get("text") or each["name"] for each in told if each["type"] in {"stdout", "error"})


def main(url: str, data: str) -> dict[str, Any]:
    """What happened."""
    gateway = int(url.rpartition(":")[2])
    found: dict[str, Any] = {}
    # SDKs from 2.6 on: no sandbox is asked for, nor any token sent.
    found["running"] = ask(FILES, "GET", "/health")[0]
    found["first"] = cell("x = 6; print(x)")
    found["kept"] = cell("print(x * 7)", X_Access_Token="of-somebody-else", E2b_Sandbox_Id="other")
    context = json.loads(ask(CELLS, "POST", "/contexts", {"language": "python"})[1])
    found["contexts"] = [
        each["id"] == context["id"] for each in json.loads(ask(CELLS, "GET", "/contexts")[1])
    ]
    octets = {"Content_Type": "application/octet-stream"}
    found["written"] = ask(FILES, "POST", "/files?path=a.txt&username=user", "text", **octets)[0]
    found["read"] = ask(FILES, "GET", "/files?path=a.txt&username=user")
    # Older ones: they ask for a sandbox first.
    asked = {"templateID": "base", "timeout": 60, "envVars": {"SET": "yes"}}
    status, made = ask(CONTROL, "POST", "/sandboxes", asked)
    found["made"] = [status, json.loads(made)["sandboxID"]]
    found["same"] = cell("print(x)")
    found["env"] = cell("import os; print(os.environ['SET'])")
    shown = json.loads(ask(gateway, "GET", "/v1/sessions", Authorization=f"Bearer {TOKEN}")[1])["sessions"]
    found["limits"] = [
        [each["limits"][name] for name in ("idle_timeout", "lifetime")]
        for each in shown
        if each["metadata"].get("sandbox")
    ]
    found["listed"] = [each["sandboxID"] for each in json.loads(ask(CONTROL, "GET", "/v2/sandboxes")[1])]
    found["ended"] = ask(CONTROL, "DELETE", "/sandboxes/debug_sandbox_id")[0]
    found["new"] = cell("print(x)")
    # What a page in a browser sends, and what has been led here by another name.
    code = {"code": "print('in')"}
    found["page"] = ask(CELLS, "POST", "/execute", code, Origin=f"http://localhost:{CELLS}")[0]
    found["picture"] = ask(FILES, "GET", "/files?path=a.txt", Sec_Fetch_Site="cross-site")[0]
    found["rebound"] = ask(CELLS, "POST", "/execute", code, host="evil.example.org")[0]
    led = {"host": "evil.example.org", "X_Forwarded_Host": f"localhost:{CELLS}"}
    found["rebound as if by a proxy"] = ask(FILES, "GET", "/files?path=a.txt", **led)[0]
    # Nothing else is without a token.
    found["elsewhere"] = [
        ask(gateway, "POST", "/e2b/execute", code)[0],
        ask(gateway, "POST", "/e2b/execute", code, E2b_Sandbox_Id="debug_sandbox_id")[0],
        ask(CELLS, "GET", "/v1/sessions")[0],
        ask(CELLS, "GET", "/e2b/sandboxes")[0],
    ]
    # From now on there is somebody else.
    command = [sys.executable, "-m", "cellgate", "user", "add", "ann", "--data-dir", data]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found["with users"] = ask(CELLS, "POST", "/execute", code)[0]
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[2], sys.argv[1])))
