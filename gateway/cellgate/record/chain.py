"""The hash chain that makes the record of a session verifiable.

Pure: bytes in, bytes out. Each row's hash is SHA-256 over the previous hash and the row's body, so changing,
moving or removing a row breaks every later hash. The content of bodies does not matter here; ``events`` makes
the links, ``verify`` and its kin check them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

GENESIS = bytes(32)
"""Stands for the hash before the first row."""


def link(previous: bytes, body: bytes) -> bytes:
    """Return the hash, 32 bytes, of a row that follows the row with hash `previous`."""
    linked = sha256(previous)
    linked.update(body)  # not joined: a body may be large
    return linked.digest()


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of a check.

    `rows`: how many rows are valid, counted from the first. `head`: the hash of the last valid one.
    `first_bad`: the sequence number at which the chain breaks, or None; that row is missing, misplaced or
    changed.
    """

    valid: bool
    rows: int
    head: bytes
    first_bad: int | None


def verify(rows: Iterable[tuple[int, bytes, bytes]], *, head: bytes | None = None) -> Verification:
    """Check rows of (seq, body, hash), in stored order from the session's first; stops at the first bad one.

    A chain can't show that rows are missing at its end: for that, pass a `head` known from elsewhere, such as
    from an exported notebook.
    """
    found = GENESIS
    count = 0
    for seq, body, stored in rows:
        expected = link(found, body)
        if seq != count + 1 or stored != expected:
            return Verification(valid=False, rows=count, head=found, first_bad=count + 1)
        found = expected
        count = seq
    complete = head is None or head == found
    return Verification(valid=complete, rows=count, head=found, first_bad=None if complete else count + 1)
