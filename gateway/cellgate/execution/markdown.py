"""The fenced blocks of a Markdown text, and the language that each one names.

CommonMark as parsed by markdown-it. ``cli.notebook_files`` turns them into a file's cells, ``blocks`` into
code to run; this module knows neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token

LAZY_LINES = 8
"""Within so many lines of its first, a quote may go on in lines without a mark."""


def fences(text: str) -> Iterable[Token]:
    """Return the fenced blocks, including those in lists and quotes.

    Takes linear time, a dozen microseconds a character at the most: the text of paragraphs, where the
    parser's time is more than linear, is not read.
    """
    parser = MarkdownIt("commonmark").disable(["inline", "text_join", "reference"])
    parser.block.ruler.before("fence", "unmarked", _ends_quote, {"alt": ["blockquote"]})
    return (token for token in parser.parse(text) if token.type == "fence")


def _ends_quote(state: StateBlock, line: int, _end: int, silent: bool) -> bool:
    """Return whether a line without a mark ends the quote that the parser is in: a rule that makes no block.

    Such lines can only go on with a paragraph. The parser reads on to the last of them before it finds that
    the quote has ended long ago, and does that again for each quote among them.
    """
    return silent and line - state.line >= LAZY_LINES


def fence_language(info: str) -> str:
    """Return the language of an info string: python for ``python title="x"`` and ``{.python #id}``."""
    words = re.split(r"[\s,{}]+", info.strip().strip("{}").strip(), maxsplit=1)
    return words[0].removeprefix(".").lower()
