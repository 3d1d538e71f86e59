"""Frames and handshakes that break the protocol: clear refusals, and no harm to the kernel or to others."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import psutil
import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from tests.channels import V1, channels, kinds, pack_legacy, pack_v1, raw_socket, text
from tests.server import TOKEN, GatewayProcess, until

HEADER = {"msg_id": "m", "msg_type": "kernel_info_request", "version": "5.3"}
MESSAGE = {"channel": "shell", "header": HEADER, "parent_header": {}, "metadata": {}, "content": {}}


def changed(**fields: object) -> str:
    return json.dumps({**MESSAGE, **fields})


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        changed(channel="nonsense"),
        changed(channel="iopub"),
        changed(channel=1),
        changed(header={}),
        changed(header=[]),
        changed(header=HEADER | {"msg_id": ""}),
        changed(header=HEADER | {"msg_id": "m" * 5000}),
        changed(content=[]),
        changed(parent_header="x"),
        changed(buffers=["x"]),
        b"",
        b"\0\0",
        struct.pack(">I", 0),
        struct.pack(">I", 2**32 - 1),
        struct.pack(">II", 1, 4),
        struct.pack(">III", 2, 5000, 12),
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
        struct.pack("<Q", 2**63),
        struct.pack("<QQQ", 2, 24, 23),
        struct.pack("<Q", 7) + b"\xff" * 56,
        pack_v1(MESSAGE, [])[:-1],
        pack_v1(MESSAGE | {"channel": "nonsense"}, []),
    ],
)
async def test_a_malformed_v1_frame_closes_its_socket(
    jupyter: GatewayProcess, kernel: str, frame: str | bytes
) -> None:
    async with channels(jupyter, kernel, v1=True) as client:
        await client.socket.write_message(frame, binary=isinstance(frame, bytes))
        code, reason = await client.closed()
        assert code in {1003, 1007}
        assert reason
    async with channels(jupyter, kernel, v1=True) as client:
        assert kinds(await client.run("1"))[-2:] == ["execute_reply", "idle"]


async def test_an_unknown_message_type_harms_nobody(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        await client.send("nonsense_request", {})
        await client.send("nonsense", {}, channel="control")
        await client.send("input_reply", {"value": "unasked"}, channel="stdin")
        assert text(await client.run("print('well')")) == "well\n"


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
    socket = await websocket_connect(request, subprotocols=["v9.example", V1])
    assert socket.selected_subprotocol == V1
    socket.close()
    assert await socket.read_message() is None


async def test_hundreds_of_connections_leave_nothing(start_gateway: Callable[..., GatewayProcess]) -> None:
    """300 connects and disconnects, in the middle of cells too: no more open files than before."""
    gateway = start_gateway(pool_size=1, replay_seconds=0.1)
    kernel = gateway.post("/api/kernels").json()["id"]
    process = psutil.Process(gateway.process.pid)

    async def connect(count: int) -> None:
        for number in range(count):
            session_id = f"client-{number}" if number % 3 == 0 else None
            async with channels(gateway, kernel, session_id=session_id, v1=number % 2 == 0) as client:
                if number % 10 == 0:
                    await client.execute("print('x' * 100)")

    await connect(20)
    until(lambda: gateway.get(f"/api/kernels/{kernel}").json()["connections"] == 0, "still connected")
    before = process.num_fds()
    await connect(300)
    until(lambda: process.num_fds() <= before + 2, "files stay open")
    async with channels(gateway, kernel) as client:
        assert text(await client.run("print('well')")) == "well\n"
