"""One session of a Cellgate server over HTTP, and the connection file of its kernel.

It talks to the server through ``client`` only; ``raw`` connects to the kernel by the file that is found here.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.client import AnswerError, HttpClient
from benchmarks.servers import Server

SESSIONS = "/v1/sessions"


class Session:
    """A new session, driven over one connection. `started` is how long its creation took, in seconds."""

    def __init__(self, client: HttpClient, name: str, options: Mapping[str, Any] | None = None) -> None:
        self._client = client
        self.path = f"{SESSIONS}/{name}"
        content = {"session": name, **(options or {})}
        begun = time.perf_counter()
        answer = client.request("POST", SESSIONS, content)
        self.started = time.perf_counter() - begun
        answer.json(201)

    def execute(self, code: str) -> float:
        """Run one cell; returns seconds from before sending to after the last byte of the result."""
        begun = time.perf_counter()
        answer = self._client.request("POST", f"{self.path}/execute", {"code": code})
        elapsed = time.perf_counter() - begun
        result = answer.json(200)
        if result["status"] != "ok":
            raise AnswerError(f"the cell {code!r} ended with status {result['status']}: {result['error']}")
        return elapsed

    def printed(self, code: str) -> str:
        """The text that one cell prints, without surrounding white space."""
        result = self._client.request("POST", f"{self.path}/execute", {"code": code}).json(200)
        return str(result["stdout"]).strip()

    def end(self) -> None:
        """Delete the session; its kernel ends in the background."""
        self._client.request("DELETE", self.path).json(204)


def connection_file(server: Server, printed: Callable[[str], str]) -> Path:
    """The connection file of the kernel in which `printed` runs a cell; `printed` returns the cell's output.

    The kernel prints a digest of its key, so this works whatever the file is called and whichever warm kernel
    the session has. A file for use inside a sandbox is skipped: its paths are not valid outside. Raises
    FileNotFoundError.
    """
    code = "import hashlib; print(hashlib.sha256(get_ipython().kernel.session.key).hexdigest())"
    digest = printed(code).strip()
    for path in server.folder.rglob("*.json"):
        info = json.loads(path.read_text())
        if not isinstance(info, dict) or "shell_port" not in info:
            continue
        reachable = info["transport"] != "ipc" or Path(f"{info['ip']}-{info['shell_port']}").exists()
        if reachable and hashlib.sha256(info["key"].encode()).hexdigest() == digest:
            return path
    raise FileNotFoundError(f"no connection file in {server.folder} belongs to the kernel asked")
