"""The fenced blocks of a Markdown text, and the language that each one names.

CommonMark as parsed by markdown-it. ``cli.notebook_files`` turns them into a file's cells, ``blocks`` into
code to run; this module knows neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markdown_it import MarkdownIt
from markdown_it.token import Token


def fences(text: str) -> Iterable[Token]:
    """The fenced blocks, including those in lists and quotes."""
    return (token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence")


def fence_language(info: str) -> str:
    """The language of an info string: python for ``python title="x"``, ``{python}`` and ``{.python #id}``."""
    words = re.split(r"[\s,{}]+", info.strip().strip("{}").strip(), maxsplit=1)
    return words[0].removeprefix(".").lower()
