"""Who may open a port, what of that reaches the program, and what a program can do to anybody else."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPRequest

from cellgate.ports.headers import COOKIE
from tests.conftest import serving
from tests.gateway.ports.conftest import ECHO, Browser, Ports, base_of
from tests.gateway.ports.test_ports import AUTHORIZED
from tests.support.certificates import Authority
from tests.support.commands import cellgate, refusal
from tests.support.free_ports import free_port
from tests.support.nightly import mostly_nightly
from tests.support.server import TOKEN, GatewayProcess, until
from tests.support.users import add_user, create_token
from tests.support.websockets import websocket

PORT = 8000
PATIENCE = 60.0


@pytest.fixture
def echo(ports: Ports, key: str) -> str:
    """The session of a program that tells what it was sent."""
    ports.run(key, ECHO, str(PORT))
    return key


# What reaches the program


def test_nothing_that_lets_somebody_in_reaches_the_program(ports: Ports, echo: str) -> None:
    browser, first = ports.entered(echo, PORT)
    secret = next(value for (_, name), value in browser.cookies.items() if name == COOKIE)
    seen = browser.open(
        f"{first}?a=1&token={TOKEN}&ticket=ST-12&b=%26",
        Cookie=f"mine=1; {COOKIE}=other; __Host-{COOKIE}=x; cellgate-console=y; Cellgate=z; last=2",
        Authorization=f"Bearer {TOKEN}",
        X_Forwarded_For="6.6.6.6",
        X_Forwarded_Prefix="/elsewhere",
        Forwarded="for=6.6.6.6",
        X_Real_IP="6.6.6.6",
    )
    assert seen.sent("Cookie") == ["mine=1; last=2"]
    assert seen.sent("Authorization") == []
    assert seen.json()["uri"] == "/?a=1&ticket=ST-12&b=%26"
    assert seen.sent("X-Forwarded-Prefix") == [f"/{echo}/{PORT}"]
    assert seen.sent("X-Forwarded-Host") == [urlsplit(ports.base).netloc]
    assert seen.sent("X-Forwarded-Proto") == ["http"]
    for word in (secret, TOKEN, "6.6.6.6", "cellgate-console"):
        assert word not in seen.body.decode()


@pytest.mark.parametrize(
    "field",
    mostly_nightly(
        ["X_Forwarded_For", "x-forwarded_host", "Forwarded", "AUTHORIZATION"],
        ["X_Forwarded_For", "AUTHORIZATION"],
    ),
)
def test_fields_that_programs_read_as_others_are_left_out_too(ports: Ports, echo: str, field: str) -> None:
    _, first = ports.entered(echo, PORT)
    parts = urlsplit(first)
    with socket.create_connection((str(parts.hostname), parts.port), timeout=PATIENCE) as client:
        client.sendall(
            f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"{field}: Bearer {TOKEN}\r\n\r\n".encode()
        )
        received = b""
        while data := client.recv(65536):
            received += data
    assert TOKEN.encode() not in received
    if field != "AUTHORIZATION":
        assert received.startswith(b"HTTP/1.1 200")


def test_a_programs_own_cookies_and_authorization_pass(ports: Ports, echo: str) -> None:
    browser, first = ports.entered(echo, PORT)
    seen = browser.open(f"{first}?token=its-own", Cookie="a=b; c", Authorization="Bearer its-own")
    assert seen.sent("Authorization") == ["Bearer its-own"]
    assert seen.sent("Cookie") == ["a=b; c"]
    assert seen.json()["uri"] == "/?token=its-own"


def test_fields_for_the_next_hop_stay_here(ports: Ports, echo: str) -> None:
    seen = Browser().open(
        f"{ports.base}/{echo}/{PORT}/",
        Connection="X-Mine, Upgrade",
        X_Mine="1",
        Upgrade="h2c",
        TE="trailers",
        Proxy_Authorization="Basic x",
        **AUTHORIZED,
    )
    names = {name.lower() for name, _ in seen.json()["headers"]}
    assert names.isdisjoint({"x-mine", "upgrade", "te", "proxy-authorization"})
    assert seen.sent("Connection") == ["close"]


# What a program can't do


@pytest.mark.parametrize(
    "cookie",
    [
        f"{COOKIE}=stolen",
        f"{COOKIE}=stolen; Path=/",
        f"  {COOKIE} =stolen",
        f"__Host-{COOKIE}=stolen; Path=/; Secure",
        "CellGate-Port=stolen",
        "cellgate-console=stolen",
        f"={COOKIE}=stolen",
        COOKIE,
    ],
)
def test_a_program_can_not_set_a_cookie_of_ours(ports: Ports, echo: str, cookie: str) -> None:
    answer = Browser().open(f"{ports.base}/{echo}/{PORT}/?cookies={urllib.parse.quote(cookie)}", **AUTHORIZED)
    assert answer.status == 200
    assert answer.headers.get_all("Set-Cookie") is None


def test_a_programs_cookies_are_for_itself(ports: Ports, echo: str) -> None:
    query = urllib.parse.urlencode(
        {
            "cookies": [
                "a=1; Path=/; HttpOnly",
                "b=2; path=/sub; Domain=127.0.0.1",
                f"c=3; Path=/{echo}/{PORT}/x",
                "d=4",
                "e=5; Path=x",
            ]
        },
        doseq=True,
    )
    answer = Browser().open(f"{ports.base}/{echo}/{PORT}/?{query}", **AUTHORIZED)
    prefix = f"/{echo}/{PORT}"
    assert answer.headers.get_all("Set-Cookie") == [
        f"a=1; Path={prefix}/; HttpOnly",
        f"b=2; Path={prefix}/sub",
        f"c=3; Path={prefix}/x",
        "d=4",
        f"e=5; Path={prefix}/",
    ]
    for name in ("Clear-Site-Data", "Strict-Transport-Security", "Service-Worker-Allowed"):
        assert answer.headers[name] is None


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/login", "{prefix}/login"),
        ("login", "login"),
        ("{prefix}/login", "{prefix}/login"),
        ("{base}/login?a=b", "{base}{prefix}/login?a=b"),
        ("{base}{prefix}/login", "{base}{prefix}/login"),
        ("//elsewhere.example.org/", "//elsewhere.example.org/"),
        ("https://elsewhere.example.org/x", "https://elsewhere.example.org/x"),
    ],
)
def test_a_redirect_stays_below_the_prefix(ports: Ports, echo: str, location: str, shown: str) -> None:
    names = {"prefix": f"/{echo}/{PORT}", "base": ports.base}
    wanted = urllib.parse.quote(location.format(**names))
    answer = Browser().open(f"{ports.base}/{echo}/{PORT}/?to={wanted}", **AUTHORIZED)
    assert answer.headers["Location"] == shown.format(**names)


def test_the_gateways_own_listener_refuses_the_pages_of_programs(ports: Ports, echo: str) -> None:
    asked = ports.gateway.post(f"/v1/sessions/{echo}/execute", {"code": "1"}, headers={"Origin": ports.base})
    assert (asked.status, asked.reason) == (403, "forbidden")
    assert ports.gateway.get("/v1/sessions", headers={"Origin": ports.base}).status == 403


def test_the_two_listeners_have_nothing_in_common(ports: Ports, echo: str) -> None:
    for path in ("/v1/info", "/v1/sessions", "/api/kernels", "/healthz", "/metrics", "/openapi.json", "/"):
        answer = Browser().open(ports.base + path, **AUTHORIZED)
        assert (answer.status, answer.json()["reason"]) == (404, "not_found")
    assert ports.gateway.get(f"/{echo}/{PORT}/").status == 404


# Who is let in


def test_without_ticket_or_token_nobody_is_let_in(ports: Ports, echo: str) -> None:
    first = f"{ports.base}/{echo}/{PORT}/"
    for headers in ({}, {"Cookie": f"{COOKIE}=guessed"}, {"Authorization": "Bearer guessed"}):
        answer = Browser().open(first, **headers)
        assert (answer.status, answer.json()["reason"]) == (401, "not_authenticated")
    # A token in the address would be in the history of browsers.
    assert Browser().open(f"{first}?token={TOKEN}").status == 401


def test_a_ticket_works_once(ports: Ports, echo: str) -> None:
    url = ports.url(echo, PORT)
    browser = Browser()
    cookie = browser.open(url).headers["Set-Cookie"]
    assert cookie.endswith(f"; Path=/{echo}/{PORT}/; HttpOnly; SameSite=Strict")
    again = Browser().open(url)
    assert again.status == 401
    assert "cellgate session port SESSION PORT" in again.json()["detail"]
    assert again.headers["Set-Cookie"] is None
    # Nor does it reach the program with a browser that was let in.
    assert browser.open(url).status == 401


def test_a_ticket_is_for_its_session_and_port(ports: Ports, echo: str) -> None:
    other = f"{echo}-other"
    ports.run(other, ECHO, str(PORT))
    for place in (f"{other}/{PORT}", f"{echo}/{PORT + 1}", f"{echo}/80"):
        ticket = urlsplit(ports.url(echo, PORT)).query
        answer = Browser().open(f"{ports.base}/{place}/?{ticket}")
        assert (answer.status, answer.headers["Set-Cookie"]) == (401, None)
    browser, first = ports.entered(echo, PORT)
    ((_, _), secret) = next(iter(browser.cookies.items()))
    assert browser.open(first).status == 200
    stolen = {"Cookie": f"{COOKIE}={secret}"}
    assert Browser().open(f"{ports.base}/{other}/{PORT}/", **stolen).status == 401
    assert Browser().open(f"{ports.base}/{echo}/{PORT + 1}/", **stolen).status == 401
    ports.gateway.delete(f"/v1/sessions/{other}")


def test_pages_of_other_origins_are_let_in_by_a_ticket_only(ports: Ports, echo: str) -> None:
    browser, first = ports.entered(echo, PORT)
    for site in ("same-site", "cross-site"):
        assert browser.open(first, Sec_Fetch_Site=site).status == 403
    assert browser.open(first, "POST", Origin=ports.gateway.url).status == 403
    assert browser.open(first, "POST", Origin="null").status == 403
    assert browser.open(first, "POST", Origin=ports.base, Sec_Fetch_Site="same-origin").status == 200
    # A link with a ticket: a page of ours, which a strict cookie follows, leads on.
    opened = browser.open(ports.url(echo, PORT), Sec_Fetch_Site="cross-site")
    assert opened.status == 200
    assert f'content="0; url=/{echo}/{PORT}/"'.encode() in opened.body
    assert COOKIE in opened.headers["Set-Cookie"]


@pytest.mark.parametrize("host", ["evil.example.org", "", "127.0.0.1.evil.example.org"])
def test_a_name_that_is_not_ours_is_refused(ports: Ports, echo: str, host: str) -> None:
    answer = Browser().open(f"{ports.base}/{echo}/{PORT}/", Host=host, **AUTHORIZED)
    assert (answer.status, answer.json()["reason"]) == (403, "forbidden")


@pytest.mark.parametrize("port", ["0", "65536", "99999", "x", "-1", "08000x"])
def test_what_is_no_port_is_a_bad_request(ports: Ports, echo: str, port: str) -> None:
    answer = ports.gateway.post(f"/v1/sessions/{echo}/ports/{port}")
    assert (answer.status, answer.reason) == (400, "bad_request")


def test_a_path_without_its_last_slash_is_led_to_it(ports: Ports, echo: str) -> None:
    answer = Browser().open(f"{ports.base}/{echo}/{PORT}?a=b")
    assert (answer.status, answer.headers["Location"]) == (308, f"/{echo}/{PORT}/?a=b")
    for path in ("/%5Cevil.example.org/80", "//evil.example.org/80", "/a%0d%0ab/80"):
        assert Browser().open(ports.base + path, **AUTHORIZED).status == 404


def test_a_session_that_is_not_there(ports: Ports, key: str) -> None:
    assert ports.gateway.post(f"/v1/sessions/{key}/ports/80").status == 404
    assert Browser().open(f"{ports.base}/{key}/80/", **AUTHORIZED).status == 404


def test_a_gateway_that_serves_no_ports_says_so(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    answer = gateway.post(f"/v1/sessions/{session}/ports/80")
    assert (answer.status, "--ports-port" in answer.json()["detail"]) == (404, True)


# Several users


def user(gateway: GatewayProcess, name: str) -> tuple[str, str]:
    """A new user's token, and its id."""
    add_user(gateway, name)
    token_id, token = create_token(gateway, name)
    return token, token_id


@pytest.fixture(scope="module")
def wild(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """A gateway at which each port has a name of its own."""
    number = free_port()
    data = tmp_path_factory.mktemp("wild") / "data"
    url = f"http://*.localhost:{number}"
    with serving(data, "sandbox", ports_port=number, ports_url=url) as gateway:
        assert base_of(gateway) == url
        yield Ports(gateway, f"http://127.0.0.1:{number}")


def test_each_port_has_an_origin_of_its_own(wild: Ports) -> None:
    names = []
    for key in ("My_Session", "other"):
        wild.run(key, ECHO, str(PORT))
        browser, first = wild.entered(key, PORT)
        parts = urlsplit(first)
        names.append(parts.hostname)
        assert parts.path == "/"
        seen = browser.open(first)
        assert seen.json()["uri"] == "/"
        assert seen.sent("Host") == [parts.netloc]
        assert seen.sent("X-Forwarded-Prefix") == []
        # The secret is for this name, and nothing is found below a path.
        stolen = {"Cookie": f"{COOKIE}={next(iter(browser.cookies.values()))}"}
        for elsewhere in (f"{PORT}-other-000000000000.localhost", "localhost", f"x.{parts.hostname}"):
            url = f"http://{elsewhere}:{parts.port}/"
            assert Browser().open(url, **stolen).status == 401
            assert Browser().open(f"{url}{key}/{PORT}/", **stolen).status == 401
        assert Browser().open(f"{wild.base}/{key}/{PORT}/", **stolen).status == 401
        assert Browser().open(f"{wild.base}/{key}/{PORT}/", **AUTHORIZED).status == 200
    assert names[0].startswith(f"{PORT}-my-session-")
    assert names[1].startswith(f"{PORT}-other-")


def test_another_users_session_is_not_there(wild: Ports) -> None:
    alice, _ = user(wild.gateway, "alice")
    mallory, _ = user(wild.gateway, "mallory")
    path = "/v1/sessions/hers/processes"
    asked = {"argv": ["python3", "-c", ECHO, str(PORT)], "wait": False}
    assert wild.gateway.post(path, asked, token=alice).status == 202
    assert wild.gateway.post(f"/v1/sessions/hers/ports/{PORT}", token=mallory).status == 404
    first = f"{wild.base}/hers/{PORT}/"
    assert Browser().open(first, Authorization=f"Bearer {mallory}").status == 404
    until(lambda: Browser().open(first, Authorization=f"Bearer {alice}").status == 200, "it does not listen")
    # Sessions of the same name do not share an origin.
    wild.gateway.execute("hers", "1")
    hers = urlsplit(wild.url("hers", PORT, alice))
    assert hers.hostname != urlsplit(wild.url("hers", PORT)).hostname
    # An administrator who names the owner is let in, and that is in the audit trail.
    opened = wild.gateway.post(f"/v1/sessions/hers/ports/{PORT}?principal=alice")
    assert urlsplit(opened.json()["url"]).hostname == hers.hostname
    route = b"/v1/sessions/{session}/ports/{port}"
    until(lambda: route in wild.gateway.get("/v1/audit").body, "it is not in the audit trail")


async def test_a_revoked_token_ends_what_it_opened(wild: Ports) -> None:
    bob, token_id = await asyncio.to_thread(user, wild.gateway, "bob")
    users = replace(wild, gateway=wild.gateway)
    asked = {"argv": ["python3", "-c", ECHO, str(PORT)], "wait": False}
    ask = asyncio.to_thread
    await ask(wild.gateway.post, "/v1/sessions/his/processes", asked, token=bob)
    url = await ask(users.url, "his", PORT, bob)
    unused = await ask(users.url, "his", PORT, bob)
    browser = Browser()
    first = await ask(browser.enter, url)
    await ask(until, lambda: browser.open(first).status == 200, "it does not listen")
    parts = urlsplit(first)
    cookie = f"{COOKIE}={next(iter(browser.cookies.values()))}"
    request = HTTPRequest(f"ws://127.0.0.1:{parts.port}/ws", headers={"Host": parts.netloc, "Cookie": cookie})
    async with websocket(request) as opened:
        revoked = await ask(cellgate, "token", "revoke", token_id, "--data-dir", wild.gateway.data_dir)
        assert revoked.returncode == 0
        async with asyncio.timeout(PATIENCE):
            assert await opened.read_message() is None
    assert (await ask(browser.open, first)).status == 401
    assert (await ask(browser.open, unused)).status == 401


def test_users_need_an_origin_for_each_port(ports: Ports) -> None:
    """At one origin a program's page could read what another user has opened in the same browser."""
    token, _ = user(ports.gateway, "carol")
    asked = {"argv": ["python3", "-c", ECHO, str(PORT)], "wait": False}
    assert ports.gateway.post("/v1/sessions/hers/processes", asked, token=token).status == 202
    refused = ports.gateway.post(f"/v1/sessions/hers/ports/{PORT}", token=token)
    assert (refused.status, "--ports-url" in refused.json()["detail"]) == (403, True)
    first = f"{ports.base}/hers/{PORT}/"
    until(lambda: Browser().open(first, Authorization=f"Bearer {token}").status == 200, "no answer")
    # Nor does an administrator's browser get a user's page into the origin of the administrator's programs.
    refused = ports.gateway.post(f"/v1/sessions/hers/ports/{PORT}?principal=carol")
    assert (refused.status, "--ports-url" in refused.json()["detail"]) == (403, True)
    # A token is for its principal's own session, whoever else has one of that name.
    assert Browser().open(first, **AUTHORIZED).status == 404


def test_the_command_prints_an_address(ports: Ports, echo: str) -> None:
    made = cellgate("session", "port", echo, str(PORT), "--data-dir", ports.gateway.data_dir)
    assert made.returncode == 0, made.stderr
    browser = Browser()
    assert browser.open(browser.enter(made.stdout.strip())).status == 200
    wrong = cellgate("session", "port", echo, "http", "--data-dir", ports.gateway.data_dir)
    assert (wrong.returncode, "number" in wrong.stderr) == (2, True)


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    code, said = refusal("--data-dir", str(tmp_path), "--ports-url", "http://*.localhost:1")
    assert (code, "--ports-port" in said) == (2, True)
    code, said = refusal("--data-dir", str(tmp_path), "--ports-port", "0", "--ports-url", "http://*")
    assert (code, "--ports-url (http://*) must be a URL" in said) == (2, True)


def test_the_port_behind_a_url_of_the_operators_is_said_too(tmp_path: Path) -> None:
    url = "https://*.ports.example.org"
    with serving(tmp_path / "data", ports_port=0, ports_url=url) as gateway:
        assert base_of(gateway) == url
        announced = json.loads((gateway.data_dir / "gateway.json").read_text())
        port = announced["ports_port"]
        assert announced["ports_url"] == f"{url}/"
        assert f"ports      {url}/ (listening on port {port})\n" in gateway.log.read_text()
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()


def test_with_tls_the_cookie_is_for_tls_and_this_host_alone(
    sandbox: None, tmp_path: Path, free_port: int
) -> None:
    certificate, key = Authority(tmp_path).issue("ports", "*.ports.example.org", "127.0.0.1")
    options = {"tls_cert": certificate, "tls_key": key, "ports_port": free_port}
    url = f"https://*.ports.example.org:{free_port}"
    with serving(tmp_path / "data", "sandbox", ports_url=url, **options) as gateway:
        gateway.execute("s", "1")
        opened = urlsplit(gateway.post(f"/v1/sessions/s/ports/{PORT}").json()["url"])
        assert opened.scheme == "https"
        connection = http.client.HTTPSConnection("127.0.0.1", free_port, timeout=60, context=gateway.tls)
        with closing(connection):
            connection.request("GET", f"/?{opened.query}", headers={"Host": opened.netloc})
            answer = connection.getresponse()
            cookie = answer.headers["Set-Cookie"]
            assert (answer.status, answer.read()) == (303, b"")
            assert cookie.startswith(f"__Host-{COOKIE}=")
            assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")
            sent = {"Host": opened.netloc, "Cookie": cookie.partition(";")[0]}
            connection.request("GET", "/", headers=sent)
            found = connection.getresponse()
            assert (found.status, json.loads(found.read())["reason"]) == (502, "port_unanswered")


def test_a_second_gateway_on_the_port_is_refused(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [Path(sys.executable).with_name("cellgate"), "serve", "--port=0", f"--ports-port={port}"],
            env={"CELLGATE_DATA_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert "--ports-port" in done.stderr
    assert done.returncode != 0


@contextmanager
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a Hub that knows no token, and what it was asked."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hub/api", asked
        server.shutdown()
        thread.join()


def test_who_sent_too_many_wrong_tokens_makes_us_ask_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub() as (address, asked):
        monkeypatch.setenv("JUPYTERHUB_API_URL", address)
        monkeypatch.setenv("JUPYTERHUB_SERVICE_NAME", "cellgate")
        with serving(
            tmp_path / "data", jupyterhub=True, allow_unsandboxed=True, ports_port=0, login_attempts=2
        ) as gateway:
            url = f"{base_of(gateway)}/s/{PORT}/"
            tried: list[int] = []

            def is_slowed() -> bool:
                wrong = f"Bearer wrong-{len(tried)}"
                tried.append(Browser().open(url, Authorization=wrong).status)
                return tried[-1] == 429

            until(is_slowed, "all wrong tokens are asked about")
    # Not about the last one.
    assert set(tried[:-1]) == {401}
    assert len([path for path in asked if path.endswith("/user")]) == len(tried) - 1
