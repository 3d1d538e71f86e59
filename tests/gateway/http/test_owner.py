"""Two gateways with one token behind a proxy: nobody goes on in another gateway's empty session."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cellgate.client import Gateway, NotOwner
from cellgate.client.owners import MOST_KNOWN, Owners, session_in
from cellgate.wire.owner import OWNER
from tests.conftest import StartGateway, serving
from tests.support.free_ports import free_port
from tests.support.proxies import nginx, require_proxy, started
from tests.support.server import TOKEN, GatewayProcess

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-several-machines.md"


def owner_of(gateway: GatewayProcess) -> str:
    """What its answers say."""
    return str(gateway.get("/v1/me").headers[OWNER])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    """Two gateways with the same token."""
    with ExitStack() as stack:
        folders = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
        first, second = (stack.enter_context(serving(folder / "data")) for folder in folders)
        yield first, second


@contextmanager
def before(two: tuple[GatewayProcess, GatewayProcess], folder: Path, *, by_token: bool) -> Iterator[str]:
    """The URL of nginx in front of both, with the page's example; otherwise each is asked in turn."""
    require_proxy("nginx")
    (text,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    if not by_token:
        text = re.sub(r" *(hash|keepalive)[^;]*;\n", "", text)
    for address, gateway in zip(("10.0.0.1:8888", "10.0.0.2:8888"), two, strict=True):
        text = text.replace(address, gateway.host)
    port = free_port()
    text += f"""
        server {{
            listen 127.0.0.1:{port};
            location / {{
                proxy_pass http://cellgate;
                proxy_http_version 1.1;
                proxy_set_header Connection '';
                proxy_set_header Host $http_host;
            }}
        }}
    """
    with started(nginx(folder, text), folder, port):
        yield f"http://127.0.0.1:{port}"


def test_every_answer_names_its_gateway_and_so_does_the_next_life(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tmp_path / "data")
    owner = owner_of(gateway)
    assert re.fullmatch("[0-9a-f]{32}", owner)
    for path, status in (("/healthz", 200), ("/v1/sessions", 200), ("/v1/nothing", 404), ("/api", 200)):
        answer = gateway.get(path)
        assert (answer.status, answer.headers[OWNER]) == (status, owner)
    assert gateway.request("GET", "/v1/sessions", token="wrong").headers[OWNER] == owner
    # The listener answers what never gets to a handler.
    host, _, port = gateway.host.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        head = connection.makefile("rb").read().partition(b"\r\n\r\n")[0].decode()
    assert head.startswith("HTTP/1.1 400 ")
    assert f"{OWNER}: {owner}" in head.split("\r\n")
    gateway.stop()
    assert owner_of(start_gateway(tmp_path / "data")) == owner


def test_a_request_for_another_gateway_is_refused_and_runs_nothing(
    two: tuple[GatewayProcess, GatewayProcess],
) -> None:
    first, second = two
    assert owner_of(first) != owner_of(second)
    meant = {OWNER: owner_of(first)}
    path = "/v1/sessions/refused/execute"
    answer = second.request("POST", path, {"code": "1"}, headers=meant)
    assert (answer.status, answer.reason) == (421, "not_owner")
    assert second.get("/v1/sessions/refused").status == 404
    assert first.request("POST", path, {"code": "1"}, headers=meant).status == 200


async def test_the_client_goes_on_in_no_empty_session_of_another_gateway(
    two: tuple[GatewayProcess, GatewayProcess], tmp_path: Path
) -> None:
    with before(two, tmp_path, by_token=False) as url:
        session = Gateway(url, TOKEN).session("moved")
        # The first gateway makes the session, and the cell reaches the second.
        with pytest.raises(NotOwner) as refused:
            await session.run("x = 1")
    assert (refused.value.status, refused.value.reason) == (421, "not_owner")
    assert sorted(each.get("/v1/sessions/moved").status for each in two) == [200, 404]


async def test_the_proxy_of_the_page_leads_a_token_to_one_gateway(
    two: tuple[GatewayProcess, GatewayProcess], tmp_path: Path
) -> None:
    with before(two, tmp_path, by_token=True) as url:
        async with Gateway(url, TOKEN).session() as session:
            for number in range(5):
                assert (await session.run(f"{number} + 1")).text == str(number + 1)


def test_owners_are_remembered_until_the_session_ends() -> None:
    owners = Owners()
    first, second = ({OWNER.lower(): name} for name in ("a", "b"))
    path = session_in("/v1/sessions/s%2Ft/executions/1?max_text=2")
    assert path == "/v1/sessions/s%2Ft"
    assert session_in("/v1/sessions") is session_in("/v1/me") is session_in("") is None
    assert session_in("/below/v1/sessions/s") == "/v1/sessions/s"
    assert owners.headers(path) == owners.headers(None) == {}
    owners.learn(path, first)
    owners.learn(path, {})
    owners.learn(None, second)
    assert owners.headers(path) == {OWNER: "a"}
    owners.learn_branch("/v1/sessions/unknown", "/v1/sessions/branch")
    assert owners.headers("/v1/sessions/branch") == {}
    owners.learn_branch(path, "/v1/sessions/branch")
    assert owners.headers("/v1/sessions/branch") == {OWNER: "a"}
    with pytest.raises(NotOwner, match="The gateway b answered for a session that a has"):
        owners.learn(path, second)
    assert owners.headers(path) == {OWNER: "a"}
    owners.forget(path)
    owners.learn(path, second)
    assert owners.headers(path) == {OWNER: "b"}
    for number in range(MOST_KNOWN):
        owners.learn(f"/v1/sessions/{number}", first)
    assert owners.headers(path) == {}


@pytest.mark.parametrize("told", ["", "a" * 65, "A", "g", "a b", "a\n", "0x1", "\u0663", "a" * 1_000_000])
def test_what_is_no_id_of_a_gateway_is_not_kept(told: str) -> None:
    owners = Owners()
    owners.learn("/v1/sessions/s", {OWNER.lower(): told})
    assert owners.headers("/v1/sessions/s") == {}
    owners.learn("/v1/sessions/s", {OWNER.lower(): "0123456789abcdef" * 4})
    owners.learn("/v1/sessions/s", {OWNER.lower(): told})
    assert owners.headers("/v1/sessions/s") == {OWNER: "0123456789abcdef" * 4}
