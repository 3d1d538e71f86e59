"""A user who means harm, beside another on one gateway: what the table of routes can't ask for.

Mallory guesses right: the ids of Alice's cells and programs, below a session of the same name of his own.
He hides behind a header, and races for more than his share.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest

from cellgate.identity.principal import Reach, Role
from cellgate.identity.store.opening import open_users
from cellgate.processes.table import MOST_OF_SESSION
from tests.conftest import StartGateway, serving
from tests.support.server import GatewayProcess, send, together, until
from tests.support.websockets import websocket

PATIENCE = 120.0
"""Seconds in which all is cut on a machine that does much else; the gateway looks twice a second."""


class Tenants:
    """A gateway with Alice and Mallory, and their tokens."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.tokens: dict[str, str] = {}
        with open_users(gateway.data_dir, create=True) as store:
            for name in ("alice", "mallory"):
                store.add_user(name, Role.USER)
                self.tokens[name] = store.create_token(name, reach=Reach())[1]

    def ask(self, who: str, method: str, path: str, body: object = None, **headers: str) -> Any:
        return self.gateway.request(
            method, path, body, token=self.tokens[who], headers=headers or None, timeout=120
        )


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    with serving(tmp_path_factory.mktemp("tenants") / "data", log_level="DEBUG") as gateway:
        yield Tenants(gateway)


# ---- known ids ---------------------------------------------------------------------------------------------


async def test_ids_of_anothers_things_are_not_there_below_ones_own_session(tenants: Tenants) -> None:
    ask = tenants.ask
    data = r"b'\x89PNG\r\n\x1a\n'"
    picture = f"from IPython.display import display, Image; display(Image(data={data}, format='png'))"
    hers = ask("alice", "POST", "/v1/sessions/both/execute", {"code": picture}).json()["execution"]
    program = {"argv": ["sh", "-c", "echo of-alice; read line"], "stdin": True, "wait": False}
    process = ask("alice", "POST", "/v1/sessions/both/processes", program).json()["process"]
    waits = ask("alice", "POST", "/v1/sessions/both/execute", {"code": "input('of-alice')", "wait": False})
    waiting = waits.json()["execution"]
    assert ask("mallory", "POST", "/v1/sessions/both/execute", {"code": "1"}).status == 200
    kernel = ask("alice", "GET", "/v1/sessions/both").json()["kernel_id"]
    base = "/v1/sessions/both"
    for method, path, body in (
        ("GET", f"{base}/executions/{hers}", None),
        ("GET", f"{base}/executions/{waiting}", None),
        ("POST", f"{base}/executions/{waiting}/cancel", None),
        ("POST", f"{base}/executions/{waiting}/input", {"value": "x"}),
        ("GET", f"{base}/executions/{hers}/output/0", None),
        ("GET", f"{base}/processes/{process}", None),
        ("DELETE", f"{base}/processes/{process}", None),
        ("POST", f"{base}/processes/{process}/input", {"data": "x\n"}),
        ("POST", f"{base}/processes/{process}/signal", {"signal": "SIGKILL"}),
        ("GET", f"/api/kernels/{kernel}", None),
        ("DELETE", f"/api/kernels/{kernel}", None),
        ("POST", f"/api/kernels/{kernel}/interrupt", None),
        ("POST", "/api/sessions", {"path": "x.ipynb", "kernel": {"id": kernel}}),
        ("GET", f"/v1/sessions/{kernel}", None),
    ):
        answer = ask("mallory", method, path, body)
        assert (answer.status, b"of-alice" in answer.body) == (404, False), (method, path, answer.body)
    # The same through a WebSocket of his own session.
    url = tenants.gateway.url.replace("http", "ws") + f"{base}/ws"
    bearer = {"Authorization": f"Bearer {tenants.tokens['mallory']}"}
    async with websocket(HTTPRequest(url, headers=bearer)) as opened:
        await opened.write_message(json.dumps({"input": {"execution": waiting, "value": "x"}, "id": 1}))
        while True:
            said = await opened.read_message()
            assert said is not None
            told = json.loads(said)
            assert "of-alice" not in str(told)
            if told["type"] in {"accepted", "problem"}:
                break
    assert (told["type"], told["status"]) == ("problem", 404)
    # Nothing of it did anything.
    assert ask("alice", "GET", f"{base}/processes/{process}").json()["exit_code"] is None
    assert ask("alice", "POST", f"{base}/executions/{waiting}/input", {"value": "mine"}).status == 204
    ended = tenants.gateway
    until(
        lambda: (
            ended.get(f"{base}/executions/{waiting}", token=tenants.tokens["alice"]).json()["status"] == "ok"
        ),
        "her cell does not end",
    )
    assert ask("alice", "POST", f"{base}/processes/{process}/input", {"data": "x\n"}).status == 204
    for who in ("alice", "mallory"):
        assert ask(who, "DELETE", base).status == 204


def test_another_may_not_be_named_in_any_way(tenants: Tenants) -> None:
    """In each place where a name can be put, also more than once, as an administrator's tools would."""
    assert tenants.ask("alice", "POST", "/v1/sessions/named/execute", {"code": "'of-alice'"}).status == 200
    for query in (
        "principal=alice",
        "principal=mallory&principal=alice",
        "principal=%61lice",
        "principal=*",
        "PRINCIPAL=alice",
        "principal=alice%00",
        "principal=",
    ):
        for path in (
            "/v1/sessions/named",
            "/v1/sessions",
            "/v1/sessions/named/tree",
            "/v1/sessions/named/events",
        ):
            answer = tenants.ask("mallory", "GET", f"{path}?{query}")
            assert answer.status in {400, 404}, (path, query, answer.body)
            assert b"of-alice" not in answer.body
    for path in ("/api/kernels", "/api/sessions", "/api/status"):
        answer = tenants.ask("mallory", "GET", f"{path}?principal=alice")
        assert (answer.status, b"named" in answer.body) == (200, False)
    for headers in ({"X-Principal": "alice"}, {"X-Forwarded-User": "alice"}, {"Remote-User": "alice"}):
        assert tenants.ask("mallory", "GET", "/v1/sessions/named", **headers).status == 404
    for body in ({"session": "named", "principal": "alice"}, {"session": "alice/named"}):
        assert tenants.ask("mallory", "POST", "/v1/sessions", body).status == 400
    assert tenants.ask("alice", "DELETE", "/v1/sessions/named").status == 204


# ---- more than a share -------------------------------------------------------------------------------------


def test_a_hundred_programs_at_once_are_as_many_as_may_run(tenants: Tenants) -> None:
    path = "/v1/sessions/many/processes"
    assert tenants.ask("mallory", "POST", "/v1/sessions", {"session": "many"}).status == 201
    program = {"argv": ["sleep", "600"], "wait": False}
    statuses = together(100, lambda _: tenants.ask("mallory", "POST", path, program).status)
    assert (statuses.count(202), statuses.count(429)) == (MOST_OF_SESSION, 100 - MOST_OF_SESSION)
    listed = tenants.ask("mallory", "GET", path).json()["processes"]
    assert len([each for each in listed if each["exit_code"] is None]) == MOST_OF_SESSION
    assert tenants.ask("mallory", "DELETE", "/v1/sessions/many").status == 204


# ---- a token that is revoked -------------------------------------------------------------------------------


def test_a_revoked_token_cuts_every_kind_of_answer(tenants: Tenants) -> None:
    """Each is open, and cut soon after the command has ended: streams, a wait, an upload, a program."""
    gateway = tenants.gateway
    with open_users(gateway.data_dir, create=True) as store:
        known, token = store.create_token("alice", reach=Reach())
    kept = tenants.tokens["alice"]
    base = "/v1/sessions/cut"
    assert gateway.post(f"{base}/execute", {"code": "1"}, token=kept).status == 200
    slow = "import time\nfor n in range(600): print(n, flush=True); time.sleep(1)"
    program = {"argv": ["sh", "-c", "while true; do echo x; sleep 1; done"]}
    ndjson = {"Accept": "application/x-ndjson"}
    with contextlib.ExitStack() as stack:
        ways: dict[str, http.client.HTTPConnection] = {}

        def begin(name: str, method: str, path: str, body: object = None, **headers: str) -> None:
            way = ways[name] = gateway.connect()
            stack.callback(way.close)
            send(way, method, path, body, token=token, headers=headers)

        begin("cell as a stream", "POST", f"{base}/execute", {"code": slow}, **ndjson)
        begin("program as a stream", "POST", f"{base}/processes", program, **ndjson)
        begin("program", "POST", f"{base}/processes", {"argv": ["sleep", "600"]})
        begin("events", "GET", f"{base}/events", Accept="text/event-stream")
        begin("cell", "POST", "/v1/sessions/cut-too/execute", {"code": "import time; time.sleep(600)"})
        upload = ways["upload"] = gateway.connect()
        stack.callback(upload.close)
        upload.putrequest("PUT", f"{base}/files/f.bin")
        for name, value in (
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", "1000000"),
        ):
            upload.putheader(name, value)
        upload.endheaders(b"x" * 1000)

        def running() -> bool:
            answer = gateway.get("/v1/sessions/cut-too", token=kept)
            listed = gateway.get(f"{base}/processes", token=kept).json()["processes"]
            return answer.status == 200 and answer.json()["state"] == "busy" and len(listed) == 2

        until(running, "they do not run")

        def cut(name: str) -> None:
            with contextlib.suppress(http.client.HTTPException, ConnectionError):
                ways[name].getresponse().read()

        with ThreadPoolExecutor(len(ways)) as threads:
            ends = {name: threads.submit(cut, name) for name in ways}
            with open_users(gateway.data_dir, create=True) as store:
                store.revoke_token(known.id)
            for end in ends.values():
                end.result(PATIENCE)
    assert gateway.get(f"{base}/files/f.bin", token=kept).status == 404
    for key in ("cut", "cut-too"):
        assert gateway.delete(f"/v1/sessions/{key}", token=kept).status == 204


# ---- behind a header ---------------------------------------------------------------------------------------


def test_a_header_hides_nobody_who_guesses_tokens(start_gateway: StartGateway) -> None:
    """From an address that is no proxy a made-up client address is no new one with attempts of its own."""
    gateway = start_gateway(login_attempts=3, trusted_proxies="10.0.0.0/8")
    statuses = [
        gateway.get("/v1/info", token="wrong", headers={"X-Forwarded-For": f"198.51.100.{number}"}).status
        for number in range(12)
    ]
    assert set(statuses[:3]) == {401}
    assert 429 in statuses[3:]


def test_clients_of_a_trusted_proxy_are_slowed_apart(start_gateway: StartGateway) -> None:
    """One who guesses behind a proxy slows none of its other clients, and has one address only."""
    gateway = start_gateway(login_attempts=3, trusted_proxies="127.0.0.1")

    def status(forwarded: str) -> int:
        headers = {"X-Forwarded-For": forwarded}
        return gateway.get("/v1/info", token="wrong", headers=headers).status

    statuses = [status(f"203.0.113.{number}, 198.51.100.7") for number in range(12)]
    assert 429 in statuses[3:]
    assert status("198.51.100.8") == 401
