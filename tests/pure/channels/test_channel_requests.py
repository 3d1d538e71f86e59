"""What is read of a client's message, and at what cost: weighed before it is decoded, or not read at all."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from cellgate.channels.requests import MOST_WEIGHT, Received, received
from cellgate.execution.request import ExecuteRequest
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import python_float
from cellgate_kernels.codec.structure import ELEMENT_COST, INLINE_BYTES
from cellgate_kernels.protocol.messages import MalformedMessage
from cellgate_kernels.protocol.websocket import Subprotocol, decode
from tests.support.growth import calls

CODE = {"code": "6 * 7"}


def frame(
    kind: str = "execute_request",
    *,
    channel: str = "shell",
    content: str = json.dumps(CODE),
    metadata: str = "{}",
    more: str = "",
    date: str = "null",
) -> str:
    """The text frame of a message, of parts that are JSON already."""
    header = f'{{"msg_id":"m","msg_type":"{kind}","version":"5.3","date":{date}}}'
    return (
        f'{{"channel":"{channel}","header":{header},"parent_header":{{}},"metadata":{metadata}'
        f',"content":{content}{more}}}'
    )


def read(text: str) -> Received:
    return received(decode(text, Subprotocol.JSON, is_binary=False))


def cell_of(text: str) -> ExecuteRequest:
    cell = read(text).cell
    assert isinstance(cell, ExecuteRequest)
    return cell


def memory_of(text: str) -> float:
    """The most memory that reading a frame took, in sizes of the frame."""
    tracemalloc.start()
    try:
        with suppress(MalformedMessage):
            read(text)
        return tracemalloc.get_traced_memory()[1] / len(text)
    finally:
        tracemalloc.stop()


def lists(size: int) -> str:
    """JSON of so many bytes of which each three are a list."""
    return f"[{'[],' * (size // 3)}1]"


def test_a_cell_s_id_is_read_and_cut() -> None:
    assert cell_of(frame(metadata='{"cellId":"a-b"}')).cell_id == "a-b"
    assert cell_of(frame(metadata=json.dumps({"cellId": "x" * 1000}))).cell_id == "x" * 256
    assert cell_of(frame(metadata='{"cellId":[1]}')).cell_id is None


def test_large_metadata_is_passed_on_unread() -> None:
    metadata = json.dumps({"cellId": "a-b", "other": "x" * INLINE_BYTES})
    cell = cell_of(frame(metadata=metadata))
    assert cell.cell_id is None
    assert cell.message is not None
    assert cell.message.metadata_frame == metadata.encode()
    assert cell.code == CODE["code"]


@pytest.mark.parametrize(
    "text",
    [
        frame(metadata=f'{{"cellId":{lists(3 * MIB)}}}'),
        frame(content=f'{{"code":"1","user_expressions":{lists(3 * MIB)}}}'),
        frame(content=f'{{"code":"1"{"".join(f",{json.dumps(str(n))}:1" for n in range(300_000))}}}'),
        frame(content=f'{{"code":{lists(3 * MIB)}}}'),
        frame("comm_msg", content=f'{{"data":{lists(3 * MIB)}}}'),
        frame("shutdown_request", content=f'{{"restart":{lists(3 * MIB)}}}'),
        frame(more=f',"buffers":{lists(3 * MIB)}'),
        frame(more=f',"buffers":[{"1," * MIB}1]'),
    ],
    ids=["cell's id", "content", "names", "code", "of a comm", "restart", "lists as buffers", "buffers"],
)
def test_what_would_decode_into_many_objects_takes_no_more_memory_than_copies_of_it(text: str) -> None:
    assert memory_of(text) < 5


def too_much(content: dict[str, Any]) -> bool:
    cell = read(frame(content=json.dumps(content))).cell
    assert isinstance(cell, ExecuteRequest | InvalidInput)
    return isinstance(cell, InvalidInput)


def test_a_request_of_too_many_parts_is_refused_and_one_of_much_code_is_not() -> None:
    most = MOST_WEIGHT // ELEMENT_COST
    assert too_much(CODE | {"user_expressions": dict.fromkeys(map(str, range(most + 1)), "1")})
    assert not too_much(CODE | {"user_expressions": dict.fromkeys(map(str, range(most - 100)), "1")})
    assert not too_much({"code": "f(x, [{y}])  # and some words beside it\n" * (3 * most)})
    assert not too_much({"code": f"x = [{'1,' * (4 * most)}]"})
    assert too_much(
        {"code": f"x = [{'1,' * (4 * most)}]", "x": dict.fromkeys(map(str, range(2 * most)), "1")}
    )


def test_a_request_for_another_kernel_is_read_whatever_else_it_says() -> None:
    def restarts(content: str) -> bool:
        return read(frame("shutdown_request", content=content)).restart

    assert restarts('{"restart":true}')
    assert restarts(f'{{"more":{lists(INLINE_BYTES)},"restart": true}}')
    for other in ("{}", '{"restart":false}', '{"restart":1}', '{"restart":"true"}', '{"restart":[true]}'):
        assert not restarts(other)


def test_a_cell_is_read_from_the_shell_channel_alone() -> None:
    assert read(frame(channel="control")).cell is None
    assert read(frame("comm_msg")).cell is None


@pytest.mark.parametrize("buffers", ["null", "[]", "{}", "[ ]", "{\n}"])
def test_no_buffers_are_none_in_any_notation(buffers: str) -> None:
    assert cell_of(frame(more=f',"buffers": {buffers} ')).code == CODE["code"]


@pytest.mark.parametrize("buffers", ["[1]", '{"0":1}', '"x"', '""', "1", "true"])
def test_buffers_in_a_text_frame_are_refused(buffers: str) -> None:
    with pytest.raises(MalformedMessage, match="buffers"):
        read(frame(more=f',"buffers":{buffers}'))


@pytest.mark.parametrize("number", ["1e-310", "1.5e-10"])
def test_a_number_in_a_header_costs_the_same_at_the_end_of_its_range(number: str) -> None:
    """Python makes each, not msgspec, which takes thirty times as long at the ends."""
    text = frame("comm_msg", date=f"[{','.join([number] * 800)}]")
    assert calls(python_float, lambda: read(text)) == 800
