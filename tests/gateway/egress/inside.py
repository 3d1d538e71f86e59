"""A gateway in a network namespace of its own, with a world outside, and what cells there reach.

A program: ``inside FOLDER`` runs in new network and mount namespaces, does everything once and prints what it
saw as JSON; ``test_egress`` starts it and says what must have been seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gateway.egress import outside
from tests.support.server import GatewayProcess

ALLOWED = [
    "host.example.com:80",
    "*.wild.example.com:80",
    "private.example.com:80",
    "metadata.example.com:80",
    "own.example.com:80",
    "mixed.example.com:80",
    "rebinding.example.com:80",
]
POLICY_SECONDS = 10.0

FETCH = """
import urllib.error, urllib.request
def fetch(url, **options):
    try:
        with urllib.request.urlopen(url, timeout=20, **options) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} " + ":".join(error.read().decode().split(":")[:2])
    except OSError as error:
        return type(error).__name__ + ": " + str(error)
"""
TUNNEL = """
import http.client
def tunnel(host):
    connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=20)
    connection.set_tunnel(host, 80)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except OSError as error:
        return str(error)
    finally:
        connection.close()
"""
DIRECT = f"""
import socket
def reached(kind, address):
    with socket.socket(socket.AF_INET, kind) as direct:
        direct.settimeout(3)
        try:
            direct.connect(address)
            return "reached"
        except OSError as error:
            return error.strerror or "timed out"
def named(name):
    try:
        return socket.getaddrinfo(name, 80)
    except OSError as error:
        return "no address"
print(reached(socket.SOCK_STREAM, ("{outside.HOST}", 80)))
print(reached(socket.SOCK_DGRAM, ("{outside.DNS}", 53)))
print(reached(socket.SOCK_STREAM, ("{outside.PRIVATE}", 80)))
print(named("host.example.com"))
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

    def __init__(self, process: GatewayProcess) -> None:
        self.process = process

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
    gateway.run("s", FETCH + TUNNEL)
    for name, code in {
        "allowed": "fetch('http://host.example.com/')",
        "posted": "fetch('http://host.example.com/', data=b'x' * 100_000) == 'x' * 100_000",
        "tunnel": "tunnel('host.example.com')",
        "wild": "fetch('http://a.wild.example.com/')",
        "mixed": "fetch('http://mixed.example.com/')",
        "other": "fetch('http://elsewhere.example.org/')",
        "other port": "fetch('http://host.example.com:81/')",
        "other tunnel": "tunnel('elsewhere.example.org')",
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
        "try: print(opener.open('http://host.example.com/', timeout=20).read())\n"
        "except OSError as error: print('refused')",
    ).strip()
    seen["plain direct"] = gateway.run("plain", DIRECT).split("\n")
    seen["plain"] = gateway.run(
        "plain",
        "import os; print(os.path.exists('/run/egress'), [n for n in os.environ if 'PROXY' in n.upper()])",
    ).strip()
    seen["socket"] = gateway.run(
        "s", "import os\ntry: os.unlink('/run/egress/proxy')\nexcept OSError as error: print(error.strerror)"
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
    while "403" not in answer and time.monotonic() < deadline:
        answer = gateway.run("other", "print(fetch('http://host.example.com/'))").strip()
    seen["withdrawn"] = answer
    seen["events"] = [
        json.loads(line)
        for line in request("GET", "/v1/sessions/s/audit").body.splitlines()
        if b'"connection"' in line
    ]
    seen["notebook"] = request("GET", "/v1/sessions/s/notebook").json()["metadata"]["cellgate"]["network"]
    seen["valid"] = request("GET", "/v1/sessions/s/audit/verify").json()["valid"]


def main() -> None:
    """Print what was seen."""
    folder = Path(sys.argv[1])
    seen: dict[str, Any] = {}
    with world(folder, seen):
        policy = folder / "quotas.toml"
        write_policy(policy, ALLOWED)
        process = GatewayProcess(folder / "data", "sandbox", quotas=policy)
        try:
            see(Gateway(process), policy, seen)
            seen["stopped"] = process.stop()
            seen["log"] = process.log.read_text()
        finally:
            process.kill()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
