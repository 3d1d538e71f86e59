"""Resumable events: whoever reconnects, at whatever moment, gets every event exactly once and in order."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.server import TOKEN, GatewayProcess, until

EVENTS = 200
CODE = """
import time
from IPython.display import display
for number in range({}):
    display(number)
    time.sleep({})
"""


class Connection:
    """A raw connection that can be cut at any byte."""

    def __init__(self, gateway: GatewayProcess, path: str, **headers: str) -> None:
        host, _, port = gateway.host.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._file = self._socket.makefile("rb")
        sent = {"Host": gateway.host, "Authorization": f"Bearer {TOKEN}", **headers}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())

    def status(self) -> int:
        """The answer's status, once its headers are in."""
        status = int(self._file.readline().split()[1])
        while self._file.readline() != b"\r\n":
            pass
        return status

    def read(self, size: int) -> bytes:
        """So many bytes; fewer when the gateway has closed."""
        return self._file.read(size)

    def some(self, size: int) -> bytes:
        """What is there, and at most so many bytes; waits for the first."""
        return self._file.read1(size)

    def line(self) -> bytes:
        """A line, with its end."""
        return self._file.readline()

    def chunks(self) -> Iterator[bytes]:
        """The parts of a chunked body."""
        while size := int(self.line(), 16):
            yield self.read(size)
            self.read(2)

    def send(self, content: object) -> None:
        """A masked text frame, as clients must send them (RFC 6455, section 5.3)."""
        payload = json.dumps(content).encode()
        size = struct.pack("!BH", 0x80 | 126, len(payload))
        self._socket.sendall(b"\x81" + size + bytes(4) + payload)

    def close(self) -> None:
        """Cut: a reset, without a word of farewell."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._file.close()
        self._socket.close()


def ndjson(gateway: GatewayProcess, session: str, after: int) -> Iterator[bytes]:
    """Events by NDJSON."""
    path = f"/v1/sessions/{session}/events?after={after}"
    with closing(Connection(gateway, path, Accept="application/x-ndjson")) as connection:
        assert connection.status() == 200
        rest = b""
        for chunk in connection.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line for line in lines if b'"keepalive"' not in line)


def sse(gateway: GatewayProcess, session: str, after: int) -> Iterator[bytes]:
    """Events by Server-Sent Events, resumed as browsers do."""
    path = f"/v1/sessions/{session}/events"
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    with closing(Connection(gateway, path, **headers)) as connection:
        assert connection.status() == 200
        rest = b""
        for chunk in connection.chunks():
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                if not event.startswith(b":"):
                    number, _, data = event.split(b"\n")
                    assert json.loads(data[6:])["seq"] == int(number[4:])
                    yield data[6:]


def upgrade() -> dict[str, str]:
    """The headers that ask for a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    names = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    return {**names, "Sec-WebSocket-Key": key}


def upgraded(gateway: GatewayProcess, session: str, query: str = "") -> Connection:
    """An open WebSocket."""
    connection = Connection(gateway, f"/v1/sessions/{session}/ws{query}", **upgrade())
    assert connection.status() == 101
    return connection


def frames(connection: Connection) -> Iterator[bytes]:
    """The text frames that come; a close frame ends them, and its payload is the last."""
    while head := connection.read(2):
        assert not head[1] & 0x80, "servers don't mask"
        size = head[1]
        if size == 126:
            [size] = struct.unpack("!H", connection.read(2))
        elif size == 127:
            [size] = struct.unpack("!Q", connection.read(8))
        payload = connection.read(size)
        if head[0] == 0x81:
            yield payload
        elif head[0] == 0x88:
            yield b"closed: " + payload
            return


def websocket(gateway: GatewayProcess, session: str, after: int) -> Iterator[bytes]:
    """Events by WebSocket."""
    with closing(upgraded(gateway, session, f"?after={after}")) as connection:
        yield from frames(connection)


DOORS = pytest.mark.parametrize("door", [ndjson, sse, websocket])
Door = Callable[[GatewayProcess, str, int], Iterator[bytes]]


def take(events: Iterator[bytes], count: int) -> list[bytes]:
    """So many events, then the connection is cut."""
    taken = [next(events) for _ in range(count)]
    events.close()  # type: ignore[attr-defined]
    return taken


def seq(event: bytes) -> int:
    return int(json.loads(event)["seq"])


@DOORS
def test_a_connection_cut_behind_every_event_of_a_running_cell_misses_and_repeats_none(
    gateway: GatewayProcess, session: str, door: Door
) -> None:
    gateway.execute(session, "0")
    after = gateway.recorded(session)[-1]["seq"]
    execution = gateway.submit(session, CODE.format(EVENTS - 3, 0.002))
    seen: list[bytes] = []
    while len(seen) < EVENTS:
        seen += take(door(gateway, session, seq(seen[-1]) if seen else after), 1)
    events = [json.loads(event) for event in seen]
    assert events == gateway.recorded(session, after)
    assert [event["seq"] for event in events] == list(range(after + 1, after + EVENTS + 1))
    assert [event["data"]["text/plain"] for event in events if event["type"] == "display_data"] == [
        str(number) for number in range(EVENTS - 3)
    ]
    assert (events[-1]["type"], events[-1]["execution"]) == ("finished", execution)


@DOORS
def test_the_rest_follows_from_every_event_of_an_ended_cell(
    gateway: GatewayProcess, session: str, door: Door
) -> None:
    gateway.execute(session, CODE.format(EVENTS - 3, 0))
    last = gateway.recorded(session)[-1]["seq"]
    first = last - EVENTS
    whole = take(door(gateway, session, first), EVENTS)
    for cut in range(EVENTS):
        assert take(door(gateway, session, first + cut), EVENTS - cut) == whole[cut:]
    assert [seq(event) for event in whole] == list(range(first + 1, last + 1))


def test_a_connection_cut_in_the_middle_of_events_misses_and_repeats_none(
    gateway: GatewayProcess, session: str
) -> None:
    """At any byte: what is no whole line was not seen."""
    gateway.execute(session, "0")
    after = gateway.recorded(session)[-1]["seq"]
    gateway.submit(session, CODE.format(EVENTS - 3, 0.001))
    seen: list[bytes] = []
    while not seen or json.loads(seen[-1])["type"] != "finished":
        path = f"/v1/sessions/{session}/events?after={seq(seen[-1]) if seen else after}"
        with closing(Connection(gateway, path, Accept="application/x-ndjson")) as connection:
            assert connection.status() == 200
            whole = connection.some(random.randrange(1, 4000)).replace(b"\r\n", b"\n").split(b"\n")[:-1]
        seen += [line for line in whole if line.startswith(b'{"seq"') and line.endswith(b"}")]
    assert [json.loads(event) for event in seen] == gateway.recorded(session, after)


def test_many_readers_come_and_go_and_each_sees_every_event_once(
    gateway: GatewayProcess, session: str
) -> None:
    """Readers that leave empty the short memory that others read from."""
    gateway.execute(session, "0")
    after = gateway.recorded(session)[-1]["seq"]
    gateway.submit(session, CODE.format(EVENTS - 3, 0.002))
    steady = websocket(gateway, session, after)
    seen = [next(steady)]
    others: list[bytes] = []
    while len(seen) < EVENTS:
        if len(others) < EVENTS - 2:
            others += take(ndjson(gateway, session, seq(others[-1]) if others else after), 3)
        seen += [next(steady) for _ in range(min(3, EVENTS - len(seen)))]
    steady.close()  # type: ignore[attr-defined]
    assert json.loads(seen[-1])["type"] == "finished"
    assert others == seen[: len(others)]
    assert [seq(event) for event in seen] == list(range(after + 1, after + EVENTS + 1))


# ---- the WebSocket's commands


def answers(connection: Connection, count: int) -> tuple[list[Any], list[Any]]:
    """So many answers to commands, and the events that came before the last of them."""
    replies: list[Any] = []
    events: list[Any] = []
    received = frames(connection)
    while len(replies) < count:
        content = json.loads(next(received))
        (events if "seq" in content else replies).append(content)
    return replies, events


def test_commands_run_cells_answer_input_and_interrupt(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session})
    with closing(upgraded(gateway, session)) as connection:
        connection.send({"execute": {"code": "name = input('who? '); print('hi', name)"}, "id": "first"})
        [accepted], events = answers(connection, 1)
        assert accepted == {"type": "accepted", "execution": accepted["execution"], "id": "first"}
        received = frames(connection)
        while not events or events[-1]["type"] != "input_request":
            events.append(json.loads(next(received)))
        connection.send({"input": {"execution": accepted["execution"], "value": "Ada"}})
        [answered], more = answers(connection, 1)
        assert answered == {"type": "accepted", "execution": accepted["execution"]}
        events += more
        while events[-1]["type"] != "finished":
            events.append(json.loads(next(received)))
        assert events == gateway.recorded(session)
        assert gateway.result(session, accepted["execution"])["stdout"] == "hi Ada\n"

        connection.send({"execute": {"code": "print('ready'); import time; time.sleep(60)"}})
        while json.loads(next(received)).get("type") != "stream":
            pass
        connection.send({"interrupt": True})
        while (event := json.loads(next(received))).get("type") != "finished":
            pass
        assert (event["status"], event["cause"]) == ("interrupted", "interrupt_requested")


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        ({}, 400, "bad_request"),
        ({"interrupt": True, "execute": {"code": "1"}}, 400, "bad_request"),
        ({"execute": {}}, 400, "bad_request"),
        ({"execute": {"code": "1", "surprise": 1}}, 400, "bad_request"),
        ({"execute": {"code": "1", "timeout": 86_401}}, 400, "bad_request"),
        ({"run": "1"}, 400, "bad_request"),
        ([1], 400, "bad_request"),
        ({"input": {"execution": "nobody's", "value": ""}}, 404, "not_found"),
    ],
)
def test_a_command_that_does_not_fit_is_answered_and_changes_nothing(
    gateway: GatewayProcess, session: str, command: object, status: int, reason: str
) -> None:
    gateway.post("/v1/sessions", {"session": session})
    before = gateway.recorded(session)
    with closing(upgraded(gateway, session, f"?after={before[-1]['seq']}")) as connection:
        connection.send(command)
        [refused], events = answers(connection, 1)
        assert (refused["type"], refused["status"], refused["reason"]) == ("problem", status, reason)
        connection.send({"interrupt": True})
        assert answers(connection, 1) == ([{"type": "accepted"}], [])
    assert events == []
    assert gateway.recorded(session) == before


def test_the_socket_of_a_session_closes_when_it_ends_and_tells_all_before(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "1")
    with closing(upgraded(gateway, session)) as connection:
        received = frames(connection)
        next(received)
        gateway.delete(f"/v1/sessions/{session}")
        *events, end = received
    assert end == b"closed: " + struct.pack("!H", 1000) + b"The session has ended"
    assert json.loads(events[-1])["state"] == "ended"
    assert list(websocket(gateway, session, 0))[1:] == [*events, end]


def test_a_cell_that_was_to_end_with_its_socket_does(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session})
    with closing(upgraded(gateway, session)) as connection:
        code = "print('ready'); import time; time.sleep(60)"
        connection.send({"execute": {"code": code, "on_disconnect": "interrupt"}})
        received = frames(connection)
        while (event := json.loads(next(received))).get("type") != "stream":
            pass
    result = gateway.ended(session, event["execution"])
    assert (result["status"], result["cause"]) == ("interrupted", "client_disconnected")


def test_strangers_and_unknown_sessions_are_refused_before_the_upgrade(gateway: GatewayProcess) -> None:
    headers = upgrade()
    assert gateway.get("/v1/sessions/nobody/ws", headers=headers).reason == "not_found"
    assert gateway.get("/v1/sessions/nobody/ws", token=None, headers=headers).status == 401
    foreign = {**headers, "Origin": "https://example.org"}
    assert gateway.get("/v1/sessions/nobody/ws", headers=foreign).reason == "forbidden"


@pytest.mark.parametrize("name", ["Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol"])
def test_an_offer_that_is_too_long_is_refused(gateway: GatewayProcess, session: str, name: str) -> None:
    gateway.post("/v1/sessions", {"session": session})
    refused = gateway.get(f"/v1/sessions/{session}/ws", headers={**upgrade(), name: "a" * 5000})
    assert (refused.status, refused.reason) == (400, "bad_request")


def test_what_a_follower_saw_is_in_the_record_after_a_crash(start_gateway: Any) -> None:
    """The numbers of lost events would go to others, which a client that comes back would never see."""
    gateway = start_gateway()
    gateway.submit("a", CODE.format(EVENTS, 0.001))
    path = "/v1/sessions/a/events"
    until(lambda: gateway.get(path).status == 200, "the session is not there")
    seen = take(ndjson(gateway, "a", 0), 50)
    follower = ndjson(gateway, "a", seq(seen[-1]))
    seen += [next(follower) for _ in range(50)]
    gateway.kill()
    again = start_gateway(gateway.data_dir)
    whole = seen + take(ndjson(again, "a", seq(seen[-1])), again.recorded("a")[-1]["seq"] - len(seen))
    assert [json.loads(event) for event in whole] == again.recorded("a")
    assert [json.loads(event)["type"] for event in whole[-2:]] == ["finished", "session"]
