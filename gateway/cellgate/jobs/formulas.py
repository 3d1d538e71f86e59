"""LaTeX in pages as MathML, which browsers draw without a script; other text stays as its source.

latex2mathml (the extra ``html``) reads the formulas. Its result is taken apart and written again here, with
listed elements, attributes and values only, so that it can hold nothing but a formula. ``sanitise`` removes
all MathML of outputs; so ours gets into the page afterwards, at unguessable places.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from html import escape, unescape
from importlib.util import find_spec
from typing import Any

LONGEST = 4000
"""Most characters of a formula that is typeset; a longer one is shown as its source."""
MOST = 100_000
"""Most characters of all formulas of a page that are typeset; the markup has some fifty times as many."""
DEEPEST = 40
"""Most levels of braces and the like in LaTeX."""
DEEPEST_MARKUP = 200
"""Most levels of elements; fractions and roots nest without a brace."""

# A definition could double its arguments, again and again.
_DEFINES = re.compile(
    r"\\(?:(?:re)?new(?:command|environment)|providecommand|DeclareMathOperator|[egx]?def|let)(?![a-zA-Z])"
)
_DELIMITED = re.compile(
    r"\$\$(?P<a>[^$]+)\$\$|\$(?P<b>[^$]+)\$|\\\[(?P<c>(?>(?:[^\\]|\\[^\[\]])+))\\\]|\\\((?P<d>(?>(?:[^\\]|\\[^()])+))\\\)"
)
_PLACE = re.compile(r'<b id="formula-([0-9a-f]{32})-(\d{1,6})"></b>')
_WHOLE = re.compile(r"\\begin\{(?P<name>[a-z]{1,20}\*?)\}(?P<body>.*)\\end\{(?P=name)\}", re.DOTALL)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FRAMES = _words("equation equation* displaymath math multline multline* gather gather*")
"""Environments that only place a formula and are not a part of it."""
_OF_FORMULAS = _words("""
    align align* aligned array bmatrix Bmatrix cases matrix pmatrix smallmatrix split vmatrix Vmatrix
""")
ELEMENTS = _words("""
    math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt
    mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none
""")
"""All elements of formulas."""
_ATTRIBUTES = _words("""
    accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height
    largeop linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits
    notation rowlines rowspacing rspace scriptlevel separator stretchy symmetric voffset width
""")
_VALUE = re.compile(r"[A-Za-z0-9 #%.+-]{1,200}")


class Formulas:
    """The formulas of one page: `place` returns a placeholder, which `filled` replaces."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._made: list[str] = []
        self._left = MOST if find_spec("latex2mathml") is not None else 0

    def place(self, latex: str, *, block: bool) -> str | None:
        """Return the placeholder of a formula without delimiters; None if it is shown as its source."""
        if len(latex) > min(LONGEST, self._left):
            return None
        self._left -= len(latex)
        made = mathml(latex, block=block)
        if made is None:
            return None
        self._made.append(made)
        # An element: because of its quotation marks it can't be in an attribute, where MathML must not get.
        return f'<b id="formula-{self._mark}-{len(self._made) - 1}"></b>'

    def of_output(self, text: str) -> str | None:
        """Return markup for the LaTeX of an output, if the whole of it is a formula."""
        found = only_formula(text)
        # With one sign it is in a line, at the left like other outputs.
        in_line = re.match(r"\s*\$(?!\$)", text) is not None
        place = None if found is None else self.place(found, block=not in_line)
        return None if place is None else f'<div class="math">{place}</div>'

    def filled(self, page: str) -> str:
        """Return the page with the formulas at their places."""
        return _PLACE.sub(
            lambda found: self._made[int(found[2])] if found[1] == self._mark else found[0], page
        )


def only_formula(text: str) -> str | None:
    """Return the formula that is the whole text, without delimiters; None if other text is beside it."""
    text = text.strip()
    if len(text) > LONGEST:
        return None
    if found := _DELIMITED.fullmatch(text):
        return next(each for each in found.groups() if each is not None)
    return environment(text)


def environment(text: str) -> str | None:
    """Return the formula that an environment of LaTeX is; None if it is none, or another kind of text."""
    found = _WHOLE.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        return None
    if found["name"] in _FRAMES:
        return found["body"]
    return text if found["name"] in _OF_FORMULAS else None


def mathml(latex: str, *, block: bool) -> str | None:
    """Return a formula as MathML; None if it is not one, or would take too much."""
    if not latex.strip() or len(latex) > LONGEST or _DEFINES.search(latex) or _depth(latex) > DEEPEST:
        return None
    from latex2mathml.converter import Converter  # noqa: PLC0415 - an extra, and slow to load

    try:
        tree = Converter(display="block" if block else "inline").convert_to_element(latex)
        return "".join(_written(tree))
    except Exception:  # noqa: BLE001 - of what it can't read it raises anything, such as StopIteration
        return None


def _depth(latex: str) -> int:
    """Return the greatest depth at which braces and environments are nested."""
    deepest = depth = 0
    for found in re.finditer(r"\\(?:begin|end|left|right|[{}\\])|[{}]|[_^]\s*(?=[_^\\])", latex):
        if found[0] in {"{", "\\begin", "\\left"}:
            depth += 1
        elif found[0] in {"}", "\\end", "\\right"}:
            depth -= 1
        deepest = max(deepest, depth)
    return deepest


def _written(element: Any, depth: int = 0) -> Iterator[str]:
    """Yield the element as markup. Raises ValueError if it is no formula, such as an unknown command."""
    told = element.text or ""
    if element.tag not in ELEMENTS or depth > DEEPEST_MARKUP or told.startswith("\\"):
        raise ValueError(element.tag)
    known = ((name, value) for name, value in element.attrib.items() if name in _ATTRIBUTES)
    attributes = "".join(f' {name}="{value}"' for name, value in known if _VALUE.fullmatch(value))
    # It writes characters as references to them, which would be escaped once more.
    yield f"<{element.tag}{attributes}>{escape(unescape(told), quote=False)}"
    for child in element:
        yield from _written(child, depth + 1)
    yield f"</{element.tag}>"
