"""``cellgate mcp --http``: many clients over real HTTP, by the SDK's own client and by plain requests."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ImageContent

from tests.gateway.cli.test_mcp import PNG, SHOW, call
from tests.support.commands import Forked, cellgate
from tests.support.server import TOKEN, GatewayProcess, until

ENDLESS = "print('on', flush=True)\nwhile True: pass"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "plain", "version": "0"},
    },
}


class McpServer:
    """A running ``cellgate mcp --http``."""

    def __init__(self, gateway_url: str, folder: Path, *words: str) -> None:
        self.log = folder / "mcp.log"
        serve = ["mcp", "--http", "--port=0", f"--url={gateway_url}", f"--data-dir={folder}", *words]
        self.process = Forked(serve, output=self.log, cwd=folder)
        self.url = until(self._announced, "the server does not serve", 60)
        self.host = self.url.removeprefix("http://").removesuffix("/mcp")

    def _announced(self) -> str:
        text = self.log.read_text() if self.log.exists() else ""
        assert self.process.poll() is None, text
        return text.partition("serving MCP at ")[2].partition("\n")[0]

    def stop(self) -> None:
        """SIGTERM, and its end."""
        self.process.terminate()
        self.process.wait(60)

    def post(self, body: object, **headers: str | None) -> tuple[int, str | None, bytes]:
        """Status, session and body of a plain POST; a header that is None is left out."""
        status, told, data = self.answer(body, **headers)
        return status, told["Mcp-Session-Id"], data

    def refused(self, **headers: str | None) -> tuple[str | None, str]:
        """The challenge and the message with which a client without access is refused."""
        status, told, data = self.answer(INITIALIZE, **headers)
        assert status == 401
        return told["WWW-Authenticate"], json.loads(data)["error"]["message"]

    def answer(self, body: object, **headers: str | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body of a plain POST; a header that is None is left out."""
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {TOKEN}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.putrequest("POST", "/mcp", skip_host="Host" in headers)
            data = json.dumps(body).encode()
            for name, value in {**sent, "Content-Length": str(len(data))}.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


StartServer = Callable[..., McpServer]


@pytest.fixture
def start_server(gateway: GatewayProcess, tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers in front of the shared gateway; each is stopped at the test's end."""
    started: list[McpServer] = []

    def start(*words: str) -> McpServer:
        started.append(McpServer(gateway.url, tmp_path, *words))
        return started[-1]

    try:
        yield start
        for server in started:
            server.stop()
    finally:
        for server in started:
            server.process.kill()
            server.process.wait(60)


@asynccontextmanager
async def connected(server: McpServer, token: str = TOKEN) -> AsyncIterator[Client]:
    """The SDK's client with a session of its own."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        asyncio.timeout(110),
        httpx2.AsyncClient(headers=headers, timeout=100) as http_client,
        Client(streamable_http_client(server.url, http_client=http_client)) as client,
    ):
        yield client


async def session_of(client: Client) -> str:
    """The name of the gateway's session behind a client."""
    return (await call(client, "export_notebook")).partition("/v1/sessions/")[2].partition("/")[0]


def ended(gateway: GatewayProcess, session: str) -> bool:
    return bool(gateway.model(session)["state"] == "ended")


async def test_two_clients_have_two_sessions_that_end_with_them(
    gateway: GatewayProcess, start_server: StartServer
) -> None:
    server = start_server()
    async with connected(server) as one:
        async with connected(server) as other:
            tools = {tool.name: tool for tool in (await one.list_tools()).tools}
            assert {"run_code", "run_blocks", "write_file", "restart", "export_notebook"} <= set(tools)
            arguments = set(tools["run_code"].input_schema["properties"])
            assert {"code", "timeout", "tables"} <= arguments
            assert "context" not in arguments
            # At once, and the first of each makes its session.
            await asyncio.gather(call(one, "run_code", code="x = 1"), call(other, "run_code", code="x = 2"))
            texts = await asyncio.gather(*(call(client, "run_code", code="x") for client in (one, other)))
            assert texts == ["1", "2"]
            for client in (one, other):
                assert "Python 3" in (client.instructions or "")
            await call(one, "write_file", path="mine.txt", text="of one")
            assert await call(other, "list_files") == "[no files]"
            sessions = [await session_of(one), await session_of(other)]
            picture = (await one.call_tool("run_code", {"code": SHOW})).content[1]
            assert isinstance(picture, ImageContent)
            assert picture.data == PNG
            cut = await call(one, "run_code", code="print('a' * 20_000)")
            assert len(cut) == 8000
            assert "read_output" in cut
        await asyncio.to_thread(until, lambda: ended(gateway, sessions[1]), "the session has not ended")
        assert await call(one, "run_code", code="x") == "1"
    await asyncio.to_thread(until, lambda: ended(gateway, sessions[0]), "the session has not ended")


async def test_a_call_that_is_taken_back_interrupts_its_cell(
    gateway: GatewayProcess, start_server: StartServer
) -> None:
    async with connected(start_server()) as client:
        await call(client, "run_code", code="x = 5")
        session = await session_of(client)
        running = asyncio.create_task(client.call_tool("run_code", {"code": ENDLESS}))
        await asyncio.to_thread(until, lambda: gateway.printed(session, "on\n"), "the cell has not begun")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await call(client, "run_code", code="x") == "5"
        executions = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
        assert [each["status"] for each in executions] == ["ok", "interrupted", "ok"]


async def test_a_long_cell_tells_that_it_goes_on(gateway: GatewayProcess, start_server: StartServer) -> None:
    told: asyncio.Queue[tuple[float, str | None]] = asyncio.Queue()

    async def progress(seconds: float, _total: float | None, message: str | None) -> None:
        await told.put((seconds, message))

    async with connected(start_server()) as client:
        running = asyncio.create_task(
            client.call_tool("run_code", {"code": ENDLESS}, progress_callback=progress)
        )
        seconds, message = await told.get()
        assert message == f"running for {seconds:.0f} s"
        assert (await told.get())[0] > seconds
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_dropped_connection_keeps_the_session_until_it_is_idle(
    gateway: GatewayProcess, start_server: StartServer
) -> None:
    server = start_server("--idle-timeout", "6")
    status, session_id, _ = server.post(INITIALIZE)
    assert (status, bool(session_id)) == (200, True)
    done, _, _ = server.post(
        {"jsonrpc": "2.0", "method": "notifications/initialized"}, Mcp_Session_Id=session_id
    )
    assert done == 202

    ids = itertools.count(2)

    def tool(name: str, **arguments: Any) -> object:
        params = {"name": name, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": next(ids), "method": "tools/call", "params": params}

    _, _, body = server.post(tool("run_code", code="x = 3"), Mcp_Session_Id=session_id)
    assert b"[no output]" in body
    _, _, body = server.post(tool("export_notebook"), Mcp_Session_Id=session_id)
    session = body.decode().partition("/v1/sessions/")[2].partition("/")[0]
    connection = http.client.HTTPConnection(server.host, timeout=60)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {TOKEN}",
        "Mcp-Session-Id": str(session_id),
    }
    code = "print('on', flush=True); import time; time.sleep(1); x += 1"
    connection.request("POST", "/mcp", json.dumps(tool("run_code", code=code)), headers)
    until(lambda: gateway.printed(session, "on\n"), "the cell has not begun")
    connection.close()
    # It went on, and the client that comes back finds its variables.
    _, _, body = server.post(tool("run_code", code="x"), Mcp_Session_Id=session_id)
    assert b'"4"' in body
    until(lambda: ended(gateway, session), "the session has not ended")
    status, _, _ = server.post(tool("run_code", code="x"), Mcp_Session_Id=session_id)
    assert status == 404


def test_who_may_connect(gateway: GatewayProcess, start_server: StartServer) -> None:
    server = start_server("--allow-host", "mcp.example.org", "--allow-origin", "https://example.org")
    before = len(gateway.get("/v1/sessions?limit=1000").json()["sessions"])
    refused = {
        401: [
            {"Authorization": "Bearer wrong"},
            {"Authorization": None},
            {"Authorization": f"Basic {TOKEN}"},
        ],
        403: [{"Origin": "http://evil.example"}, {"Origin": "null"}],
        421: [{"Host": "evil.example"}, {"Host": "evil.example:80"}],
        404: [{"Mcp_Session_Id": "absent"}],
        400: [{"Content-Type": "text/plain"}],
    }
    for status, wrong in refused.items():
        for headers in wrong:
            assert server.post(INITIALIZE, **headers)[0] == status, headers
    allowed = {"Origin": "https://example.org", "Host": "mcp.example.org"}
    status, session_id, _ = server.post(INITIALIZE, **allowed)
    assert status == 200
    # Somebody else's token does not get at it, though it knows the id.
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    headers = {"Mcp_Session_Id": session_id, "Authorization": "Bearer other"}
    assert server.post(listing, **headers)[0] == 404
    assert server.post(listing, Mcp_Session_Id=session_id)[0] == 200
    # What is no beginning of a session leaves nothing, and nobody has used a tool.
    assert server.post(listing)[0] == 400
    status, _, body = server.post(INITIALIZE, MCP_Protocol_Version="2026-07-28")
    assert (status, json.loads(body)["error"]["code"]) == (400, -32022)
    assert "2025-11-25" in json.loads(body)["error"]["data"]["supported"]
    assert len(gateway.get("/v1/sessions?limit=1000").json()["sessions"]) == before


def test_a_wrong_token_is_told_from_a_missing_one(start_server: StartServer) -> None:
    server = start_server()
    challenge, message = server.refused(Authorization=None)
    assert challenge == 'Bearer realm="cellgate"'
    assert message == "A token of the gateway is needed, as a bearer token"
    challenge, message = server.refused(Authorization="Bearer wrong")
    assert challenge == (
        'Bearer realm="cellgate", error="invalid_token",'
        ' error_description="This token is not known to the gateway"'
    )
    assert message == "not_authenticated: This token is not known to the gateway"


async def test_notebooks_are_written_only_where_a_folder_is_named(
    gateway: GatewayProcess, start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "exports").mkdir()
    async with connected(start_server("--notebooks", str(tmp_path / "exports"))) as client:
        await call(client, "run_code", code="1")
        where = await call(client, "export_notebook")
        session = await session_of(client)
        assert where.startswith(f"written: {tmp_path / 'exports' / session}.ipynb")
        assert json.loads((tmp_path / "exports" / f"{session}.ipynb").read_bytes())["cells"]


async def test_the_end_of_the_server_is_that_of_its_sessions(
    gateway: GatewayProcess, start_server: StartServer
) -> None:
    server = start_server()
    status, session_id, _ = await asyncio.to_thread(server.post, INITIALIZE)
    assert status == 200
    call_export = {
        "jsonrpc": "2.0",
        "id": 3,
        "method": "tools/call",
        "params": {"name": "export_notebook", "arguments": {}},
    }
    _, _, body = await asyncio.to_thread(lambda: server.post(call_export, Mcp_Session_Id=session_id))
    session = body.decode().partition("/v1/sessions/")[2].partition("/")[0]
    assert gateway.model(session)["state"] == "idle"
    await asyncio.to_thread(server.stop)
    assert ended(gateway, session)


@pytest.mark.parametrize(
    "words", [("--session", "x"), ("--idle-timeout", "0"), ("--ip", "203.0.113.1"), ("--port", "70000")]
)
def test_wrong_usage_is_told(gateway: GatewayProcess, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = cellgate("mcp", "--http", "--url", gateway.url, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cellgate: ")


def test_a_gateway_without_tokens_is_not_opened_to_the_network(
    start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    free = start_gateway(no_auth=True)
    words = ["--port", "0", "--ip", "0.0.0.0"]
    done = cellgate("mcp", "--http", "--url", free.url, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "serve on loopback only" in done.stderr
