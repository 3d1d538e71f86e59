"""The fenced blocks of a Markdown text, and the language that each one names.

CommonMark as parsed by markdown-it. ``cli.notebook_files`` turns the blocks into a file's cells, ``blocks``
into code to run; this module knows neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token

LAZY_LINES = 8
"""Number of a quote's first lines after which lines without a mark may still continue it."""


def fences(text: str) -> Iterable[Token]:
    """Return the fenced blocks, including those in lists and quotes.

    Takes linear time, at most a dozen microseconds a character: the text of paragraphs, for which the parser
    needs more than linear time, is not parsed.
    """
    parser = MarkdownIt("commonmark").disable(["inline", "text_join", "reference"])
    parser.block.ruler.before("fence", "unmarked", _ends_quote, {"alt": ["blockquote"]})
    return (token for token in parser.parse(text) if token.type == "fence")


def _ends_quote(state: StateBlock, line: int, _end: int, silent: bool) -> bool:
    """Return whether a line without a mark ends the parser's current quote: a rule that makes no block.

    Such lines can only continue a paragraph. The parser reads on to the last of them before it finds that the
    quote ended long ago, and does so again for each quote among them.
    """
    return silent and line - state.line >= LAZY_LINES


def fence_language(info: str) -> str:
    """Return the language of an info string: python for ``python title="x"`` and ``{.python #id}``."""
    words = re.split(r"[\s,{}]+", info.strip().strip("{}").strip(), maxsplit=1)
    return words[0].removeprefix(".").lower()
