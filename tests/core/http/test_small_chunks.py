"""Bodies in chunks of one byte: others have their turns, however many connections send such bodies."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from cellgate.http.listener.server import CHUNKS_A_TURN
from cellgate_kernels.base.places import Places
from tests.support.listening import Plain, listening

HEAD = b"POST /length HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
COUNT = 3000
SENDERS = 4


class Length(Plain):
    """Answers with the length of the body."""

    def post(self) -> None:
        """Answer."""
        self.finish(str(len(self.request.body)))


async def read_answer(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    answer = b""
    while not answer.endswith(str(COUNT).encode()):
        more = await loop.sock_recv(connection, 4096)
        assert more, answer
        answer += more
    return answer


async def count_turns(of: asyncio.Future[Any]) -> int:
    """The turns of the loop until the future is done."""
    turns = 0
    while not of.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


@pytest.mark.parametrize("senders", [1, SENDERS])
async def test_chunks_of_one_byte_are_read_a_few_in_each_turn(stack: ExitStack, senders: int) -> None:
    body = HEAD + b"1\r\nx\r\n" * COUNT + b"0\r\n\r\n"
    async with listening({"/length": Length}) as (port, _):
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(senders)
        ]
        for connection in connections:
            connection.sendall(body)
            connection.setblocking(False)
        answers = asyncio.gather(*(read_answer(connection) for connection in connections))
        turns = await asyncio.wait_for(count_turns(answers), 60)
        for answer in await answers:
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert turns >= senders * COUNT / CHUNKS_A_TURN


async def test_places_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    turns, given = Places(2), []

    async def take(name: int) -> None:
        if (place := turns.take()) is not None:
            await place
        given.append(name)

    await asyncio.gather(*(take(name) for name in range(7)))
    assert given == list(range(7))


async def test_a_place_that_nobody_waits_for_any_more_goes_to_the_next() -> None:
    turns = Places(1)
    assert turns.take() is None
    first, second = turns.take(), turns.take()
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    first.cancel()
    await asyncio.wait_for(second, 10)


async def test_a_turn_in_which_nobody_asks_gives_all_places_back() -> None:
    turns = Places(1)
    for _ in range(3):
        assert turns.take() is None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
