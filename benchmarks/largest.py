"""The longest wait of ``/healthz`` while one user sends every request at its largest, in the worst shapes.

The requests are those of the gateway's own description: each place of each body and each parameter has each
shape once, in a random order, on two connections, and so have Jupyter's messages on a WebSocket. They come
from a process of their own. Whatever the gateway answers is right as long as it answers; the figure is what
somebody else waits meanwhile. What kernels send is for ``hostile``.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any
from urllib.parse import quote

from benchmarks.channels import Channels, start_kernel
from benchmarks.client import AnswerError, HttpClient
from benchmarks.figures import MIB, Figure, at_most
from benchmarks.options import Options, say
from benchmarks.servers import cellgate
from benchmarks.sessions import Session

SECONDS = 600.0
LONGEST_WAIT = 500
BODY = 16 * MIB
MESSAGE = 64 * MIB
HEAD = 60 * 1024
CONNECTIONS = 2
PAUSE = 0.01
TOLD = 8
"""How many of the longest waits are told, each with what was on its way."""


def _list_of(piece: bytes, size: int) -> bytes:
    return b"[" + (piece + b",") * (size // (len(piece) + 1) - 2) + piece + b"]"


def _keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%08x":0' % number for number in range(size // 13)) + b"}"


SHAPES: Mapping[str, Callable[[int], bytes]] = {
    "a long text": lambda size: b'"' + b"x" * (size - 2) + b'"',
    "accents": lambda size: b'"' + b"\xcc\x81" * (size // 2 - 1) + b'"',
    "escapes": lambda size: b'"' + b"\\u0301" * (size // 6 - 1) + b'"',
    "lines": lambda size: b'"' + b"> a\\n" * (size // 5 - 1) + b'"',
    "empty lists": lambda size: _list_of(b"[]", size),
    "empty objects": lambda size: _list_of(b"{}", size),
    "short texts": lambda size: _list_of(b'"x"', size),
    "numbers": lambda size: _list_of(b"1", size),
    "keys": _keys,
    "depth": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "digits": lambda size: b"1" * size,
}
PARAMETERS = {
    "a long text": "x" * HEAD,
    "escapes": "%CC%81" * (HEAD // 6),
    "digits": "1" * HEAD,
    "commas": "," * HEAD,
}
MINIMAL: Mapping[Any, object] = {
    "string": "x",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "array": [],
    "object": {},
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where the requests go."""

    url: str
    token: str

    def client(self) -> HttpClient:
        """A new connection to it."""
        return HttpClient(self.url, self.token)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, and when it was on its way, by the system's monotonic clock."""

    name: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Request:
    """A request to be: the body is `before`, the shape and `after`."""

    name: str
    method: str
    path: str
    shape: str = ""
    before: bytes = b""
    after: bytes = b""


def measure(options: Options) -> Sequence[Figure]:
    """The longest wait, in milliseconds."""
    seconds = SECONDS if not options.quick else 5.0
    waits: list[tuple[float, float]] = []
    with cellgate(options.backend) as server, server.client() as client:
        Session(client, "probed").execute("1+1")
        server.settle()
        context = multiprocessing.get_context("spawn")
        report = context.Queue()
        attacker = context.Process(
            target=_attack, args=(Target(server.url, server.token), seconds, report), daemon=True
        )
        attacker.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and attacker.is_alive():
            begun = time.monotonic()
            client.request("GET", "/healthz").json(200)
            waits.append((time.monotonic() - begun, begun))
            time.sleep(PAUSE)
        # The last request may take its time; without an attacker there is no report.
        sent: list[Sent] = report.get(timeout=60)
        attacker.join()
    waits.sort(reverse=True)
    for wait, begun in waits[:TOLD]:
        beside = {each.name for each in sent if each.begun < begun + wait and each.ended > begun}
        say(f"largest: {wait * 1000:.0f} ms beside {', '.join(sorted(beside)) or 'nothing'}")
    details = {"requests": len(sent), "waits": len(waits)}
    wait = waits[0][0] * 1000
    return [
        Figure(
            "longest wait of /healthz beside the largest requests", wait, "ms", at_most(LONGEST_WAIT), details
        )
    ]


def _attack(server: Target, seconds: float, report: Any) -> None:
    """Send until the time has passed, on some connections at once."""
    end = time.monotonic() + seconds
    sent: list[Sent] = []
    with server.client() as client:
        document = client.request("GET", "/openapi.json").json(200)
        values = _values(client)
        kernel = start_kernel(client)
    requests = list(_requests(document, values))
    randomly = random.Random(1)
    randomly.shuffle(requests)
    shapes = {name: make(BODY - 4096) for name, make in SHAPES.items()}
    threads = [
        Thread(target=_send_all, args=(server, requests[first::CONNECTIONS], shapes, end, sent))
        for first in range(CONNECTIONS)
    ]
    threads.append(Thread(target=_send_messages, args=(server, kernel, end, sent)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.put(sent)


def _values(client: HttpClient) -> Mapping[str, str]:
    """What is there, for the parameters of paths, by their names."""
    ran = client.request(
        "POST", "/v1/sessions/target/execute", {"code": "open('file.txt', 'w').write('x')"}
    ).json(200)
    process = client.request(
        "POST", "/v1/sessions/target/processes", {"argv": ["sleep", "600"], "wait": False}
    )
    told = json.loads(process.body)
    return {
        "session": "target",
        "s": "target",
        "execution": ran["execution"],
        "id": ran["execution"],
        "process": str(told.get("process", "p")),
        "path": "file.txt",
        "port": "8000",
    }


def _requests(document: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[Request]:
    """Each place of each operation with each shape."""
    for template, operations in document["paths"].items():
        for method, operation in operations.items():
            if method not in ("get", "put", "post", "patch", "delete"):
                continue
            path = template
            for parameter in [*operations.get("parameters", ()), *operation.get("parameters", ())]:
                named = _resolved(document, parameter)
                path = path.replace(f"{{{named['name']}}}", values.get(named["name"], "x"))
            yield from _with_parameters(document, method.upper(), path, operation)
            yield from _with_bodies(document, method.upper(), path, operation)


def _with_parameters(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> Iterator[Request]:
    for parameter in operation.get("parameters", ()):
        named = _resolved(document, parameter)
        if named["in"] == "query":
            for shape, value in PARAMETERS.items():
                name = f"{method} {path}?{named['name']}={shape}"
                yield Request(name, method, f"{path}?{quote(named['name'])}={value}")


def _with_bodies(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> Iterator[Request]:
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return
    schema = _resolved(document, content.get("application/json", {}).get("schema", {}))
    required = {
        name: MINIMAL.get(_resolved(document, schema["properties"][name]).get("type"), "x")
        for name in schema.get("required", ())
    }
    for shape in SHAPES:
        yield Request(f"{method} {path} {shape}", method, path, shape)
        for place in schema.get("properties", {}):
            others = json.dumps({name: value for name, value in required.items() if name != place}).encode()
            before = others[:-1] + (b"," if len(others) > 2 else b"") + json.dumps(place).encode() + b":"
            yield Request(f"{method} {path} {place}={shape}", method, path, shape, before, b"}")


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _send_all(
    server: Target, requests: Sequence[Request], shapes: Mapping[str, bytes], end: float, sent: list[Sent]
) -> None:
    """Send them again and again."""
    client: HttpClient | None = None
    while True:
        for request in requests:
            if time.monotonic() > end:
                return
            client = client or server.client()
            begun = time.monotonic()
            body = request.before + shapes[request.shape] + request.after if request.shape else b""
            try:
                client.request_bytes(request.method, request.path, body)
            except (AnswerError, OSError, ValueError):
                # A refusal may close the connection before all was sent.
                client = None
            sent.append(Sent(request.name, begun, time.monotonic()))


def _send_messages(server: Target, kernel: str, end: float, sent: list[Sent]) -> None:
    """Messages to a kernel, with a shape in each of their parts."""
    places = ("header", "parent_header", "metadata", "content", "buffers", "channel", "code")
    while True:
        for name, make in SHAPES.items():
            shape = make(MESSAGE - 4096)
            for place in places:
                if time.monotonic() > end:
                    return
                begun = time.monotonic()
                with (
                    suppress(AnswerError, OSError, TimeoutError),
                    Channels(server.url, server.token, kernel) as channels,
                ):
                    channels.send_with(place, shape)
                sent.append(Sent(f"message {place}={name}", begun, time.monotonic()))
