"""Fences of Markdown that a client sends are found in linear time, whatever stands around them."""

from __future__ import annotations

import pytest

from cellgate.execution.markdown import fences
from tests.support.growth import Cost, both_costs

PIECES = [
    "*a **a ",
    "[a](",
    "[a]: ",
    "![",
    "`` ` ",
    "<a ",
    "<!-- ",
    "a\n",
    "> ",
    "> a\n",
    "- ",
    "- a\n",
    "1. a\n",
    " - a\n  - a\n",
    "```\n",
    "~~~\n",
    # Each quote ends at a line that the next one begins behind.
    "> ```\na\n",
    "> > > - ```\na\n",
    "- > ```\n  a\n",
    "> ---\n\t    </div>\n",
    "    a\n",
    "[a]: b\n",
    "[a\n",
    "# a\n",
    "a\n=\n",
    "<div>\n",
    "&amp;",
    "\\",
    "\n",
    "\t",
]


@pytest.mark.parametrize("piece", PIECES)
@both_costs
def test_fences_are_found_in_linear_time(piece: str, cost: Cost) -> None:
    def make(size: int) -> str:
        return piece * (size // len(piece))

    cost.check(lambda text: list(fences(text)), make)


def test_fences_are_found_among_all_of_it() -> None:
    texts = [piece for piece in PIECES if piece[0] in "*[!&\\"]
    text = "".join(f"{piece}\n\n```python\nx = {n}\n```\n\n" for n, piece in enumerate(texts))
    assert [token.content for token in fences(text)] == [f"x = {n}\n" for n in range(len(texts))]


@pytest.mark.parametrize("quote", ["> a\n", "> a\nb\nc\n", "> > a\nb\n"])
def test_a_quote_goes_on_in_lines_without_a_mark(quote: str) -> None:
    text = f"- {quote}\n    ```python\n    x = 1\n    ```\n"
    assert [token.content for token in fences(text)] == ["x = 1\n"]


def test_a_quote_ends_at_a_fence_and_has_fences_of_its_own() -> None:
    text = "> ```\n> x = 1\n```\nx = 2\n```\n> a\n> ```\n> x = 3\n> ```\nb\n"
    assert [token.content for token in fences(text)] == ["x = 1\n", "x = 2\n", "x = 3\n"]
