"""What a program answers, at the speed that it likes: it is read in time, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cellgate.errors import BadProgramAnswer
from cellgate.ports import exchange
from cellgate.ports.exchange import Exchange
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.places import Places


class Program:
    """Answers with pieces, and pauses before each; then it says nothing more."""

    def __init__(self, pieces: Sequence[bytes], pause: float = 0.0, places: Places | None = None) -> None:
        self.places = places or Places(1000)
        self.received = b""
        self._pieces = list(pieces)
        self._pause = pause

    async def read(self) -> bytes:
        await asyncio.sleep(self._pause)
        if not self._pieces:
            await asyncio.Event().wait()
        return self._pieces.pop(0)

    async def write(self, data: bytes) -> None:
        self.received += data


async def asked(program: Program) -> Exchange:
    made = Exchange(program)  # type: ignore[arg-type]
    await made.begin("GET", "/", [("Host", "h"), ("Connection", "close")])
    await made.finish()
    return made


async def test_a_head_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "HEAD_SECONDS", 0.1)
    dripping = Program([b"HTTP/1.1 200 OK\r\nX: ", *[b"y"] * 10_000], pause=0.01)
    made = await asked(dripping)
    with pytest.raises(BadProgramAnswer, match="in time"):
        await made.answer()


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"]])
async def test_a_program_that_falls_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    monkeypatch.setattr(exchange, "ANSWER_SECONDS", 0.05)
    made = await asked(Program(pieces))
    with pytest.raises(BadProgramAnswer, match="in time"):
        _ = [await made.answer(), [piece async for piece in made.body()]]


async def test_a_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "HEAD_SECONDS", 0.05)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    made = await asked(Program([head, *[b"1\r\nx\r\n"] * 10, b"0\r\n\r\n"], pause=0.02))
    assert (await made.answer()).status == 200
    assert b"".join([piece async for piece in made.body()]) == b"x" * 10


async def test_a_body_of_single_bytes_lets_others_have_their_turns() -> None:
    """They come in one read, so that nothing but this could give them up."""
    count = 10_000
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    made = await asked(Program([head, b"1\r\nx\r\n" * count + b"0\r\n\r\n"]))
    await made.answer()
    turns = 0

    async def bystander() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(bystander())
    pieces = [piece async for piece in made.body()]
    other.cancel()
    assert b"".join(pieces) == b"x" * count
    assert max(map(len, pieces)) == exchange.PIECES_AT_ONCE
    assert turns >= count // exchange.PIECES_AT_ONCE


async def test_bodies_of_single_bytes_share_the_places_of_a_turn() -> None:
    count, programs, places = 2000, 4, Places(8)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answers = [
        await asked(Program([head, b"1\r\nx\r\n" * count + b"0\r\n\r\n"], places=places))
        for _ in range(programs)
    ]

    async def body(made: Exchange) -> bytes:
        await made.answer()
        return b"".join([piece async for piece in made.body()])

    bodies, turns = asyncio.gather(*map(body, answers)), 0
    while not bodies.done():
        turns += 1
        await asyncio.sleep(0)
    assert await bodies == [b"x" * count] * programs
    assert turns >= programs * count / 8


async def test_an_early_answer_is_not_the_answer() -> None:
    made = await asked(Program([b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 Gone\r\n\r\n"]))
    answer = await made.answer()
    assert (answer.status, answer.reason) == (204, "Gone")
    assert [piece async for piece in made.body()] == []


@pytest.mark.parametrize(
    ("method", "target", "name"),
    [("GET", "/a b", "X"), ("G T", "/", "X"), ("GET", "/", "X Y"), ("GET", "/\r\nX: y", "X")],
)
async def test_what_is_no_request_is_not_sent(method: str, target: str, name: str) -> None:
    program = Program([])
    made = Exchange(program)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await made.begin(method, target, [("Host", "h"), (name, "value")])
    assert program.received == b""
