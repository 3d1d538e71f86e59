"""Run by the clients' interpreter: a real Jupyter Server in front of the gateway, used from outside.

Arguments: the gateway's URL, its token, a folder. Prints one JSON object with what happened.
"""

import asyncio
import json
import sys
import uuid
from pathlib import Path

from proxy import DEADLINE, OWN_TOKEN, serve
from tornado.websocket import websocket_connect

URL, TOKEN, FOLDER = sys.argv[1:]


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


async def use(proxy, kernel):
    path = f"/api/kernels/{kernel}"
    url = f"ws://{proxy.host}{path}/channels?token={OWN_TOKEN}&session_id=s"
    client = await websocket_connect(url)
    happened = {"cell": await execute(client, "print('hi', end=''); 1 + 1")}
    sleep = "import time; print('on', end='', flush=True); time.sleep(60)"
    happened["interrupted"] = await execute(
        client, sleep, then=lambda: proxy.request("POST", f"{path}/interrupt", {})
    )
    await asyncio.to_thread(proxy.request, "POST", f"{path}/restart", {})
    happened["restarted"] = await execute(client, "1 + 1")
    client.close()
    return happened


def main():
    titles = "--GatewayClient.allowed_envs=JPY_SESSION_NAME"
    with serve("jupyter_server", URL, TOKEN, FOLDER, titles) as proxy:
        # As JupyterLab does it.
        Path(FOLDER, "work").mkdir()
        place = {"path": "work/a.ipynb", "name": "a.ipynb", "type": "notebook"}
        document = {**place, "kernel": {"name": "python3"}}
        opened = proxy.request("POST", "/api/sessions", document)["kernel"]["id"]
        kernel = proxy.request("POST", "/api/kernels", {"name": "python3"})["id"]
        happened = {"opened": opened, "kernel": kernel, **asyncio.run(use(proxy, kernel))}
        happened["deleted"] = proxy.request("DELETE", f"/api/kernels/{kernel}")
        print(json.dumps(happened))


main()
