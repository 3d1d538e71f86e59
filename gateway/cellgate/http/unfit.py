"""Explains in the words of JSON why a body does not fit, after a decoder has refused it. For ``base``.

The decoder's message is in Python's words ("Expected `float | null`, got `str` - at `$.timeout`"), and it
names an unknown field but not the known ones, one of which was meant. Messages about unknown query parameters
have the same form. Texts in here may be a client's, as long as a body: they are cut before they are shown or
compared, and each is read once. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from cellgate_kernels.base.errors import nearest

MOST_SHOWN: Final = 60
"""Most characters of a client's name that are repeated."""
_MOST_PATH: Final = 200
_EXPECTED: Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_GOT: Final = {**_EXPECTED, "int": "a number", "bool": "a boolean"}
_BOUNDS: Final = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}

_AT: Final = " - at `"
_PATH: Final = re.compile(r"\$((?:\.\w++|\[(?:\d++|\.\.\.)\])*)`", re.ASCII)
_STEP: Final = re.compile(r"\.(\w+)|\[", re.ASCII)
_UNKNOWN: Final = "Object contains unknown field `"
_MISSING: Final = "Object missing required field `"
_WRONG_TYPE: Final = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`")
_OUT_OF_BOUNDS: Final = re.compile(r"Expected `(int|float)` (>=|<=|>|<) (-?[0-9.e+]+)")
_WRONG_LENGTH: Final = re.compile(r"Expected `array` of length (>=|<=) ([0-9]+)")
_WRONG_CHOICE: Final = "Invalid enum value "
_OUT_OF_RANGE: Final = "umber out of range"
"""Msgspec begins it with a capital letter, ``cellgate_kernels.codec.decoding`` with a small one."""


def unfit(told: str, kind: type[Any]) -> str:
    """Return why a body is not a `kind`, for the client. `told`: the decoder's message."""
    problem, path = _parted(told)
    described = _described(kind)  # type: ignore[arg-type]  # a class is hashable
    return f"The request body does not fit: {_why(problem, path, _at(described, path))}"


def _why(problem: str, path: str, described: inspect.Type | None) -> str:
    """Return the problem of the value at the path, whose type is `described`."""
    subject = _subject(path)
    if problem.startswith(_UNKNOWN):
        name = problem[len(_UNKNOWN) :].removesuffix("`")
        fields = described.fields if isinstance(described, inspect.StructType) else ()
        return unknown("field", name, [each.encode_name for each in fields], within=path)
    if problem.startswith(_MISSING):
        return f"{_joined(path, problem[len(_MISSING) :].removesuffix('`'))} is missing"
    if problem.startswith(_WRONG_CHOICE):
        return f"{subject} must be {_choices(described) or 'another value'}"
    if problem.endswith(_OUT_OF_RANGE):
        return f"{subject} is a number out of range"
    if (wrong := _WRONG_TYPE.fullmatch(problem)) is not None:
        expected = _choices(described) or _types(wrong[1])
        return f"{subject} must be {expected}, not {_given(wrong[2], wrong[1])}"
    if (wrong := _OUT_OF_BOUNDS.fullmatch(problem)) is not None:
        return f"{subject} must be {_EXPECTED[wrong[1]]} {_BOUNDS[wrong[2]]} {wrong[3]}"
    if (wrong := _WRONG_LENGTH.fullmatch(problem)) is not None:
        return f"{subject} must be an array {_BOUNDS[wrong[1]]} {wrong[2]} values"
    return f"{subject} is not what is expected here: {shown(problem)}"


def unknown(what: str, name: str, known: Iterable[str], *, within: str = "") -> str:
    """Return the message for an unknown name: the one that was probably meant, and all known ones.

    `what`: its kind, such as a field or a parameter. `within`: the path of its object.
    """
    names = list(known)
    near = nearest(name, names)
    meant = f"; did you mean `{near}`?" if near else "."
    listed = ", ".join(names) or "none"
    return f"unknown {what} `{_joined(within, shown(name))}`{meant} Known {what}s: {listed}"


def shown(text: str) -> str:
    """Return a client's text fit to be repeated: cut, and without control characters."""
    cut = text[:MOST_SHOWN]
    if not cut.isprintable():
        cut = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in cut)
    return f"{cut}..." if len(text) > MOST_SHOWN else cut


def _parted(told: str) -> tuple[str, str]:
    """Return the fault and the value's path, such as ``cells[3].code``; an empty path for the whole body.

    A field of the body itself may be named like the end of such a text. Then its own client alone reads of a
    field that does not exist.
    """
    problem, at, place = told.rpartition(_AT)
    if at and problem and len(place) <= _MOST_PATH:
        of_key, _, place = place.rpartition("key` in `")
        found = _PATH.fullmatch(place)
        if found is not None:
            path = found[1].removeprefix(".")
            return problem, f"{path}[...]" if of_key else path
    return told, ""


def _subject(path: str) -> str:
    """Return the name of the value at a path, to begin a sentence. Keys made up by clients are left out."""
    owner, dots, rest = path.partition("[...]")
    return f"a value in {owner}" if dots and not rest.replace("[...]", "") else path or "it"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@cache
def _described(kind: type[Any]) -> inspect.Type:
    return inspect.type_info(kind)


def _at(described: inspect.Type | None, path: str) -> inspect.Type | None:
    """Return the type of the value at a path; None if different types may be there."""
    for step in _STEP.finditer(f".{path}" if path else ""):
        described = _bare(described)
        if isinstance(described, inspect.StructType):
            fields = {each.encode_name: each.type for each in described.fields}
            described = fields.get(step[1] or "")
        elif isinstance(described, inspect.ListType):
            described = described.item_type
        elif isinstance(described, inspect.DictType):
            described = described.value_type
        else:
            return None
    return _bare(described)


def _bare(described: inspect.Type | None) -> inspect.Type | None:
    """Return a type without its annotations, and without None beside it."""
    while isinstance(described, inspect.Metadata | inspect.UnionType):
        if isinstance(described, inspect.Metadata):
            described = described.type
            continue
        types = [each for each in described.types if not isinstance(each, inspect.NoneType)]
        if len(types) != 1:
            return described
        described = types[0]
    return described


def _choices(described: inspect.Type | None) -> str:
    """Return the possible values, if they are few."""
    if not isinstance(described, inspect.LiteralType):
        return ""
    return _either([msgspec.json.encode(value).decode() for value in described.values])


def _types(expected: str) -> str:
    """Return JSON's words for the decoder's types; null is named only for a field that must be null."""
    names = expected.split(" | ")
    return _either([_EXPECTED.get(name, name) for name in names if name != "null"] or [_EXPECTED["null"]])


def _given(got: str, expected: str) -> str:
    if got == "float" and "int" in expected and "float" not in expected:
        return "a number with a decimal point or an exponent"
    return _GOT.get(got, got)


def _either(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
