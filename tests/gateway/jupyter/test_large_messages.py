"""Messages of many megabytes from a client, which are read in pieces and decoded in a thread."""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.support.channels import channels, kinds, text
from tests.support.server import GatewayProcess

LONG = 24 * 1024 * 1024


@pytest.mark.parametrize("v1", [False, True], ids=["json", "v1"])
async def test_cells_behind_a_large_message_run_after_it(
    jupyter: GatewayProcess, kernel: str, v1: bool
) -> None:
    async with channels(jupyter, kernel, v1=v1) as client:
        await client.run("order = []")
        large = await client.execute("order.append(1)", metadata={"much": "\u00e9" * (LONG // 6)})
        small = [await client.execute(f"order.append({number})") for number in (2, 3)]
        for msg_id in (large, *small):
            await client.ended(msg_id)
        assert text(await client.run("print(order)")) == "[1, 2, 3]\n"


async def test_a_large_message_reaches_the_kernel_whole(jupyter: GatewayProcess, kernel: str) -> None:
    """Whatever is in it: it is sent on in parts."""
    listen = (
        "import hashlib\n"
        "def opened(comm, message):\n"
        "    whole = [message['content']['data']['text'].encode(), *map(bytes, message['buffers'])]\n"
        "    print([(len(part), hashlib.sha256(part).hexdigest()) for part in whole])\n"
        "get_ipython().kernel.comm_manager.register_target('large', opened)"
    )
    sent = ["a,[{" * (LONG // 4), "b" * LONG, "c"]
    async with channels(jupyter, kernel) as client:
        await client.run(listen)
        content = {"comm_id": "a", "target_name": "large", "data": {"text": sent[0]}}
        msg_id = await client.send("comm_open", content, buffers=[part.encode() for part in sent[1:]])
        printed = text(await client.ended(msg_id))
        whole = [(len(part), hashlib.sha256(part.encode()).hexdigest()) for part in sent]
        assert printed == f"{whole}\n"


@pytest.mark.parametrize("size", [10, LONG])
async def test_text_that_is_not_utf8_is_refused_with_a_reason(
    jupyter: GatewayProcess, kernel: str, size: int
) -> None:
    async with channels(jupyter, kernel) as client:
        # Tornado's client checks nothing of bytes.
        await client.socket.write_message(b'{"' + b"\xff" * size)
        code, reason = await client.closed()
        assert (code, reason) == (1007, "The text is not UTF-8")
    async with channels(jupyter, kernel) as client:
        assert kinds(await client.run("1"))[-2:] == ["execute_reply", "idle"]


async def test_a_message_of_very_many_parts_is_refused_with_a_reason(
    jupyter: GatewayProcess, kernel: str
) -> None:
    """It would keep everybody else waiting."""
    message = {"header": {"msg_id": "a", "msg_type": "comm_msg", "version": "5.3"}, "content": {"data": []}}
    async with channels(jupyter, kernel) as client:
        frame = json.dumps(message).encode().replace(b"[]", b"[" + b"1," * 8_000_000 + b"1]")
        await client.socket.write_message(frame)
        code, reason = await client.closed()
        assert code == 1007
        assert reason == "the frame has more than 8000000 lists, objects and elements"
