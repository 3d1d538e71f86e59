"""Frames and handshakes that break the protocol: clear refusals, and no harm to the kernel or to others."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from tests.support.channels import V1, channels, kinds, of, pack_legacy, pack_v1, raw_socket, text, vanished
from tests.support.nightly import at_night
from tests.support.server import TOKEN, GatewayProcess, until
from tests.support.websockets import websocket

GAUGES = ("process_open_fds", "process_resident_memory_bytes", "cellgate_tasks")
HEADER = {"msg_id": "m", "msg_type": "kernel_info_request", "version": "5.3"}
MESSAGE = {"channel": "shell", "header": HEADER, "parent_header": {}, "metadata": {}, "content": {}}


def connections_of(gateway: GatewayProcess, kernel: str) -> int:
    return int(gateway.get(f"/api/kernels/{kernel}").json()["connections"])


def gauges(gateway: GatewayProcess) -> dict[str, float]:
    """What the gateway says of its own open files, memory and tasks."""
    lines = gateway.get("/metrics").body.decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name in GAUGES
    }


def changed(**fields: object) -> str:
    return json.dumps({**MESSAGE, **fields})


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "{",
        at_night("[]"),
        at_night("null"),
        "{}",
        "[" * 100_000,
        changed(channel="nonsense"),
        changed(channel="iopub"),
        at_night(changed(channel=1)),
        changed(header={}),
        at_night(changed(header=[])),
        at_night(changed(header=HEADER | {"msg_id": ""})),
        changed(header=HEADER | {"msg_id": "m" * 5000}),
        changed(content=[]),
        at_night(changed(parent_header="x")),
        changed(buffers=["x"]),
        b"",
        at_night(b"\0\0"),
        at_night(struct.pack(">I", 0)),
        struct.pack(">I", 2**32 - 1),
        at_night(struct.pack(">II", 1, 4)),
        at_night(struct.pack(">III", 2, 5000, 12)),
        struct.pack(">II", 1, 8) + b"no json",
        pack_legacy(MESSAGE, [b"abc"])[:20],
    ],
)
async def test_a_malformed_frame_closes_its_socket_and_no_other(
    jupyter: GatewayProcess, kernel: str, frame: str | bytes
) -> None:
    async with channels(jupyter, kernel) as bystander:
        async with channels(jupyter, kernel) as client:
            await client.socket.write_message(frame, binary=isinstance(frame, bytes))
            code, reason = await client.closed()
            assert code == (1003 if isinstance(frame, bytes) else 1007)
            assert reason
        assert text(await bystander.run("print('unharmed')")) == "unharmed\n"


@pytest.mark.parametrize(
    "frame",
    [
        changed(),
        b"",
        at_night(struct.pack("<Q", 2**63)),
        at_night(struct.pack("<QQQ", 2, 24, 23)),
        struct.pack("<Q", 7) + b"\xff" * 56,
        at_night(pack_v1(MESSAGE, [])[:-1]),
        pack_v1(MESSAGE | {"channel": "nonsense"}, []),
    ],
)
async def test_a_malformed_v1_frame_closes_its_socket(
    jupyter: GatewayProcess, kernel: str, frame: str | bytes
) -> None:
    async with channels(jupyter, kernel, v1=True) as client:
        await client.socket.write_message(frame, binary=isinstance(frame, bytes))
        code, reason = await client.closed()
        assert code == (1003 if isinstance(frame, bytes) else 1007)
        assert reason
    async with channels(jupyter, kernel, v1=True) as client:
        assert kinds(await client.run("1"))[-2:] == ["execute_reply", "idle"]


async def test_an_unknown_message_type_harms_nobody(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        await client.send("nonsense_request", {})
        await client.send("nonsense", {}, channel="control")
        await client.send("input_reply", {"value": "unasked"}, channel="stdin")
        assert text(await client.run("print('well')")) == "well\n"


async def test_a_cell_on_the_control_channel_does_not_run(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        content = {"code": "hidden = 1", "silent": False, "store_history": True, "allow_stdin": False}
        msg_id = await client.send("execute_request", content, channel="control")
        answers = of(await client.ended(msg_id), msg_id)
        (reply,) = [each["content"] for each in answers if each["header"]["msg_type"] == "execute_reply"]
        assert (reply["status"], reply["evalue"]) == ("error", "A cell is sent on the shell channel")
        assert text(await client.run("print('hidden' in globals())")) == "False\n"


async def test_an_oversize_message_closes_its_socket(jupyter: GatewayProcess, kernel: str) -> None:
    """It is refused for its announced length; its bytes are never read."""
    with raw_socket(jupyter, kernel) as client:
        client.sendall(struct.pack("!BBQ4s", 0x82, 0x80 | 127, 64 * 1024 * 1024 + 1, b"mask"))
        received = b""
        while chunk := client.recv(4096):
            received += chunk
        assert struct.pack("!H", 1009) in received
    async with channels(jupyter, kernel) as client:
        assert text(await client.run("print('well')")) == "well\n"


async def refused(gateway: GatewayProcess, path: str, **headers: str) -> int:
    """The status of a handshake that is refused."""
    with pytest.raises(HTTPClientError) as caught:
        await websocket_connect(HTTPRequest(f"ws://{gateway.host}{path}", headers=headers))
    return caught.value.code


async def test_a_handshake_is_refused_before_it_is_one(jupyter: GatewayProcess, kernel: str) -> None:
    path = f"/api/kernels/{kernel}/channels"
    assert await refused(jupyter, path) == 401
    assert await refused(jupyter, f"{path}?token=wrong") == 401
    assert await refused(jupyter, f"{path}?token={TOKEN}", Origin="http://evil.example") == 403
    assert await refused(jupyter, f"{path}?token={TOKEN}", Host="evil.example") == 403
    assert await refused(jupyter, f"{path}?token={TOKEN}&session_id={'s' * 2000}") == 400
    assert await refused(jupyter, f"/api/kernels/unknown/channels?token={TOKEN}") == 404
    assert jupyter.get(path).status == 400
    async with channels(jupyter, kernel, headers={"Origin": f"http://{jupyter.host}"}) as client:
        assert text(await client.run("print('own page')")) == "own page\n"


async def test_an_unknown_subprotocol_is_not_selected(jupyter: GatewayProcess, kernel: str) -> None:
    request = HTTPRequest(f"ws://{jupyter.host}/api/kernels/{kernel}/channels?token={TOKEN}")
    async with websocket(request, subprotocols=["v9.example", V1]) as opened:
        assert opened.selected_subprotocol == V1


@pytest.mark.nightly
async def test_half_open_sockets_are_closed_and_slow_readers_are_not(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    """A client whose machine is gone says no FIN; that of one that never reads acknowledges what comes."""
    gateway = start_gateway(pool_size=1, client_silence=4)
    kernel = gateway.post("/api/kernels").json()["id"]
    connections = partial(connections_of, gateway, kernel)
    with raw_socket(gateway, kernel), raw_socket(gateway, kernel) as gone:
        async with channels(gateway, kernel) as bystander:
            until(lambda: connections() == 3, "not all are connected")
            with vanished(gone):
                assert text(await bystander.run("print('unharmed')")) == "unharmed\n"
                until(lambda: connections() == 2, "the half-open socket is not closed")
            # Twice the silence that is allowed: the others have acknowledged all the while.
            await bystander.run("import time; time.sleep(8)")
            assert connections() == 2
            assert text(await bystander.run("print('well')")) == "well\n"
    assert gateway.log.read_text().count("has not answered") == 1


@pytest.mark.nightly
async def test_hundreds_of_connections_leave_nothing(start_gateway: Callable[..., GatewayProcess]) -> None:
    """500 connects and disconnects, in the middle of cells too: no more files, tasks, memory than before."""
    gateway = start_gateway(pool_size=1, replay_seconds=0.1)
    kernel = gateway.post("/api/kernels").json()["id"]

    async def connect(count: int) -> None:
        for number in range(count):
            session_id = f"client-{number}" if number % 3 == 0 else None
            async with channels(gateway, kernel, session_id=session_id, v1=number % 2 == 0) as client:
                if number % 10 == 0:
                    await client.execute("print('x' * 100)")

    # What is kept of a cell is kept of the last hundred: those of the first round are there at both looks.
    await connect(500)
    async with channels(gateway, kernel) as client:
        assert text(await client.run("print('well')")) == "well\n"
    until(lambda: connections_of(gateway, kernel) == 0, "still connected")
    before, grown = gauges(gateway), []
    files, tasks = before["process_open_fds"] + 2, before["cellgate_tasks"] + 2
    while len(grown) < 3:  # what is left behind grows in each round; what the allocator keeps does not
        resident = gauges(gateway)["process_resident_memory_bytes"]
        await connect(500)
        until(lambda: gauges(gateway)["process_open_fds"] <= files, "files stay open")
        until(lambda: gauges(gateway)["cellgate_tasks"] <= tasks, "tasks are left")
        grown.append(gauges(gateway)["process_resident_memory_bytes"] - resident)
        if grown[-1] < 8_000_000:
            break
    assert min(grown) < 8_000_000, grown
    async with channels(gateway, kernel) as client:
        assert text(await client.run("print('well')")) == "well\n"
