"""A gateway that serves ports, a browser of sorts, and programs to look at."""

from __future__ import annotations

import http.client
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conftest import serving
from tests.support.server import TOKEN, GatewayProcess, until

ECHO = '''
import asyncio, json, sys
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

class Seen(RequestHandler):
    """Tells what it was sent."""
    def handle(self, *_):
        if self.get_query_argument("cookies", ""):
            for field in self.get_query_arguments("cookies"):
                self.add_header("Set-Cookie", field)
        if self.get_query_argument("to", ""):
            self.redirect(self.get_query_argument("to"))
            return
        for name in ("Clear-Site-Data", "Strict-Transport-Security", "Service-Worker-Allowed"):
            self.set_header(name, "x")
        self.write(json.dumps({
            "method": self.request.method,
            "uri": self.request.uri,
            "headers": sorted(self.request.headers.get_all()),
            "body": self.request.body.decode(),
        }))
    get = post = put = patch = delete = options = handle

class Slowly(RequestHandler):
    async def get(self):
        for number in range(3):
            self.write(f"{number}\\n")
            await self.flush()
            await asyncio.sleep(0.05)

class Large(RequestHandler):
    async def get(self):
        for _ in range(512):
            self.write(bytes(65536))
            await self.flush()

class Words(WebSocketHandler):
    def on_message(self, message):
        self.write_message(message, binary=isinstance(message, bytes))

async def main():
    made = Application([("/slowly", Slowly), ("/large", Large), ("/ws", Words), ("/.*", Seen)])
    made.listen(int(sys.argv[1]), "127.0.0.1", max_body_size=1 << 30)
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
'''
RAW = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
answer = sys.argv[2].encode().decode("unicode_escape").encode("latin-1")
while True:
    peer, _ = listener.accept()
    peer.recv(65536)
    try:
        peer.sendall(answer)
        for _ in range(int(sys.argv[3])):
            peer.sendall(answer)
    except OSError:
        pass
    peer.close()
"""
SILENT = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
print("listening", flush=True)
kept = []
while True:
    kept.append(listener.accept())
"""


@dataclass
class Answer:
    """One answer at the ports' origin."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def sent(self, name: str) -> list[str]:
        """The fields of this name that the echo program was sent."""
        return [value for each, value in self.json()["headers"] if each.lower() == name.lower()]


@dataclass
class Browser:
    """Opens URLs of ports, with the cookies that it was given, by the browsers' rule for their paths."""

    cookies: dict[tuple[str, str], str] = field(default_factory=dict)

    def open(self, url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection("127.0.0.1", parts.port or 80, timeout=60)
        try:
            sent = {"Host": parts.netloc, **{name.replace("_", "-"): v for name, v in headers.items()}}
            fitting = [
                f"{name}={value}"
                for (path, name), value in self.cookies.items()
                if parts.path.startswith(path)
            ]
            if "Cookie" in sent:
                fitting.insert(0, sent["Cookie"])
            if fitting:
                sent["Cookie"] = "; ".join(fitting)
            connection.request(method, parts._replace(scheme="", netloc="").geturl(), body, sent)
            with connection.getresponse() as answer:
                found = Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()
        for field_ in found.headers.get_all("Set-Cookie", []):
            for name, morsel in SimpleCookie(field_).items():
                self.cookies[morsel["path"] or "/", name] = morsel.value
        return found

    def enter(self, url: str) -> str:
        """Open a URL with a ticket; returns that of the first page, where it is led."""
        answer = self.open(url)
        assert answer.status == 303, answer
        parts = urlsplit(url)
        location = answer.headers["Location"]
        assert "ticket" not in location
        return f"{parts.scheme}://{parts.netloc}{location}"


@dataclass
class Ports:
    """A gateway that serves ports at `base`."""

    gateway: GatewayProcess
    base: str

    def url(self, session: str, port: int, token: str = TOKEN) -> str:
        """A URL with a ticket."""
        answer = self.gateway.post(f"/v1/sessions/{session}/ports/{port}", token=token)
        assert answer.status == 200, answer.body
        return str(answer.json()["url"])

    def run(self, session: str, code: str, *arguments: str) -> str:
        """Start a Python program, and return where it is found when it listens."""
        path = f"/v1/sessions/{session}/processes"
        answer = self.gateway.post(
            path, {"argv": ["python3", "-c", code, *arguments], "wait": False}, timeout=120
        )
        assert answer.status == 202, answer.body
        process = f"{path}/{answer.json()['process']}"
        until(lambda: "listening" in self.gateway.get(process).json()["stdout"], "it does not listen")
        return process

    def entered(self, session: str, port: int) -> tuple[Browser, str]:
        """A browser that was let in, and the URL of the first page."""
        browser = Browser()
        return browser, browser.enter(self.url(session, port))


def base_of(gateway: GatewayProcess) -> str:
    """Where ports are found, as the gateway has said at its start."""
    line = re.compile(r"^ *ports +(\S+)/( \(listening on port [0-9]+\))?$", re.MULTILINE)
    found = until(lambda: line.search(gateway.log.read_text()), "it does not say where ports are found")
    return found[1]


@pytest.fixture(scope="module", params=["sandbox"])
def ports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """One for all tests of a module."""
    request.getfixturevalue("sandbox")
    with serving(tmp_path_factory.mktemp("ports") / "data", request.param, ports_port=0) as gateway:
        yield Ports(gateway, base_of(gateway))


@pytest.fixture
def key(ports: Ports) -> Iterator[str]:
    """A session of the test's own."""
    key = f"test-{uuid.uuid4().hex[:12]}"
    yield key
    ports.gateway.delete(f"/v1/sessions/{key}")
