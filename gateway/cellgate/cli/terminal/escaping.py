"""Text from files and kernels for a terminal: control characters are shown instead of obeyed."""

from __future__ import annotations

import unicodedata

_KEPT = frozenset("\n\t")


def printed(text: str) -> str:
    """`text` with control characters, and those that change the reading direction, written as escapes."""
    if text.isprintable():
        return text
    return "".join(letter if _harmless(letter) else ascii(letter)[1:-1] for letter in text)


def printed_line(text: str) -> str:
    """Return the same for text that must stay on its line, such as the name of a file."""
    return printed(text).replace("\n", "\\n").replace("\t", "\\t")


def _harmless(letter: str) -> bool:
    return letter in _KEPT or unicodedata.category(letter) not in {"Cc", "Cf", "Cs"}
