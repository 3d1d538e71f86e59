"""A gateway that a Hub spawned: its place, who signs in at the Hub as whom, and what the Hub is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.conftest import serving
from tests.gateway.console.conftest import Browser
from tests.support.commands import cellgate, environment
from tests.support.fake_hub import API_TOKEN, FakeHub, serving_hub
from tests.support.free_ports import free_port
from tests.support.server import GatewayProcess, Response, until

AT = "/user/ada"
ACCESS = "access:servers!server=ada/"
Pair = tuple[GatewayProcess, FakeHub]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A gateway, and the Hub that spawned it."""
    folder = tmp_path_factory.mktemp("hub")
    with serving_hub() as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in hub.environment(free_port()).items():
            patch.setenv(name, value)
        with serving(folder / "data", jupyterhub=True, doors="piston", log_level="DEBUG") as gateway:
            yield gateway, hub


@pytest.fixture
def gateway(pair: Pair) -> GatewayProcess:
    return pair[0]


@pytest.fixture
def hub(pair: Pair) -> Iterator[FakeHub]:
    yield pair[1]
    pair[1].status = 200


def asked(browser: Browser, **headers: str) -> str:
    """The address at which the browser is sent to the Hub."""
    answer = browser.visit(f"{AT}/console/hub", "same-origin", **headers)
    assert answer.status == 303, answer.body
    return str(answer.headers["Location"])


def sign_in(browser: Browser, hub: FakeHub, name: str, *scopes: str) -> Response:
    return browser.visit(hub.sign_in(asked(browser), name, *scopes), "same-origin")


def me(browser: Browser) -> object:
    answer = browser.ask("GET", f"{AT}/v1/me")
    return (answer.json()["principal"], answer.json()["role"]) if answer.status == 200 else answer.status


def test_it_serves_where_the_hub_says(gateway: GatewayProcess, hub: FakeHub) -> None:
    assert gateway.url.endswith(AT)
    assert gateway.get("/v1/info").status == 404
    # The Hub alone knows the names under which it is found.
    assert gateway.get(f"{AT}/healthz", headers={"Host": "hub.example.org"}).status == 200
    hub.users["of-ada"] = {"name": "ada", "scopes": [ACCESS]}
    hub.users["of-eve"] = {"name": "eve", "scopes": ["access:servers!server=eve/"]}
    for path in ("/v1/me", "/api/kernels", "/piston/api/v2/runtimes"):
        assert gateway.get(f"{AT}{path}", token="of-ada").status == 200
        assert gateway.get(f"{AT}{path}", token="of-eve").status == 403
        assert gateway.get(f"{AT}{path}", token="of-nobody").status == 401


def test_its_user_a_visitor_and_a_stranger_sign_in(gateway: GatewayProcess, hub: FakeHub) -> None:
    ways = gateway.get(f"{AT}/console/sign-in", token=None).json()
    assert ways == {"provider": False, "hub": True, "out": "/hub/logout"}
    ada, bob, eve = Browser(gateway), Browser(gateway), Browser(gateway)
    question = asked(ada)
    parts = parse_qs(urlsplit(question).query)
    assert parts["client_id"] == ["jupyterhub-user-ada"]
    assert parts["redirect_uri"] == [f"{AT}/oauth_callback"]
    address = hub.sign_in(question, "ada", ACCESS)
    answer = ada.visit(address, "same-origin")
    assert (answer.status, answer.headers["Location"], answer.body) == (303, f"{AT}/", b"")
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert me(ada) == ("ada", "admin")
    # The code and the browser's question are used up.
    cookies, ada.cookies = ada.cookies, {}
    assert ada.visit(address, "same-origin").status == 401
    ada.cookies = cookies
    assert sign_in(bob, hub, "bob", "access:servers!user=ada").status == 303
    assert me(bob) == ("bob", "user")
    assert sign_in(eve, hub, "eve", "access:servers!user=eve").status == 403
    assert me(eve) == 401
    assert ada.ask("POST", f"{AT}/console/sign-out").status == 204
    assert me(ada) == 401
    # No browser ever has the Hub's token, and nobody reads what lets in.
    log = gateway.log.read_text()
    assert "GET /user/ada/oauth_callback" in log
    secrets = [API_TOKEN, parts["state"][0], hub.exchanged[0]["code"], *hub.users, *bob.cookies.values()]
    assert not [kept for kept in secrets if kept in log]


def test_an_answer_is_for_the_browser_that_asked(gateway: GatewayProcess, hub: FakeHub) -> None:
    victim, attacker = Browser(gateway), Browser(gateway)
    address = hub.sign_in(asked(attacker), "eve", ACCESS)
    before = len(hub.exchanged)
    assert victim.visit(address, "same-origin").status == 401
    asked(victim)
    assert victim.visit(address, "same-origin").status == 401
    assert len(hub.exchanged) == before
    assert attacker.visit(address, "same-origin").status == 303
    # A link of another site's signs nobody in.
    assert victim.visit(f"{AT}/console/hub", "cross-site").status == 403


def test_of_tabs_that_are_restored_at_once_each_is_signed_in(gateway: GatewayProcess, hub: FakeHub) -> None:
    browser = Browser(gateway)
    addresses = [hub.sign_in(asked(browser), "ada", ACCESS) for _ in range(3)]
    before = len(hub.exchanged)
    for address in addresses:
        answer = browser.visit(address, "same-origin")
        assert (answer.status, answer.headers["Location"]) == (303, f"{AT}/")
    assert me(browser) == ("ada", "admin")
    assert len(hub.exchanged) == before + 1
    # Who is signed in stays so, whatever address they are led to.
    assert browser.visit(f"{AT}/oauth_callback?code=x&state=y", "cross-site").status == 303
    assert me(browser) == ("ada", "admin")


def test_a_hub_that_refuses_a_code_and_one_that_fails(gateway: GatewayProcess, hub: FakeHub) -> None:
    for status, expected in ((403, 401), (500, 503)):
        hub.status = status
        browser = Browser(gateway)
        assert sign_in(browser, hub, "ada", ACCESS).status == expected
        assert me(browser) == 401
    hub.status = 200
    for code in ("", "x" * 5000, "x"):
        browser = Browser(gateway)
        parts = urlsplit(hub.sign_in(asked(browser), "ada", ACCESS))
        state = parse_qs(parts.query)["state"][0]
        assert browser.visit(f"{parts.path}?state={state}&code={code}").status == 401


def test_the_cookie_of_the_way_is_this_gateways_alone(gateway: GatewayProcess) -> None:
    browser = Browser(gateway)
    asked(browser, X_Forwarded_Proto="https,http", Host="hub.example.org")
    (name,) = browser.cookies
    assert name.startswith("__Host-cellgate-sign-in-"), "several gateways have one host"
    other = Browser(gateway)
    asked(other)
    assert next(iter(other.cookies)).startswith("cellgate-sign-in-")


def test_cells_are_activity_and_an_open_page_is_none(gateway: GatewayProcess, hub: FakeHub) -> None:
    code = "import os; [name for name in os.environ if 'JUPYTERHUB' in name]"
    ran = gateway.post(f"{AT}/v1/sessions/x/execute", {"code": code})
    assert ran.json()["text"] == "[]", "no kernel has the server's token"
    until(lambda: hub.reported, "the Hub is not told")
    (report,) = hub.reported
    assert list(report["servers"]) == [""]
    assert report["servers"][""] == {"last_activity": report["last_activity"]}
    # What a page asks, over and over.
    gateway.get(f"{AT}/v1/sessions")
    gateway.get(f"{AT}/v1/sessions/x")
    gateway.post(f"{AT}/v1/sessions/x/execute", {"code": "import time; time.sleep(3)"})
    assert 2 <= len(hub.reported) <= 5, "once a second, while the cell runs"


def test_a_service_signs_in_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with serving_hub() as hub:
        given = {
            "JUPYTERHUB_API_URL": hub.url,
            "JUPYTERHUB_API_TOKEN": API_TOKEN,
            "JUPYTERHUB_SERVICE_NAME": "cellgate",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
            "JUPYTERHUB_SERVICE_PREFIX": "/services/cellgate/",
        }
        for name in hub.environment(port):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with serving(tmp_path / "data", jupyterhub=True, allow_unsandboxed=True) as gateway:
            browser = Browser(gateway)
            answer = browser.visit("/services/cellgate/console/hub", "same-origin")
            address = hub.sign_in(answer.headers["Location"], "ada", "access:services!service=cellgate")
            assert address.startswith("/services/cellgate/oauth_callback?")
            assert browser.visit(address, "same-origin").status == 303
            assert browser.ask("GET", "/services/cellgate/v1/me").json()["principal"] == "ada"
            assert hub.exchanged[0]["client_id"] == "service-cellgate"


def test_nobody_isolates_a_services_kernels_unless_told(tmp_path: Path) -> None:
    given = {"JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api", "JUPYTERHUB_SERVICE_NAME": "cellgate"}
    done = cellgate(
        *("serve", "--jupyterhub", "--port=0", "--backend=process", f"--data-dir={tmp_path}"),
        env=environment(**given),
    )
    assert done.returncode == 2
    assert "refusing to serve kernels without isolation to the users of a Hub" in done.stderr


def test_without_a_hub_nobody_signs_in_at_one(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as gateway:
        browser = Browser(gateway)
        for path in ("/console/hub", "/oauth_callback?code=x&state=y"):
            assert browser.visit(path, "same-origin").status == 404
