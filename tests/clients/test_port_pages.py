"""What a program in a session shows, in a real browser that comes from a link with a ticket."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.clients.test_pages import PATIENCE
from tests.conftest import serving
from tests.gateway.ports.conftest import Ports, base_of
from tests.support.browser import program
from tests.support.families import running
from tests.support.nightly import mostly_nightly
from tests.support.server import GatewayProcess, until

PROGRAM = """
import sys, tornado.ioloop
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

PAGE = '''<!doctype html><title>shown</title><script>
const address = "address " + location.pathname + location.search + " cookies " + document.cookie + "."
const socket = new WebSocket(new URL("ws", location.href.replace("http", "ws")))
const relayed = new Promise(resolve => { socket.onmessage = event => resolve(event.data) })
socket.onopen = () => socket.send("relayed")
const fetched = fetch("data").then(answer => answer.text())
Promise.all([fetched, relayed]).then(seen =>
  fetch("seen?" + new URLSearchParams({told: [...seen, address].join(", ")})))
</script>'''

class Page(RequestHandler):
    def get(self):
        self.write(PAGE)

class Data(RequestHandler):
    def get(self):
        self.write("fetched")

class Seen(RequestHandler):
    def get(self):
        print(self.get_query_argument("told"), flush=True)

class Words(WebSocketHandler):
    def on_message(self, message):
        self.write_message(message)

made = Application([("/", Page), ("/data", Data), ("/seen", Seen), ("/ws", Words)])
made.listen(int(sys.argv[1]), "127.0.0.1")
print("listening", flush=True)
tornado.ioloop.IOLoop.current().start()
"""


@contextmanager
def linked(url: str) -> Iterator[str]:
    """A page of another site, which leads on to the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<script>location.href = {url!r}</script>".encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://elsewhere.test:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def browsing(url: str, profile: Path) -> Iterator[None]:
    """A browser that shows the page, for as long as it takes: in its own time it might be over before a busy
    machine has let it ask for anything.
    """
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    names = "--host-resolver-rules=MAP elsewhere.test 127.0.0.1"
    own = (f"--user-data-dir={profile}", "--remote-debugging-port=0")
    command = [program(), *options, *quiet, names, *own, url]
    with running(command):
        yield


def written(gateway: GatewayProcess, process: str, count: int) -> list[str] | None:
    """The lines that a program has written, once there are so many."""
    lines: list[str] = gateway.get(process).json()["stdout"].splitlines()
    return lines if len(lines) >= count else None


@pytest.mark.parametrize("wild", mostly_nightly([False, True], [True]))
def test_a_browser_sees_the_program(sandbox: None, tmp_path: Path, free_port: int, wild: bool) -> None:
    options = {"ports_url": f"http://*.localhost:{free_port}"} if wild else {}
    with serving(tmp_path / "data", "sandbox", ports_port=free_port, **options) as gateway:
        ports = Ports(gateway, base_of(gateway))
        process = ports.run("work", PROGRAM, "8000")
        prefix = "/" if wild else "/work/8000/"
        told = ["listening"]
        for way in ("typed", "linked"):
            with ExitStack() as stack:
                url = ports.url("work", 8000)
                if way == "linked":
                    # Another site: a strict cookie is kept back from what it leads to.
                    url = stack.enter_context(linked(url))
                stack.enter_context(browsing(url, tmp_path / way))
                said = until(lambda: written(gateway, process, len(told) + 1), f"{way}: no page", PATIENCE)
            told.append(f"fetched, relayed, address {prefix} cookies .")
            assert said == told, way
