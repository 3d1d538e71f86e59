"""Uploads that are compressed: whatever they hold, in bounded pieces."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from cellgate.files.gunzip import PIECE, Gunzip
from cellgate_kernels.base.errors import InvalidInput


def unpacked(chunks: list[bytes]) -> list[bytes]:
    stream, found = Gunzip(), list[bytes]()
    for chunk in chunks:
        stream.feed(chunk)
        while piece := stream.step():
            found.append(piece)
    stream.end()
    return found


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
@pytest.mark.parametrize("chunk", [1, 7, 10**9])
def test_everything_comes_out_in_bounded_pieces(size: int, chunk: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    packed = gzip.compress(content)
    pieces = unpacked([packed[at : at + chunk] for at in range(0, len(packed), chunk)])
    assert b"".join(pieces) == content
    assert max(map(len, pieces), default=0) <= PIECE


def test_a_bomb_is_never_in_memory() -> None:
    packed = gzip.compress(bytes(200 * PIECE))
    stream = Gunzip()
    stream.feed(packed)
    tracemalloc.start()
    try:
        size = 0
        while piece := stream.step():
            size += len(piece)
        assert (size, tracemalloc.get_traced_memory()[1] < 8 * PIECE) == (200 * PIECE, True)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "too early"),
        (gzip.compress(b"x")[:-1], "too early"),
        (b"not compressed", "not compressed by gzip"),
        (gzip.compress(b"x")[:-8] + bytes(8), "not compressed by gzip"),
        (gzip.compress(b"x") + b"y", "follows"),
        (gzip.compress(b"x") * 2, "follows"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 10**9])
def test_what_is_no_whole_stream_is_refused(body: bytes, why: str, chunk: int) -> None:
    with pytest.raises(InvalidInput, match=why):
        unpacked([body[at : at + chunk] for at in range(0, len(body), chunk)])
