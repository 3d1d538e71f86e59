"""What programs in a session show on their ports, as browsers and programs with a token see it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection

from cellgate.client import Gateway
from cellgate.ports.table import MOST_OF_SESSION
from tests.gateway.cli.test_mcp import call
from tests.gateway.cli.test_mcp import serving as mcp_client
from tests.gateway.ports.conftest import ECHO, RAW, SILENT, Browser, Ports
from tests.support.commands import cellgate
from tests.support.server import TOKEN, until
from tests.support.websockets import websocket

PATIENCE = 60.0
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


def begun(url: str, method: str = "GET", **headers: str) -> http.client.HTTPConnection:
    """A request whose answer is read later, or never."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE)
    connection.request(method, parts.path, headers={**AUTHORIZED, **headers})
    return connection


def test_a_web_server_that_a_cell_started_is_seen_in_a_browser(ports: Ports, key: str) -> None:
    ports.gateway.execute(key, "open('page.html', 'w').write('<p>hello')")
    ports.gateway.execute(
        key, "import subprocess, sys; subprocess.Popen([sys.executable, '-m', 'http.server', '8000'])"
    )
    browser, first = ports.entered(key, 8000)
    assert first == f"{ports.base}/{key}/8000/"
    until(lambda: browser.open(first).status == 200, "it does not listen")
    page = browser.open(first + "page.html")
    assert (page.status, page.body, page.headers["Content-Type"]) == (200, b"<p>hello", "text/html")
    assert b"page.html" in browser.open(first).body
    assert browser.open(first + "missing").status == 404
    # The gateway says nothing of its own on a program's page.
    assert "SimpleHTTP" in page.headers["Server"]
    assert page.headers["Cache-Control"] is None


def test_a_program_with_a_token_needs_no_ticket(ports: Ports, key: str) -> None:
    ports.run(key, ECHO, "8001")
    seen = Browser().open(f"{ports.base}/{key}/8001/path?x=1&y=%20", "POST", b"data", **AUTHORIZED)
    assert (seen.json()["method"], seen.json()["uri"]) == ("POST", "/path?x=1&y=%20")
    assert seen.json()["body"] == "data"
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = Browser().open(f"{ports.base}/{key}/8001/", method, **AUTHORIZED)
        assert answer.json()["method"] == method
    assert Browser().open(f"{ports.base}/{key}/8001/", "HEAD", **AUTHORIZED).status == 405


def test_the_client_has_a_url_for_a_browser(ports: Ports, key: str) -> None:
    ports.run(key, ECHO, "8001")
    with Gateway.sync(ports.gateway.url, TOKEN) as client, client.session(key) as session:
        browser = Browser()
        assert browser.open(browser.enter(session.port_url(8001))).json()["uri"] == "/"


async def test_a_model_starts_a_server_and_gives_the_user_its_address(
    ports: Ports, key: str, tmp_path: Path
) -> None:
    async with mcp_client(ports.gateway, tmp_path, "--session", key) as client:
        await call(client, "write_file", path="page.html", text="<p>hello")
        await call(client, "start_program", argv=["python3", "-m", "http.server", "8000"])
        url = await call(client, "open_port", port=8000)
        browser = Browser()
        first = await asyncio.to_thread(browser.enter, url)
        page = first + "page.html"
        await asyncio.to_thread(until, lambda: browser.open(page).body == b"<p>hello", "it does not listen")


def test_the_port_that_the_system_chose_is_announced(ports: Ports) -> None:
    port = urlsplit(ports.base).port
    announced = json.loads((ports.gateway.data_dir / "gateway.json").read_text())
    assert (announced["ports_url"], announced["ports_port"]) == (f"{ports.base}/", port)
    info = ports.gateway.get("/v1/info").json()
    assert (info["ports"], info["ports_url"]) == (True, f"{ports.base}/")


def test_the_command_prints_json_that_http_answers(ports: Ports, key: str) -> None:
    ports.gateway.execute(key, "1")
    done = cellgate("session", "port", key, "8001", "--json", "--data-dir", ports.gateway.data_dir)
    opened = json.loads(done.stdout)
    assert (opened["session"], opened["port"]) == (key, 8001)
    assert opened["url"].startswith(f"{ports.base}/{key}/8001/?ticket=")
    assert opened["expires_in"] > 0


def test_a_port_that_nobody_listens_on_is_a_page_that_tries_again(ports: Ports, key: str) -> None:
    ports.gateway.execute(key, "1")
    browser, first = ports.entered(key, 8002)
    answer = browser.open(first, Accept="text/html,*/*")
    assert answer.status == 502
    assert b"port 8002" in answer.body
    assert b"refresh" in answer.body
    problem = browser.open(first)
    assert (problem.status, problem.json()["reason"]) == (502, "port_unanswered")


def test_answers_come_as_they_are_written(ports: Ports, key: str) -> None:
    ports.run(key, ECHO, "8003")
    with closing(begun(f"{ports.base}/{key}/8003/slowly")) as connection:
        answer = connection.getresponse()
        assert [answer.readline() for _ in range(4)] == [b"0\n", b"1\n", b"2\n", b""]


def test_bodies_of_any_size_pass_both_ways(ports: Ports, key: str) -> None:
    ports.run(key, ECHO, "8004")
    large = Browser().open(f"{ports.base}/{key}/8004/large", **AUTHORIZED)
    assert len(large.body) == 32 * 1024 * 1024
    body = b"x" * (8 * 1024 * 1024)
    seen = Browser().open(f"{ports.base}/{key}/8004/", "POST", body, **AUTHORIZED)
    assert len(seen.json()["body"]) == len(body)


def test_a_body_in_chunks_stays_one(ports: Ports, key: str) -> None:
    ports.run(key, ECHO, "8004")
    parts = urlsplit(ports.base)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as connection:
        connection.request("POST", f"/{key}/8004/", iter([b"one ", b"two"]), AUTHORIZED, encode_chunked=True)
        seen = json.loads(connection.getresponse().read())
    assert seen["body"] == "one two"
    assert ["Transfer-Encoding", "chunked"] in seen["headers"]


def test_a_reader_who_leaves_lets_the_program_go(ports: Ports, key: str) -> None:
    """The client reads nothing of a large answer: it does not fill the gateway, and its end is the end."""
    ports.run(key, ECHO, "8005")
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(closing(begun(f"{ports.base}/{key}/8005/large")))
        time.sleep(1)
    # All places are free again.
    statuses = [Browser().open(f"{ports.base}/{key}/8005/", **AUTHORIZED).status for _ in range(60)]
    assert set(statuses) == {200}


def connect(
    ports: Ports, key: str, port: int, **headers: str
) -> AbstractAsyncContextManager[WebSocketClientConnection]:
    url = f"{ports.base}/{key}/{port}/ws".replace("http", "ws", 1)
    return websocket(HTTPRequest(url, headers={**AUTHORIZED, **headers}))


async def test_a_websocket_is_relayed(ports: Ports, key: str) -> None:
    await asyncio.to_thread(ports.run, key, ECHO, "8006")
    async with connect(ports, key, 8006, Origin=ports.base) as opened, asyncio.timeout(PATIENCE):
        for message in ("text", b"\x00bytes", "x" * 1_000_000):
            await opened.write_message(message, binary=isinstance(message, bytes))
            assert await opened.read_message() == message


async def test_a_websocket_of_another_origins_page_is_refused(ports: Ports, key: str) -> None:
    await asyncio.to_thread(ports.run, key, ECHO, "8006")
    for origin in (ports.gateway.url, "https://elsewhere.example.org", "null"):
        with pytest.raises(HTTPClientError) as refused:
            async with connect(ports, key, 8006, Origin=origin):
                pass
        assert refused.value.code == 403


async def test_the_end_of_a_session_ends_its_connections(ports: Ports, key: str) -> None:
    await asyncio.to_thread(ports.run, key, ECHO, "8007")
    browser, first = await asyncio.to_thread(ports.entered, key, 8007)
    async with connect(ports, key, 8007) as opened, asyncio.timeout(PATIENCE):
        await asyncio.to_thread(ports.gateway.delete, f"/v1/sessions/{key}")
        assert await opened.read_message() is None
    # The next session of this name is another one.
    await asyncio.to_thread(ports.run, key, ECHO, "8007")
    assert (await asyncio.to_thread(browser.open, first)).status == 401


def test_a_restart_keeps_what_was_opened_but_not_what_was_connected(ports: Ports, key: str) -> None:
    ports.run(key, ECHO, "8008")
    browser, first = ports.entered(key, 8008)
    assert browser.open(first).status == 200
    ports.gateway.post(f"/v1/sessions/{key}/restart")
    assert browser.open(first).json()["reason"] == "port_unanswered"
    ports.run(key, ECHO, "8008")
    assert browser.open(first).status == 200


def test_the_record_has_each_port_once_and_its_sums(ports: Ports, key: str) -> None:
    ports.run(key, ECHO, "8009")
    for _ in range(3):
        assert Browser().open(f"{ports.base}/{key}/8009/", **AUTHORIZED).status == 200
    ports.gateway.delete(f"/v1/sessions/{key}")
    events = [each for each in ports.gateway.recorded(key) if each["type"].startswith("port_")]
    opened, closed = events
    assert (opened["type"], opened["port"]) == ("port_opened", 8009)
    assert (closed["type"], closed["port"], closed["connections"]) == ("port_closed", 8009, 3)
    assert closed["sent"] > 100
    assert closed["received"] > 100
    assert ports.gateway.get(f"/v1/sessions/{key}/audit/verify").json()["valid"]
    assert ports.gateway.get(f"/v1/sessions/{key}/notebook").status == 200


def test_too_many_connections_of_a_session_are_refused(ports: Ports, key: str) -> None:
    ports.run(key, SILENT, "8010")
    with ExitStack() as stack:
        for _ in range(MOST_OF_SESSION):
            stack.enter_context(closing(begun(f"{ports.base}/{key}/8010/")))
        until(
            lambda: Browser().open(f"{ports.base}/{key}/8011/", **AUTHORIZED).status == 429,
            "all of them are let in",
        )
        refused = Browser().open(f"{ports.base}/{key}/8011/", **AUTHORIZED)
        assert refused.json()["reason"] == "queue_full"
        assert int(refused.headers["Retry-After"]) > 0
    until(
        lambda: Browser().open(f"{ports.base}/{key}/8011/", **AUTHORIZED).status == 502,
        "their places stay taken",
    )


def refused_answer(ports: Ports, key: str, port: int, answer: str, times: int = 0) -> str:
    """Why a program's answer was refused."""
    ports.run(key, RAW, str(port), answer, str(times))
    found = Browser().open(f"{ports.base}/{key}/{port}/", **AUTHORIZED)
    assert found.status == 502, found
    assert found.json()["reason"] == "bad_program_answer"
    return str(found.json()["detail"])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("garbage\\n\\n", "not HTTP"),
        ("\\x16\\x03\\x01\\x02\\x00\\x01", "not HTTP"),
        ("", "without an answer"),
        ("HTTP/1.1 200 OK\\r\\nContent-Le", "without an answer"),
        (
            "HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n2\\r\\nhi",
            "both",
        ),
        ("HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nContent-Length: 3\\r\\n\\r\\nhi!", "not HTTP"),
        ("HTTP/1.1 200 OK\\r\\nContent-Length: -1\\r\\n\\r\\nhi!", "not HTTP"),
        ("HTTP/1.1 200 OK\\r\\nTransfer-Encoding: gzip, chunked\\r\\n\\r\\n", "not HTTP"),
        ("HTTP/1.1 200 OK\\r\\nX: a\\x00b\\r\\n\\r\\n", "not HTTP"),
        ("HTTP/1.1 200 OK\\r\\nX y: z\\r\\n\\r\\n", "not HTTP"),
        ("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: h2c\\r\\n\\r\\n", "not HTTP"),
        ("HTTP/1.1 100 Continue\\r\\n\\r\\n" * 20, "interim"),
        ("HTTP/1.1 200 OK\\r\\n" + "X: y\\r\\n" * 200 + "\\r\\n", "header fields"),
    ],
)
def test_an_answer_that_is_not_http_is_a_502_and_hurts_nothing_else(
    ports: Ports, key: str, answer: str, said: str
) -> None:
    detail = refused_answer(ports, key, 8020, answer)
    assert said in detail
    assert ports.gateway.execute(key, "6 * 7")["text"] == "42"


def test_an_endless_head_is_a_502(ports: Ports, key: str) -> None:
    assert "not HTTP" in refused_answer(ports, key, 8021, "HTTP/1.1 200 OK\\r\\nX: " + "y" * 20_000, 2000)


def test_an_answer_that_breaks_off_is_no_whole_one(ports: Ports, key: str) -> None:
    ports.run(key, RAW, "8022", "HTTP/1.1 200 OK\\r\\nContent-Length: 100\\r\\n\\r\\npart", "0")
    with (
        pytest.raises((http.client.IncompleteRead, ConnectionResetError)),
        closing(begun(f"{ports.base}/{key}/8022/")) as connection,
        connection.getresponse() as found,
    ):
        found.read()


def test_an_answer_without_a_length_ends_with_the_connection(ports: Ports, key: str) -> None:
    ports.run(key, RAW, "8023", "HTTP/1.0 200 OK\\r\\n\\r\\nall there is", "0")
    assert Browser().open(f"{ports.base}/{key}/8023/", **AUTHORIZED).body == b"all there is"


def received_until(client: socket.socket, end: bytes) -> bytes:
    """What comes until it ends with these bytes, before the other side closes."""
    received = b""
    while not received.endswith(end):
        data = client.recv(65536)
        assert data, received
        received += data
    return received


def test_an_answer_before_the_end_of_a_body_is_passed_on(ports: Ports, key: str) -> None:
    ports.run(key, RAW, "8024", "HTTP/1.1 413 Too Much\\r\\nContent-Length: 3\\r\\n\\r\\nno!", "0")
    parts = urlsplit(ports.base)
    with socket.create_connection((str(parts.hostname), parts.port), timeout=PATIENCE) as client:
        client.sendall(
            f"POST /{key}/8024/ HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Length: 1000000\r\n\r\nonly a part".encode()
        )
        received = received_until(client, b"no!")
    assert received.startswith(b"HTTP/1.1 413 Too Much\r\n")


EAGER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    peer, _ = listener.accept()
    with peer:
        peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 10\\r\\n\\r\\nearly ")
        received = b""
        while not received.endswith(b"x"):
            received += peer.recv(65536)
        peer.sendall(b"none" if b"expect" not in received.lower() else b"some")
"""


def test_a_body_is_asked_for_before_the_answer_never_within(ports: Ports, key: str) -> None:
    ports.run(key, EAGER, "8030")
    parts = urlsplit(ports.base)
    with socket.create_connection((str(parts.hostname), parts.port), timeout=PATIENCE) as client:
        client.sendall(
            f"POST /{key}/8030/ HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Length: 1\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n".encode()
        )
        received = received_until(client, b"early ")
        client.sendall(b"x")
        while data := client.recv(65536):
            received += data
    asked, head, body = received.split(b"\r\n\r\n", 2)
    assert asked == b"HTTP/1.1 100 Continue"
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"early none"


ODD = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
def answer(peer):
    with peer:
        head = peer.recv(65536)
        peer.sendall(bytes.fromhex(head.split()[1].decode().rpartition("/")[2]))
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],)).start()
"""
CRLF = b"\r\n"
LENGTH = b"Content-Length: 5\r\n\r\nhello"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
REFUSED = (502, "bad_program_answer")
WHOLE = (200, "hello")
ODD_ANSWERS: dict[str, tuple[bytes, tuple[int, str]]] = {
    "no content, with a length": (b"HTTP/1.1 204 No Content\r\n" + LENGTH, (204, "")),
    "no content, in chunks": (b"HTTP/1.1 204 No Content\r\n" + CHUNKED + b"\r\n", (204, "")),
    "not modified, with a body": (b"HTTP/1.1 304 Not Modified\r\n" + LENGTH, (304, "")),
    "reset content, with a body": (b"HTTP/1.1 205 Reset Content\r\n" + LENGTH, (205, "hello")),
    "trailers": (OK + CHUNKED + b"X: y\r\n\r\n", WHOLE),
    "length for the next hop": (OK + b"Connection: Content-Length\r\n" + LENGTH, WHOLE),
    "the same length twice": (OK + b"Content-Length: 5\r\n" + LENGTH, WHOLE),
    "a list of lengths": (OK + b"Content-Length: 5, 5\r\n\r\nhello", WHOLE),
    "another answer after it": (OK + LENGTH + OK + LENGTH, WHOLE),
    "an old answer that stays": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + LENGTH, WHOLE),
    "an old answer without a length": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nhello", WHOLE),
    "no reason": (b"HTTP/1.1 200\r\n" + LENGTH, WHOLE),
    "an empty reason": (b"HTTP/1.1 200 \r\n" + LENGTH, WHOLE),
    "a reason with markup": (b"HTTP/1.1 200 <b>\r\n" + LENGTH, WHOLE),
    "a reason that is not text": (b"HTTP/1.1 200 a\x01\xff\r\n" + LENGTH, WHOLE),
    "the highest status": (b"HTTP/1.1 999 Odd\r\n" + LENGTH, (999, "hello")),
    "an empty field": (OK + b"X:\r\n" + LENGTH, WHOLE),
    "a field that is not ASCII": (OK + b"X: \xff\xfe\r\n" + LENGTH, WHOLE),
    "a folded field": (OK + b"X: a\r\n b\r\n" + LENGTH, WHOLE),
    "a cookie that ends with a semicolon": (OK + b"Set-Cookie: a=1; Path=/;\r\n" + LENGTH, WHOLE),
    "a cookie of a semicolon": (OK + b"Set-Cookie: a=; ;\r\n" + LENGTH, WHOLE),
    "an address that is none": (b"HTTP/1.1 302 Found\r\nLocation: //[\r\n" + LENGTH, (302, "hello")),
    "a status below 100": (b"HTTP/1.1 099 Odd\r\n" + LENGTH, REFUSED),
    "a status of four digits": (b"HTTP/1.1 1000 Odd\r\n" + LENGTH, REFUSED),
    "no version": (b"<html>hello", REFUSED),
    "another version": (b"HTTP/2 200 OK\r\n" + LENGTH, REFUSED),
    "a length with a sign": (OK + b"Content-Length: +5\r\n\r\nhello", REFUSED),
    "a length of many digits": (OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nhello", REFUSED),
    "CR in a field": (OK + b"X: a\rb\r\n" + LENGTH, REFUSED),
    "a control character in a field": (OK + b"X: a\x01b\r\n" + LENGTH, REFUSED),
    "DEL in a field": (OK + b"X: a\x7fb\r\n" + LENGTH, REFUSED),
    "a switch that nobody asked for": (b"HTTP/1.1 101 Odd\r\nUpgrade: websocket\r\n\r\nhello", REFUSED),
}


@pytest.fixture(scope="module")
def odd(ports: Ports) -> Iterator[str]:
    """Where a program answers with the bytes that the last part of a path names."""
    ports.run("odd", ODD, "8031")
    yield f"{ports.base}/odd/8031"
    ports.gateway.delete("/v1/sessions/odd")


@pytest.fixture
def quiet(ports: Ports) -> Iterator[None]:
    """No answer of a program is an internal error."""
    before = ports.gateway.log.stat().st_size
    yield
    ports.gateway.get("/v1/sessions")
    assert "Traceback" not in ports.gateway.log.read_bytes()[before:].decode()


def test_odd_answers_are_passed_on_or_refused(odd: str, quiet: None) -> None:
    found = {}
    for name, (answer, _) in ODD_ANSWERS.items():
        seen = Browser().open(f"{odd}/{answer.hex()}", **AUTHORIZED)
        said = seen.json()["reason"] if seen.status == 502 else seen.body.decode()
        found[name] = (seen.status, said)
    assert found == {name: expected for name, (_, expected) in ODD_ANSWERS.items()}


@pytest.mark.parametrize("frames", [LENGTH, CHUNKED + b"\r\n", b"\r\nhello"])
def test_an_answer_to_head_has_no_body_whatever_the_program_sends(
    odd: str, quiet: None, frames: bytes
) -> None:
    seen = Browser().open(f"{odd}/{(OK + frames).hex()}", "HEAD", **AUTHORIZED)
    assert (seen.status, seen.body) == (200, b"")
    seen = Browser().open(f"{odd}/{(b'HTTP/1.1 204 No Content' + CRLF + frames).hex()}", "HEAD", **AUTHORIZED)
    assert (seen.status, seen.body, seen.headers["Content-Length"]) == (204, b"", None)


@pytest.mark.parametrize("rest", [b"5\r\nhel", b"zz\r\n", b"ffffffffffffffffffffffff\r\nhello"])
def test_chunks_that_break_off_are_no_whole_answer(odd: str, quiet: None, rest: bytes) -> None:
    answer = OK + b"Transfer-Encoding: chunked\r\n\r\n" + rest
    with (
        pytest.raises((http.client.IncompleteRead, ConnectionResetError)),
        closing(begun(f"{odd}/{answer.hex()}")) as connection,
        connection.getresponse() as found,
    ):
        found.read()


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


def upgraded(odd: str, answer: bytes, last: bytes, more: str = "", body: bytes = b"") -> bytes:
    """What comes back for a request that asks for a WebSocket, until `last` is there."""
    parts = urlsplit(odd)
    with socket.create_connection((str(parts.hostname), parts.port), timeout=PATIENCE) as client:
        head = (
            f"GET {parts.path}/{answer.hex()} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{more}\r\n"
        )
        with suppress(ConnectionError):  # who refuses it does not read all of it
            client.sendall(head.encode() + body)
        received = b""
        while last not in received:
            data = client.recv(65536)
            assert data, received
            received += data
    return received


def test_a_switch_with_a_length_is_a_switch(odd: str, quiet: None) -> None:
    received = upgraded(odd, SWITCH + LENGTH, b"hello")
    assert received.startswith(b"HTTP/1.1 101 ")
    assert received.endswith(b"\r\n\r\nhello")
    assert b"content-length" not in received.lower()


@pytest.mark.parametrize(
    ("field", "body"),
    [("Content-Length: 100000\r\n", bytes(100_000)), ("Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")],
)
def test_a_request_for_a_websocket_has_no_body(odd: str, quiet: None, field: str, body: bytes) -> None:
    received = upgraded(odd, SWITCH + LENGTH, CRLF + CRLF, field, body)
    assert received.startswith(b"HTTP/1.1 400 ")
