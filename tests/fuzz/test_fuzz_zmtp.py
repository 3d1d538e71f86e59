"""Frames as a hostile kernel may write them on its socket, through the decoder of ZMTP.

What must not happen: another error than ProtocolError; more bytes held than the budget; a message beyond its
bounds handed out as whole; a difference by how the bytes were cut; a good message lost after bad ones.
"""

from __future__ import annotations

from hypothesis import strategies as st

from cellgate_kernels.base.budget import ReceiveBudget
from cellgate_kernels.channels.zmtp import FRAME_COST, MOST_FRAMES, Decoder, ProtocolError, encode
from tests.fuzz.budget import Fuzz

GREETING = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"
MOST_BYTES = 100_000
BUDGET = 250_000
READ = 256 * 1024
MOST_PIECES = 2000

sizes = st.one_of(st.integers(0, 300), st.integers(0, 300_000), st.just(2**63 - 1), st.just(2**64 - 1))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame: any flags, any announced length, and as much of it or less."""
    flags, size = draw(st.integers(0, 7) | st.integers(0, 255)), draw(sizes)
    head = bytes((flags, size % 256)) if not flags & 2 else bytes((flags,)) + size.to_bytes(8, "big")
    there = draw(st.one_of(st.just(size), st.integers(0, 1000)))
    return head + bytes(min(there, size, 400_000))


streams = st.lists(st.one_of(frames(), st.binary(max_size=40), st.lists(st.binary(max_size=9)).map(encode)))
cuts = st.lists(st.integers(1, READ), min_size=1, max_size=20)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data as it is read, piece by piece; what comes after many small pieces comes in large ones."""
    found: list[bytes] = []
    position = 0
    while position < len(data):
        size = cuts[len(found) % len(cuts)] if len(found) < MOST_PIECES else READ
        found.append(data[position : position + size])
        position += size
    return found


def read(decoder: Decoder, budget: ReceiveBudget, data: list[bytes]) -> list[tuple[list[bytes], int]] | None:
    """What the decoder gives, checked after each step; None when it is no ZMTP."""
    given = []
    for piece in data:
        decoder.feed(piece)
        while True:
            try:
                message = decoder.next()
            except ProtocolError:
                return None
            assert budget.held <= budget.total
            # One piece, and what was left of the one before it: a frame of which little was missing.
            assert len(decoder._buffer) <= 2 * READ + 64 * 1024 + 9
            if message is not None:
                whole = not decoder.left_out
                assert sum(map(len, message)) <= MOST_BYTES
                assert len(message) <= (MOST_FRAMES if whole else 8)
                given.append((message, decoder.left_out))
            elif not decoder.more:
                break
    return given


def check_any_bytes(parts: list[bytes], one: list[int], other: list[int], first: bytes) -> None:
    data = first + b"".join(parts)
    results = []
    for cut in (one, other):
        budget = ReceiveBudget(BUDGET)
        decoder = Decoder(MOST_BYTES, budget)
        results.append(read(decoder, budget, pieces(data, cut)))
        decoder.close()
        assert budget.held == 0
    assert results[0] == results[1], "how it was cut makes a difference"


def test_any_bytes(fuzz: Fuzz) -> None:
    first = st.sampled_from([GREETING + READY, GREETING, GREETING[:20], b""])
    fuzz.run(check_any_bytes, streams, cuts, cuts, first, examples=30)


good = st.lists(st.lists(st.integers(0, 150_000), min_size=1, max_size=12), min_size=1, max_size=6)


def check_good_after_bad(frame_sizes: list[list[int]], cut: list[int]) -> None:
    """Whole messages of any size: those within the bound come as they are, the others are told."""
    budget = ReceiveBudget(BUDGET)
    decoder = Decoder(MOST_BYTES, budget)
    messages = [[bytes(size) for size in sizes] for sizes in frame_sizes]
    data = GREETING + READY + b"".join(map(encode, messages))
    given = read(decoder, budget, pieces(data, cut))
    assert given is not None
    assert len(given) == len(messages)
    for sent, (received, left_out) in zip(messages, given, strict=True):
        size = sum(map(len, sent))
        if size <= MOST_BYTES:
            assert (received, left_out) == (sent, 0)
        else:
            assert left_out == max(1, size - sum(map(len, received)))
            assert received == sent[: len(received)]
    assert budget.held == 0


def test_good_messages_among_too_long_ones(fuzz: Fuzz) -> None:
    fuzz.run(check_good_after_bad, good, cuts)


moves = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["begin", "more", "end", "close"]), st.integers(0, 60_000)),
    max_size=60,
)


def check_many_kernels(steps: list[tuple[int, str, int]]) -> None:
    """Several sockets that share a budget, some of which announce and never end."""
    budget = ReceiveBudget(BUDGET)
    decoders = [Decoder(MOST_BYTES, budget) for _ in range(6)]
    missing = [0] * 6
    for decoder in decoders:
        decoder.feed(GREETING + READY)
        assert decoder.next() is None
    for number, move, size in steps:
        decoder = decoders[number]
        if move == "begin" and not missing[number]:
            missing[number] = 90_000
            decoder.feed(b"\x02" + (90_000).to_bytes(8, "big"))
        elif move == "close":
            decoder.close()
            decoders[number] = decoder = Decoder(MOST_BYTES, budget)
            decoder.feed(GREETING + READY)
            missing[number] = 0
        elif missing[number]:
            part = min(size, missing[number]) if move == "more" else missing[number]
            missing[number] -= part
            decoder.feed(bytes(part))
        message = decoder.next()
        assert message is None or message in ([], [bytes(90_000)])
        assert message is None or bool(message) == (decoder.left_out == 0)
        assert budget.held <= BUDGET
        assert budget.held >= sum(decoder._held for decoder in decoders) - FRAME_COST
    # One that comes now gets in, whatever the others hold.
    last = Decoder(MOST_BYTES, budget)
    last.feed(GREETING + READY + encode([bytes(70_000)])[:1000])
    assert last.next() is None
    last.feed(bytes(70_000 + 9 - 1000))
    assert last.next() == [bytes(70_000)]
    for decoder in decoders:
        decoder.close()
    assert budget.held == 0


def test_many_kernels_share_one_budget(fuzz: Fuzz) -> None:
    fuzz.run(check_many_kernels, moves, examples=100)
