"""Signing in to the console and out: tickets, tokens, the cookie, and what must not get in by it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest

from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.opening import open_users
from tests.conftest import StartGateway, serving
from tests.gateway.console.conftest import HTML, Browser, ticket_path
from tests.support.certificates import Authority
from tests.support.channels import channels
from tests.support.commands import cellgate
from tests.support.server import TOKEN, GatewayProcess, until
from tests.support.users import add_user, create_token
from tests.support.websockets import websocket

WRONG = "not-the-token"


@pytest.fixture
def browser(gateway: GatewayProcess) -> Browser:
    return Browser(gateway)


# ---- in ----------------------------------------------------------------------------------------------------


def test_a_ticket_signs_in_once(gateway: GatewayProcess, browser: Browser) -> None:
    path = ticket_path(gateway)
    answer = browser.visit(path)
    assert (answer.status, answer.headers["Location"], answer.body) == (303, "/", b"")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Set-Cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert browser.me() == "default"
    other = Browser(gateway)
    refused = other.visit(path)
    assert (refused.status, refused.headers["Content-Type"]) == (401, "text/html; charset=utf-8")
    assert b"cellgate open" in refused.body
    assert refused.headers["Cache-Control"] == "no-store"
    assert refused.headers["Referrer-Policy"] == "no-referrer"
    assert path.partition("=")[2].encode() not in refused.body
    assert (other.cookies, other.me()) == ({}, 401)


def test_a_token_in_the_address_signs_in_as_jupyters_does(gateway: GatewayProcess, browser: Browser) -> None:
    answer = browser.visit(f"/?token={TOKEN}&x=//evil.example")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    assert TOKEN not in str(answer.headers)
    assert browser.me() == "default"
    wrong = Browser(gateway)
    assert wrong.visit(f"/?token={WRONG}").status == 401
    assert wrong.cookies == {}


def test_the_form_signs_in_with_a_token(gateway: GatewayProcess, browser: Browser) -> None:
    answer = browser.ask("POST", "/console/sign-in", {"token": TOKEN})
    assert (answer.status, answer.body) == (204, b"")
    assert browser.me() == "default"
    wrong = Browser(gateway)
    refused = wrong.ask("POST", "/console/sign-in", {"token": WRONG})
    assert (refused.status, refused.reason, wrong.cookies) == (401, "not_authenticated", {})
    assert WRONG.encode() not in refused.body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"token": TOKEN, "x": 1}, 400),
        ({"token": 1}, 400),
        ({"token": "a\nb"}, 400),
        ({"token": "ä"}, 400),
        ({"token": ""}, 401),
        ({"token": "x" * 64 * 1024}, 413),
        (b"token=" + TOKEN.encode(), 400),
    ],
)
def test_what_is_no_token_signs_nobody_in(browser: Browser, body: object, status: int) -> None:
    assert browser.ask("POST", "/console/sign-in", body).status == status
    assert browser.cookies == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": None},
        {"Sec_Fetch_Site": None, "Referer": "http://127.0.0.1:1/"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/console/sign-in", "/console/sign-out"])
def test_no_other_page_signs_anybody_in_or_out(
    browser: Browser, path: str, headers: dict[str, str | None]
) -> None:
    browser.enter()
    kept = dict(browser.cookies)
    refused = browser.ask("POST", path, {"token": TOKEN}, **headers)
    assert (refused.status, refused.reason) == (403, "forbidden")
    assert "Set-Cookie" not in refused.headers
    assert browser.cookies == kept
    assert browser.me() == "default"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Purpose": "prefetch"},
        {"Sec_Purpose": "prefetch;prerender"},
        {"Purpose": "prefetch"},
        {"X_Moz": "prefetch"},
    ],
)
def test_looking_ahead_uses_no_ticket_up(
    gateway: GatewayProcess, browser: Browser, headers: dict[str, str]
) -> None:
    path = ticket_path(gateway)
    ahead = browser.visit(path, **headers)
    assert (ahead.status, browser.cookies) == (403, {})
    assert browser.visit(path).status == 303


def test_nothing_but_a_visit_uses_a_ticket_up(gateway: GatewayProcess, browser: Browser) -> None:
    path = ticket_path(gateway)
    assert gateway.request("HEAD", path, token=None).status == 200
    for kind in ("image", "iframe", "empty", "script"):
        assert browser.ask("GET", path, Sec_Fetch_Dest=kind).status == 403
    assert browser.cookies == {}
    assert browser.visit(path).status == 303


def test_a_new_sign_in_ends_the_former(gateway: GatewayProcess, browser: Browser) -> None:
    browser.enter()
    former = Browser(gateway, dict(browser.cookies))
    browser.enter()
    assert (former.me(), browser.me()) == (401, "default")


# ---- the cookie --------------------------------------------------------------------------------------------


def test_the_page_may_do_what_its_token_may(gateway: GatewayProcess, browser: Browser, session: str) -> None:
    browser.enter()
    path = f"/v1/sessions/{session}"
    made = browser.ask("POST", f"{path}/execute", {"code": "6 * 7"}, Origin=gateway.url)
    assert (made.status, made.json()["text"]) == (200, "42")
    assert browser.ask("GET", path).json()["principal"] == "default"
    assert browser.ask("GET", "/api/kernels").status == 200
    assert browser.ask("DELETE", path).status == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": None},
        {"Sec_Fetch_Site": None, "Referer": "http://127.0.0.1:1/"},
    ],
)
def test_without_the_page_the_cookie_is_nothing(browser: Browser, headers: dict[str, str | None]) -> None:
    """A program's page is on the same host, at another port: browsers send the cookie with its requests."""
    browser.enter()
    for path in ("/v1/me", "/v1/sessions", "/api/kernels", "/metrics", "/v1/nope"):
        assert browser.ask("GET", path, **headers).status == 401
    assert browser.ask("POST", "/v1/sessions", {}, **headers).status == 401


def test_without_tls_the_referer_tells_whose_a_download_is(gateway: GatewayProcess, browser: Browser) -> None:
    browser.enter()
    page = {"Sec_Fetch_Site": None, "Referer": f"{gateway.url}/"}
    assert browser.me(**page) == "default"
    assert browser.ask("POST", "/v1/sessions", {}, **page).status == 401
    own = browser.ask("DELETE", "/v1/sessions/unknown", Sec_Fetch_Site=None, Origin=gateway.url)
    assert own.status == 404


def test_a_token_counts_before_the_cookie(browser: Browser) -> None:
    browser.enter()
    assert browser.me(Authorization=f"Bearer {WRONG}") == 401
    assert browser.ask("GET", f"/v1/me?token={WRONG}").status == 401
    assert browser.ask("GET", f"/v1/me?token={TOKEN}", Sec_Fetch_Site="none").status == 200


def test_answers_to_the_page_are_no_pages(browser: Browser, gateway: GatewayProcess, session: str) -> None:
    """Whatever a session made: opened in the browser, it has no origin and runs nothing."""
    gateway.execute(session, "open('x.html', 'w').write('<script>1</script>')")
    browser.enter()
    for path in ("/v1/me", f"/v1/sessions/{session}/files/x.html", "/api/kernelspecs"):
        answer = browser.ask("GET", path)
        assert answer.status == 200
        assert answer.headers["Content-Security-Policy"].startswith("sandbox")
        assert "allow-" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Security-Policy" not in gateway.get("/v1/me").headers


@pytest.mark.parametrize("value", ["x", "x" * 43, "x" * 30_000, "", "=", '"', "a=b", "ä"])
def test_a_cookie_that_is_none_is_no_attempt(browser: Browser, value: str) -> None:
    browser.enter()
    name = next(iter(browser.cookies))
    answer = browser.ask("GET", "/v1/me", Cookie=f"{name}={value}")
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="cellgate"')


def test_of_many_cookies_the_good_one_counts(browser: Browser) -> None:
    browser.enter()
    name, secret = next(iter(browser.cookies.items()))
    added = "; ".join(f"{name}={number}" for number in range(7))
    assert browser.me(Cookie=f"a=b; {added}; {name}={secret}") == "default"
    assert browser.me(Cookie=f"{name}-x={secret}; {name.upper()}={secret}; x{name}={secret}") == 401


async def test_a_websocket_is_let_in_by_the_cookie_for_our_page_alone(
    gateway: GatewayProcess, browser: Browser, session: str
) -> None:
    gateway.execute(session, "1")
    browser.enter()
    url = f"{gateway.url.replace('http', 'ws')}/v1/sessions/{session}/ws"
    own = {name: value for name, value in browser.cookie.items() if name != "Sec-Fetch-Site"}
    async with websocket(HTTPRequest(url, headers=own)) as opened:
        assert json.loads(await opened.read_message() or "")["seq"] == 1
    async with channels(gateway, session, headers=own) as joined:
        assert joined.socket is not None
    elsewhere = {"Cookie": own["Cookie"], "Sec-Fetch-Site": "same-site"}
    with pytest.raises(HTTPClientError, match="401"):
        async with websocket(HTTPRequest(url, headers=elsewhere)):
            pass
    foreign = own | {"Origin": "http://127.0.0.1:1"}
    with pytest.raises(HTTPClientError, match="403"):
        async with websocket(HTTPRequest(url, headers=foreign)):
            pass


# ---- out ---------------------------------------------------------------------------------------------------


def ended(stream: http.client.HTTPResponse) -> None:
    """Read until the gateway closes the connection, in the middle of the answer."""
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        stream.read()


async def test_signing_out_ends_all_that_the_sign_in_opened(
    gateway: GatewayProcess, browser: Browser, session: str
) -> None:
    gateway.execute(session, "1")
    browser.enter()
    other = Browser(gateway)
    other.enter()
    former = Browser(gateway, dict(browser.cookies))
    path = f"/v1/sessions/{session}/events"
    with (
        gateway.stream("GET", path, Authorization="", **browser.cookie) as mine,
        gateway.stream("GET", path, Authorization="", **other.cookie) as others,
    ):
        assert json.loads(mine.readline())["seq"] == 1
        assert json.loads(others.readline())["seq"] == 1
        async with channels(gateway, session, headers={"Authorization": "", **browser.cookie}) as socket:
            answer = browser.ask("POST", "/console/sign-out")
            assert (answer.status, answer.body, browser.cookies) == (204, b"", {})
            assert await socket.frame() is None or socket.over
        ended(mine)
        assert former.me() == 401
        assert other.me() == "default"
        gateway.execute(session, "2")
        assert json.loads(others.readline())["seq"] == 2
    # Nobody is signed in now, which is no mistake.
    assert former.ask("POST", "/console/sign-out").status == 204


@pytest.mark.parametrize("how", ["revoke", "disable", "role"])
def test_a_sign_in_ends_with_its_login(start_gateway: StartGateway, how: str) -> None:
    gateway = start_gateway()
    add_user(gateway, "ada")
    name, token = create_token(gateway, "ada")
    browser = Browser(gateway)
    browser.enter(token)
    unused = ticket_path(gateway, token)
    assert browser.me() == "ada"
    gateway.post("/v1/sessions/s/execute", {"code": "1"}, token=token)
    with gateway.stream("GET", "/v1/sessions/s/events", Authorization="", **browser.cookie) as stream:
        assert json.loads(stream.readline())["seq"] == 1
        words = {
            "revoke": ("token", "revoke", name),
            "disable": ("user", "disable", "ada"),
            "role": ("user", "role", "ada", "auditor"),
        }[how]
        assert cellgate(*words, f"--data-dir={gateway.data_dir}").returncode == 0
        ended(stream)
    assert browser.me() == 401
    assert Browser(gateway).visit(unused).status == 401


# ---- users -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, dict[str, str]]]:
    """A gateway with users, and their tokens."""
    data = tmp_path_factory.mktemp("shared") / "data"
    data.mkdir(mode=0o700)
    tokens = {}
    with open_users(data, create=True) as store:
        for name in ("ada", "eve"):
            store.add_user(name, Role.USER)
            tokens[name] = store.create_token(name, reach=Reach())[1]
        narrow = store.create_token("ada", scopes=frozenset({Permission.READ}), reach=Reach("a-"))
        tokens["narrow"] = narrow[1]
    with serving(data, allowed_origins="*") as gateway:
        yield gateway, tokens


Shared = tuple[GatewayProcess, dict[str, str]]


def test_a_browser_may_do_no_more_than_the_token(shared: Shared) -> None:
    gateway, tokens = shared
    browser = Browser(gateway)
    browser.enter(tokens["narrow"])
    assert browser.ask("GET", "/v1/me").json()["scopes"] == ["read"]
    assert browser.ask("POST", "/v1/sessions", {"session": "a-1"}).status == 403
    assert browser.ask("GET", "/v1/sessions/b-1").status == 404


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_of_another_site_signs_nobody_in_as_somebody_else(shared: Shared, site: str) -> None:
    gateway, tokens = shared
    path = ticket_path(gateway, tokens["eve"])
    victim = Browser(gateway)
    for address in (path, f"/?token={tokens['eve']}"):
        refused = victim.visit(address, site)
        assert (refused.status, victim.cookies) == (403, {})
        assert b"address bar" in refused.body
    assert victim.visit(path).status == 303


def test_a_link_in_the_console_signs_nobody_in_as_somebody_else(shared: Shared) -> None:
    gateway, tokens = shared
    victim = Browser(gateway)
    assert victim.visit(ticket_path(gateway, tokens["eve"]), "same-origin").status == 403
    assert victim.cookies == {}


def test_where_no_browser_tells_of_links_somebody_agrees_first(shared: Shared) -> None:
    """Without TLS there is no word on where a link was: the address may be another's."""
    gateway, tokens = shared
    form = {"Accept": HTML, "Sec_Fetch_Site": None, "Content_Type": "application/x-www-form-urlencoded"}
    for query in (ticket_path(gateway, tokens["eve"])[2:], f"token={tokens['eve']}"):
        browser = Browser(gateway)
        shown = browser.visit(f"/?{query}", None)
        assert (shown.status, browser.cookies) == (200, {})
        assert b"Sign in as eve" in shown.body
        policy = shown.headers["Content-Security-Policy"]
        assert "form-action 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        for origin in (None, "null", "http://evil.example"):
            refused = browser.ask("POST", "/", query.encode(), **{**form, "Origin": origin})
            assert (refused.status, browser.cookies) == (403, {})
        agreed = browser.ask("POST", "/", query.encode(), **{**form, "Origin": gateway.url})
        assert (agreed.status, agreed.headers["Location"]) == (303, "/")
        assert browser.me() == "eve"


def test_a_form_of_another_kind_is_refused(gateway: GatewayProcess, browser: Browser) -> None:
    form = {"Accept": HTML, "Origin": gateway.url, "Content_Type": "application/x-www-form-urlencoded"}
    for body, status in (
        (b"ticket=a&token=b&x=c", 400),
        (b"&" * 30_000, 400),
        (b"\xff=%ff", 401),
        (b"", 401),
    ):
        refused = browser.ask("POST", "/", body, **form)
        assert (refused.status, browser.cookies) == (status, {}), body


@pytest.mark.parametrize("site", ["none", None])
def test_nobody_is_signed_in_in_the_place_of_another(shared: Shared, site: str | None) -> None:
    gateway, tokens = shared
    browser = Browser(gateway)
    browser.enter(tokens["ada"])
    path = ticket_path(gateway, tokens["eve"])
    for address in (path, f"/?token={tokens['eve']}"):
        refused = browser.visit(address, site)
        assert refused.status == 403
        assert b"signed in as ada" in refused.body
    assert browser.me() == "ada"
    assert browser.ask("POST", "/console/sign-out").status == 204
    assert browser.visit(path).status == 303, "the ticket was not used up"
    assert browser.me() == "eve"


def test_a_browser_signs_in_no_other(browser: Browser) -> None:
    """What it asked for would stay when it signs out."""
    browser.enter()
    refused = browser.ask("POST", "/v1/console")
    assert (refused.status, refused.reason) == (403, "forbidden")


@pytest.mark.parametrize("kind", ["script", "worker", "iframe", "object", "style"])
def test_nothing_that_a_page_would_run_is_let_in_by_the_cookie(browser: Browser, kind: str) -> None:
    browser.enter()
    assert browser.me(Sec_Fetch_Dest="empty") == "default"
    assert browser.me(Sec_Fetch_Dest=kind) == 401


def test_where_there_is_one_user_any_link_will_do(gateway: GatewayProcess, browser: Browser) -> None:
    assert browser.visit(ticket_path(gateway), "cross-site").status == 303


def test_a_planted_cookie_makes_nobody_act_as_somebody_else(shared: Shared) -> None:
    gateway, tokens = shared
    victim, eve = Browser(gateway), Browser(gateway)
    victim.enter(tokens["ada"])
    eve.enter(tokens["eve"])
    name = next(iter(eve.cookies))
    for first, second in ((victim, eve), (eve, victim)):
        assert victim.me(Cookie=f"{name}={first.cookies[name]}; {name}={second.cookies[name]}") == 401


def test_an_allowed_origin_is_not_let_in_by_the_cookie(shared: Shared) -> None:
    gateway, tokens = shared
    browser = Browser(gateway)
    browser.enter(tokens["ada"])
    foreign = {"Origin": "https://notebooks.example.org"}
    for site in ("cross-site", "same-site", "same-origin", None):
        answer = browser.ask("GET", "/v1/me", Sec_Fetch_Site=site, **foreign)
        assert answer.status == 401
        assert "Access-Control-Allow-Credentials" not in answer.headers
    page = gateway.get("/", token=None, headers=foreign)
    assert "Origin" in page.headers["Vary"]


# ---- wrong ones, logs, TLS ---------------------------------------------------------------------------------


def test_wrong_tokens_become_slow_refusals_and_are_in_the_trail(start_gateway: StartGateway) -> None:
    gateway = start_gateway(login_attempts=3)
    browser = Browser(gateway)
    tried = [browser.visit("/?ticket=cgticket-x").status, browser.visit(f"/?token={WRONG}").status]
    tried += [browser.ask("POST", "/console/sign-in", {"token": WRONG}).status for _ in range(2)]
    assert tried == [401, 401, 401, 429]
    assert browser.visit(f"/?token={WRONG}").status == 429
    # Who has the right one is not held up.
    assert browser.ask("POST", "/console/sign-in", {"token": TOKEN}).status == 204

    def routes() -> set[tuple[str, str]]:
        entries = [each["entry"] for each in gateway.get("/v1/audit").json()["entries"]]
        return {(each["route"], each["cause"]) for each in entries if each["type"] == "refused"}

    until(lambda: {("/", "ticket"), ("/console/sign-in", "unknown_token")} <= routes(), "not in the trail")


def test_nothing_that_lets_in_is_logged(start_gateway: StartGateway) -> None:
    gateway = start_gateway(log_level="DEBUG")
    browser = Browser(gateway)
    path = ticket_path(gateway)
    for _ in range(2):
        browser.visit(path)
    browser.visit(f"/?token={TOKEN}")
    browser.visit(f"/?token={WRONG}")
    browser.ask("POST", "/console/sign-in", {"token": WRONG})
    browser.ask("POST", "/console/sign-in", {"token": TOKEN})
    secret = next(iter(browser.cookies.values()))
    assert browser.me() == "default"
    assert gateway.stop() == 0
    log = gateway.log.read_text()
    assert "POST /console/sign-in" in log
    for kept in (TOKEN, WRONG, secret, path.partition("=")[2], "ticket="):
        assert kept not in log


def test_nobody_needs_to_sign_in_where_no_token_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path / "data", no_auth=True) as gateway:
        browser = Browser(gateway)
        assert browser.me() == "default"
        assert browser.ask("POST", "/console/sign-in", {"token": ""}).status == 204
        assert browser.visit(ticket_path(gateway)).status == 303


def test_with_tls_the_cookie_is_for_tls_and_this_host_alone(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("console", "127.0.0.1")
    with serving(tmp_path / "data", tls_cert=certificate, tls_key=key) as gateway:
        browser = Browser(gateway)
        answer = browser.visit(ticket_path(gateway))
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-cellgate-console-")
        assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")
        assert browser.me(Origin=gateway.url) == "default"
        name, secret = next(iter(browser.cookies.items()))
        # One that was set without TLS is none.
        assert browser.me(Cookie=f"{name.removeprefix('__Host-')}={secret}") == 401
        page = gateway.get("/", token=None)
        assert f"script-src {gateway.url}/console/" in page.headers["Content-Security-Policy"]


def test_behind_a_proxy_the_address_is_the_proxys(start_gateway: StartGateway) -> None:
    gateway = start_gateway(trusted_proxies="127.0.0.1", allowed_hosts="gate.example.org")
    seen: dict[str, Any] = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "gate.example.org"}
    url = gateway.post("/v1/console", headers=seen).json()["url"]
    assert url.startswith("https://gate.example.org/?ticket=")
    answer = gateway.get(f"/?{url.partition('?')[2]}", token=None, headers=seen)
    assert answer.headers["Set-Cookie"].startswith("__Host-cellgate-console=")
    assert answer.headers["Location"] == "/"
