"""A Jupyter Server with a gateway URL as a process, and plain requests to it. For the scripts beside it."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

DEADLINE = 60
OWN_TOKEN = "abc"


class Proxy:
    """Where it serves, and how it is asked."""

    def __init__(self, port):
        self.host = f"127.0.0.1:{port}"

    def request(self, method, path, body=None):
        """The JSON of the answer, or its status when there is no body."""
        sent = urllib.request.Request(
            f"http://{self.host}{path}",
            method=method,
            headers={"Authorization": f"token {OWN_TOKEN}", "Content-Type": "application/json"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(sent, timeout=DEADLINE) as answer:
            text = answer.read()
            return json.loads(text) if text else answer.status


def free_port():
    """One that nobody gets by chance; tests/support/free_ports.py says why, and can not be imported here."""
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = 10_000 + secrets.randbelow(handed_out - 11_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def serve(module, url, token, folder, *options):
    """`python -m module` with its files and its log in `folder`."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        module,
        f"--port={port}",
        "--no-browser",
        "--allow-root",
        f"--IdentityProvider.token={OWN_TOKEN}",
        f"--gateway-url={url}",
        f"--GatewayClient.auth_token={token}",
        f"--ServerApp.root_dir={folder}",
        *options,
    ]
    names = ("HOME", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    environment = {**os.environ, **dict.fromkeys(names, str(folder))}
    with (Path(folder) / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        proxy = Proxy(port)
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                proxy.request("GET", "/api")
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        yield proxy
    finally:
        server.terminate()
        server.wait(60)
