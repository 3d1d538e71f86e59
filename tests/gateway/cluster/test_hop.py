"""Any gateway of a cluster answers: a session lives at one of two, and all requests go to the other."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import uuid
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest

from cellgate.client import Gateway
from tests.support.channels import Channels
from tests.support.nodes import OWNER, Pair, pair
from tests.support.server import TOKEN, GatewayProcess, send, until
from tests.support.websockets import websocket

__all__ = ["pair"]

MIB = 1024 * 1024


@pytest.fixture
def session(pair: Pair) -> str:
    """A session at the first gateway."""
    key = f"here-{uuid.uuid4().hex[:8]}"
    pair.one.execute(key, "x = 20")
    return key


def test_a_cell_runs_where_its_session_is(pair: Pair, session: str) -> None:
    answer = pair.other.post(f"/v1/sessions/{session}/execute", {"code": "x + 1"})
    assert answer.json()["text"] == "21"
    assert answer.headers.get_all(OWNER) == [pair.node(pair.one)]
    assert answer.headers["Cellgate-Owner-Address"] == pair.one.url
    assert pair.other.model(session) == pair.one.model(session)
    refused = pair.other.post(f"/v1/sessions/{session}/execute", {"code": 1})
    assert (refused.status, refused.reason) == (400, "bad_request")
    assert refused.headers[OWNER] == pair.node(pair.one)


def test_only_a_sender_that_is_known_learns_where_a_gateway_is(pair: Pair, session: str) -> None:
    name = "Cellgate-Owner-Address"
    path = f"/v1/sessions/{session}"
    for gateway in (pair.one, pair.other):
        for token in (None, "wrong"):
            answer = gateway.get(path, token=token)
            assert (answer.status, answer.headers[name]) == (401, None)
            assert answer.headers[OWNER] == pair.node(gateway)
        for public in ("/healthz", "/docs", "/console"):
            assert gateway.get(public, token=None).headers[name] is None
        assert gateway.get(path).headers[name] == pair.one.url
        assert gateway.get("/v1/nothing").headers[name] == gateway.url
        assert gateway.post(f"{path}/execute", {"code": 1}).headers[name] == pair.one.url


def test_a_request_that_names_the_other_gateway_is_handed_on_too(pair: Pair, session: str) -> None:
    for meant in (pair.node(pair.one), pair.node(pair.other), "nobody"):
        assert pair.other.get(f"/v1/sessions/{session}", headers={OWNER: meant}).status == 200


def test_a_session_that_nobody_has_is_made_where_it_is_asked_for(pair: Pair) -> None:
    key = f"new-{uuid.uuid4().hex[:8]}"
    answer = pair.other.post(f"/v1/sessions/{key}/execute", {"code": "1"})
    assert (answer.status, answer.headers[OWNER]) == (200, pair.node(pair.other))
    assert pair.one.get(f"/v1/sessions/{key}").headers[OWNER] == pair.node(pair.other)


def test_a_session_that_has_ended_stays_where_its_files_are(pair: Pair, session: str) -> None:
    assert pair.other.delete(f"/v1/sessions/{session}").status == 204
    for path in ("executions", "files"):
        for gateway in (pair.one, pair.other):
            answer = gateway.get(f"/v1/sessions/{session}/{path}")
            assert answer.status == 200, answer.body
            assert answer.headers[OWNER] == pair.node(pair.one)
    again = pair.other.post(f"/v1/sessions/{session}/execute", {"code": "1"})
    assert (again.status, again.headers[OWNER]) == (200, pair.node(pair.one))


def test_lists_have_the_sessions_of_all_gateways(pair: Pair, session: str) -> None:
    held = pair.one.hold(session)
    pair.one.submit(session, "1")
    for query in ("state=live", "state=busy", "newest=true"):
        for gateway in (pair.one, pair.other):
            listed = gateway.get(f"/v1/sessions?limit=1000&{query}").json()["sessions"]
            (found,) = (each for each in listed if each["session"] == session)
            assert (found["state"], found["queue_length"]) == ("busy", 1)
    pair.one.answer(session, held)
    assert session not in pair.other.get("/v1/sessions?state=ended&limit=1000").body.decode()


def test_a_key_in_a_body_leads_to_its_gateway(pair: Pair, session: str) -> None:
    answer = pair.other.post("/v1/sessions", {"session": session})
    assert (answer.status, answer.headers[OWNER]) == (200, pair.node(pair.one))
    assert answer.json()["kernel_id"] == pair.one.model(session)["kernel_id"]
    sharing = pair.other.post("/v1/sessions", {"session": f"{session}-2", "workspace_of": session})
    assert (sharing.status, sharing.headers[OWNER]) == (201, pair.node(pair.one))


def test_events_come_as_they_happen(pair: Pair, session: str) -> None:
    code = "print(input())"
    events = pair.other.events("POST", f"/v1/sessions/{session}/execute", {"code": code})
    for event in events:
        if event["type"] == "input_request":
            pair.other.answer(session, event["execution"], "heard")
    assert pair.one.printed(session, "heard\n")
    with pair.other.stream("GET", f"/v1/sessions/{session}/events", accept="text/event-stream") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.readline().startswith(b"id: 1")


def test_large_files_pass_both_ways(pair: Pair, session: str) -> None:
    content = hashlib.shake_256(b"seed").digest(24 * MIB)
    path = f"/v1/sessions/{session}/files/large"
    assert pair.other.request("PUT", path, content).status == 201
    assert (pair.one.workspace(session) / "large").read_bytes() == content
    answer = pair.other.get(path)
    assert (answer.status, answer.body) == (200, content)
    part = pair.other.get(path, headers={"Range": "bytes=5-9"})
    assert (part.status, part.body) == (206, content[5:10])
    assert part.headers["Content-Range"] == f"bytes 5-9/{len(content)}"
    head = pair.other.request("HEAD", path)
    assert (head.status, head.headers["Content-Length"], head.body) == (200, str(len(content)), b"")
    same = pair.other.get(path, headers={"If-None-Match": answer.headers["ETag"]})
    assert (same.status, same.body) == (304, b"")
    outside = pair.other.get(path, headers={"Range": f"bytes={len(content)}-"})
    assert (outside.status, outside.body) == (416, b"")


def test_conditions_of_uploads_pass(pair: Pair, session: str) -> None:
    path = f"/v1/sessions/{session}/files/noted"
    made = pair.other.request("PUT", path, b"1", headers={"If-None-Match": "*"})
    assert (made.status, made.headers["ETag"]) == (201, pair.one.get(path).headers["ETag"])
    late = pair.other.request("PUT", path, b"2", headers={"If-None-Match": "*"})
    assert (late.status, late.reason) == (412, "file_changed")
    assert pair.other.request("PUT", path, b"3", headers={"If-Match": made.headers["ETag"]}).status == 200
    late = pair.other.request("PUT", path, b"4", headers={"If-Match": made.headers["ETag"]})
    assert (late.status, late.reason, pair.one.get(path).body) == (412, "file_changed", b"3")


def test_a_body_of_unknown_length_passes(pair: Pair, session: str) -> None:
    connection = pair.other.connect()
    path = f"/v1/sessions/{session}/files/chunked"
    chunks = [b"a" * 10, b"b" * MIB]
    connection.request("PUT", path, iter(chunks), {"Authorization": f"Bearer {TOKEN}"}, encode_chunked=True)
    assert connection.getresponse().status == 201
    connection.close()
    assert (pair.one.workspace(session) / "chunked").read_bytes() == b"".join(chunks)


def test_a_client_that_asks_first_is_told_to_go_on(pair: Pair, session: str) -> None:
    host, _, port = pair.other.host.partition(":")
    body = json.dumps({"code": "x"}).encode()
    head = (
        f"POST /v1/sessions/{session}/execute HTTP/1.1\r\nHost: {pair.other.host}\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answer:
        connection.sendall(head.encode())
        assert answer.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answer.readline() == b"\r\n"
        connection.sendall(body)
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        assert b'"text":"20"' in answer.read()


def test_requests_of_one_connection_each_get_their_own_answer(pair: Pair, session: str) -> None:
    there = f"there-{uuid.uuid4().hex[:8]}"
    pair.other.execute(there, "0")
    host, _, port = pair.other.host.partition(":")
    keys = [session, there, session, "nowhere", session]
    sent = b"".join(
        f"GET /v1/sessions/{key} HTTP/1.1\r\nHost: {pair.other.host}\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        for key in keys
    )
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        connection.sendall(sent)
        found = [_next_answer(answers) for _ in keys]
    assert [answer.get("session", answer.get("reason")) for answer in found] == [
        *(session, there, session),
        *("not_found", session),
    ]


def _next_answer(answers: Any) -> dict[str, Any]:
    length = 0
    while (line := answers.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    found = json.loads(answers.read(length))
    assert isinstance(found, dict)
    return found


async def test_a_websocket_of_events_passes(pair: Pair, session: str) -> None:
    url = f"{pair.other.url}/v1/sessions/{session}/ws".replace("http", "ws", 1)
    request = HTTPRequest(url, headers={"Authorization": f"Bearer {TOKEN}"})
    async with websocket(request) as opened:
        await opened.write_message(json.dumps({"id": 1, "execute": {"code": "x + 2"}}))
        found = ""
        while '"22"' not in found:
            message = await opened.read_message()
            assert isinstance(message, str)
            found += message
        await asyncio.to_thread(pair.one.delete, f"/v1/sessions/{session}")
        while await opened.read_message() is not None:
            pass
        assert (opened.close_code, opened.close_reason) == (1000, "The session has ended")


async def test_a_kernel_is_reached_by_its_id(pair: Pair, session: str) -> None:
    made = pair.one.post("/api/kernels", {})
    kernel = made.json()["id"]
    assert kernel.startswith(pair.node(pair.one)[:8])
    assert str(uuid.UUID(kernel)) == kernel
    derived = next(each["id"] for each in pair.one.get("/api/kernels").json() if each["id"] != kernel)
    for each in (kernel, derived):
        assert pair.other.get(f"/api/kernels/{each}").headers[OWNER] == pair.node(pair.one)
    request = HTTPRequest(
        f"{pair.other.url}/api/kernels/{kernel}/channels".replace("http", "ws", 1),
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    async with websocket(request) as opened:
        channels = Channels(opened, v1=False)
        await channels.send("execute_request", {"code": "6 * 7", "silent": False, "store_history": True})
        frames = []
        while not frames or '"execute_result"' not in frames[-1]:
            frames.append(str(await channels.frame()))
        assert "'42'" in frames[-1] or '"42"' in frames[-1]
    assert pair.other.delete(f"/api/kernels/{kernel}").status == 204
    assert pair.one.get(f"/api/kernels/{kernel}").status == 404
    document = {"path": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
    entry = pair.one.post("/api/sessions", document).json()
    found = pair.other.get(f"/api/sessions/{entry['id']}")
    assert (found.status, found.json()["kernel"]["id"]) == (200, entry["kernel"]["id"])


def test_a_sandbox_is_reached_by_its_id(pair: Pair) -> None:
    made = pair.one.post("/e2b/sandboxes", {"templateID": "base"})
    sandbox = made.json()["sandboxID"]
    assert sandbox.startswith(f"i{pair.node(pair.one)[:8]}")
    found = pair.other.get(f"/e2b/sandboxes/{sandbox}")
    assert (found.status, found.headers[OWNER]) == (200, pair.node(pair.one))
    repeated = {"Idempotency-Key": uuid.uuid4().hex}
    first = pair.one.post("/e2b/sandboxes", {}, headers=repeated)
    second = pair.other.post("/e2b/sandboxes", {}, headers=repeated)
    assert first.json()["sandboxID"] == second.json()["sandboxID"]
    for each in (sandbox, first.json()["sandboxID"]):
        assert pair.other.delete(f"/e2b/sandboxes/{each}").status == 204


async def test_the_client_goes_on_at_any_gateway(pair: Pair, session: str) -> None:
    here, there = (Gateway(gateway.url, TOKEN).session(session) for gateway in (pair.one, pair.other))
    await here.run("y = 1")
    assert (await there.run("y + x")).text == "21"


def test_a_wrong_token_is_refused_where_it_is_shown(pair: Pair, session: str) -> None:
    answer = pair.other.get(f"/v1/sessions/{session}", token="wrong")
    assert (answer.status, answer.headers[OWNER]) == (401, pair.node(pair.other))


def test_a_cell_of_a_client_that_leaves_is_interrupted(pair: Pair, session: str) -> None:
    connection = pair.other.connect()
    body = {"code": "import time; time.sleep(1000)", "on_disconnect": "interrupt"}
    send(connection, "POST", f"/v1/sessions/{session}/execute", body)
    execution = _last(pair, session, "running")
    connection.close()
    assert pair.one.ended(session, execution)["status"] == "interrupted"


def _last(pair: Pair, session: str, status: str) -> str:
    def found() -> str | None:
        last = pair.one.get(f"/v1/sessions/{session}/executions?newest=true&limit=1").json()["executions"]
        return last[0]["execution"] if last and last[0]["status"] == status else None

    return until(found, "no such execution")


async def test_the_client_goes_to_the_owner_by_itself(pair: Pair, session: str) -> None:
    gateway = Gateway(pair.other.url, TOKEN)
    there = gateway.session(session)
    handed_on = _answers(pair.other)
    for _ in range(4):
        assert (await there.run("x")).text == "20"
    # The first answer told where the session is.
    assert _answers(pair.other) - handed_on < 4
    moved = Gateway(pair.other.url, TOKEN).session(f"{session}-2")
    await moved.run("1")
    await moved.end()


def _answers(gateway: GatewayProcess) -> int:
    """How many requests a gateway has answered with 200, without those of this function."""
    text = gateway.get("/metrics").body.decode()
    name = 'cellgate_http_responses_total{status="200"}'
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return int(float(line.rpartition(" ")[2])) - 1
