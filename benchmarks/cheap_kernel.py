"""A kernel in 15 MB that speaks just enough of the protocol for a connection: ``cheap_kernel.py FILE``.

It answers every request with an empty reply between busy and idle, and runs nothing. Source: jupyter-client,
"Messaging in Jupyter".
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import zmq


def write_kernelspec(folder: Path) -> None:
    """Make this program the kernelspec `python3` of a folder for ``--ServeApp.kernel_dirs``."""
    spec = {
        "argv": [sys.executable, str(Path(__file__).resolve()), "{connection_file}"],
        "display_name": "Cheap",
        "language": "python",
        "interrupt_mode": "message",
    }
    (folder / "python3").mkdir()
    (folder / "python3" / "kernel.json").write_text(json.dumps(spec))


class CheapKernel:
    """The sockets of one kernel."""

    def __init__(self, info: dict[str, Any]) -> None:
        self._key = info["key"].encode()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._iopub = self._bind(info, "iopub", zmq.PUB)
        self._requests = [self._bind(info, name, zmq.ROUTER) for name in ("shell", "control")]
        self._others = [self._bind(info, name, zmq.ROUTER) for name in ("stdin", "hb")]

    def _bind(self, info: dict[str, Any], name: str, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        separator = "-" if info["transport"] == "ipc" else ":"
        socket.bind(f"{info['transport']}://{info['ip']}{separator}{info[f'{name}_port']}")
        return socket

    def _message(self, msg_type: str, parent: bytes, content: dict[str, Any]) -> list[bytes]:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": msg_type,
            "username": "kernel",
            "session": "cheap",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": "5.3",
        }
        parts = [json.dumps(header).encode(), parent, b"{}", json.dumps(content).encode()]
        signature = hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()
        return [b"<IDS|MSG>", signature, *parts]

    def run(self) -> None:
        """Answer until the process is ended."""
        poller = zmq.Poller()
        for socket in self._requests:
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                self._answer(socket)

    def _answer(self, socket: zmq.Socket[bytes]) -> None:
        identity, _, _, header, *_ = socket.recv_multipart()
        kind = json.loads(header)["msg_type"].removesuffix("_request")
        content = {"status": "ok", "protocol_version": "5.3", "language_info": {"name": "python"}}
        for state in ("busy", "idle"):
            if state == "idle":
                socket.send_multipart([identity, *self._message(f"{kind}_reply", header, content)])
            self._iopub.send_multipart(
                [b"status", *self._message("status", header, {"execution_state": state})]
            )


if __name__ == "__main__":
    CheapKernel(json.loads(Path(sys.argv[1]).read_text())).run()
