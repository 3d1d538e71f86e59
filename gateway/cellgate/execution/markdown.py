"""The fenced blocks of a Markdown text, and what language each says that it is in.

CommonMark as markdown-it reads it. ``cli.notebook_files`` makes a file's cells of them, ``blocks`` code to
run; neither is known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markdown_it import MarkdownIt
from markdown_it.token import Token


def fences(text: str) -> Iterable[Token]:
    """The fenced blocks, those in lists and quotes too."""
    return (token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence")


def fence_language(info: str) -> str:
    """The language of an info string: of ``python title="x"``, ``{python}`` and ``{.python #id}`` python."""
    words = re.split(r"[\s,{}]+", info.strip().strip("{}").strip(), maxsplit=1)
    return words[0].removeprefix(".").lower()
