"""Writes notebooks as text, cell by cell: exactly the bytes that nbformat would write for the whole.

``nbformat.write`` holds a whole notebook in memory twice; this holds one cell. The tests compare it with
nbformat's own writer. The content of cells does not matter here; ``seal`` hashes the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

OPENING = '{\n "cells": ['
_SPLIT = frozenset({"application/javascript", "image/svg+xml"})


def cell_text(cell: Mapping[str, Any]) -> str:
    """Return a cell as it is in a file; texts of several lines must be `split` first."""
    return to_text(cell, "\n  ")


def tail_text(metadata: Mapping[str, Any], *, empty: bool) -> str:
    """Return the text after the last cell."""
    after = "]" if empty else "\n ]"
    shown = to_text(metadata, "\n ")
    return f'{after},\n "metadata": {shown},\n "nbformat": 4,\n "nbformat_minor": 5\n}}\n'


def to_text(value: Any, newline: str = "\n") -> str:
    """Return `value` as JSON: an indent of one, sorted keys, only the escapes that JSON requires."""
    parts: list[str] = []
    _write(value, newline, parts)
    return "".join(parts)


def _write(value: Any, newline: str, parts: list[str]) -> None:
    inner = newline + " "
    if isinstance(value, str):
        parts.append(encode_basestring(value))
    elif isinstance(value, Mapping) and value:
        before = "{" + inner
        for key in sorted(value):
            parts += (before, encode_basestring(key), ": ")
            _write(value[key], inner, parts)
            before = "," + inner
        parts.append(newline + "}")
    elif isinstance(value, list) and value:
        before = "[" + inner
        for item in value:
            parts.append(before)
            _write(item, inner, parts)
            before = "," + inner
        parts.append(newline + "]")
    else:
        parts.append(json.dumps(value))


def split(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cell with texts as lists of lines, as nbformat has them in files."""
    known = dict(cell)
    known["source"] = cell["source"].splitlines(True)
    if "outputs" in cell:
        known["outputs"] = [_split_output(output) for output in cell["outputs"]]
    return known


def _split_output(output: Mapping[str, Any]) -> Mapping[str, Any]:
    match output["output_type"]:
        case "stream":
            return {**output, "text": output["text"].splitlines(True)}
        case "display_data" | "execute_result":
            data = {
                mime: value.splitlines(True) if isinstance(value, str) and _splits(mime) else value
                for mime, value in output["data"].items()
            }
            return {**output, "data": data}
    return output


def _splits(mime: str) -> bool:
    return mime.startswith("text/") or mime in _SPLIT
