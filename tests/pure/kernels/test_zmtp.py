"""The ZMTP decoder, fed by what libzmq says and by what nobody should say."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from cellgate_kernels.base.budget import ReceiveBudget
from cellgate_kernels.channels import zmtp
from cellgate_kernels.channels.zmtp import NOT_COPIED, Decoder, ProtocolError, encode, encode_parts, hello
from tests.support.examples import examples

GREETING = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"

messages = st.lists(
    st.lists(st.one_of(st.binary(max_size=300), st.integers(0, 200_000).map(bytes)), min_size=1, max_size=4),
    max_size=5,
)


def decoded(decoder: Decoder, pieces: list[bytes]) -> list[list[bytes]]:
    found = []
    for piece in pieces:
        decoder.feed(piece)
        while (message := decoder.next()) is not None:
            found.append(message)
    return found


@examples()
@given(messages, st.lists(st.integers(1, 70_000), min_size=1))
def test_messages_survive_any_cut(sent: list[list[bytes]], sizes: list[int]) -> None:
    data = GREETING + READY + b"".join(map(encode, sent))
    pieces = []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    decoder = Decoder()
    assert decoded(decoder, pieces) == sent
    assert decoder.ready


def test_every_single_byte_may_come_alone() -> None:
    sent = [[b"a"], [b"", b"x" * 255, b"y" * 256, b""], [b"z" * 70_000]]
    data = GREETING + READY + b"".join(map(encode, sent))
    decoder = Decoder()
    assert decoded(decoder, [data[i : i + 1] for i in range(len(data))]) == sent


def test_long_frames_are_sent_without_a_copy() -> None:
    long = bytes(NOT_COPIED)
    frames = [b"a", long, b"", b"b" * 300, long, long]
    parts = encode_parts(frames)
    assert b"".join(parts) == encode(frames)
    assert sum(part is long for part in parts) == 3
    assert len(parts) == 6, "what is short is joined"


@pytest.mark.parametrize("place", [0, 9, 10, 12, 31])
def test_another_greeting_is_refused(place: int) -> None:
    wrong = bytearray(GREETING)
    wrong[place] = 1
    decoder = Decoder()
    decoder.feed(bytes(wrong))
    with pytest.raises(ProtocolError, match="ZMTP 3"):
        decoder.next()


def test_nothing_is_read_before_the_greeting_is_whole() -> None:
    decoder = Decoder()
    decoder.feed(GREETING[:-1])
    assert decoder.next() is None
    assert not decoder.ready
    decoder.feed(GREETING[-1:] + encode([b"early"]))
    assert decoder.next() == [b"early"]
    assert not decoder.ready


def test_a_size_that_is_only_claimed_takes_no_memory() -> None:
    budget = ReceiveBudget()
    decoder = Decoder(1000, budget)
    decoder.feed(GREETING + READY + b"\x02" + (2**63 - 1).to_bytes(8, "big"))
    for _ in range(100):
        decoder.feed(bytes(10_000_000))
        assert decoder.next() is None
        assert budget.held == 0


def test_a_message_of_too_many_bytes_is_passed_over_but_for_its_head() -> None:
    decoder = Decoder(1000)
    header, small = b"h" * 400, [b"small"]
    data = GREETING + READY + encode([b"topic", header, b"x" * 601, b"y" * 70_000]) + encode(small)
    decoder.feed(data)
    assert decoder.next() == [b"topic", header]
    assert decoder.left_out == 601 + 70_000
    assert decoder.next() == small
    assert decoder.left_out == 0


@pytest.mark.parametrize("first", [100, 500_000])
def test_a_great_command_is_skipped_and_takes_no_message_with_it(first: int) -> None:
    budget = ReceiveBudget()
    decoder = Decoder(1000, budget)
    command = b"\x06" + (1_000_000).to_bytes(8, "big") + bytes(1_000_000)
    pieces = [GREETING + READY + command[:first], command[first:] + encode([b"next"])]
    assert decoded(decoder, pieces[:1]) == []
    assert budget.held == 0
    assert decoded(decoder, pieces[1:]) == [[b"next"]]
    assert decoder.left_out == 0


def unfinished(budget: ReceiveBudget, size: int) -> Decoder:
    """A decoder that was told of `size` bytes more than it got."""
    decoder = Decoder(10_000_000, budget)
    decoder.feed(GREETING + READY + b"\x03" + (2 * size).to_bytes(8, "big"))
    decoder.feed(bytes(size))
    assert decoder.next() is None
    return decoder


def test_five_that_never_end_hold_no_more_than_the_budget_and_nobody_up() -> None:
    budget = ReceiveBudget(1_000_000)
    stuck = [unfinished(budget, 300_000) for _ in range(5)]
    assert budget.held <= 1_000_000
    assert budget.given_up == 2, "the oldest two"
    other = Decoder(10_000_000, budget)
    message = [b"head", bytes(900_000)]
    data = GREETING + READY + encode(message)
    assert decoded(other, [data[i : i + 50_000] for i in range(0, len(data), 50_000)]) == [message]
    assert budget.held <= 300_000
    # Whoever had to give up goes on with the next message.
    stuck[0].feed(bytes(300_000) + encode([b"last"]) + encode([b"next"]))
    assert stuck[0].next() == []
    assert stuck[0].left_out == 600_004
    assert stuck[0].next() == [b"next"]
    for decoder in (*stuck, other):
        decoder.close()
    assert budget.held == 0


def test_many_frames_of_a_message_that_never_ends_count_too() -> None:
    budget = ReceiveBudget(100_000)
    decoder = Decoder(10_000_000, budget)
    decoder.feed(GREETING + READY + b"\x01\x00" * 5000)
    while decoder.next() is None and decoder.more:
        assert budget.held <= 100_000
    assert budget.given_up == 1


def test_frames_without_end_give_others_their_turn() -> None:
    decoder = Decoder()
    decoder.feed(GREETING + READY + b"\x01\x00" * 100_000)
    turns = 0
    while decoder.next() is None and decoder.more:
        turns += 1
    assert turns >= 100_000 // 2000


@pytest.mark.parametrize("nothing", [b"\x01\x00", b"\x01\x01x", b"\x04\x05\x04PING"])
def test_frames_without_end_that_belong_to_no_message_are_no_kernels(
    monkeypatch: pytest.MonkeyPatch, nothing: bytes
) -> None:
    monkeypatch.setattr(zmtp, "MOST_FRAMES", 10)
    monkeypatch.setattr(zmtp, "MOST_IDLE_FRAMES", 100)
    decoder = Decoder()
    some = nothing * 90 + encode([b"next"])
    assert len(decoded(decoder, [GREETING + READY, some, some])) == 2
    decoder.feed(nothing * 200)
    with pytest.raises(ProtocolError, match="100 frames"):
        decoder.next()


def test_too_many_frames_are_passed_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmtp, "MOST_FRAMES", 10)
    data = GREETING + READY + encode([b"x"] * 11) + encode([b"x"] * 10)
    assert decoded(Decoder(), [data]) == [[b"x"] * 8, [b"x"] * 10]


@pytest.fixture
def router() -> Iterator[tuple[zmq.Socket[bytes], str]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with tempfile.TemporaryDirectory() as folder:
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        path = str(Path(folder) / "s")
        router.bind(f"ipc://{path}")
        yield router, path
        context.destroy(linger=0)


def test_libzmq_understands_and_is_understood(router: tuple[zmq.Socket[bytes], str]) -> None:
    server, path = router
    sent = [b"", b"x" * 255, b"y" * 256, b"z" * 100_000]
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(path)
        client.sendall(hello(b"DEALER", b"me"))
        decoder = Decoder()
        while not decoder.ready:
            decoder.feed(client.recv(65536))
            assert decoder.next() is None
        client.sendall(encode(sent))
        assert server.poll(30_000)
        assert server.recv_multipart() == [b"me", *sent]
        server.send_multipart([b"me", *reversed(sent)])
        while (message := decoder.next()) is None:
            decoder.feed(client.recv(65536))
        assert message == sent[::-1]
