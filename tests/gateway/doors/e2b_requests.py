"""Requests to the door for E2B's SDKs as e2b 2.63 and e2b-code-interpreter 2.11 send them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import requests

from tests.support.server import PATIENCE, TOKEN, GatewayProcess

CELLS, ENVD = "49999", "49983"


@dataclass(frozen=True)
class Sandbox:
    """A sandbox, as an SDK knows it."""

    gateway: GatewayProcess
    id: str
    token: str
    key: str = TOKEN

    @property
    def session(self) -> str:
        """Its session's key."""
        found = self.gateway.get("/v1/sessions?newest=true", token=self.key).json()["sessions"]
        return next(each["session"] for each in found if (each["metadata"] or {}).get("sandbox") == self.id)

    def headers(self, port: str = CELLS, **more: str) -> dict[str, str]:
        return {
            "E2b-Sandbox-Id": self.id,
            "E2b-Sandbox-Port": port,
            "X-Access-Token": self.token,
            "E2B-Traffic-Access-Token": self.token,
            **more,
        }

    def send(self, code: str, **more: object) -> requests.Response:
        """What `run_code` sends."""
        body = {"code": code, "context_id": None, "language": None, "env_vars": None, **more}
        url = f"{self.gateway.url}/e2b/execute"
        return requests.post(url, json=body, headers=self.headers(), stream=True, timeout=PATIENCE)

    def lines(self, code: str, **more: object) -> list[dict[str, Any]]:
        """All lines but keepalives; each has to be one of JSON."""
        answer = self.send(code, **more)
        assert answer.status_code == 200, answer.text
        # What an answer's lines are made of by default is so small that a long line takes seconds.
        found = [json.loads(line) for line in answer.iter_lines(chunk_size=1 << 20)]
        return [each for each in found if each["type"] != "keepalive"]

    def run(self, code: str, **more: object) -> Execution:
        return Execution(self.lines(code, **more))

    def control(self, method: str, path: str = "", body: object = None) -> requests.Response:
        return control(self.gateway, method, f"sandboxes/{self.id}{path}", body, key=self.key)

    def server(self, method: str, path: str, port: str = CELLS, **more: Any) -> requests.Response:
        """A request to one of the sandbox's own servers."""
        headers = self.headers(port) | more.pop("headers", {})
        url = f"{self.gateway.url}/e2b/{path}"
        return requests.request(method, url, headers=headers, timeout=PATIENCE, **more)


@dataclass(frozen=True)
class Execution:
    """What an SDK makes of the lines."""

    lines: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind]

    @property
    def stdout(self) -> str:
        return "".join(line["text"] for line in self.of("stdout"))

    @property
    def text(self) -> str | None:
        return next((line.get("text") for line in self.of("result") if line["is_main_result"]), None)

    @property
    def error(self) -> str | None:
        return self.of("error")[-1]["name"] if self.of("error") else None


def control(
    gateway: GatewayProcess, method: str, path: str, body: object = None, key: str | None = TOKEN, **more: Any
) -> requests.Response:
    """A request to the control plane."""
    headers = ({} if key is None else {"X-API-Key": key}) | more.pop("headers", {})
    url = f"{gateway.url}/e2b/{path}"
    return requests.request(method, url, json=body, headers=headers, timeout=PATIENCE, **more)


def make(gateway: GatewayProcess, key: str = TOKEN, **more: object) -> Sandbox:
    """As `Sandbox.create` does."""
    body = {"templateID": "code-interpreter-v1", "metadata": {}, "envVars": {}, **more}
    answer = control(gateway, "POST", "v2/sandboxes", body, key=key)
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert told["templateID"] == "code-interpreter-v1"
    assert (told["clientID"], told["domain"]) == (
        "cellgate",
        gateway.url.replace("http://127.0.0.1", "localhost"),
    )
    assert told["trafficAccessToken"]
    return Sandbox(gateway, told["sandboxID"], told["envdAccessToken"], key)


def call(sandbox: Sandbox, name: str, **body: object) -> requests.Response:
    """A Connect call, with a user's name as the SDKs send it."""
    headers = {"Connect-Protocol-Version": "1", "Authorization": "Basic dXNlcjo="}
    return sandbox.server("POST", f"filesystem.Filesystem/{name}", ENVD, json=body, headers=headers)


def streamed(sandbox: Sandbox, name: str, body: object, timeout: int | None) -> requests.Response:
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/connect+json", "Keepalive-Ping-Interval": "50"}
    if timeout is not None:
        headers["Connect-Timeout-Ms"] = str(timeout)
    sent = struct.pack(">BI", 0, len(data)) + data
    return sandbox.server("POST", name, ENVD, data=sent, headers=headers, stream=True)


def messages(answer: requests.Response) -> Iterator[tuple[int, dict[str, Any]]]:
    """The envelopes of a stream."""
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/connect+json")
    while head := answer.raw.read(5):
        flags, length = struct.unpack(">BI", head)
        yield flags, json.loads(answer.raw.read(length))
