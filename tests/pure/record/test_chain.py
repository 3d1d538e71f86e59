"""The hash chain: every change of what is stored is found, and where."""

from __future__ import annotations

import hashlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cellgate.record.chain import GENESIS, Verification, link, verify
from tests.support.examples import examples

Row = tuple[int, bytes, bytes]
some = examples()


def chain_of(bodies: list[bytes]) -> list[Row]:
    rows, head = [], GENESIS
    for seq, body in enumerate(bodies, 1):
        head = link(head, body)
        rows.append((seq, body, head))
    return rows


chains = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=12, unique=True).map(chain_of)


def test_a_link_is_the_sha256_of_the_former_hash_and_the_body() -> None:
    assert link(GENESIS, b"{}") == hashlib.sha256(bytes(32) + b"{}").digest()


def test_no_rows_are_a_valid_chain() -> None:
    assert verify([]) == Verification(valid=True, rows=0, head=GENESIS, first_bad=None)


@some
@given(chains)
def test_an_untouched_chain_is_valid(rows: list[Row]) -> None:
    assert verify(rows, head=rows[-1][2]) == Verification(True, len(rows), rows[-1][2], None)


@some
@given(chains, st.data())
def test_a_changed_byte_is_found_at_its_row(rows: list[Row], data: st.DataObject) -> None:
    """Of the body or of the hash, whichever byte and however little."""
    index = data.draw(st.integers(0, len(rows) - 1))
    part = data.draw(st.sampled_from([1, 2]))
    row = list(rows[index])
    changed = bytearray(row[part])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    row[part] = bytes(changed)
    rows[index] = tuple(row)
    found = verify(rows)
    assert (found.valid, found.rows, found.first_bad) == (False, index, index + 1)


@some
@given(chains.filter(lambda rows: len(rows) > 1), st.data(), st.booleans())
def test_swapped_rows_are_found(rows: list[Row], data: st.DataObject, renumbered: bool) -> None:
    """Even when the swapped rows take over each other's sequence numbers."""
    first, second = data.draw(st.sampled_from(list(pairwise(range(len(rows))))))
    rows[first], rows[second] = rows[second], rows[first]
    if renumbered:
        rows = [(seq, body, stored) for seq, (_, body, stored) in enumerate(rows, 1)]
    found = verify(rows)
    assert (found.valid, found.first_bad) == (False, first + 1)


@some
@given(chains.filter(lambda rows: len(rows) > 1), st.data(), st.booleans())
def test_a_missing_row_is_found(rows: list[Row], data: st.DataObject, renumbered: bool) -> None:
    """Even when those behind it move up."""
    index = data.draw(st.integers(0, len(rows) - 2))
    del rows[index]
    if renumbered:
        rows = [(seq, body, stored) for seq, (_, body, stored) in enumerate(rows, 1)]
    found = verify(rows)
    assert (found.valid, found.first_bad) == (False, index + 1)


@some
@given(chains, st.binary(max_size=20), st.data())
def test_an_inserted_row_is_found(rows: list[Row], body: bytes, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(rows) - 1))
    before = rows[index - 1][2] if index else GENESIS
    rows.insert(index, (index + 1, body, link(before, body)))
    rows = [(seq, body, stored) for seq, (_, body, stored) in enumerate(rows, 1)]
    assert verify(rows).first_bad == index + 2


@some
@given(chains, st.data())
def test_rows_missing_at_the_end_are_found_by_who_knows_the_head(
    rows: list[Row], data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, len(rows) - 1))
    found = verify(rows[:kept], head=rows[-1][2])
    assert (found.valid, found.rows, found.first_bad) == (False, kept, kept + 1)
