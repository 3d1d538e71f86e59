"""A gateway in a network namespace of its own, with a world outside, and what cells there reach.

A program: ``inside FOLDER BACKEND [RUNTIME]`` runs in new network and mount namespaces, does everything once
and prints what it saw as JSON; ``test_egress`` starts it and says what must have been seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.gateway.egress import outside
from tests.support.server import GatewayProcess, until

ALLOWED = [
    "host.example.com:80",
    "*.wild.example.com:80",
    "private.example.com:80",
    "metadata.example.com:80",
    "own.example.com:80",
    "mixed.example.com:80",
    "rebinding.example.com:80",
]
POLICY_SECONDS = 60.0
# That of this tree, whatever the image was made of.
FORWARDER = Path(__file__).parents[3] / "kernels" / "cellgate_kernels" / "inside" / "forwarder.py"
MOUNTS = [f"{FORWARDER}:/opt/cellgate/share/cellgate/forwarder.py"]
BRIDGE = "172.17.0.1"
"""The host of a container engine, in the network that its containers have unless they are given none."""

FETCH = """
import urllib.error, urllib.request
def fetch(url, **options):
    try:
        with urllib.request.urlopen(url, timeout=60, **options) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} " + ":".join(error.read().decode().split(":")[:2])
    except OSError as error:
        return type(error).__name__ + ": " + str(error)
"""
TUNNEL = """
import http.client
def tunnel(host):
    connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=60)
    connection.set_tunnel(host, 80)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except OSError as error:
        return str(error)
    finally:
        connection.close()
"""
RAW = """
def raw(head):
    with socket.create_connection(("127.0.0.1", 3128), timeout=60) as connection:
        connection.sendall(head)
        return connection.makefile("rb").readline().decode().strip()
"""
DIRECT = f"""
import socket
def reached(kind, address):
    with socket.socket(socket.AF_INET, kind) as direct:
        direct.settimeout(3)
        try:
            direct.connect(address)
            return "reached"
        except OSError:
            return "nothing"
def named(name):
    try:
        return socket.getaddrinfo(name, 80)
    except OSError as error:
        return "no address"
print(reached(socket.SOCK_STREAM, ("{outside.HOST}", 80)))
print(reached(socket.SOCK_DGRAM, ("{outside.DNS}", 53)))
print(reached(socket.SOCK_STREAM, ("{outside.PRIVATE}", 80)))
print(reached(socket.SOCK_STREAM, ("{outside.METADATA}", 80)))
print(reached(socket.SOCK_STREAM, ("{BRIDGE}", 22)))
print(named("host.example.com"))
"""

WITHOUT_A_GATEWAY = """
def show(event):
    print(event, fetch('http://host.example.com/'), flush=True)
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.02)
show('with')
wait_for('killed')
show('without')
open('alone', 'w').close()
while '502' in fetch('http://host.example.com/'):
    time.sleep(0.1)
show('with the next')
"""


def ip(*words: str, inside_of: int | None = None) -> None:
    """Call ip(8), in this network namespace or in a process's."""
    other = [] if inside_of is None else ["nsenter", "-t", str(inside_of), "-n"]
    subprocess.run([*other, "ip", *words], check=True, capture_output=True)


@contextmanager
def world(folder: Path, seen: dict[str, Any]) -> Iterator[None]:
    """The namespaces, connected, with names that resolve; what was asked outside is seen at the end."""
    command = ["unshare", "--net", "--", sys.executable, "-m", "tests.gateway.egress.outside"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as there:
        assert there.stdin is not None
        assert there.stdout is not None
        try:
            # unshare has become the program only when it is in its namespace.
            while Path(f"/proc/{there.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
                time.sleep(0.01)
            ip("link", "add", "out", "type", "veth", "peer", "name", "in", "netns", str(there.pid))
            ip("addr", "add", "10.77.0.1/30", "dev", "out")
            ip("addr", "add", f"{outside.OWN}/32", "dev", "lo")
            for name in ("lo", "out"):
                ip("link", "set", name, "up")
            ip("addr", "add", f"{outside.PRIVATE}/30", "dev", "in", inside_of=there.pid)
            for address in (outside.HOST, outside.METADATA, outside.DNS):
                ip("addr", "add", f"{address}/32", "dev", "lo", inside_of=there.pid)
            for name in ("lo", "in"):
                ip("link", "set", name, "up", inside_of=there.pid)
            ip("route", "add", "default", "via", outside.PRIVATE)
            resolver = folder / "resolv.conf"
            resolver.write_text(f"nameserver {outside.DNS}\noptions timeout:2 attempts:2\n")
            subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)
            there.stdin.write("\n")
            there.stdin.flush()
            assert there.stdout.readline() == "ready\n"
            yield
            there.stdin.close()
            seen["outside"] = json.loads(there.stdout.read())
        finally:
            there.kill()


def write_policy(path: Path, patterns: list[str]) -> None:
    """A file of quotas, put in place at once."""
    draft = path.with_suffix(".new")
    draft.write_text(f"[principals.default]\nnetwork = {json.dumps(patterns)}\n")
    draft.replace(path)


class Gateway:
    """The gateway, and cells in its sessions."""

    def __init__(self, data: Path, backend: str, **options: object) -> None:
        self._start = partial(GatewayProcess, data, backend, **options)  # type: ignore[arg-type]
        self.process = self._start()

    def start(self) -> None:
        """Start the next, after one that was killed."""
        self.process = self._start()

    def end(self) -> None:
        """End it with its kernels, also when something has failed."""
        try:
            self.process.stop()
        finally:
            self.process.kill()

    def open(self, session: str, **body: Any) -> Any:
        """A session's model."""
        answer = self.process.request("POST", "/v1/sessions", {"session": session, **body})
        assert answer.status == 201, answer.body
        return answer.json()

    def run(self, session: str, code: str) -> str:
        """What a cell prints."""
        answer = self.process.request("POST", f"/v1/sessions/{session}/execute", {"code": code})
        assert answer.status == 200, answer.body
        return str(answer.json()["text"])


def see(gateway: Gateway, policy: Path, seen: dict[str, Any]) -> None:
    """Do everything once."""
    request = gateway.process.request
    seen["info"] = request("GET", "/v1/info").json()["network"]
    seen["model"] = gateway.open("s", network="allow")["network"]
    gateway.open("plain")
    gateway.run("s", f"import socket\n{FETCH}{TUNNEL}{RAW}")
    for name, code in {
        "allowed": "fetch('http://host.example.com/')",
        "posted": "fetch('http://host.example.com/', data=b'x' * 100_000) == 'x' * 100_000",
        "tunnel": "tunnel('host.example.com')",
        "wild": "fetch('http://a.wild.example.com/')",
        "mixed": "fetch('http://mixed.example.com/')",
        "other": "fetch('http://elsewhere.example.org/')",
        "other port": "fetch('http://host.example.com:81/')",
        "other tunnel": "tunnel('elsewhere.example.org')",
        "NUL": r"raw(b'CONNECT host.example.com\0.example.org:80 HTTP/1.1\r\n\r\n')",
        "NUL at the end": r"raw(b'CONNECT host.example.com\0:80 HTTP/1.1\r\n\r\n')",
        "literal": f"fetch('http://{outside.HOST}/')",
        "private": "fetch('http://private.example.com/')",
        "metadata": "fetch('http://metadata.example.com/')",
        "own": "fetch('http://own.example.com/')",
        "redirect": "fetch('http://host.example.com/redirect')",
        "rebinding": "fetch('http://rebinding.example.com/')",
        "rebound": "fetch('http://rebinding.example.com/')",
    }.items():
        seen[name] = gateway.run("s", f"print({code})").strip()
    gateway.run(
        "s",
        "%pip install --target lib --index-url http://host.example.com/simple/"
        " --trusted-host host.example.com tiny",
    )
    seen["pip"] = gateway.run("s", "import sys; sys.path.append('lib'); import tiny; tiny.main()").strip()
    seen["direct"] = gateway.run("s", DIRECT).split("\n")
    seen["without the proxy"] = gateway.run(
        "s",
        "opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))\n"
        "try: print(opener.open('http://host.example.com/', timeout=60).read())\n"
        "except OSError as error: print('refused')",
    ).strip()
    seen["plain direct"] = gateway.run("plain", DIRECT).split("\n")
    seen["plain"] = gateway.run(
        "plain",
        "import os; print(os.path.exists('/run/egress'), [n for n in os.environ if 'PROXY' in n.upper()])",
    ).strip()
    seen["socket"] = gateway.run(
        "s", "import os\ntry: os.unlink('/run/egress/proxy')\nexcept OSError as error: print('refused')"
    ).strip()
    request("POST", "/v1/sessions/s/restart")
    seen["restarted"] = gateway.run("s", FETCH + "print(fetch('http://host.example.com/'))").strip()
    gateway.open("other", network="allow")
    seen["forwarder ended"] = gateway.run(
        "s",
        "import os, signal, pathlib\nfor each in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    if b'forwarder.py' in each.read_bytes(): os.kill(int(each.parent.name), signal.SIGKILL)\n"
        "print(fetch('http://host.example.com/'))",
    ).strip()
    seen["others"] = gateway.run("other", FETCH + "print(fetch('http://host.example.com/'))").strip()
    for language, code in {
        "bash": "exec 3<>/dev/tcp/127.0.0.1/3128\n"
        "printf 'GET http://host.example.com/ HTTP/1.0\\r\\n\\r\\n' >&3\n"
        "tail -n 1 <&3",
        "typescript": "console.log(await (await fetch('http://host.example.com/')).text())",
    }.items():
        gateway.open(language, language=language, network="allow")
        seen[language] = gateway.run(language, code).strip()
    seen["conflict"] = request("POST", "/v1/sessions", {"session": "plain", "network": "allow"}).reason
    write_policy(policy, ["nothing.example.com:443"])
    deadline = time.monotonic() + POLICY_SECONDS
    answer = ""
    # A request that is under way at the change is refused for that; the first after it, by the new policy.
    while "host_not_allowed" not in answer and time.monotonic() < deadline:
        answer = gateway.run("other", "print(fetch('http://host.example.com/'))").strip()
    seen["withdrawn"] = answer
    seen["events"] = [
        json.loads(line)
        for line in request("GET", "/v1/sessions/s/audit").body.splitlines()
        if b'"connection"' in line
    ]
    seen["notebook"] = request("GET", "/v1/sessions/s/notebook").json()["metadata"]["cellgate"]["network"]
    seen["valid"] = request("GET", "/v1/sessions/s/audit/verify").json()["valid"]


def see_adoption(gateway: Gateway, policy: Path, seen: dict[str, Any]) -> None:
    """Kill the gateway while a cell runs, and start the next, which adopts the kernel."""
    write_policy(policy, ALLOWED)
    info = partial(gateway.process.get, "/v1/info")
    until(lambda: info().json()["network"] == ALLOWED, "the policy is not read")
    gateway.open("kept", network="allow")
    gateway.run("kept", FETCH + "import os, time")
    execution = gateway.process.submit("kept", WITHOUT_A_GATEWAY)
    recorded = partial(gateway.process.recorded, "kept")
    until(lambda: any("with" in event.get("text", "") for event in recorded()), "the cell doesn't print")
    workspace = gateway.process.workspace("kept")
    gateway.process.kill()
    (workspace / "killed").touch()
    until((workspace / "alone").exists, "the cell doesn't go on without a gateway")
    gateway.start()
    seen["adopted cell"] = gateway.process.ended("kept", execution)["stdout"].split("\n")
    seen["adopted"] = gateway.run("kept", "print(fetch('http://host.example.com/'))").strip()
    seen["adopted, other"] = gateway.run("kept", "print(fetch('http://elsewhere.example.org/'))").strip()
    seen["adopted direct"] = gateway.run("kept", DIRECT).split("\n")
    seen["adopted connections"] = [
        (event["host"], event["verdict"], event["received"] > 0)
        for event in gateway.process.recorded("kept")
        if event["type"] == "connection"
    ]
    gateway.process.post("/v1/sessions/kept/restart")
    seen["adopted, restarted"] = gateway.run(
        "kept", FETCH + "print(fetch('http://host.example.com/'))"
    ).strip()


def main() -> None:
    """Print what was seen."""
    folder = Path(sys.argv[1])
    backend, *runtime = sys.argv[2:]
    options: dict[str, object] = {"mounts": MOUNTS} if backend == "docker" else {}
    options |= {"runtime": runtime[0]} if runtime else {}
    seen: dict[str, Any] = {}
    with world(folder, seen):
        policy = folder / "quotas.toml"
        write_policy(policy, ALLOWED)
        gateway = Gateway(folder / "data", backend, quotas=policy, **options)
        try:
            see(gateway, policy, seen)
            if backend == "docker":
                see_adoption(gateway, policy, seen)
            seen["stopped"] = gateway.process.stop()
            seen["log"] = gateway.process.log.read_text()
        finally:
            gateway.end()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
