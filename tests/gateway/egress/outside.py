"""The world outside of a gateway, in a network namespace of its own: a few hosts and their DNS.

A program: it says ``ready`` when all of it serves, and at the end of stdin prints how often each address was
asked. ``inside`` starts it and gives it its addresses.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import ClassVar

from tests.support.wheels import build_wheel

HOST, METADATA, PRIVATE, DNS, OWN = "9.9.9.10", "169.254.169.254", "10.77.0.2", "9.9.9.53", "9.9.9.77"
"""`OWN` is the gateway's machine's."""

NAMES: Mapping[str, list[list[str]]] = {
    "host.example.com": [[HOST]],
    "a.wild.example.com": [[HOST]],
    "private.example.com": [[PRIVATE]],
    "metadata.example.com": [[METADATA]],
    "own.example.com": [[OWN]],
    "mixed.example.com": [[PRIVATE, HOST]],
    "rebinding.example.com": [[HOST], [METADATA]],
    "elsewhere.example.org": [[HOST]],
}
"""For each name, its answers one after the other; the last one stays."""


def answer(query: bytes, asked: Counter[str]) -> bytes:
    """The answer to a DNS query: addresses for A, nothing for others."""
    labels = []
    place = 12
    while query[place]:
        labels.append(query[place + 1 : place + 1 + query[place]].decode())
        place += 1 + query[place]
    name = ".".join(labels).lower()
    question = query[12 : place + 5]
    kind = struct.unpack(">H", query[place + 1 : place + 3])[0]
    answers = NAMES.get(name)
    addresses: list[str] = []
    if answers is not None and kind == 1:
        addresses = answers[min(asked[name], len(answers) - 1)]
        asked[name] += 1
    flags = 0x8180 if answers is not None else 0x8183
    head = query[:2] + struct.pack(">HHHHH", flags, 1, len(addresses), 0, 0)
    records = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(each) for each in addresses]
    return head + question + b"".join(records)


def serve_names(asked: Counter[str]) -> None:
    """Answer queries for ever."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((DNS, 53))
        while True:
            query, client = udp.recvfrom(512)
            udp.sendto(answer(query, asked), client)


class Handler(BaseHTTPRequestHandler):
    """A host: it says who it is, sends bodies back, redirects where nobody should go, has one package."""

    hits: ClassVar[Counter[str]] = Counter()
    wheel: bytes = b""

    def do_GET(self) -> None:
        """``/`` and ``/redirect``."""
        address = str(self.server.server_address[0])
        self.hits[address] += 1
        body = f"hello from {address}".encode()
        if self.path == "/simple/tiny/":
            body = b'<a href="/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>'
        elif self.path.endswith(".whl"):
            body = self.wheel
        self.send_response(302 if self.path == "/redirect" else 200)
        if self.path == "/redirect":
            self.send_header("Location", f"http://{METADATA}/latest/meta-data/")
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """The body, back."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until stdin ends."""
    with TemporaryDirectory() as folder:
        Handler.wheel = build_wheel(Path(folder), "tiny").read_bytes()
    sys.stdin.readline()
    asked: Counter[str] = Counter()
    for address in (HOST, METADATA, PRIVATE):
        server = ThreadingHTTPServer((address, 80), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
    Thread(target=serve_names, args=(asked,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps({"asked": asked, "hits": Handler.hits}), flush=True)


if __name__ == "__main__":
    main()
