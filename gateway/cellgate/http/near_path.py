"""Finds the known path that an unknown one probably meant; ``base`` names it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final

from cellgate_kernels.base.errors import nearest

_LONGEST: Final = 300
"""Most characters of a path that is looked at."""
_MOST_WORDS: Final = 10
_ALIKE: Final = 0.8
_VERSION: Final = "v1"
_OTHER_WORDS: Final = MappingProxyType(dict.fromkeys(("exec", "run", "eval", "code", "run_code"), "execute"))
"""The last words of paths at other gateways of code, with ours."""


def near_path(asked: str, known: Iterable[str]) -> str | None:
    """Return the near known path, or None. `known` has names in braces for variable parts.

    Possible mistakes: too many slashes, a version that is missing or doubled, and misspelt words.
    """
    words = [word for word in asked.split("/") if word]
    if len(asked) > _LONGEST or len(words) > _MOST_WORDS or "." in words or ".." in words:
        return None
    found: tuple[int, str] | None = None
    for path in known:
        parts = path.strip("/").split("/")
        for changes, given in _forms(words):
            if (meant := _matched(given, parts)) is not None:
                distance = changes + sum(one != other for one, other in zip(given, meant, strict=True))
                if found is None or distance < found[0]:
                    found = (distance, "/" + "/".join(meant))
    return None if found is None else found[1]


def _forms(words: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the words, and variants with other beginnings, each with the size of the change."""
    yield 0, words
    rest = words[1:] if words[:1] == ["api"] else words
    while rest[:1] == [_VERSION]:
        rest = rest[1:]
    yield 1, rest
    yield 1, [_VERSION, *rest]
    if rest and rest[-1] in _OTHER_WORDS:
        yield 2, [_VERSION, *rest[:-1], _OTHER_WORDS[rest[-1]]]


def _matched(words: list[str], parts: list[str]) -> list[str] | None:
    """Return the words spelt as the parts have them, or None if they differ."""
    if len(words) != len(parts):
        return None
    meant = []
    for word, part in zip(words, parts, strict=True):
        if part.startswith("{"):
            meant.append(word)
        elif part in {word, word.partition(".")[0]} or nearest(word, [part], alike=_ALIKE):
            meant.append(part)
        else:
            return None
    return meant
