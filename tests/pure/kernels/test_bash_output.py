"""What is found in the output of a bash cell does not depend on where the terminal splits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate_kernels.inside.bash_output import MARKS, MOST_NAME, CellOutput, FileLine

PROMPT = "PROMPT_ABCDEFGHIJKL>"
IMAGE, HTML, SCRIPT = MARKS

Pieces = list[str | FileLine]


def joined(pieces: Iterable[str | FileLine]) -> Pieces:
    """Text that arrived in several pieces as one."""
    together: Pieces = []
    for piece in pieces:
        last = together[-1] if together else None
        if isinstance(piece, FileLine) or not isinstance(last, str):
            together.append(piece)
        else:
            together[-1] = last + piece
    return together


def read(*chunks: str) -> Pieces:
    """What is found in output that comes in these chunks; it ends as bash's exit, if not by the prompt."""
    output = CellOutput(PROMPT)
    found: Pieces = []
    for chunk in filter(None, chunks):
        assert not output.ended
        found += output.feed(chunk)
        assert "" not in found
    found += output.end()
    return joined(found)


CELLS: dict[str, tuple[str, Pieces]] = {
    "text before in its line": (
        f"before{IMAGE}/tmp/p\nafter\n",
        ["before", FileLine(f"{IMAGE}/tmp/p\n"), "after\n"],
    ),
    "several pictures": (
        f"{IMAGE}/tmp/p\n{HTML}(id) /tmp/q\nx{SCRIPT}/tmp/r\n",
        [FileLine(f"{IMAGE}/tmp/p\n"), FileLine(f"{HTML}(id) /tmp/q\n"), "x", FileLine(f"{SCRIPT}/tmp/r\n")],
    ),
    "a line that does not end": (f"a\n{IMAGE}/tmp/p", ["a\n", FileLine(f"{IMAGE}/tmp/p")]),
    "a carriage return": (f"50 %\r{IMAGE}/tmp/p\r\nz", ["50 %\r", FileLine(f"{IMAGE}/tmp/p\r\n"), "z"]),
    "two marks in a line": (f"{IMAGE}{HTML}/tmp/q\n", [IMAGE, FileLine(f"{HTML}/tmp/q\n")]),
    "beginnings of marks": (
        f"bash_kernel: saved\nbash_{IMAGE}p\n",
        ["bash_kernel: saved\nbash_", FileLine(f"{IMAGE}p\n")],
    ),
    "beginnings of prompts": ("PROMPT_\nPROPROMPT_ABC", ["PROMPT_\nPROPROMPT_ABC"]),
    "no file": (f"{IMAGE}\n", [FileLine(f"{IMAGE}\n")]),
    "nothing": ("", []),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cells_output_is_the_same_wherever_it_is_split(name: str) -> None:
    written, found = CELLS[name]
    for whole in (written, written + PROMPT):
        assert read(whole) == found
        assert read(*whole) == found
        for first in range(len(whole) + 1):
            assert read(whole[:first], whole[first:]) == found, first
            for second in range(first, len(whole) + 1):
                assert read(whole[:first], whole[first:second], whole[second:]) == found, (first, second)


@given(
    st.lists(st.sampled_from([*MARKS, *"ab\n\r", IMAGE[:9], PROMPT[:4]]), max_size=12).map("".join), st.data()
)
def test_any_output_is_found_wherever_it_is_split(written: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    assert read(*_cut(written, cuts)) == read(written)


def _cut(text: str, cuts: list[int]) -> Iterator[str]:
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        yield text[start:end]


@pytest.mark.parametrize("size", [MOST_NAME, MOST_NAME + 1])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_name_that_is_too_long_is_text_and_holds_nothing_back(size: int, end: str) -> None:
    whole = f"a{IMAGE}{'x' * size}{end}"
    marked = size <= MOST_NAME
    for chunks in ([whole], [whole[:100], whole[100:]], whole, [whole, PROMPT]):
        assert read(*chunks) == (["a", FileLine(whole[1:])] if marked else [whole])
    output = CellOutput(PROMPT)
    assert joined(output.feed(f"{IMAGE}{'x' * size}")) == ([] if marked else [f"{IMAGE}{'x' * size}"])


def test_text_is_passed_on_as_soon_as_it_can_be_nothing_else() -> None:
    output = CellOutput(PROMPT)
    assert [*output.feed("no line's end")] == ["no line's end"]
    assert [*output.feed(f"x{IMAGE[:5]}")] == ["x"]
    assert [*output.feed("!")] == [f"{IMAGE[:5]}!"]
    assert [*output.feed(f"{PROMPT[:5]}")] == []
    assert [*output.feed(f"{IMAGE}/tmp/p\n")] == [PROMPT[:5], FileLine(f"{IMAGE}/tmp/p\n")]


def test_what_comes_after_the_prompt_is_not_waited_for() -> None:
    output = CellOutput(PROMPT)
    assert [*output.feed(f"a{PROMPT[:3]}")] == ["a"]
    assert [*output.feed(f"{PROMPT[3:]}late\n")] == []
    assert (output.ended, output.late) == (True, "late\n")
