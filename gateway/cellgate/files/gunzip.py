"""Unpacks what arrives compressed by gzip, a bounded piece at a time. Pure.

A few bytes may unpack to very many, so no more than a piece is ever in memory, and the caller decides about
each whether there is room for it. Source of the format: RFC 1952, of which one member is taken.
"""

from __future__ import annotations

import zlib
from typing import Final

from cellgate_kernels.base.errors import InvalidInput

PIECE: Final = 1024 * 1024
"""Most bytes of one step."""


class Gunzip:
    """One stream. `feed` it a chunk, then call `step` until it returns nothing; `end` it after the last."""

    def __init__(self) -> None:
        self._left = b""
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def feed(self, chunk: bytes) -> None:
        """Take a chunk; the steps unpack it."""
        self._left += chunk

    def step(self) -> bytes:
        """Return at most `PIECE` bytes; none when the chunk is used up. Raises InvalidInput."""
        if self._stream.eof:
            return self._check_over()
        try:
            piece = self._stream.decompress(self._left, PIECE)
        except zlib.error as error:
            raise InvalidInput("The body is not compressed by gzip, as its Content-Encoding says") from error
        self._left = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        return piece or self._check_over()

    def _check_over(self) -> bytes:
        """Return nothing. Raises InvalidInput if something is left."""
        if self._left:
            raise InvalidInput("Something follows the compressed body")
        return b""

    def end(self) -> None:
        """Check that the stream is complete. Raises InvalidInput."""
        if not self._stream.eof:
            raise InvalidInput("The compressed body ends too early")
