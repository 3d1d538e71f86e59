"""Two users through the other doors: the Model Context Protocol, the commands, Jupyter's WebSocket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.opening import open_users
from tests.conftest import serving
from tests.gateway.cli.test_mcp import call
from tests.gateway.cli.test_mcp_http import INITIALIZE, McpServer, connected, session_of
from tests.support.channels import channels, text
from tests.support.commands import cellgate
from tests.support.server import GatewayProcess

SECRET = "value-that-nobody-else-may-see"


class Users:
    """A gateway with the users Ada and Bob; `tokens` by name, `limited` to cells in ``agent-`` sessions."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.tokens: dict[str, str] = {}
        with open_users(gateway.data_dir, create=True) as store:
            for name in ("ada", "bob"):
                store.add_user(name, Role.USER)
                self.tokens[name] = store.create_token(name, reach=Reach())[1]
            scopes = frozenset({Permission.RUN, Permission.READ})
            self.tokens["limited"] = store.create_token("ada", scopes=scopes, reach=Reach("agent-"))[1]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    with serving(tmp_path_factory.mktemp("doors") / "data", log_level="DEBUG") as gateway:
        yield Users(gateway)


@pytest.fixture
def server(users: Users, tmp_path: Path) -> Iterator[McpServer]:
    server = McpServer(users.gateway.url, tmp_path)
    try:
        yield server
        server.stop()
    finally:
        server.process.kill()
        server.process.wait(60)


async def test_models_of_two_users_have_sessions_of_their_own(users: Users, server: McpServer) -> None:
    async with connected(server, users.tokens["ada"]) as ada, connected(server, users.tokens["bob"]) as bob:
        await call(ada, "run_code", code="x = 'of ada'")
        assert "NameError" in await call(bob, "run_code", code="x")
        key = await session_of(ada)
        gateway = users.gateway
        assert gateway.get(f"/v1/sessions/{key}", token=users.tokens["ada"]).status == 200
        assert gateway.get(f"/v1/sessions/{key}", token=users.tokens["bob"]).status == 404
        assert gateway.get(f"/v1/sessions/{key}").status == 404


def test_one_users_mcp_session_is_not_there_for_another(users: Users, server: McpServer) -> None:
    status, session_id, _ = server.post(INITIALIZE, Authorization=f"Bearer {users.tokens['ada']}")
    assert status == 200
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    headers = {"Mcp_Session_Id": session_id, "Authorization": f"Bearer {users.tokens['bob']}"}
    assert server.post(listing, **headers)[0] == 404


async def test_a_narrow_token_is_enough_for_a_models_cells(users: Users, server: McpServer) -> None:
    async with connected(server, users.tokens["limited"]) as client:
        assert await call(client, "run_code", code="6 * 7") == "42"
        sessions = users.gateway.get("/v1/sessions?state=idle", token=users.tokens["ada"]).json()["sessions"]
        assert any(model["session"].startswith("agent-") for model in sessions)


async def test_channels_belong_to_who_owns_the_kernel(users: Users) -> None:
    gateway = users.gateway
    gateway.post("/v1/sessions/chat/execute", {"code": "x = 'of ada'"}, token=users.tokens["ada"])
    authorization = {"Authorization": f"Bearer {users.tokens['ada']}"}
    async with channels(gateway, "chat", headers=authorization) as client:
        assert "of ada" in text(await client.run("print(x)"))
    for who in ("bob", "limited"):
        answer = gateway.get("/api/kernels/chat", token=users.tokens[who])
        assert answer.status == 404, who


def test_a_narrow_token_is_told_why_it_gets_no_branch(users: Users) -> None:
    """It is about the asker's own reach, so nobody learns which sessions there are."""
    path, token = "/v1/sessions/agent-none/branch", users.tokens["limited"]
    refused = users.gateway.post(path, {"session": "elsewhere"}, token=token)
    assert (refused.status, refused.reason) == (403, "forbidden")
    assert "sessions that begin with 'agent-'" in refused.json()["detail"]
    assert users.gateway.post(path, {"session": "agent-b"}, token=token).status == 404
    assert users.gateway.post("/v1/sessions/other/branch", {"session": "x"}, token=token).status == 404


def test_commands_use_the_token_that_they_are_given(users: Users) -> None:
    def sessions(who: str) -> set[str]:
        env = {"CELLGATE_TOKEN": users.tokens[who], "CELLGATE_URL": users.gateway.url}
        done = cellgate("sessions", "--json", env=env)
        assert done.returncode == 0, done.stderr
        return {model["session"] for model in json.loads(done.stdout)}

    for who in ("ada", "bob"):
        env = {"CELLGATE_TOKEN": users.tokens[who], "CELLGATE_URL": users.gateway.url}
        assert cellgate("exec", f"print('{who}')", "--session", f"of-{who}", env=env).stdout == f"{who}\n"
    assert "of-ada" in sessions("ada") - sessions("bob")
    assert "of-bob" in sessions("bob") - sessions("ada")


def commands_of_the_machine() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended in the meantime
            yield path.read_bytes()


def test_variables_of_a_session_are_shown_to_nobody(users: Users) -> None:
    gateway, token = users.gateway, users.tokens["ada"]
    body: dict[str, Any] = {"session": "private", "env": {"PASSWORD": SECRET}}
    answers = [gateway.post("/v1/sessions", body, token=token)]
    code = "import os; len(os.environ['PASSWORD'])"
    result = gateway.post("/v1/sessions/private/execute", {"code": code}, token=token)
    assert result.json()["text"] == str(len(SECRET))
    # Everybody on the machine may read the words of all commands.
    commands = [*commands_of_the_machine()]
    assert any(str(gateway.data_dir).encode() in words for words in commands)
    assert not any(SECRET.encode() in words for words in commands)
    answers += [result, gateway.post("/v1/sessions/private/restart", token=token)]
    for path in ("", "/events", "/executions", "/notebook", "/bundle", "/audit", "/files", "/packages"):
        answers.append(gateway.get(f"/v1/sessions/private{path}", token=token))
    for path in ("/v1/info", "/v1/me", "/v1/sessions", "/api/kernels", "/api/kernelspecs"):
        answers.append(gateway.get(path, token=token))
    answers += [gateway.get("/metrics"), gateway.get("/v1/audit"), gateway.get("/v1/sessions?principal=*")]
    for answer in answers:
        assert answer.status in {200, 201}, answer.body
        assert SECRET.encode() not in answer.body
        assert SECRET not in str(answer.headers)
    assert gateway.delete("/v1/sessions/private", token=token).status == 204
    assert SECRET not in gateway.log.read_text()
    for path in gateway.data_dir.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
