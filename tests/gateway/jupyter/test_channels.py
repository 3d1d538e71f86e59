"""The WebSocket of a kernel: framings, order, stdin, comms, subshells, several clients, and the record."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.channels import Sent, channels, is_idle, kinds, of, text
from tests.support.server import GatewayProcess, until


def asked(message: Sent) -> bool:
    return bool(message["msg_type"] == "input_request")


@pytest.mark.parametrize("v1", [False, True])
async def test_a_cell_has_jupyters_order_of_messages(jupyter: GatewayProcess, kernel: str, v1: bool) -> None:
    """busy, execute_input, outputs, execute_reply, idle: also where output comes late, many times over."""
    async with channels(jupyter, kernel, v1=v1) as client:
        for _ in range(30):
            messages = await client.run("print('a'); print('b', flush=True); 1 + 1")
            names = kinds(messages)
            assert names[:2] == ["busy", "execute_input"]
            assert names[-3:] == ["execute_result", "execute_reply", "idle"]
            assert text(messages) == "a\nb\n"
            assert [m["channel"] for m in messages if m["msg_type"] == "execute_reply"] == ["shell"]


async def test_legacy_messages_have_their_type_at_the_top(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        for message in await client.run("1"):
            assert message["msg_type"] == message["header"]["msg_type"]
            assert message["msg_id"] == message["header"]["msg_id"]
            assert message["buffers"] == []


async def test_messages_as_sloppy_clients_send_them(jupyter: GatewayProcess, kernel: str) -> None:
    """No channel, no date or an empty one, an empty session, buffers as an object, an old version."""
    header = {"session": "", "date": "", "username": "autogen", "version": "5.0"}
    async with channels(jupyter, kernel) as client:
        content = {"code": "6 * 7", "silent": False}
        msg_id = await client.send("execute_request", content, channel=None, header=header, buffers_={})
        assert kinds(of(await client.ended(msg_id), msg_id))[-2:] == ["execute_reply", "idle"]
        raw = {"header": header | {"msg_id": "x", "msg_type": "execute_request"}, "content": content}
        await client.socket.write_message(json.dumps(raw | {"buffers": {}, "new": 1}))
        assert "execute_result" in kinds(await client.ended("x"))


@pytest.mark.parametrize("v1", [False, True])
async def test_comms_carry_buffers_both_ways(jupyter: GatewayProcess, kernel: str, v1: bool) -> None:
    echo = """
from comm import get_comm_manager
def opened(comm, message):
    @comm.on_msg
    def received(message):
        comm.send({"echo": True}, buffers=[bytes(b) for b in message["buffers"]])
get_comm_manager().register_target("echo", opened)
"""
    buffers = [b"", bytes(range(256)), b"x" * 70_000]
    async with channels(jupyter, kernel, v1=v1) as client:
        await client.run(echo)
        await client.send("comm_open", {"comm_id": "c", "target_name": "echo", "data": {}})
        await client.send("comm_msg", {"comm_id": "c", "data": {}}, buffers=buffers)
        messages = await client.until(lambda message: message["msg_type"] == "comm_msg")
        assert messages[-1]["content"]["data"] == {"echo": True}
        assert messages[-1]["buffers"] == buffers


@pytest.mark.parametrize(
    ("msg_type", "content", "channel", "reply"),
    [
        ("kernel_info_request", {}, "shell", "kernel_info_reply"),
        ("kernel_info_request", {}, "control", "kernel_info_reply"),
        ("complete_request", {"code": "prin", "cursor_pos": 4}, "shell", "complete_reply"),
        ("inspect_request", {"code": "print", "cursor_pos": 3, "detail_level": 0}, "shell", "inspect_reply"),
        ("is_complete_request", {"code": "for"}, "shell", "is_complete_reply"),
        (
            "history_request",
            {"hist_access_type": "tail", "n": 1, "output": False, "raw": True},
            "shell",
            "history_reply",
        ),
        ("comm_info_request", {}, "shell", "comm_info_reply"),
        (
            "debug_request",
            {"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}},
            "control",
            "debug_reply",
        ),
    ],
)
async def test_every_request_has_its_reply(
    jupyter: GatewayProcess, kernel: str, msg_type: str, content: Sent, channel: str, reply: str
) -> None:
    async with channels(jupyter, kernel) as client:
        msg_id = await client.send(msg_type, content, channel=channel)
        messages = await client.until(lambda message: message["msg_type"] == reply)
        assert messages[-1]["parent_header"]["msg_id"] == msg_id
        assert messages[-1]["channel"] == channel


async def test_input_is_asked_of_and_answered_by_the_requester_alone(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as first, channels(jupyter, kernel) as second:
        msg_id = await first.execute("print(input('who?'))", allow_stdin=True)
        request = (await first.until(asked))[-1]
        assert request["channel"] == "stdin"
        assert request["content"] == {"prompt": "who?", "password": False}
        await second.send("input_reply", {"value": "the wrong one"}, channel="stdin")
        # The wrong answer is on its way before the right one, by another answer that the gateway gives.
        await second.send("kernel_info_request", {}, channel="control")
        await second.until(lambda message: message["msg_type"] == "kernel_info_reply")
        await first.send("input_reply", {"value": "it's me"}, channel="stdin", parent=request["header"])
        assert text(of(await first.ended(msg_id), msg_id)) == "it's me\n"
        seen = await second.ended(msg_id)
        assert not any(asked(message) for message in seen)
        assert text(seen) == "it's me\n"
    replies = [event for event in jupyter.recorded(kernel) if event["type"] == "input_reply"]
    assert [(each["prompt"], each["value"]) for each in replies] == [("who?", "it's me")]


async def test_without_allow_stdin_input_fails_clearly(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        error = next(m for m in await client.run("input()") if m["msg_type"] == "error")
        assert error["content"]["ename"] == "StdinNotImplementedError"


async def test_all_clients_see_iopub_and_each_its_own_replies(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as first, channels(jupyter, kernel, v1=True) as second:
        assert jupyter.get(f"/api/kernels/{kernel}").json()["connections"] == 2
        one = await first.execute("print('one')")
        two = await second.execute("print('two')")
        seen_by_first = await first.ended(two)
        seen_by_second = await second.ended(two)
        assert kinds(of(seen_by_first, one))[-2:] == ["execute_reply", "idle"]
        assert "execute_reply" not in kinds(of(seen_by_first, two))
        assert "execute_reply" not in kinds(of(seen_by_second, one))
        for seen in (seen_by_first, seen_by_second):
            assert (text(of(seen, one)), text(of(seen, two))) == ("one\n", "two\n")
    until(
        lambda: jupyter.get(f"/api/kernels/{kernel}").json()["connections"] == 0, "the sockets are not closed"
    )


async def test_clients_of_both_interfaces_share_variables_and_outputs(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as client:
        await client.run("x = 40")
        result = await asyncio.to_thread(jupyter.execute, kernel, "print(x + 2)")
        assert result["stdout"] == "42\n"
        seen: list[Sent] = []
        while not text(seen).endswith("\n"):
            seen += await client.until(lambda message: message["msg_type"] == "stream")
        assert text(seen) == "42\n"


async def test_a_subshell_runs_beside_a_cell(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        await client.send("create_subshell_request", {}, channel="control")
        created = (await client.until(lambda m: m["msg_type"] == "create_subshell_reply"))[-1]
        waiting = await client.execute(
            "import threading; e = threading.Event(); print('ready', flush=True); print(e.wait(60))"
        )
        seen = await client.until(lambda m: m["msg_type"] == "stream")
        header = {"subshell_id": created["content"]["subshell_id"]}
        beside = await client.execute("e.set(); 'beside'", header=header)
        seen += await client.until(lambda m: is_idle(m, waiting))
        seen += [] if any(is_idle(m, beside) for m in seen) else await client.ended(beside)
        assert kinds(of(seen, beside))[-3:] == ["execute_result", "execute_reply", "idle"]
        assert text(of(seen, waiting)) == "ready\nTrue\n"
    events = jupyter.recorded(kernel)
    assert [event["status"] for event in events if event["type"] == "finished"] == ["ok", "ok"]


async def test_what_a_client_was_told_is_in_the_record_when_it_looks(
    jupyter: GatewayProcess, kernel: str
) -> None:
    async with channels(jupyter, kernel) as client:
        # A cell's end is recorded after a look at its files, which here takes a while.
        await client.run("for i in range(3000): open(f'{i}.txt', 'w').close()")
        for number in range(2, 12):
            await client.run("pass")
            events = await asyncio.to_thread(jupyter.recorded, kernel)
            assert sum(event["type"] == "finished" for event in events) == 3 * number - 4
            await client.run("pass")
            model = await asyncio.to_thread(jupyter.model, kernel)
            assert (model["state"], model["execution_count"]) == ("idle", 2 * number - 1)
            await client.run("pass", silent=True)
            kernel_model = await asyncio.to_thread(jupyter.get, f"/api/kernels/{kernel}")
            assert kernel_model.json()["execution_state"] == "idle"


async def test_an_interrupt_by_message_and_by_rest(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        for by_message in (True, False):
            msg_id = await client.execute("import time\nprint('on', flush=True)\ntime.sleep(60)")
            await client.until(lambda message: message["msg_type"] == "stream")
            if by_message:
                await client.send("interrupt_request", {}, channel="control")
            else:
                path = f"/api/kernels/{kernel}/interrupt"
                assert (await asyncio.to_thread(jupyter.post, path)).status == 204
            messages = of(await client.ended(msg_id), msg_id)
            assert (
                next(m for m in messages if m["msg_type"] == "error")["content"]["ename"]
                == "KeyboardInterrupt"
            )
    finished = [event for event in jupyter.recorded(kernel) if event["type"] == "finished"]
    assert [event["status"] for event in finished] == ["interrupted", "interrupted"]


async def test_what_runs_here_is_recorded_like_all_else(jupyter: GatewayProcess, kernel: str) -> None:
    """Cell by cell, silent and unstored ones marked, a notebook's own cell ids kept where they can be."""
    async with channels(jupyter, kernel) as client:
        await client.run("print('out')", metadata={"cellId": "my-cell"})
        await client.run("y = 1", silent=True)
        await client.run("2", store_history=False, metadata={"cellId": "my-cell"})
        await client.run("1/0", metadata={"cellId": "not valid!"})
    until(
        lambda: sum(e["type"] == "finished" for e in jupyter.recorded(kernel)) == 4,
        "not all has been recorded",
    )
    cells = jupyter.get(f"/v1/sessions/{kernel}/notebook").json()["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["print('out')", "y = 1", "2", "1/0"]
    assert cells[0]["id"] == "my-cell"
    assert len({cell["id"] for cell in cells}) == 4
    assert cells[0]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["out\n"]}]
    assert cells[1]["metadata"]["cellgate"]["silent"] is True
    assert cells[2]["metadata"]["cellgate"]["store_history"] is False
    assert cells[3]["outputs"][0]["ename"] == "ZeroDivisionError"


async def test_display_data_always_has_plain_text(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        messages = await client.run("display({'image/png': 'aGk='}, raw=True)")
        shown = next(m for m in messages if m["msg_type"] == "display_data")
        assert shown["content"]["data"] == {"image/png": "aGk=", "text/plain": ""}


async def test_a_long_evalue_comes_whole(jupyter: GatewayProcess, kernel: str) -> None:
    async with channels(jupyter, kernel) as client:
        messages = await client.run("raise ValueError('v' * 3_000_000)")
        for message in messages:
            if message["msg_type"] in {"error", "execute_reply"}:
                assert message["content"]["evalue"] == "v" * 3_000_000


def agreed(gateway: GatewayProcess, kernel: str, offer: str) -> str | None:
    """What the gateway answers to an offer of WebSocket extensions."""
    connection = gateway.connect()
    connection.request(
        "GET",
        f"/api/kernels/{kernel}/channels",
        headers={
            "Authorization": f"token {gateway.token}",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Extensions": offer,
        },
    )
    try:
        answer = connection.getresponse()
        assert answer.status == 101
        return answer.headers["Sec-WebSocket-Extensions"]
    finally:
        connection.close()


def test_compression_is_not_agreed_on(jupyter: GatewayProcess, kernel: str) -> None:
    """Messages come as they are to clients that offer it, as browsers do."""
    assert agreed(jupyter, kernel, "permessage-deflate; client_max_window_bits") is None
