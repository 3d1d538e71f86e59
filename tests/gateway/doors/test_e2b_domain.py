"""The door for E2B at a domain of its own, behind the example for nginx: as SDKs ask with E2B_DOMAIN alone.

No name is looked up: all are this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import NO_ENGINE, serving
from tests.support.certificates import Authority
from tests.support.free_ports import free_port
from tests.support.proxies import Connection, nginx, replaced, require_proxy, started
from tests.support.server import TOKEN, GatewayProcess

DOMAIN = "sandboxes.example.org"
PATIENCE = 120.0


@dataclass(frozen=True)
class Proxied:
    """A gateway with the door, and the port of the proxy in front of it."""

    gateway: GatewayProcess
    authority: Authority
    port: int

    def ask(self, name: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of an answer; `name`: below the domain."""
        sent = {"Content-Type": "application/json"} | {
            field.replace("_", "-"): value for field, value in headers.items()
        }
        with closing(Connection(f"{name}.{DOMAIN}", self.port, self.authority.context())) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, answer.read()


@pytest.fixture(scope="module")
def proxied(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    require_proxy("nginx")
    folder = tmp_path_factory.mktemp("e2b-domain")
    authority = Authority(folder)
    files = authority.issue("sandboxes", f"*.{DOMAIN}")
    port = free_port()
    options = {"doors": "e2b", "docker_url": NO_ENGINE, "trusted_proxies": "127.0.0.1"}
    with serving(folder / "data", "sandbox", **options) as gateway:
        changes = {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "/etc/cellgate/tls/sandboxes.pem": str(files[0]),
            "/etc/cellgate/tls/sandboxes.key": str(files[1]),
            "127.0.0.1:8888": gateway.url.removeprefix("http://"),
        }
        with started(nginx(folder, replaced("nginx-e2b.conf", changes)), folder, port):
            yield Proxied(gateway, authority, port)


def test_each_sandbox_is_at_names_of_its_own(proxied: Proxied) -> None:
    made = [
        json.loads(proxied.ask("api", "POST", "/sandboxes", {"templateID": "x"}, X_API_KEY=TOKEN)[1])
        for _ in range(2)
    ]
    first, second = ((each["sandboxID"], each["envdAccessToken"]) for each in made)
    assert {each["domain"] for each in made} == {DOMAIN}
    detail = json.loads(proxied.ask("api", "GET", f"/sandboxes/{first[0]}", X_API_KEY=TOKEN)[1])
    assert detail["domain"] == DOMAIN
    for name, token in (first, second):
        code = {"code": f"open('who.txt', 'w').write('{name}'); print('there')"}
        status, lines = proxied.ask(f"49999-{name}", "POST", "/execute", code, X_Access_Token=token)
        assert (status, b'"text":"there\\n"' in lines) == (200, True)
        path = "/files?path=who.txt&username=user"
        assert proxied.ask(f"49983-{name}", "GET", path, X_Access_Token=token) == (200, name.encode())
    # The name decides, and what a client says beside it does not count.
    said = {"E2b_Sandbox_Id": first[0], "X_Access_Token": first[1]}
    listed = proxied.ask("api", "GET", "/v2/sandboxes", X_API_KEY=TOKEN, E2b_Domain="elsewhere.example.com")[
        1
    ]
    assert {each["domain"] for each in json.loads(listed)} == {DOMAIN}
    assert proxied.ask(f"49983-{second[0]}", "GET", "/files?path=who.txt", **said)[0] == 401
    assert proxied.ask(f"49983-{first[0]}", "GET", "/files?path=who.txt")[0] == 401
    status, listed = proxied.ask("api", "GET", "/v2/sandboxes", X_API_KEY=TOKEN)
    assert (status, len(json.loads(listed))) == (200, 2)
    for name, _ in (first, second):
        assert proxied.ask("api", "DELETE", f"/sandboxes/{name}", X_API_KEY=TOKEN)[0] == 204


def test_nothing_but_the_door_is_there(proxied: Proxied) -> None:
    for path in ("/v1/sessions", "/../v1/sessions", "/%2e%2e/v1/sessions", "//v1/sessions"):
        status, _ = proxied.ask("api", "GET", path, X_API_KEY=TOKEN, Authorization=f"Bearer {TOKEN}")
        assert status in {400, 404, 501}


def test_no_other_name_is_led_on(proxied: Proxied) -> None:
    """Also where the door has nginx's only server, which is asked for all names."""
    for name in ("other", "50000-abc", "x49999-abc"):
        assert proxied.ask(name, "GET", "/v2/sandboxes", X_API_KEY=TOKEN)[0] == 421
