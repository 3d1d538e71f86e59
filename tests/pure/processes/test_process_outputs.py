"""What a program wrote with secrets in it, cut anywhere: between reads, between characters, at the cap."""

from __future__ import annotations

import pytest

from cellgate.processes.outputs import ProcessOutputs, Text
from cellgate_kernels.keeper.programs import StreamName
from cellgate_kernels.protocol.masking import Masker

VALUE = "sk-größe-1234"
MARK = "[secret KEY]"


def outputs(cap: int = 10_000) -> ProcessOutputs:
    return ProcessOutputs(cap, Masker([("KEY", VALUE)]))


def whole(pieces: list[Text], name: StreamName = StreamName.STDOUT) -> str:
    return "".join(piece.text for piece in pieces if piece.name is name)


@pytest.mark.parametrize("at", range(1, len(VALUE.encode())))
def test_a_value_that_is_read_in_two_pieces_is_masked(at: int) -> None:
    found = outputs()
    data = f"a {VALUE} b".encode()
    pieces = [*found.more(StreamName.STDOUT, data[: at + 2]), *found.more(StreamName.STDOUT, data[at + 2 :])]
    pieces += found.rest()
    assert whole(pieces) == f"a {MARK} b"
    assert found.text(StreamName.STDOUT, "") == f"a {MARK} b"


def test_output_of_the_other_stream_in_between_changes_nothing() -> None:
    found = outputs()
    pieces = list(found.more(StreamName.STDOUT, VALUE[:6].encode()))
    pieces += found.more(StreamName.STDERR, VALUE[:4].encode())
    pieces += found.more(StreamName.STDOUT, VALUE[6:].encode())
    pieces += found.rest()
    assert (whole(pieces), whole(pieces, StreamName.STDERR)) == (MARK, VALUE[:4])


def test_the_cap_cuts_what_is_shown_and_not_a_value() -> None:
    found = outputs(cap=100)
    pieces = list(found.more(StreamName.STDOUT, b"x" * 95 + VALUE.encode()))
    pieces += [*found.more(StreamName.STDOUT, VALUE.encode()), *found.rest()]
    assert whole(pieces).partition("\n")[0] == "x" * 95 + MARK[:5]
    assert found.truncated
