"""Run by the clients' interpreter: a real Jupyter Server in front of the gateway, used from outside.

Arguments: the gateway's URL, its token, a folder. Prints one JSON object with what happened.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid

from tornado.websocket import websocket_connect

URL, TOKEN, FOLDER = sys.argv[1:]
DEADLINE = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


PORT = free_port()


def request(method, path, body=None):
    sent = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        method=method,
        headers={"Authorization": "token abc", "Content-Type": "application/json"},
        data=None if body is None else json.dumps(body).encode(),
    )
    with urllib.request.urlopen(sent, timeout=DEADLINE) as answer:
        text = answer.read()
        return json.loads(text) if text else answer.status


async def execute(client, code, then=None):
    """What comes of a cell, up to idle; `then` is called once it has printed."""
    msg_id = uuid.uuid4().hex
    header = {"msg_id": msg_id, "msg_type": "execute_request", "username": "", "session": "s"}
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    message = {"channel": "shell", "header": header | {"version": "5.3", "date": ""}, "content": content}
    await client.write_message(json.dumps(message | {"parent_header": {}, "metadata": {}}))
    seen = []
    while True:
        frame = await asyncio.wait_for(client.read_message(), DEADLINE)
        received = json.loads(frame)
        if received["parent_header"].get("msg_id") != msg_id:
            continue
        seen.append(received["content"].get("execution_state") or received["msg_type"])
        if seen[-1] == "stream" and then is not None:
            await asyncio.to_thread(then)
            then = None
        if seen[-1] == "idle":
            return seen


async def use(kernel):
    path = f"/api/kernels/{kernel}"
    client = await websocket_connect(f"ws://127.0.0.1:{PORT}{path}/channels?token=abc&session_id=s")
    happened = {"cell": await execute(client, "print('hi'); 1 + 1")}
    sleep = "import time; print('on', flush=True); time.sleep(60)"
    happened["interrupted"] = await execute(
        client, sleep, then=lambda: request("POST", f"{path}/interrupt", {})
    )
    await asyncio.to_thread(request, "POST", f"{path}/restart", {})
    happened["restarted"] = await execute(client, "1 + 1")
    client.close()
    return happened


def main():
    options = [
        f"--port={PORT}",
        "--no-browser",
        "--allow-root",
        "--IdentityProvider.token=abc",
        f"--gateway-url={URL}",
        f"--GatewayClient.auth_token={TOKEN}",
        f"--ServerApp.root_dir={FOLDER}",
    ]
    folders = {"JUPYTER_RUNTIME_DIR": FOLDER, "JUPYTER_CONFIG_DIR": FOLDER}
    with open(f"{FOLDER}/server.log", "w") as log:  # noqa: PTH123
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *options],
            stdout=log,
            stderr=log,
            env={**os.environ, **folders},
        )
    try:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                request("GET", "/api")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        kernel = request("POST", "/api/kernels", {"name": "python3"})["id"]
        happened = {"kernel": kernel, **asyncio.run(use(kernel))}
        happened["deleted"] = request("DELETE", f"/api/kernels/{kernel}")
        print(json.dumps(happened))
    finally:
        server.terminate()
        server.wait(20)


main()
