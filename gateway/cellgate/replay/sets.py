"""Sorts the members of sets in printed text: equal sets may be printed in different orders.

Pure. It recognises Python's repr of a set, ``{1, 2}`` or ``frozenset({...})``, whose members are literals,
tuples, calls such as ``Decimal('1')``, or text in angle brackets. The order of dicts and of
``dict_keys([...])`` is significant, so they and any other text in braces are left unchanged.
"""

from __future__ import annotations

import re

LONGEST = 1 << 20
"""Texts with more characters than this are not searched for sets."""
DEEPEST = 20

_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"b?(?:'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")")
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?(?:[-+][\d.]+(?:e[-+]?\d+)?)?j?(?![\w.])"
)
_NAME = re.compile(r"[A-Za-z_][\w.]{0,200}")
_BRACKETED = re.compile(r"<[^<>{}\n]{1,400}>")
_KEYWORD = re.compile(r"[A-Za-z_]\w{0,100}=(?!=)")


class _NoSet(Exception):
    """The text is not the repr of a set; `at` is where that became clear."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def order_sets(text: str) -> str:
    """`text` with the members of each set sorted by their text."""
    at = text.find("{")
    if at < 0 or len(text) > LONGEST:
        return text
    parts: list[str] = []
    done = 0
    while at >= 0:
        try:
            shown, end = _set(text, at, 0)
        except _NoSet as broken:
            # Sets inside the text parsed so far are ignored, so that no text is parsed twice.
            at = text.find("{", max(at + 1, broken.at))
            continue
        parts += [text[done:at], shown]
        done = end
        at = text.find("{", end)
    return "".join([*parts, text[done:]])


def _set(text: str, at: int, depth: int) -> tuple[str, int]:
    members, end = _members(text, at + 1, "}", depth)
    if not members:
        raise _NoSet(end)  # an empty dict
    return "{" + ", ".join(sorted(members)) + "}", end


def _members(text: str, at: int, closing: str, depth: int) -> tuple[list[str], int]:
    """Return the members up to the closing bracket, and where it ends."""
    if depth > DEEPEST:
        raise _NoSet(at)
    members: list[str] = []
    at = _skip(text, at)
    while text[at : at + 1] != closing:
        name = _KEYWORD.match(text, at) if closing == ")" else None
        shown, at = _member(text, at if name is None else name.end(), depth)
        members.append(shown if name is None else name[0] + shown)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise _NoSet(at)
    return members, at + 1


def _member(text: str, at: int, depth: int) -> tuple[str, int]:
    if text[at : at + 1] == "{":
        return _set(text, at, depth + 1)
    if text[at : at + 1] == "(":
        members, end = _members(text, at + 1, ")", depth + 1)
        return f"({', '.join(members)})", end
    for literal in (_STRING.match, _NUMBER.match, _BRACKETED.match):
        if (found := literal(text, at)) is not None:
            return found[0], found.end()
    if (name := _NAME.match(text, at)) is None:
        raise _NoSet(at)
    if text[name.end() : name.end() + 1] != "(":
        return name[0], name.end()
    members, end = _members(text, name.end() + 1, ")", depth + 1)
    return f"{name[0]}({', '.join(members)})", end


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
