"""Jupyter's log-in with a password, in the requests that Open WebUI makes, and what must not come of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
import requests
from tornado.httpclient import HTTPRequest

from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.opening import open_users
from tests.conftest import StartGateway, serving
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until
from tests.support.websockets import websocket

Client = requests.Session


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that logs all requests."""
    with serving(tmp_path_factory.mktemp("login") / "data", log_level="DEBUG") as process:
        yield process


def word_of(client: Client, gateway: GatewayProcess) -> str:
    """The word that the client gets at first, and sends from then on."""
    answer = client.get(f"{gateway.url}/login", timeout=PATIENCE)
    answer.raise_for_status()
    word = answer.cookies["_xsrf"]
    client.headers["X-XSRFToken"] = word
    return word


def log_in(client: Client, gateway: GatewayProcess, password: str = TOKEN, **more: str) -> requests.Response:
    """Log in; the answer is not followed, as by default."""
    form = {"_xsrf": word_of(client, gateway), "password": password}
    return client.post(
        f"{gateway.url}/login", data=form, headers=more, allow_redirects=False, timeout=PATIENCE
    )


def status(client: Client, gateway: GatewayProcess, path: str = "/api/kernels") -> int:
    return client.get(f"{gateway.url}{path}", timeout=PATIENCE).status_code


async def printed(gateway: GatewayProcess, kernel: str, headers: dict[str, str], code: str) -> str:
    """What a cell prints, over a WebSocket with no token in its address."""
    url = f"{gateway.url}/api/kernels/{kernel}/channels".replace("http", "ws", 1)
    told = ""
    async with websocket(HTTPRequest(url, headers=headers)) as opened_socket:
        mine = uuid.uuid4().hex
        header = {"msg_id": mine, "msg_type": "execute_request", "username": "user", "session": "s"}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {"header": header | {"date": "", "version": "5.3"}, "parent_header": {}, "metadata": {}}
        await opened_socket.write_message(json.dumps(message | {"content": content, "channel": "shell"}))
        while True:
            received = json.loads(await opened_socket.read_message() or "")
            if received["parent_header"].get("msg_id") != mine:
                continue
            if received["msg_type"] == "stream":
                told += received["content"]["text"]
            if received["content"].get("execution_state") == "idle":
                return told


async def test_what_open_webui_does_with_a_password(gateway: GatewayProcess) -> None:
    with Client() as client:
        answer = log_in(client, gateway)
        assert answer.status_code == 302
        made = client.post(f"{gateway.url}/api/kernels", timeout=PATIENCE)
        assert made.status_code == 201
        kernel = made.json()["id"]
        cookies = "; ".join(f"{each.name}={each.value}" for each in client.cookies)
        headers = {"Cookie": cookies, "X-XSRFToken": str(client.headers["X-XSRFToken"])}
        assert await printed(gateway, kernel, headers, "print(6 * 7)") == "42\n"
        ended = client.delete(f"{gateway.url}/api/kernels/{kernel}", timeout=PATIENCE)
        assert ended.status_code == 204
        secret = client.cookies[f"cellgate-jupyter-{gateway.url.rpartition(':')[2]}"]
    log = gateway.log.read_text()
    assert "POST /login" in log
    for text in (log, gateway.get("/v1/audit").body.decode()):
        assert secret not in text
        assert TOKEN not in text


def test_the_cookies_flags(gateway: GatewayProcess) -> None:
    with Client() as client:
        for answer in (client.get(f"{gateway.url}/login", timeout=PATIENCE), log_in(client, gateway)):
            flags = answer.headers["Set-Cookie"]
            assert flags.endswith("; Path=/; HttpOnly; SameSite=Strict")
            assert TOKEN not in flags
            assert answer.headers["Cache-Control"] == "no-store"


def test_the_cookie_counts_with_its_word_alone_and_below_api_alone(gateway: GatewayProcess) -> None:
    with Client() as client:
        log_in(client, gateway)
        word = str(client.headers["X-XSRFToken"])
        assert status(client, gateway) == 200
        for other in ("/v1/sessions", "/v1/me", "/metrics"):
            assert status(client, gateway, other) == 401
        for wrong in ("", "x", word[:-1] + ("0" if word[-1] != "0" else "1"), "f" + word, word + "\u00e9"):
            client.headers["X-XSRFToken"] = wrong.encode("latin-1")
            assert status(client, gateway) == 401, wrong
        del client.headers["X-XSRFToken"]
        assert status(client, gateway) == 401, (
            "as a page's request would be, in a browser that has the cookie"
        )
        word_of(client, gateway)
        assert status(client, gateway) == 401, "the word of another log-in"
    with Client() as stranger:
        stranger.headers["X-XSRFToken"] = word
        assert status(stranger, gateway) == 401


@pytest.mark.parametrize("form", ["", "password=TOKEN", "_xsrf=x&password=TOKEN", "_xsrf=WORD"])
def test_nobody_is_logged_in_without_word_and_password(gateway: GatewayProcess, form: str) -> None:
    with Client() as client:
        word = word_of(client, gateway)
        sent = form.replace("WORD", word).replace("TOKEN", TOKEN)
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        place = f"{gateway.url}/login"
        answer = client.post(place, data=sent, headers=kind, allow_redirects=False, timeout=PATIENCE)
        assert answer.status_code == (401 if "WORD" in form else 403)
        assert "Set-Cookie" not in answer.headers
        assert status(client, gateway) == 401


def test_what_no_form_may_be(gateway: GatewayProcess) -> None:
    with Client() as client:
        many = "&".join(f"a{number}=1" for number in range(50))
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        for sent, code in ((many, 400), ("password=" + "x" * 40_000, 413)):
            answer = client.post(f"{gateway.url}/login", data=sent, headers=kind, timeout=PATIENCE)
            assert answer.status_code == code
        assert log_in(client, gateway, "t\u00f6ken").status_code == 400


def test_a_page_of_another_origin_logs_nobody_in(gateway: GatewayProcess) -> None:
    port = int(gateway.url.rpartition(":")[2])
    for origin in ("https://evil.example", f"http://127.0.0.1:{port + 1}", "null"):
        with Client() as client:
            answer = log_in(client, gateway, Origin=origin)
            assert answer.status_code == 403
            assert "Set-Cookie" not in answer.headers


def test_people_are_led_to_the_console(gateway: GatewayProcess) -> None:
    answer = requests.get(
        f"{gateway.url}/login", headers={"Accept": "text/html,*/*"}, allow_redirects=False, timeout=PATIENCE
    )
    assert (answer.status_code, answer.headers["Location"]) == (302, "/")
    assert "Set-Cookie" not in answer.headers


def test_wrong_passwords_are_slowed_as_wrong_tokens_are(start_gateway: StartGateway) -> None:
    gateway = start_gateway(login_attempts=2)
    with Client() as client:
        codes = [log_in(client, gateway, "a-wrong-password").status_code for _ in range(3)]
        assert codes == [401, 401, 429]
        assert log_in(client, gateway).status_code == 302, "the right one is never held up"
    trail = gateway.get("/v1/audit").body.decode()
    assert "/login" in trail
    assert "a-wrong-password" not in trail


def test_the_cookie_is_worth_what_the_token_is(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with open_users(gateway.data_dir, create=True) as store:
        store.add_user("ada", Role.USER)
        token, text = store.create_token("ada", scopes=frozenset({Permission.READ}), reach=Reach())
    with Client() as client:
        until(lambda: log_in(client, gateway, text).status_code == 302, "the token is not known")
        assert status(client, gateway) == 200
        answer = client.post(f"{gateway.url}/api/kernels", timeout=PATIENCE)
        assert answer.status_code == 403, "its scopes are the token's"
        with open_users(gateway.data_dir) as store:
            store.revoke_token(token.id)
        until(lambda: status(client, gateway) == 401, "the cookie outlives the token")
