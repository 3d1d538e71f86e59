"""The stored parts of a kernel_info_reply: a few words, each short and printable.

Pure. Code in the kernel can forge the reply. The record, the notebook's metadata and the README of a bundle
repeat it. So fields that Jupyter does not name, or that are too long, are left out. Source: "Messaging in
Jupyter", section "Kernel info".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_CHARACTERS = 200
MOST_MODE = 16
"""The most entries of a CodeMirror mode."""

_WORDS = ("implementation", "implementation_version", "protocol_version")
_LANGUAGE = ("name", "version", "mimetype", "file_extension", "pygments_lexer", "nbconvert_exporter")


def known_info(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a kernel_info_reply that may be stored, in the reply's own form."""
    known: dict[str, Any] = _words(told, _WORDS)
    language = told.get("language_info")
    if isinstance(language, dict):
        kept: dict[str, Any] = _words(language, _LANGUAGE)
        if (mode := _mode(language.get("codemirror_mode"))) is not None:
            kept["codemirror_mode"] = mode
        known["language_info"] = kept
    return known


def is_word(value: object) -> bool:
    """Return whether the value is short text on one line, without control characters."""
    return isinstance(value, str) and 0 < len(value) <= MOST_CHARACTERS and value.isprintable()


def _words(told: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: told[name] for name in names if is_word(told.get(name))}


def _mode(told: object) -> str | dict[str, str | int] | None:
    """Return CodeMirror's mode: a name, or an object with a name and options; None if invalid."""
    if isinstance(told, str) and is_word(told):
        return told
    if not isinstance(told, dict) or not 0 < len(told) <= MOST_MODE:
        return None
    small = (is_word(value) or (isinstance(value, int) and abs(value) < 2**53) for value in told.values())
    return dict(told) if all(map(is_word, told)) and all(small) else None
